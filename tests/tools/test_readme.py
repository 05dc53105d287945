"""The script of the README that uses, exports and reloads a trained model."""

import re
from pathlib import Path

import numpy as np
import pytest
from cases import tokens_of
from runs import ROOT

import diffeq_former

README = (ROOT / "README.md").read_text(encoding="utf-8")
_, SCRIPT = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
HERE, THERE = SCRIPT.split("from transformers")


def execute(code, names):
    exec(compile(code.replace("=50", "=8"), "README.md", "exec"), names)


@pytest.fixture
def names(trained, monkeypatch, tmp_path):
    """The variables of the first lines, on a tiny run in place of the demo's."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/demo").symlink_to(trained.workdir)
    monkeypatch.chdir(tmp_path)
    names = {}
    execute(HERE, names)
    return names


def test_the_script_uses_and_exports_a_run(capsys, names):
    *text, metrics = capsys.readouterr().out.splitlines()
    assert sum(map(bool, SCRIPT.splitlines())) == 10
    assert "\n".join(text).startswith("It was")
    first, second = re.findall(r"'loss': ([\d.]+)", metrics)
    assert first != second
    model, run = diffeq_former.load("exports/demo"), names["run"]
    tokens_BL = tokens_of(run.config.model)
    found, expected = (
        x.model.apply({"params": x.params}, tokens_BL) for x in (model, run)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert Path("exports/demo/README.md").exists()


def test_transformers_computes_the_same(capsys, names):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    execute(f"from transformers{THERE}", names)
    assert capsys.readouterr().out.splitlines()[-1]
    run, model = names["run"], names["model"].eval()
    tokens_BL = tokens_of(run.config.model)
    with torch.no_grad():
        found = model(torch.tensor(tokens_BL)).logits.numpy()
    expected = run.model.apply({"params": run.params}, tokens_BL)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
