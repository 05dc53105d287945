"""Runs that diverge and go back to a checkpoint.

The parameters are broken for one token, which a single row of the data has. So a run
diverges where its order of the data has that row, in each order at another step.
"""

import dataclasses
import re
import shutil
import time

import jax
import numpy as np
import pytest
import several
from cases import params_of
from loops import StopAfter, assert_same, last_state, lines, train
from prepared import prepare_words, random_texts
from runs import Command, tiny_config

from diffeq_former.data.pipeline import train_batches
from diffeq_former.errors import UserError
from diffeq_former.process_exit import STOPPED
from diffeq_former.training import checkpoint, run_directory, state
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest

BROKEN = 1  # the token's id: a byte that the words do not have
START, END = 3, 18
CHECKPOINTS = range(START, END + 1, 3)
HOOKS = EvaluationHooks(
    evaluate=lambda params, should_stop: {"loss": 1.0}, sample=lambda params: "words"
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    texts = random_texts()
    texts.insert(7, chr(BROKEN))
    return prepare_words(tmp_path_factory.mktemp("data"), 16, texts=texts)


def steps_with_the_row(dataset, seed: int, number: int, start: int) -> list[int]:
    options = {"batch_size": 8, "seed": seed, "number": number, "start_step": start}
    batches = train_batches(dataset, **options)
    steps = range(start + 1, END + 1)
    found = [step for step in steps if (next(batches)["inputs"] == BROKEN).any()]
    batches.close()
    return found


def rollback_of(dataset, seed: int, number: int, start: int) -> tuple[int, int] | None:
    """Where this order diverges, and where it goes back to."""
    if not (found := steps_with_the_row(dataset, seed, number, start)):
        return None
    good = [step for step in CHECKPOINTS if start <= step < found[0] - 1]
    return found[0], max(good, default=start)


@pytest.fixture(scope="module")
def seed(dataset):
    """Two orders diverge, each after another checkpoint; the third does not."""
    for seed in range(1000):
        first = rollback_of(dataset, seed, 0, START)
        if first is None or first[1] == START:
            continue
        second = rollback_of(dataset, seed, 1, first[1])
        if second is None or second[1] == first[1]:
            continue
        if rollback_of(dataset, seed, 2, second[1]) is None:
            return seed


@pytest.fixture(scope="module")
def config(dataset, seed):
    config = tiny_config(
        dataset,
        num_steps=END,
        max_bad_steps=1,
        rollbacks=2,
        eval_every=100,
        keep_best=0,
        sample_every=9,
    )
    # Without dropout, since XLA fuses that of the embeddings differently on a mesh, and
    # between fused operations it need not round to bfloat16.
    model = dataclasses.replace(
        config.model, block="llama", dtype="bfloat16", dropout=0.0
    )
    return run_directory.fit(
        dataclasses.replace(config, model=model, seed=seed), dataset
    )


def first_state(config, mesh):
    return state.with_params(config, mesh, params_of(config.model, stddev=0.02))


@pytest.fixture(scope="module")
def broken(config, dataset, tmp_path_factory):
    """A run whose only checkpoint has the broken parameters."""
    workdir = tmp_path_factory.mktemp("runs") / "broken"
    options = {"first_state": first_state}
    train(config, workdir, dataset, HOOKS, StopAfter(START), **options)
    latest, _ = last_state(workdir, config)
    embedding = latest.params["embedding"]
    # Finite, but not in bfloat16.
    embedding["token"] = embedding["token"].at[BROKEN].set(3.4e38)
    shutil.rmtree(workdir / "checkpoints")
    checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", 2, 0)
    checkpoints.save(START, latest)
    checkpoints.close()
    return workdir


@pytest.fixture(scope="module")
def uninterrupted(broken, config, dataset, tmp_path_factory):
    workdir = copy_of(broken, tmp_path_factory.mktemp("runs"))
    assert train(config, workdir, dataset, HOOKS, StopRequest()) == 0
    return workdir


def copy_of(workdir, folder):
    return shutil.copytree(workdir, folder / "run")


def changed(config, **training):
    settings = dataclasses.replace(config.training, **training)
    return dataclasses.replace(config, training=settings)


def records(workdir) -> list[dict]:
    return [line for line in lines(workdir) if "rollbacks" in line]


@pytest.fixture(scope="module")
def expected(config, dataset):
    """For each of both rollbacks: at which step it diverged, where it went back to."""
    first = rollback_of(dataset, config.seed, 0, START)
    return [first, rollback_of(dataset, config.seed, 1, first[1])]


def test_goes_back_twice_and_ends(uninterrupted, config, expected):
    why = "the loss or a gradient was not finite in 1 steps in a row, up to step {}"
    assert records(uninterrupted) == [
        {"step": step, "rollbacks": count, "why": why.format(where)}
        for count, (where, step) in enumerate(expected, start=1)
    ]
    trained = [line for line in lines(uninterrupted) if "loss" in line]
    assert [line["step"] for line in trained] == list(range(1, END + 1))
    assert all(line["loss"] is not None for line in trained)
    final, _ = last_state(uninterrupted, config)
    counts = [int(x) for x in (final.step, final.rollbacks, final.skipped_steps)]
    assert counts == [END, 2, 0]


def test_says_so_and_compiles_nothing_again(
    broken, config, dataset, expected, tmp_path, capsys
):
    """With a checkpoint each step: the one right before the bad step is not good."""
    workdir, compiled = copy_of(broken, tmp_path), []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append((name, len(records(workdir))))
    )
    often = changed(config, checkpoint_every=1, keep_latest=3, rollbacks=1)
    with pytest.raises(UserError) as error:
        train(often, workdir, dataset, HOOKS, StopRequest(), allow_config_change=True)
    where, _ = expected[0]
    said = capsys.readouterr().err
    assert (
        f"to step {where}: going back to step {where - 2} and continuing with" in said
    )
    assert "order (rollback 1 of 1)" in said
    [record] = records(workdir)
    assert record["step"] == where - 2
    again, *_ = steps_with_the_row(dataset, config.seed, 1, where - 2)
    saved = checkpoint.saved_steps(workdir / "checkpoints")
    assert saved == [again - 3, again - 2, again - 1]
    assert f"not finite in 1 steps in a row, up to step {again}: the last" in str(
        error.value
    )
    compilations = [n for name, n in compiled if "backend_compile" in name]
    assert compilations and compilations.count(1) == 0


