"""tools/ablation.py as a user runs it."""

import json
import math

import command_lines
import jax
import pytest
from cases import mesh_of
from runs import ROOT

from diffeq_former.training import run_directory

TOOL = "ablation.py"
SMALL = {
    "block": "gpt",
    "weights": "layer_table",
    "solver": "lie_trotter",
    "num_layers": 2,
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 24,
    "vocab_size": 257,
    "max_len": 16,
    "remat": "none",
}
TRAINING = {
    "num_steps": 2,
    "batch_size": 8,
    "eval_every": 1,
    "log_every": 1,
    "sample_every": 0,
}


@pytest.fixture(scope="module")
def flags(trained):
    return [
        f"--config={ROOT}/configs/tiny.py",
        f"--config.data.path={trained.dataset.path}",
        *(f"--config.model.{name}={value}" for name, value in SMALL.items()),
        *(f"--config.training.{name}={value}" for name, value in TRAINING.items()),
    ]


def test_a_run_for_each_value(tool, flags, tmp_path, request):
    """One that is refused ends the study, with its exit code, as a process does.

    The same command resumes after the runs that are done.
    """
    given = (*flags, f"--output={tmp_path}")
    result = command_lines.run_process(TOOL, *given, "--vary=model.d_ff=8,-1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("error: config.model.d_ff")
    first = tmp_path / "model.d_ff=8" / "metrics.jsonl"
    before = first.read_bytes()
    request.getfixturevalue("trainings_in_this_process")
    given = (*given, "--vary=model.d_ff=8,32")
    result = tool(TOOL, *given)
    assert result.returncode == 0, result.stderr
    assert first.read_bytes() == before
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["value"] for line in lines] == ["8", "32"]
    for line in lines:
        assert_figures(tool, tmp_path / f"model.d_ff={line['value']}", line)
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures.jsonl").read_text() == result.stdout
    again = tool(TOOL, *given)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"error: --output={tmp_path}: it is done; name")


def assert_figures(tool, workdir, line):
    """Are those of the run in this folder."""
    run = run_directory.load(workdir, mesh_of())
    assert run.config.model.d_ff == int(line["value"])
    counts = [math.prod(x.shape) for x in jax.tree.leaves(run.params)]
    assert line["parameters"] == sum(counts) and line["tokens_per_second"] > 0
    # At least the parameters, Adam's two moments and the gradients, in float32.
    planned = line["planned_memory_gib"]
    assert line["host_memory_gib"] > planned > 13 * sum(counts) / 2**30
    evaluated = tool("evaluate.py", f"--workdir={workdir}")
    expected = json.loads(evaluated.stdout)["perplexity"]
    assert line["steps"] == [1, 2]
    assert line["perplexity"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "vary", ["model.time_embed=2,3", "model.time_embed_dim=2", "model=2,3", "seed"]
)
def test_what_cannot_be_varied(refused, flags, tmp_path, vary):
    line = refused(TOOL, *flags, f"--vary={vary}", f"--output={tmp_path / 'out'}")
    assert line.startswith(f"--vary={vary}: expected a setting and two or more values")
    assert not (tmp_path / "out").exists()
