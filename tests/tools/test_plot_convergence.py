"""tools/plot.py convergence as a user runs it."""

import dataclasses
import json

import pytest

from diffeq_former.config import Stabilisers
from diffeq_former.ode.solvers import SOLVERS

TOOL = ("plot.py", "convergence")


@pytest.mark.slow
def test_writes_the_picture_and_its_numbers(tool, trained, tmp_path):
    """A trained model with fast sinusoids: errors shrink, if not by the order."""
    output = tmp_path / "orders.png"
    flags = ("--num_steps=64,4", "--num_sequences=3", f"--output={output}")
    result = tool(*TOOL, f"--workdir={trained.workdir}", *flags)
    assert result.returncode == 0, result.stderr
    curves = [json.loads(line) for line in result.stdout.splitlines()]
    orders = {curve["solver"]: curve["order"] for curve in curves}
    assert orders == {name: solver.order for name, solver in SOLVERS.items()}
    for curve in curves:
        assert curve["num_steps"] == [4, 64]
        few, many = curve["errors"]
        assert 0 < many < few
    assert output.read_bytes().startswith(b"\x89PNG")


def test_refuses(refused, trained, tmp_path):
    flags = (f"--workdir={trained.workdir}", f"--output={tmp_path / 'orders.png'}")
    line = refused(*TOOL, *flags, "--num_steps=8,0")
    assert line.startswith("--num_steps=8,0: expected whole numbers of 1 or more")
    config = trained.run.config
    (tmp_path / "run").mkdir()
    flags = (f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'orders.png'}")
    model = dataclasses.replace(config.model, stabilisers=Stabilisers(0.5))
    changed = dataclasses.asdict(dataclasses.replace(config, model=model))
    (tmp_path / "run" / "config.json").write_text(json.dumps(changed))
    assert "near no flow; use a run with residual 1" in refused(*TOOL, *flags)
    assert not (tmp_path / "orders.png").exists()