class StopAfterRollback(StopRequest):
    """A step after the run's n-th."""

    def __init__(self, workdir, n: int):
        super().__init__()
        self._workdir, self._n, self._asked = workdir, n, 0

    def __call__(self) -> bool:
        self._asked += len(records(self._workdir)) == self._n
        if self._asked == 2:
            self.signal = "SIGTERM"
        return self.signal is not None


def test_stopped_after_each_rollback_equals_uninterrupted(
    uninterrupted, broken, config, dataset, expected, tmp_path
):
    workdir = copy_of(broken, tmp_path)
    for n, (_, step) in enumerate(expected, start=1):
        stop = StopAfterRollback(workdir, n)
        assert train(config, workdir, dataset, HOOKS, stop) == STOPPED
        assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == step + 1
    assert train(config, workdir, dataset, HOOKS, StopRequest()) == 0
    assert_same(workdir, uninterrupted, config)


WITHOUT_SAMPLES = ("--allow_config_change", "--config.training.sample_every=0")


@pytest.mark.slow
def test_killed_after_a_rollback_equals_uninterrupted(
    uninterrupted, broken, config, tmp_path
):
    command, workdir = Command(tmp_path, config), copy_of(broken, tmp_path)
    with command.start(workdir, *WITHOUT_SAMPLES) as process:
        while len(records(workdir)) < 1:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        process.kill()
        process.communicate()
    result = command.run(workdir, *WITHOUT_SAMPLES)
    assert result.returncode == 0, result.stderr
    jax.tree.map(
        np.testing.assert_array_equal,
        last_state(workdir, config)[0],
        last_state(uninterrupted, config)[0],
    )
    assert records(workdir) == records(uninterrupted)


@pytest.mark.slow
def test_two_processes_equal_one(uninterrupted, broken, config, expected, tmp_path):
    """Both go back alike, and end with the same as one with one device."""
    command, workdir = Command(tmp_path, config), copy_of(broken, tmp_path)
    result = several.run(command, workdir, 2, num_devices=2, flags=WITHOUT_SAMPLES)
    assert "order (rollback 2 of 2)" in result.stderr
    assert [x["step"] for x in records(workdir)] == [step for _, step in expected]
    one, two = (
        [line for line in lines(path) if "validation/loss" not in line]
        for path in (uninterrupted, workdir)
    )
    assert [[*map(close, line.items())] for line in one] == [[*x.items()] for x in two]
    one, two = (last_state(path, config)[0] for path in (uninterrupted, workdir))
    assert int(two.step) == END and int(two.rollbacks) == 2
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def close(item: tuple) -> tuple:
    name, x = item
    return name, pytest.approx(x, rel=1e-5) if isinstance(x, float) else x


@pytest.mark.slow
def test_spikes_are_divergence(dataset, tmp_path):
    """With this learning rate the loss stays finite, but multiplies."""
    config = tiny_config(dataset, max_bad_steps=3, spike_factor=1.5, rollbacks=1)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=10.0)
    steep = dataclasses.replace(config, optimizer=optimizer)
    steep, workdir = run_directory.fit(steep, dataset), tmp_path / "run"
    with pytest.raises(UserError) as error:
        train(steep, workdir, dataset, HOOKS, StopRequest())
    why = (
        r"the loss was above 1\.5 times its running mean \d\.\d+ in 3 steps in a row,"
        r" up to step "
    )
    [record] = records(workdir)
    assert re.match(why, record["why"]) and re.match(why, str(error.value))
    usual, *_, first, second = [x["loss"] for x in lines(workdir) if "loss" in x]
    assert min(first, second) > 1.5 * usual
