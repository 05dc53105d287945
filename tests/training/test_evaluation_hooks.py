"""Analyses on the way, against the tools' functions on the run's checkpoints."""

import dataclasses

import numpy as np
import pytest
from cases import mesh_of
from loops import StopAfter, lines, train
from runs import tiny_config

from diffeq_former.analysis.during_training import make_analysis
from diffeq_former.analysis.loaded_model import LoadedModel, Sentence, sentence_states
from diffeq_former.analysis.spectra import products
from diffeq_former.analysis.trajectory import describe
from diffeq_former.data.pipeline import validation_batches
from diffeq_former.process_exit import STOPPED
from diffeq_former.training import run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks


def expected(trained: LoadedModel, dataset) -> dict[str, float]:
    """By dense eigenvalue problems, head by head."""
    found, times = {}, trained.times(None)
    of_places = trained.weights_at(times[[0, 1, 1]])  # of two steps
    for name, (a, b) in products(trained.config, of_places).items():
        for place, heads in zip(("first", "middle", "last"), a @ b, strict=True):
            if name == "ff":
                continue
            values = np.linalg.eigvals(heads)
            order = np.argsort(-np.abs(values), axis=-1)[:, : a.shape[-1]]
            kept = np.take_along_axis(values, order, -1)
            key = f"analysis/{name}_{{}}/{place}"
            found[key.format("positive_share")] = np.median((kept.real > 0).mean(-1))
            found[key.format("largest_eigenvalue")] = np.median(np.abs(kept[:, 0]))
    [ids] = next(validation_batches(dataset, batch_size=1))["inputs"]
    states_TLD = sentence_states(trained, Sentence("", tuple(ids), ()))
    times = np.linspace(0, trained.config.interval, len(states_TLD))
    figures = describe(states_TLD, times)
    excess = figures["cost"] / figures["least_cost"]
    return found | {
        **{f"analysis/{n}": figures[n].mean() for n in ("norm", "speed", "angle")},
        "analysis/effective_rank": figures["effective_rank"][-1],
        "analysis/cost_over_least": excess.mean(),
    }


def test_analyses_of_a_run_that_was_interrupted(dataset, tmp_path):
    config = tiny_config(dataset, checkpoint_every=2, keep_latest=3)
    config = dataclasses.replace(config, analysis_every=2)
    config = run_directory.fit(config, dataset)
    hooks = EvaluationHooks(
        evaluate=lambda params, should_stop: {"loss": 1.0},
        sample=None,
        analyse=make_analysis(config, dataset, mesh_of()),
    )
    workdir = tmp_path / "run"
    assert train(config, workdir, dataset, hooks, StopAfter(3)) == STOPPED
    assert train(config, workdir, dataset, hooks, StopAfter(1)) == STOPPED
    written = [line for line in lines(workdir) if "analysis/norm" in line]
    assert [line["step"] for line in written] == [2, 4]
    for line in written:
        run = run_directory.load(workdir, mesh_of(), line.pop("step"))
        model = run.config.model
        trained = LoadedModel("run", model, run.params, run.tokenizer, mesh_of())
        assert line == pytest.approx(expected(trained, dataset), rel=1e-4)
