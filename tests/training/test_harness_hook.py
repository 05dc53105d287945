"""The harness's tasks while training, against tools/harness.py on the run."""

import dataclasses
import importlib.util
import json

import command_lines
import pytest
from cases import mesh_of
from harness_tasks import task_manager_read_once, write_tasks
from loops import lines, train
from runs import Command, assert_one_line, saved_steps, tiny_config

from diffeq_former.process_exit import OK, STOPPED
from diffeq_former.training import run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest

INSTALLED = importlib.util.find_spec("lm_eval") is not None
needs_harness = pytest.mark.skipif(not INSTALLED, reason="needs lm_eval")
pytestmark = pytest.mark.filterwarnings("default")  # of the harness

TASKS = ("own_choice", "own_texts", "own_answers")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The folders of descriptions and of data."""
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def read_once(tmp_path_factory):
    with task_manager_read_once(tmp_path_factory.mktemp("cache")):
        yield


def with_harness(config, **changes):
    harness = dataclasses.replace(config.harness, **changes)
    return dataclasses.replace(config, harness=harness)


@pytest.fixture(scope="module")
def config(dataset, tasks):
    config = tiny_config(dataset, num_steps=5, eval_every=5, checkpoint_every=5)
    descriptions, data = tasks
    changes = {"task_data": data, "include_path": descriptions, "max_new_tokens": 3}
    return with_harness(config, every=2, tasks=TASKS, batch_size=3, **changes)


@needs_harness
def test_metrics_are_those_of_the_tool(config, read_once, tasks, tmp_path):
    workdir = tmp_path / "run"
    result = Command(tmp_path, config).run(workdir)
    assert result.returncode == 0, result.stderr
    found = [x for x in lines(workdir) if any(n.startswith("harness/") for n in x)]
    assert [x.pop("step") for x in found] == [2, 4, 5]
    descriptions, data = tasks
    flags = [f"--tasks={','.join(TASKS)}", "--max_new_tokens=3", "--batch_size=3"]
    flags += [f"--include_path={descriptions}", f"--task_data={data}"]
    tool = command_lines.run("harness.py", f"--workdir={workdir}", *flags)
    assert tool.returncode == 0, tool.stderr
    expected = {}
    for line in map(json.loads, tool.stdout.splitlines()):
        for name in ("workdir", "num_steps", "num_fewshot", "samples"):
            del line[name]
        task = line.pop("task")
        expected |= {f"harness/{task}/{name}": x for name, x in line.items()}
    assert found[-1] == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert len({x["harness/own_texts/bits_per_byte"] for x in found}) == 3


@needs_harness
def test_examples_limits_and_stops(config, dataset, read_once):
    from diffeq_former.inference.harness_hook import make_harness
    from diffeq_former.training.state import create

    config = run_directory.fit(config, dataset)
    params = create(config, mesh_of()).params
    changes = {"num_fewshot": 2, "limit": 1, "tasks": ("own_choice",)}
    c = with_harness(config, **changes).harness
    evaluate = make_harness(c, config.model, dataset.tokenizer(), mesh_of())
    assert evaluate(params)["own_choice/acc"] in (0.0, 1.0)
    assert evaluate(params, should_stop=lambda: True) is None


@needs_harness
def test_what_only_the_task_shows_does_not_end_the_run(config, read_once, tmp_path):
    workdir = tmp_path / "run"
    flags = ["num_fewshot=10", "tasks=own_answers", "every=5"]
    flags = [f"--config.harness.{flag}" for flag in flags]
    result = Command(tmp_path, config).run(workdir, *flags)
    assert result.returncode == 0 and saved_steps(workdir) == [5], result.stderr
    line = (
        "step 5: no metrics of the harness: config.harness.num_fewshot=10: a task has"
    )
    assert line in result.stderr


@pytest.mark.parametrize("every", [2, 4])
def test_a_stop_during_the_tasks_loses_nothing(config, dataset, tmp_path, every):
    """They run again when the run resumes; with 4, also the evaluation before them."""
    config = with_harness(config, every=every)
    training = dataclasses.replace(config.training, eval_every=4)
    config = run_directory.fit(dataclasses.replace(config, training=training), dataset)
    stop, asked = StopRequest(), []

    def harness(params, should_stop):
        asked.append(should_stop)
        if len(asked) == 1:
            stop.signal = "SIGTERM"
            return None
        return {"task/acc": len(asked)}

    hooks = EvaluationHooks(
        evaluate=lambda params, should_stop: {"loss": 1.0}, sample=None, harness=harness
    )
    assert train(config, tmp_path, dataset, hooks, stop) == STOPPED
    assert saved_steps(tmp_path) == [every]
    assert train(config, tmp_path, dataset, hooks, StopRequest()) == OK
    name = "harness/task/acc"
    written = [(x["step"], x[name]) for x in lines(tmp_path) if name in x]
    evaluated = [x["step"] for x in lines(tmp_path) if "validation/loss" in x]
    steps = [2, 4, 5] if every == 2 else [4, 5]
    assert written == list(zip(steps, range(2, 5), strict=False))
    assert evaluated == [4, 5]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["tasks=()"], "config.harness.tasks: expected names of tasks"),
        (["every=-1"], "config.harness.every: expected 0 or more"),
        (["num_fewshot=-2"], "config.harness.num_fewshot: expected -1 or more"),
        (
            ["tasks=own_txts"],
            "config.harness.tasks: the harness knows no task own_txts",
        ),
        (["tasks=arc_easy"], "config.harness.tasks: task arc_easy cannot be loaded ("),
        (["task_data=nowhere"], "config.harness.task_data: there is no folder nowhere"),
        (["include_path=no"], "config.harness.include_path: there is no folder no"),
    ],
    ids=str,
)
def test_wrong_input(config, request, tmp_path, flags, words):
    if not words.endswith(("tasks", "more")):
        if not INSTALLED:
            pytest.skip("needs lm_eval")
        request.getfixturevalue("read_once")
    flags = [f"--config.harness.{flag}" for flag in flags]
    result = Command(tmp_path, config).run(tmp_path / "run", *flags)
    assert_one_line(result, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(INSTALLED, reason="lm_eval is installed")
def test_without_the_harness(config, tmp_path):
    result = Command(tmp_path, config).run(tmp_path / "run")
    assert_one_line(result, "the package lm_eval is missing: pip install", "[harness]")
    assert not (tmp_path / "run").exists()
