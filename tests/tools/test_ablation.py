"""tools/ablation.py as a user runs it."""

import json
import math

import jax
import pytest
from cases import mesh_of
from runs import ROOT

from diffeq_former.training import run_directory

TOOL = "ablation.py"
SMALL = ("num_layers=2", "d_model=16", "num_heads=2", "vocab_size=257", "max_len=16")


@pytest.fixture(scope="module")
def flags(trained):
    model = [f"--config.model.{setting}" for setting in SMALL]
    training = ("num_steps=4", "batch_size=8", "eval_every=2", "log_every=1")
    return [
        f"--config={ROOT}/configs/tiny.py",
        f"--config.data.path={trained.dataset.path}",
        *model,
        *(f"--config.training.{setting}" for setting in training),
    ]


@pytest.mark.slow
def test_a_run_for_each_value(tool, flags, tmp_path):
    given = (*flags, "--vary=model.time_embed_dim=2,5", f"--output={tmp_path}")
    result = tool(TOOL, *given)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["value"] for line in lines] == ["2", "5"]
    for line in lines:
        workdir = tmp_path / f"model.time_embed_dim={line['value']}"
        run = run_directory.load(workdir, mesh_of())
        assert run.config.model.time_embed_dim == int(line["value"])
        counts = [math.prod(x.shape) for x in jax.tree.leaves(run.params)]
        assert line["parameters"] == sum(counts) and line["tokens_per_second"] > 0
        # At least the parameters, Adam's two moments and the gradients, in float32.
        assert (
            line["host_memory_gib"]
            > line["planned_memory_gib"]
            > 13 * sum(counts) / 2**30
        )
        evaluated = tool("evaluate.py", f"--workdir={workdir}")
        expected = json.loads(evaluated.stdout)["perplexity"]
        assert line["steps"] == [2, 4]
        assert line["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures.jsonl").read_text() == result.stdout
    again = tool(TOOL, *given)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"error: --output={tmp_path}: it is done; name")


@pytest.mark.slow
def test_a_run_that_is_refused_ends_the_study(tool, flags, tmp_path):
    """With its exit code; the same command goes on from the runs before it."""
    given = (*flags, f"--output={tmp_path}")
    result = tool(TOOL, *given, "--vary=model.num_heads=2,3")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("error: config.model.num_heads")
    first = tmp_path / "model.num_heads=2"
    before = (first / "metrics.jsonl").read_bytes()
    result = tool(TOOL, *given, "--vary=model.num_heads=2,4")
    assert result.returncode == 0, result.stderr
    assert (first / "metrics.jsonl").read_bytes() == before
    assert [json.loads(x)["value"] for x in result.stdout.splitlines()] == ["2", "4"]


@pytest.mark.parametrize(
    "vary", ["model.time_embed=2,3", "model.time_embed_dim=2", "model=2,3", "seed"]
)
def test_what_cannot_be_varied(refused, flags, tmp_path, vary):
    line = refused(TOOL, *flags, f"--vary={vary}", f"--output={tmp_path / 'out'}")
    assert line.startswith(f"--vary={vary}: expected a setting and two or more values")
    assert not (tmp_path / "out").exists()
