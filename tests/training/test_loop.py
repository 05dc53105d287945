"""The loop in this process. Kills and signals: test_resume.py, test_main.py."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import mesh_of
from loops import StopAfter, assert_same, last_state, lines, train
from prepared import prepare_words
from runs import NUM_STEPS, tiny_config

from diffeq_former.cli import STOPPED
from diffeq_former.errors import UserError
from diffeq_former.evaluation.perplexity import make_evaluate
from diffeq_former.training import checkpoint, run_directory
from diffeq_former.training.judges import Judges
from diffeq_former.training.preemption import StopRequest



@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)


@pytest.fixture(scope="module")
def config(dataset):
    return run_directory.fit(tiny_config(dataset, sample_every=8), dataset)


@pytest.fixture(scope="module")
def judges(config, dataset):
    evaluate = make_evaluate(config, dataset, mesh_of())
    return Judges(
        evaluate=lambda params, should_stop: evaluate(params),
        sample=lambda params: f"{float(params['final_norm']['scale'].sum())}",
    )


@pytest.fixture(scope="module")
def uninterrupted(config, dataset, judges, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    assert train(config, workdir, dataset, judges, StopRequest()) == 0
    return workdir


def test_what_a_run_leaves(uninterrupted, config):
    assert checkpoint.saved_steps(uninterrupted / "checkpoints")[-2:] == [21, 24]
    written = lines(uninterrupted)
    trained = [line["step"] for line in written if "loss" in line]
    judged = [line["step"] for line in written if "validation/loss" in line]
    assert trained == list(range(1, NUM_STEPS + 1))
    assert judged == [8, 16, 24]
    final, loss = last_state(uninterrupted, config)
    assert int(final.step) == NUM_STEPS
    assert loss == written[-1]["validation/loss"] < written[8]["validation/loss"]
    samples = (uninterrupted / "samples.txt").read_text()
    assert samples.count("--- step ") == 3


@pytest.mark.parametrize("stops", [(1, 7, 9)])  # also where it evaluates
def test_stopped_and_continued_equals_uninterrupted(
    config, dataset, judges, uninterrupted, tmp_path, stops
):
    workdir = tmp_path / "run"
    done = 0
    for steps in stops:
        done += steps
        code = train(config, workdir, dataset, judges, StopAfter(steps))
        assert code == STOPPED
        assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == done
    assert train(config, workdir, dataset, judges, StopRequest()) == 0
    assert_same(workdir, uninterrupted, config)


@pytest.mark.slow
def test_drawn_grids_and_depths_continue_as_well(config, dataset, judges, tmp_path):
    training = dataclasses.replace(
        config.training, depth_grid="jittered", depth_steps="1,2,3", eval_every=24
    )
    config = dataclasses.replace(config, training=training)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert train(config, whole, dataset, judges, StopRequest()) == 0
    assert train(config, stopped, dataset, judges, StopAfter(7)) == STOPPED
    assert train(config, stopped, dataset, judges, StopRequest()) == 0
    assert_same(stopped, whole, config)
    depths = [line["depth_steps"] for line in lines(whole) if "depth_steps" in line]
    assert len(depths) == NUM_STEPS and set(depths) == {1, 2, 3}


@pytest.mark.slow
def test_stopped_while_evaluating_evaluates_again(
    config, dataset, judges, uninterrupted, tmp_path
):
    workdir, stop = tmp_path / "run", StopRequest()

    def interrupted(params, should_stop):
        stop.signal = "SIGUSR1"
        assert should_stop()

    stopped = dataclasses.replace(judges, evaluate=interrupted)
    assert train(config, workdir, dataset, stopped, stop) == STOPPED
    assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == 8
    assert train(config, workdir, dataset, judges, StopRequest()) == 0
    assert_same(workdir, uninterrupted, config)


@pytest.mark.slow
def test_stopped_in_the_last_evaluation_is_not_done(
    config, dataset, judges, uninterrupted, tmp_path
):
    workdir, stop = tmp_path / "run", StopRequest()

    def interrupted(params, should_stop):
        if len(lines(workdir)) < NUM_STEPS:
            return judges.evaluate(params, should_stop)
        stop.signal = "SIGTERM"

    stopped = dataclasses.replace(judges, evaluate=interrupted)
    assert train(config, workdir, dataset, stopped, stop) == STOPPED
    assert "validation/loss" not in lines(workdir)[-1]
    assert train(config, workdir, dataset, judges, StopRequest()) == 0
    assert lines(workdir) == lines(uninterrupted)


def test_stopped_before_the_first_step(config, dataset, judges, tmp_path):
    workdir, stop = tmp_path / "run", StopAfter(0)
    assert train(config, workdir, dataset, judges, stop) == STOPPED
    assert checkpoint.saved_steps(workdir / "checkpoints") == [0]


def test_done_is_done(config, dataset, judges, uninterrupted):
    before = lines(uninterrupted)
    refuse = Judges(evaluate=None, sample=None)
    assert train(config, uninterrupted, dataset, refuse, StopRequest()) == 0
    assert lines(uninterrupted) == before


def test_more_steps_need_the_flag(config, dataset, judges, tmp_path):
    workdir = tmp_path / "run"
    train(config, workdir, dataset, judges, StopAfter(4))
    training = dataclasses.replace(config.training, num_steps=6)
    fewer = dataclasses.replace(config, training=training)
    with pytest.raises(UserError, match="training.num_steps: 24 -> 6"):
        train(fewer, workdir, dataset, judges, StopRequest())
    code = train(
        fewer,
        workdir,
        dataset,
        judges,
        StopRequest(),
        allow_config_change=True,
    )
    assert code == 0
    assert run_directory.read_config(workdir) == fewer
    assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == 6


def test_another_model_does_not_fit_the_checkpoint(config, dataset, judges, tmp_path):
    workdir = tmp_path / "run"
    train(config, workdir, dataset, judges, StopAfter(1))
    model = dataclasses.replace(config.model, time_embed_dim=5)
    wider = dataclasses.replace(config, model=model)
    with pytest.raises(UserError, match="does not fit the config: params/weights/"):
        train(
            wider,
            workdir,
            dataset,
            judges,
            StopRequest(),
            allow_config_change=True,
        )
    assert run_directory.read_config(workdir) == config


def test_too_many_bad_steps_end_the_run(config, dataset, judges, tmp_path):
    """A step with this learning rate leaves parameters whose loss is not finite."""
    workdir = tmp_path / "run"
    assert train(config, workdir, dataset, judges, StopAfter(6)) == STOPPED
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e30)
    training = dataclasses.replace(config.training, max_bad_steps=5)
    steep = dataclasses.replace(config, optimizer=optimizer, training=training)
    with pytest.raises(UserError) as error:
        train(
            steep,
            workdir,
            dataset,
            judges,
            StopRequest(),
            allow_config_change=True,
        )
    message = str(error.value)
    assert "not finite in 5 steps in a row, to step 12: " in message
    assert "the last good checkpoint, of step 6, stands" in message
    assert "config.optimizer.learning_rate (1e+30)" in message
    assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == 6
    restored, _ = last_state(workdir, config)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(restored.params))


def test_wrong_input_leaves_no_folder(dataset, judges, tmp_path):
    config = run_directory.fit(tiny_config(dataset, batch_size=80000), dataset)
    with pytest.raises(UserError, match="fewer than a batch"):
        train(config, tmp_path / "run", dataset, judges, StopRequest())
    assert not (tmp_path / "run").exists()
