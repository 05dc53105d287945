"""A run that resumes with other devices, on another mesh."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import mesh_of
from loops import StopAfter, last_state
from runs import tiny_config

from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.process_exit import OK, STOPPED
from diffeq_former.training import loop, run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest

NUM_STEPS = 12
# Devices, mesh, and the step up to which it goes.
LIVES = [
    (4, {"fsdp": 2, "tensor": 2}, 3),
    (8, {"fsdp": 8, "data": 1}, 7),
    (2, {"sequence": 2}, NUM_STEPS),
]


@pytest.fixture(scope="module")
def config(dataset):
    config = tiny_config(dataset, num_steps=NUM_STEPS, batch_size=24, eval_every=12)
    assert NUM_STEPS * 24 > len(dataset.rows("train")), "through the end of an epoch"
    model = dataclasses.replace(config.model, vocab_size=258)
    return run_directory.fit(dataclasses.replace(config, model=model), dataset)


def train(config, workdir, dataset, mesh, stop):
    def evaluate(params, should_stop):
        return make_evaluate(config, dataset, mesh)(params)

    hooks = EvaluationHooks(evaluate=evaluate, sample=None)
    return loop.train(config, workdir, dataset, mesh, hooks, stop)


@pytest.mark.slow
@pytest.mark.mesh
def test_a_run_moves_between_machines(config, dataset, tmp_path):
    alone, moving = tmp_path / "alone", tmp_path / "moving"
    assert train(config, alone, dataset, mesh_of(), StopRequest()) == OK
    done = 0
    for num_devices, axes, until in LIVES:
        mesh = mesh_of(num_devices, **({"data": -1} | axes))
        stop = StopAfter(until - done) if until < NUM_STEPS else StopRequest()
        code = train(config, moving, dataset, mesh, stop)
        assert code == (STOPPED if until < NUM_STEPS else OK)
        done = until
    (ours, our_loss), (theirs, their_loss) = (
        last_state(workdir, config) for workdir in (moving, alone)
    )
    assert our_loss == pytest.approx(their_loss, rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours, theirs)
