"""tools/evaluate.py as a user runs it."""

import dataclasses
import json
import shutil

import pytest
from cases import mesh_of
from prepared import prepare_words, random_texts

from diffeq_former import load
from diffeq_former.data import sentencepiece_training
from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.inference.solver_steps import at_depth
from diffeq_former.training.flops import flops_per_token, forward_flops_per_token

TOOL = "evaluate.py"


def figures(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def expected(trained, dataset, num_steps):
    """As the library evaluates it, on other devices and in other batches."""
    config = trained.run.config
    config = dataclasses.replace(config, model=config.model.at_depth(num_steps))
    values = make_evaluate(config, dataset, mesh_of())(trained.run.params)
    close = {name: pytest.approx(value, rel=1e-5) for name, value in values.items()}
    flops = flops_per_token(config.model, dataset.seq_len) / 3
    depth = {"num_steps": num_steps, "flops_per_token": pytest.approx(flops)}
    return {"split": "validation", "step": 3, **depth, **close}


def test_the_runs_own_dataset_and_depth(tool, trained):
    result = tool(TOOL, f"--workdir={trained.workdir}")
    own = trained.run.config.model.num_layers
    [ours] = figures(result)
    assert ours == expected(trained, trained.dataset, own)
    lines = (trained.workdir / "metrics.jsonl").read_text().splitlines()
    merged = {k: v for line in lines for k, v in json.loads(line).items()}
    assert ours["loss"] == pytest.approx(merged["validation/loss"], rel=1e-5)
    assert ours["tokens"] == merged["validation/tokens"]


def test_other_depths_data_and_batches(tool, trained, tmp_path):
    dataset = prepare_words(tmp_path, seq_len=9)
    flags = (f"--data={dataset.path}", "--num_steps=1,4", "--batch_size=5")
    result = tool(TOOL, f"--workdir={trained.workdir}", *flags)
    assert figures(result) == [expected(trained, dataset, n) for n in (1, 4)]


def test_other_solvers(tool, trained):
    """Steps of equal length by the tool, and adaptive ones by the library."""
    flags = ("--solver=diffrax:Heun", "--num_steps=4")
    [equal] = figures(tool(TOOL, f"--workdir={trained.workdir}", *flags))
    assert equal.pop("solver") == "diffrax:Heun"
    model = at_depth(trained.run.config.model, 4, "heun")
    config = dataclasses.replace(trained.run.config, model=model)
    own = make_evaluate(config, trained.dataset, mesh_of())(trained.run.params)
    flops = forward_flops_per_token(model, trained.dataset.seq_len)
    assert equal["loss"] == pytest.approx(own["loss"], rel=1e-5)
    assert equal["flops_per_token"] == pytest.approx(flops)
    run = load(trained.workdir, solver="heun")
    adaptive = run.evaluate(rtol=1e-4)
    assert adaptive["num_evaluations"] > 8
    assert adaptive["loss"] == pytest.approx(own["loss"], rel=0.05)


def test_adaptive_steps(tool, trained):
    flags = ("--solver=diffrax:Heun", "--rtol=0.01")
    [line] = figures(tool(TOOL, f"--workdir={trained.workdir}", *flags))
    assert (line["solver"], line["rtol"]) == ("diffrax:Heun", 0.01)
    model, evaluations = trained.run.config.model, line["num_evaluations"]
    assert evaluations >= 2 and "num_steps" not in line
    ours, length = model.num_layers, trained.dataset.seq_len
    own, head = (forward_flops_per_token(model, length, n) for n in (None, 0))
    expected = head + evaluations / ours * (own - head)
    assert line["flops_per_token"] == pytest.approx(expected)


def test_early_exit(tool, trained):
    """No change is large: all tokens exit after the first step whose change counts."""
    at, flags = f"--workdir={trained.workdir}", ("--exit_threshold=99", "--num_steps=4")
    [line] = figures(tool(TOOL, at, *flags))
    assert (line["num_steps"], line["mean_num_steps"]) == (4, 2)
    run = load(trained.workdir)
    given = run.evaluate(4, exit_threshold=99.0)
    assert line["loss"] == pytest.approx(given["loss"], rel=1e-5)


def test_solvers_that_do_not_suit(refused, trained):
    at = f"--workdir={trained.workdir}"
    line = refused(TOOL, at, "--rtol=0.01")
    assert line.startswith("solver=euler: it has no estimate of its error, by which")
    line = refused(TOOL, at, "--solver=diffrax:Tsit5", "--rtol=1e-12")
    assert line == (
        "rtol=1e-12: diffrax:Tsit5 takes too many steps for this model; use a larger"
        " tolerance"
    )


@pytest.mark.parametrize("value", ["0", "2,x", "", "-1"])
def test_numbers_of_steps_that_are_none(refused, trained, value):
    line = refused(TOOL, f"--workdir={trained.workdir}", f"--num_steps={value}")
    assert line.startswith(f"--num_steps={value}: expected whole numbers of 1 or more")


def test_batches_of_nothing(refused, trained):
    line = refused(TOOL, f"--workdir={trained.workdir}", "--batch_size=0")
    assert line == "batch_size: expected 1 or more, got 0"


def test_no_run(refused, tmp_path):
    assert refused(TOOL, f"--workdir={tmp_path}").startswith(f"{tmp_path} is not a run")


def test_the_runs_dataset_is_gone(refused, trained, tmp_path):
    workdir = shutil.copytree(trained.workdir, tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    config["data"]["path"] = "/no/such/dataset"
    (workdir / "config.json").write_text(json.dumps(config))
    line = refused(TOOL, f"--workdir={workdir}")
    gone = "the run's dataset is no longer at /no/such/dataset: name it with --data"
    assert line == gone


def test_a_dataset_of_another_tokenizer(refused, trained, tmp_path):
    model = tmp_path / "other.model"
    model.write_bytes(sentencepiece_training.train(random_texts(), 320))
    dataset = prepare_words(tmp_path, 16, f"sentencepiece:{model}")
    line = refused(TOOL, f"--workdir={trained.workdir}", f"--data={dataset.path}")
    assert line == (
        f"dataset {dataset.path} has a different tokenizer than the run"
        f" {trained.workdir}: prepare it with the run's"
    )


def test_a_dataset_of_longer_rows(refused, trained, tmp_path):
    dataset = prepare_words(tmp_path, seq_len=17)
    line = refused(TOOL, f"--workdir={trained.workdir}", f"--data={dataset.path}")
    assert line.startswith("config.model.max_len: 16 is too small for the sequences")
