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
        evaluated = tool("evaluate.py", f"--workdir={workdir}")
        expected = json.loads(evaluated.stdout)["perplexity"]
        assert line["steps"] == [2, 4]
        assert line["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures.jsonl").read_text() == result.stdout


@pytest.mark.parametrize(
    "vary", ["model.time_embed=2,3", "model.time_embed_dim=2", "model=2,3", "seed"]
)
def test_what_cannot_be_varied(refused, flags, tmp_path, vary):
    line = refused(TOOL, *flags, f"--vary={vary}", f"--output={tmp_path / 'out'}")
    assert line.startswith(f"--vary={vary}: expected a setting and two or more values")
    assert not (tmp_path / "out").exists()
