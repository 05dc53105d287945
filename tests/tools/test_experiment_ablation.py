"""tools/experiment.py ablation as a user runs it."""

import itertools
import json
import math

import command_lines
import jax
import pytest
from cases import mesh_of

from diffeq_former.experiments import ablation
from diffeq_former.training import run_directory

TOOL = ("experiment.py", "ablation")


@pytest.fixture(scope="module")
def flags(trained):
    """The config of the trained run; what is varied leaves its step unchanged."""
    config = trained.workdir.parent / "config.py"
    return [f"--config={config}", "--config.training.sample_every=0"]


def test_a_refused_run_ends_the_study_with_its_exit_code(flags, tmp_path):
    given = (*flags, f"--output={tmp_path}", "--vary=training.eval_every=-1,1")
    result = command_lines.run_process(*TOOL, *given)
    assert (result.returncode, result.stdout) == (2, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: config.training.eval_every")
    assert not list(tmp_path.glob("training.eval_every=1*"))


@pytest.mark.usefixtures("trainings_in_this_process")
def test_a_run_for_each_value(tool, flags, tmp_path):
    """The same command resumes after the runs that are done."""
    given = (*flags, f"--output={tmp_path}")
    result = tool(*TOOL, *given, "--vary=training.eval_every=1,-1")
    assert (result.returncode, result.stdout) == (2, "")
    first = tmp_path / "training.eval_every=1,seed=0" / "metrics.jsonl"
    before = first.read_bytes()
    given = (*given, "--vary=training.eval_every=1,3", "--baseline", "--num_seeds=2")
    result = tool(*TOOL, *given)
    assert result.returncode == 0, result.stderr
    assert first.read_bytes() == before
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    described = [(line["plain"], line["value"], line["seed"]) for line in lines]
    assert described == list(itertools.product([False, True], ["1", "3"], [0, 1]))
    for line in lines:
        assert line["steps"] == {"1": [1, 2, 3], "3": [3]}[line["value"]]
        name = ["plain"] * line["plain"]
        name += ["training.eval_every=1"] * (line["value"] == "1")  # the config's is 3
        name = ",".join(name or ["config"]) + f",seed={line['seed']}"
        assert_figures(tool, tmp_path / name, line)
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures.jsonl").read_text() == result.stdout
    again = tool(*TOOL, *given)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"error: --output={tmp_path}: it is done; name")


def assert_figures(tool, workdir, line):
    """Are those of the run in this folder."""
    run = run_directory.load(workdir, mesh_of())
    assert run.config.training.eval_every == int(line["value"])
    assert run.config.seed == line["seed"]
    assert (run.config.model.weights == "layer_table") == line["plain"]
    counts = [math.prod(x.shape) for x in jax.tree.leaves(run.params)]
    assert line["parameters"] == sum(counts) and line["tokens_per_second"] > 0
    # At least the parameters, Adam's two moments and the gradients, in float32.
    planned = line["planned_memory_gib"]
    assert line["host_memory_gib"] > planned > 13 * sum(counts) / 2**30
    evaluated = tool("evaluate.py", f"--workdir={workdir}")
    expected = json.loads(evaluated.stdout)["perplexity"]
    assert line["losses"][-1] == pytest.approx(math.log(expected), rel=1e-5)
    assert line["perplexity"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "vary", ["model.time_embed_dim=2", "model=2,3", "model.time_embed_dim", "seed"]
)
def test_what_cannot_be_varied(refused, flags, tmp_path, vary):
    line = refused(*TOOL, *flags, f"--vary={vary}", f"--output={tmp_path / 'out'}")
    assert line.startswith(f"--vary={vary}: expected a setting and two or more values")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("vary", "nearest"),
    [
        ("model.num_layrs=4,8", "model.num_layers"),
        ("modle.num_layers=4,8", "model.num_layers"),
        ("training.learning_rate=1e-3,2e-3", "optimizer.learning_rate"),
        ("training.num_stps=4,8", "training.num_steps"),
        ("num_layers=4,8", "model.num_layers"),
    ],
)
def test_the_nearest_setting_is_named(refused, flags, tmp_path, vary, nearest):
    line = refused(*TOOL, *flags, f"--vary={vary}", f"--output={tmp_path / 'out'}")
    assert line == f"--vary={vary}: no such key; the nearest is {nearest}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.b3=0.9", "=optimizer.b3=0.9: no such key; the nearest is optimize"),
        (
            "optmizer.b2=0.9",
            "=optmizer.b2=0.9: no such key; the nearest is optimizer.b2",
        ),
        ("optimizer.b2", ": expected SECTION.FIELD=VALUE, got 'optimizer.b2'"),
    ],
)
def test_wrong_settings_of_the_plain_transformer(
    refused, flags, tmp_path, setting, message
):
    """They are refused before the other models are trained."""
    given = ("--vary=optimizer.b1=0.8,0.9", "--baseline", f"--plain={setting}")
    line = refused(*TOOL, *flags, *given, f"--output={tmp_path / 'out'}")
    assert line.startswith(f"--plain{message}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "plain", "values"),
    [
        ("optimizer.b2", [], ["1", "2"]),
        ("optimizer.b2", ["optimizer.b2=0.999"], [None]),
        ("model.time_embed_dim", [], [None]),
        ("model.weights", [], [None]),
        ("optimizer.b2", None, []),
    ],
)
def test_the_plain_transformer_has_the_values_that_it_can_have(setting, plain, values):
    found = ablation.variants(setting, ["1", "2"], plain)
    assert found[:2] == [("1", False), ("2", False)]
    assert found[2:] == [(value, True) for value in values]


def test_settings_of_the_plain_transformer_need_it(refused, flags, tmp_path):
    given = ("--vary=optimizer.b2=0.9,0.99", "--plain=optimizer.b2=0.999")
    line = refused(*TOOL, *flags, *given, f"--output={tmp_path / 'out'}")
    assert line == "--plain=optimizer.b2=0.999: needs --baseline"
