"""tools/convert.py discretise as a user runs it, and what other tools do with it."""

import dataclasses
import json

import pytest
from cases import mesh_of
from runs import Command

from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.training import run_directory

TOOL = ("convert.py", "discretise")
NUM_STEPS = 5


@pytest.fixture(scope="module")
def discrete(tool, trained, tmp_path_factory):
    output = tmp_path_factory.mktemp("discrete") / "run"
    flags = (f"--num_steps={NUM_STEPS}", f"--output={output}")
    result = tool(*TOOL, f"--workdir={trained.workdir}", *flags)
    assert result.returncode == 0, result.stderr
    [line] = map(json.loads, result.stdout.splitlines())
    assert (line["num_steps"], line["output"]) == (NUM_STEPS, str(output))
    assert "model.weights: 'hypernetwork' -> 'layer_table'" in result.stderr
    assert [path.name for path in output.parent.iterdir()] == ["run"]
    return output


@pytest.fixture(scope="module")
def loss(trained):
    """Of the continuous model in so many steps."""
    config = trained.run.config
    config = dataclasses.replace(config, model=config.model.at_depth(NUM_STEPS))
    evaluate = make_evaluate(config, trained.dataset, mesh_of())
    return evaluate(trained.run.params)["loss"]


def test_it_is_evaluated_as_the_continuous_model(tool, discrete, loss):
    result = tool("evaluate.py", f"--workdir={discrete}")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["loss"] == pytest.approx(loss, rel=1e-5)


def test_it_writes(tool, discrete):
    flags = ("--prompt=the", "--max_new_tokens=4", "--temperature=0")
    result = tool("generate.py", f"--workdir={discrete}", *flags)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("the")


@pytest.mark.slow
def test_training_goes_on_from_it(discrete, loss, tmp_path):
    """At a rate that moves nothing, so that the weights that it starts from show."""
    config = run_directory.read_config(discrete)
    slow = dataclasses.replace(config.optimizer, learning_rate=1e-12)
    config = dataclasses.replace(config, optimizer=slow)
    result = Command(tmp_path, config).run(discrete, "--allow_config_change")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["step"] == config.training.num_steps
    assert figures["loss"] == pytest.approx(loss, rel=1e-5)


def test_nothing_is_said_where_no_setting_changes(tool, discrete, tmp_path):
    given = (f"--num_steps={NUM_STEPS}", f"--output={tmp_path / 'run'}")
    result = tool(*TOOL, f"--workdir={discrete}", *given)
    assert (result.returncode, result.stderr) == (0, "")


def test_nothing_is_overwritten(refused, trained, tmp_path):
    (tmp_path / "mine").mkdir()
    flags = ("--num_steps=3", f"--output={tmp_path / 'mine'}")
    line = refused(*TOOL, f"--workdir={trained.workdir}", *flags)
    assert line.startswith(f"output {tmp_path / 'mine'} exists: remove it or name")


def test_what_is_refused_leaves_nothing(refused, trained, tmp_path):
    flags = ("--num_steps=0", f"--output={tmp_path / 'run'}")
    line = refused(*TOOL, f"--workdir={trained.workdir}", *flags)
    assert line == "num_steps: expected 1 or more, got 0"
    flags = ("--num_steps=3", f"--output={tmp_path / 'run'}")
    line = refused(*TOOL, f"--workdir={tmp_path}", *flags)
    assert line.startswith(f"{tmp_path} is not a run")
    assert list(tmp_path.iterdir()) == []
