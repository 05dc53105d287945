"""tools/harness.py as a user runs it, on tasks that the test writes."""

import functools
import itertools
import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from harness_tasks import (
    ASKED,
    CHOICE,
    TEXTS,
    task_manager_read_once,
    write_paper_tasks,
    write_tasks,
)

from diffeq_former.analysis import downstream
from diffeq_former.models.transformer import Transformer

lm_eval = pytest.importorskip("lm_eval")
datasets = pytest.importorskip("datasets")
TOOL = "harness.py"


@pytest.fixture(scope="module", autouse=True)
def shared_task_manager(tmp_path_factory):
    with task_manager_read_once(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def harness(tool, trained, tasks):
    descriptions, data = tasks

    def run(names, *flags):
        where = (f"--include_path={descriptions}", f"--task_data={data}")
        result = tool(
            TOOL, f"--workdir={trained.workdir}", f"--tasks={names}", *where, *flags
        )
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


@functools.partial(jax.jit, static_argnums=0)
def log_p_of(model, params, tokens_L):
    logits_BLV = Transformer(model).apply({"params": params}, tokens_L[None])
    return jax.nn.log_softmax(logits_BLV[0])


def log_p(run, num_steps, context, more):
    """From one pass over as much of the sequence as the model reads.

    What is put after it changes nothing: the model is causal.
    """
    model = run.config.model.at_depth(num_steps).for_inference()
    whole = (context + more)[-model.max_len - 1 :]
    L = len(whole) - 1
    tokens_L = np.zeros(model.max_len, np.int32)
    tokens_L[:L] = whole[:-1]
    log_p_LV = np.asarray(log_p_of(model, run.params, tokens_L))[:L]
    n = min(len(more), model.max_len)
    return sum(row[t] for row, t in zip(log_p_LV[-n:], whole[-n:], strict=True))


def accuracy(run, num_steps):
    def score(row, option):
        question = row["question"].rstrip()  # the space belongs to the option
        more = row["question"][len(question) :] + option
        return log_p(run, num_steps, list(question.encode()), list(more.encode()))

    chosen = [np.argmax([score(row, x) for x in row["options"]]) for row in CHOICE]
    return np.mean([c == row["answer"] for c, row in zip(chosen, CHOICE, strict=True)])


def bits_per_byte(run, num_steps):
    """Windows of 16 tokens, each but the first after the last token before it."""
    nats = 0.0
    for row in TEXTS:
        tokens, C = list(row["text"].encode()), run.config.model.max_len
        nats -= log_p(run, num_steps, [run.tokenizer.eot], tokens[:C])
        for start in range(C, len(tokens), C):
            new = tokens[start : start + C]
            before = tokens[max(0, start + len(new) - C - 1) : start]
            nats -= log_p(run, num_steps, before, new)
    return nats / math.log(2) / sum(len(row["text"].encode()) for row in TEXTS)


def test_scores_at_any_depth(harness, trained):
    lines = harness("own_choice,own_texts", "--num_steps=1,4", "--batch_size=3")
    scores = {(line["task"], line["num_steps"]): line for line in lines}
    assert len(lines) == len(scores) == 4
    for depth in (1, 4):
        choice, texts = scores["own_choice", depth], scores["own_texts", depth]
        assert choice["acc"] == accuracy(trained.run, depth)
        expected = bits_per_byte(trained.run, depth)
        assert texts["bits_per_byte"] == pytest.approx(expected, rel=1e-4)
        assert (choice["samples"], texts["samples"]) == (len(CHOICE), len(TEXTS))
        assert "acc_stderr" in choice


def test_examples_answers_and_limits(harness, trained):
    flags = ("--num_fewshot=0,5", "--limit=2", "--max_new_tokens=3")
    lines = harness("own_choice,own_answers", *flags)
    described = {(x["task"], x["num_fewshot"], x["samples"]) for x in lines}
    names = ("own_choice", "own_answers")
    assert described == {(name, n, 2) for name in names for n in (0, 5)}
    [answers] = [x for x in lines if x["task"] == "own_answers"][:1]
    assert len(ASKED) == 2 and 0 <= answers["exact_match"] <= 1


def test_the_papers_tasks_of_two_runs_side_by_side(tool, trained, tmp_path):
    """A dry run on rows of the same form; each row is the same, so chance is 0 or 1."""
    folder = Path(lm_eval.__file__).parent / "tasks/mmlu/default"
    subjects = [path.stem.removeprefix("mmlu_") for path in folder.glob("mmlu_*.yaml")]
    data, picture = tmp_path / "data", tmp_path / "tasks.png"
    write_paper_tasks(data, subjects, num_rows=7)
    (tmp_path / "same").symlink_to(trained.workdir)
    runs = [f"--workdir={trained.workdir}", f"--workdir={tmp_path / 'same'}"]
    given = ("--limit=2", "--num_fewshot=0,5", "--paper=llama1b")
    result = tool(TOOL, *runs, *given, f"--task_data={data}", f"--output={picture}")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    shown = [x for x in lines if "group" not in x]
    assert sorted(x["task"] for x in shown) == sorted([*downstream.TASKS] * 4)
    assert {(x["task"], x["num_fewshot"]) for x in shown} == set(
        itertools.product(downstream.TASKS, (0, 5))
    )
    assert all(x["acc"] in (0, 1) and x["acc_stderr"] == 0 for x in shown)
    half = len(lines) // 2
    for one, same in zip(lines[:half], lines[half:], strict=True):
        assert one | {"workdir": str(tmp_path / "same")} == same
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--paper=gpt_large"], "--paper=gpt_large: needs --output, the plot to write"),
        (["--output=a.svg"], "output a.svg: expected a name that ends with .png"),
        (["--tasks=arc_esy"], "--tasks: the harness knows no task arc_esy; did you me"),
        (["--num_fewshot=-1"], "--num_fewshot=-1: expected whole numbers"),
        (["--num_steps=0"], "--num_steps=0: expected whole numbers of 1 or more"),
        (["--task_data=nowhere"], "--task_data: there is no folder nowhere"),
        (["--workdir=nowhere"], "nowhere is not a run"),
        (["--tasks=arc_easy"], "--tasks: task arc_easy cannot be loaded ("),
    ],
    ids=str,
)
def test_wrong_input(refused, trained, tasks, flags, words):
    descriptions, data = tasks
    where = (f"--include_path={descriptions}", f"--task_data={data}")
    given = (f"--workdir={trained.workdir}", "--tasks=own_texts", *where, *flags)
    assert refused(TOOL, *given).startswith(words)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--num_fewshot=10", "--num_fewshot=10: a task has fewer examples"),
        ("--max_new_tokens=17", "max_gen_toks: 17 new tokens are requested"),
    ],
)
def test_what_only_the_task_shows(tool, trained, tasks, flag, words):
    """Below what the harness says of its work."""
    descriptions, data = tasks
    where = (f"--include_path={descriptions}", f"--task_data={data}")
    given = (f"--workdir={trained.workdir}", "--tasks=own_answers", *where, flag)
    result = tool(TOOL, *given)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"error: {words}")
