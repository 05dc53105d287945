"""The loop in this process. Kills: test_resume.py; signals: main/test_signals.py."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from loops import StopAfter, assert_same, last_state, lines, train
from runs import NUM_STEPS, tiny_config

from diffeq_former.errors import UserError
from diffeq_former.process_exit import STOPPED
from diffeq_former.training import checkpoint, run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest


def changed(config, **training):
    settings = dataclasses.replace(config.training, **training)
    return dataclasses.replace(config, training=settings)


def test_what_a_run_leaves(uninterrupted, config):
    assert checkpoint.saved_steps(uninterrupted / "checkpoints")[-2:] == [20, 24]
    written = lines(uninterrupted)
    trained = [line["step"] for line in written if "loss" in line]
    evaluated = [line["step"] for line in written if "validation/loss" in line]
    assert trained == list(range(1, NUM_STEPS + 1))
    assert evaluated == [8, 16, 24]
    final, loss = last_state(uninterrupted, config)
    assert int(final.step) == NUM_STEPS
    assert loss == written[-1]["validation/loss"] < written[8]["validation/loss"]
    samples = (uninterrupted / "samples.txt").read_text()
    assert samples.count("--- step ") == 3


def test_stopped_and_resumed_equals_uninterrupted(
    config, dataset, hooks, uninterrupted, tmp_path
):
    """Three times: after the first step, where it evaluates, and anywhere."""
    workdir = tmp_path / "run"
    done = 0
    for steps in (1, 7, 9):
        done += steps
        code = train(config, workdir, dataset, hooks, StopAfter(steps))
        assert code == STOPPED
        assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == done
    assert train(config, workdir, dataset, hooks, StopRequest()) == 0
    assert_same(workdir, uninterrupted, config)


@pytest.mark.slow
def test_sampled_depths_resume_as_well(config, dataset, hooks, tmp_path):
    config = changed(
        config,
        depth_steps=(1, 2),
        num_steps=8,
        eval_every=8,
    )
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert train(config, whole, dataset, hooks, StopRequest()) == 0
    assert train(config, stopped, dataset, hooks, StopAfter(3)) == STOPPED
    assert train(config, stopped, dataset, hooks, StopRequest()) == 0
    assert_same(stopped, whole, config)
    depths = [line["depth_steps"] for line in lines(whole) if "depth_steps" in line]
    assert len(depths) == 8
    assert set(depths) == {1, 2}


def test_stopped_while_evaluating_evaluates_again(
    config, dataset, hooks, uninterrupted, tmp_path
):
    """In the evaluation of step 8, then in the last one: the run is not done."""
    workdir = tmp_path / "run"
    for signal, step in (("SIGUSR1", 8), ("SIGTERM", NUM_STEPS)):
        stop = StopRequest()

        def interrupted(params, should_stop, stop=stop, signal=signal, step=step):
            if lines(workdir)[-1]["step"] < step:
                return hooks.evaluate(params, should_stop)
            stop.signal = signal
            assert should_stop()

        stopped = dataclasses.replace(hooks, evaluate=interrupted)
        assert train(config, workdir, dataset, stopped, stop) == STOPPED
        assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == step
        last = lines(workdir)[-1]
        assert last["step"] == step and "validation/loss" not in last
        if step == 8:  # again before the next checkpoint, still without the loss
            assert train(config, workdir, dataset, hooks, StopAfter(0)) == STOPPED
    assert train(config, workdir, dataset, hooks, StopRequest()) == 0
    # But for the validation loss of the last checkpoint, which was saved without.
    states = [last_state(path, config)[0] for path in (workdir, uninterrupted)]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert lines(workdir) == lines(uninterrupted)


def test_stopped_before_the_first_step(config, dataset, hooks, tmp_path):
    workdir, stop = tmp_path / "run", StopAfter(0)
    assert train(config, workdir, dataset, hooks, stop) == STOPPED
    assert checkpoint.saved_steps(workdir / "checkpoints") == [0]


def test_done_is_done(config, dataset, uninterrupted):
    before = lines(uninterrupted)
    refuse = EvaluationHooks(evaluate=None, sample=None)
    assert train(config, uninterrupted, dataset, refuse, StopRequest()) == 0
    assert lines(uninterrupted) == before


def test_a_last_state_that_is_not_finite(config, dataset, hooks, tmp_path):
    """The first update leads to it; too few bad steps follow to count as divergence."""
    config = changed(config, num_steps=3, checkpoint_every=1, eval_every=100)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e30)
    config = dataclasses.replace(config, optimizer=optimizer)
    workdir = tmp_path / "run"
    with pytest.raises(UserError) as error:
        train(config, workdir, dataset, hooks, StopRequest())
    [saved] = checkpoint.saved_steps(workdir / "checkpoints")
    assert saved < 3
    assert str(error.value) == (
        "the validation loss after step 3 is not finite: the last good checkpoint is"
        f" that of step {saved}; lower config.optimizer.learning_rate (1e+30) in"
        " another --workdir, or with --allow_config_change"
    )
    *_, validation, diverged = lines(workdir)
    assert validation["validation/loss"] is None
    why = "the validation loss after step 3 is not finite"
    assert diverged == {"step": 3, "diverged": why}


@pytest.fixture(scope="module")
def four_steps(config, dataset, hooks, tmp_path_factory):
    """The folder of a run that was stopped, which no test may change."""
    workdir = tmp_path_factory.mktemp("stopped") / "run"
    assert train(config, workdir, dataset, hooks, StopAfter(4)) == STOPPED
    return workdir


@pytest.fixture
def stopped(four_steps, tmp_path):
    return shutil.copytree(four_steps, tmp_path / "run")


def test_more_steps_need_the_flag(config, dataset, hooks, stopped):
    fewer = changed(config, num_steps=8)
    with pytest.raises(UserError, match="training.num_steps: 24 -> 8"):
        train(fewer, stopped, dataset, hooks, StopRequest())
    options = {"allow_config_change": True}
    assert train(fewer, stopped, dataset, hooks, StopRequest(), **options) == 0
    assert run_directory.read_config(stopped) == fewer
    assert checkpoint.saved_steps(stopped / "checkpoints")[-1] == 8


def test_another_model_does_not_fit_the_checkpoint(config, dataset, hooks, stopped):
    model = dataclasses.replace(config.model, time_embed_dim=5)
    wider = dataclasses.replace(config, model=model)
    options = {"allow_config_change": True}
    with pytest.raises(UserError, match="does not fit the config: params/weights/"):
        train(wider, stopped, dataset, hooks, StopRequest(), **options)
    assert run_directory.read_config(stopped) == config


def test_too_many_bad_steps_end_the_run(config, dataset, hooks, stopped):
    """A step with this learning rate leaves parameters whose loss is not finite."""
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e30)
    steep = dataclasses.replace(changed(config, max_bad_steps=5), optimizer=optimizer)
    options = {"allow_config_change": True}
    with pytest.raises(UserError) as error:
        train(steep, stopped, dataset, hooks, StopRequest(), **options)
    message = str(error.value)
    assert "not finite in 5 steps in a row, up to step 10: " in message
    assert "the last good checkpoint is that of step 4" in message
    assert "config.optimizer.learning_rate (1e+30)" in message
    assert checkpoint.saved_steps(stopped / "checkpoints") == [4]
    restored, _ = last_state(stopped, config)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(restored.params))


def test_wrong_input_leaves_no_folder(dataset, hooks, tmp_path):
    config = run_directory.fit(tiny_config(dataset, batch_size=80000), dataset)
    with pytest.raises(UserError, match="fewer than a batch"):
        train(config, tmp_path / "run", dataset, hooks, StopRequest())
    assert not (tmp_path / "run").exists()
