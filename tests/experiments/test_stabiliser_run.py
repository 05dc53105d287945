"""Runs of the study are runs of the project, and its rules find what they name."""

import collections
import dataclasses
import itertools
import re
import shutil

import jax
import numpy as np
import pytest
from cases import mesh_of
from prepared import prepare_words

from diffeq_former.data.pipeline import train_batches
from diffeq_former.errors import UserError
from diffeq_former.experiments.stabilisers import grid, report, run
from diffeq_former.experiments.stabilisers.study import simulator, stabilisers
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step

SMALL = grid.Training(num_steps=12, batch_size=4, length=8, d_model=8, num_heads=2)
CELL = grid.Cell("transformer", 1.0, "none", "1", 2, 0.01, 3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return prepare_words(tmp_path_factory.mktemp("words"), 16)


def test_the_loss_is_that_of_the_projects_own_training(dataset):
    """Though seed and rate are arguments of one program."""
    mesh, other = mesh_of(), {"seed": 4, "learning_rate": 0.05}
    run.run(grid.model_of(CELL, SMALL, dataset), dataset, mesh)
    model = grid.model_of(dataclasses.replace(CELL, **other), SMALL, dataset)
    found, config = run.run(model, dataset, mesh), model.config
    assert run._programs.cache_info().misses == 1
    now, step = state.create(config, mesh), make_train_step(config, mesh)
    batches = train_batches(dataset, batch_size=4, seed=config.seed)
    losses = []
    for batch in itertools.islice(batches, SMALL.num_steps):
        now, metrics = step(now, {k: x[:, :8] for k, x in batch.items()})
        losses.append(float(metrics["loss"]))
    batches.close()
    np.testing.assert_allclose(found["curves"]["loss"], losses, rtol=1e-4)
    assert found["final_loss"] == pytest.approx(np.mean(losses[-10:]), rel=1e-4)
    assert found["diverged_at"] is None
    assert {len(found["end"][name]) for name in ("gradient_norms", "norm")} == {3}
    assert found["start"]["validation_loss"] > found["end"]["validation_loss"]
    assert np.isfinite(found["end"]["lyapunov"])


def test_a_run_ends_where_it_is_not_finite(dataset):
    cell = dataclasses.replace(CELL, learning_rate=1e30)
    found = run.run(grid.model_of(cell, SMALL, dataset), dataset, mesh_of())
    assert found["diverged_at"] == len(found["curves"]["loss"]) < SMALL.num_steps


def test_an_interrupted_study_resumes(dataset, tmp_path, monkeypatch, capsys):
    options = {"data": str(dataset.path), "norms": ["none", "head"], "num_seeds": 1}
    options |= {"learning_rates": ["0.1"], "residuals": ["1"], "steps": ["1/L"]}
    trained = []

    def stop_at_the_second(model, *_):
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(model)
        return {"final_loss": 2.5, "diverged_at": None}

    reports = []
    monkeypatch.setattr(run, "run", stop_at_the_second)
    monkeypatch.setattr(report, "verdicts", lambda runs: ["row"])
    monkeypatch.setattr(report, "write", lambda _, *written: reports.append(written))
    with pytest.raises(KeyboardInterrupt):
        simulator(tmp_path / "study", **options)
    monkeypatch.setattr(run, "run", lambda *_: {"final_loss": 3, "diverged_at": 7})
    assert simulator(tmp_path / "study", **options) == ["row"]
    [(kind, runs, _)] = reports
    assert (kind, [r["final_loss"] for r in runs]) == ("simulator", [2.5, 3, 3, 3, 3])
    assert [(r["model"], r["residual"], r["norm"], r["step"]) for r in runs] == [
        *(("simulator", 1, norm, "1/L") for norm in ("none", "head")),
        ("transformer", 1, "pre", "1"),
        ("transformer", 1, "none", "1"),
        ("transformer", 0, "pre", "1"),
    ]
    lines = capsys.readouterr().err.splitlines()[1:]
    assert lines[0].endswith("loss 2.500, already done")
    assert re.fullmatch(
        r"2/5 simulator,residual=1,norm=head,step=scaled,depth=4,learning_rate=0.1,"
        r"seed=0: loss 3.000, diverged at step 7, [\d.]+ s, about 0 min left",
        lines[1],
    )
    shutil.rmtree(tmp_path / "study" / "report")
    with pytest.raises(UserError, match="another kind: 'simulator' -> 'stabilisers'"):
        stabilisers(tmp_path / "study", data=str(dataset.path))


def test_divergence():
    losses, norms = 5 - 0.02 * np.arange(40), np.ones(40)
    assert run.divergence(losses, norms) is None
    spike = losses.copy()
    lowest = losses[20:30].mean()
    spike[30] = lowest + 0.99
    assert run.divergence(spike, norms) is None
    spike[30] = lowest + 1.01
    assert run.divergence(spike, norms) == 31
    norms[7] = np.inf
    assert run.divergence(spike, norms) == 8
    spike[2] = np.nan
    assert run.divergence(spike, norms) == 3
    assert run.divergence(losses[:4], norms[:4]) is None
    np.testing.assert_allclose(run.means(np.arange(12.0)), [4.5, 5.5, 6.5])
    assert run.means(np.array([1.0, np.nan])).tolist() == [np.inf]


def test_the_grid():
    cells = grid.Grid().cells
    assert len(cells) == len({c.name for c in cells}) == 96
    assert {c.residual for c in cells if c.step == "1/L"} == {1.0}
    programs = [dataclasses.replace(c, learning_rate=0, seed=0) for c in cells]
    assert len(list(itertools.groupby(programs))) == 24


def test_the_simulators_grid():
    cells = grid.SimulatorGrid().cells
    assert len(cells) == len({c.name for c in cells}) == 135
    programs = [dataclasses.replace(c, learning_rate=0, seed=0) for c in cells]
    assert len(list(itertools.groupby(programs))) == 15
    of_all = [c for c in cells if (c.learning_rate, c.seed) == (1e-2, 0)]
    assert collections.Counter((c.model, c.residual, c.step) for c in of_all) == {
        ("simulator", 1, "1"): 4,
        ("simulator", 1, "1/L"): 4,
        ("simulator", 0, "1"): 4,
        ("transformer", 1, "1"): 2,
        ("transformer", 0, "1"): 1,
    }


def test_models_are_what_their_cells_say(dataset):
    for cell in grid.Grid(learning_rates=(0.1,), num_seeds=1).cells:
        c = grid.model_of(cell, SMALL, dataset).config
        assert c.model.step_size == (1 if cell.step == "1" else 1 / cell.depth)
        assert (c.model.max_len, c.optimizer.clip_norm) == (8, 0)
        norms = {"norm_1", "norm_2"} & state.parameter_shapes(c.model)["weights"].keys()
        assert bool(norms) == (cell.norm != "none")
    assert jax.tree.leaves(state.parameter_shapes(c.model))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"depths": ["4", "four"]}, "--depths=4,four: expected different numbers, sep"),
        ({"depths": ["0"]}, "--depths=0: expected different numbers"),
        ({"residuals": ["1", "1"]}, "--residuals=1,1: expected different numbers"),
        (
            {"residuals": ["2"]},
            "config.model.stabilisers.residual: expected at most 1, got 2",
        ),
        ({"learning_rates": []}, "--learning_rates=: expected different numbers"),
        ({"steps": ["2"]}, "--steps=2: expected some of 1, 1/L, separated by commas"),
        ({"data": "nowhere"}, "no prepared dataset at nowhere"),
        ({"norms": ["none"]}, "is no study of this kind: name another --output"),
    ],
    ids=str,
)
def test_refuses(dataset, tmp_path, options, message):
    (tmp_path / "kept").write_text("")
    with pytest.raises(UserError, match=message):
        stabilisers(tmp_path, **({"data": str(dataset.path)} | options))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
