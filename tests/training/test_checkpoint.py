import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_states import abstract, assert_equal, make_state, save_all

from diffeq_former.errors import UserError
from diffeq_former.training import checkpoint
from diffeq_former.training.checkpoint import Checkpoints, checksums


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def test_latest_comes_back_bit_for_bit(directory):
    save_all(directory, {3: None, 6: 1.25})
    state, loss, _ = checkpoint.restore_latest(directory, abstract(make_state(0)))
    assert_equal(state, make_state(6))
    assert loss == 1.25


def test_the_latest_before_a_step_if_there_is_any(directory):
    save_all(directory, {3: None, 6: None, 9: None}, keep_latest=3)
    for before, step in ((10, 9), (9, 6), (7, 6), (4, 3), (3, 9)):
        state, *_ = checkpoint.restore_latest(
            directory, abstract(make_state(0)), before
        )
        assert int(state.step) == step


def test_what_will_be_saved_again_is_removed(directory):
    checkpoints = Checkpoints(directory, 3, 0)
    for step in (3, 6, 9):
        checkpoints.save(step, make_state(step))
    checkpoints.remove_after(3)
    assert [path.name for path in directory.iterdir()] == ["3"]
    checkpoints.save(6, make_state(7))
    checkpoints.close()
    state, *_ = checkpoint.restore_latest(directory, abstract(make_state(0)))
    assert_equal(state, make_state(7))


def test_nothing_saved(directory):
    assert checkpoint.restore_latest(directory, abstract(make_state(0))) is None
    assert not directory.exists()


def test_saved_is_with_checksums(directory):
    """`wait` waits for them, and no checkpoint is ever seen without."""
    checkpoints = Checkpoints(directory, 3, 0)
    checkpoints.save(1, make_state(1))
    checkpoints.wait()
    assert checksums.damages(directory / "1") == []
    checkpoints.save(2, make_state(2))
    deadline = time.monotonic() + 60
    while not (directory / "2").exists() and time.monotonic() < deadline:
        time.sleep(0.0001)
    assert checksums.damages(directory / "2") == []
    checkpoints.close()


def test_what_is_saved_is_the_state_at_the_time(directory):
    """The next step reuses the memory of the state while it is being written."""
    add = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    large = {"large": {"kernel": jnp.zeros((1000, 1000))}}
    checkpoints = Checkpoints(directory, 1, 0)
    state = make_state(0, extra=large)
    expected = abstract(state)
    for step in (1, 2):
        state = add(state)
        checkpoints.save(step, state)
        for _ in range(10):
            state = add(state)
        checkpoints.wait()
        restored, *_ = checkpoint.restore_latest(directory, expected)
        values = np.unique(restored.params["large"]["kernel"])
        assert values.tolist() == [1 if step == 1 else 12]
    checkpoints.close()


def test_half_written_is_ignored_and_cleared(directory):
    halves = [directory / "5.partial", directory / "7.partial.orbax-checkpoint-tmp"]
    for half in halves:
        (half / "params").mkdir(parents=True)
    assert checkpoint.restore_latest(directory, abstract(make_state(0))) is None
    save_all(directory, {1: None})
    for half in halves:
        (half / "params").mkdir(parents=True)
    assert checkpoint.saved_steps(directory) == [1]
    state, *_ = checkpoint.restore_latest(directory, abstract(make_state(0)))
    assert int(state.step) == 1
    save_all(directory, {2: None})
    assert [path.name for path in sorted(directory.iterdir())] == ["1", "2"]


def test_params_alone(directory):
    save_all(directory, {1: None, 2: None})
    expected = abstract(make_state(0)).params
    params, step, _ = checkpoint.load_params(directory, None, expected)
    assert step == 2
    assert_equal(params, make_state(2).params)
    params, step, _ = checkpoint.load_params(directory, 1, expected)
    assert step == 1
    assert_equal(params, make_state(1).params)


def test_no_such_step(directory):
    expected = abstract(make_state(0)).params
    with pytest.raises(UserError, match="no checkpoint yet: train first"):
        checkpoint.load_params(directory, None, expected)
    save_all(directory, {1: None, 2: None})
    with pytest.raises(UserError, match="no step 7, but steps 1, 2"):
        checkpoint.load_params(directory, 7, expected)


def test_misshapen_arrays_are_named(directory):
    save_all(directory, {1: None})
    with pytest.raises(UserError) as error:
        checkpoint.restore_latest(directory, abstract(make_state(0, width=4)))
    message = str(error.value)
    for array in (
        "params/weights/bank is float32[2, 3], expected float32[2, 4]",
        "params/head/kernel is float32[3], expected float32[4]",
        "training/opt_state/0/weights/bank is float32[2, 3], expected float32[2, 4]",
    ):
        assert array in message
    assert "\n" not in message


def test_missing_and_unexpected_arrays_are_named(directory):
    bias = {"tail": {"bias": jnp.zeros(5)}}
    save_all(directory, {1: None})
    with pytest.raises(UserError, match=r"params/tail/bias float32\[5\] is missing"):
        checkpoint.restore_latest(directory, abstract(make_state(0, extra=bias)))
    checkpoints = Checkpoints(directory, 2, 0)
    checkpoints.save(2, make_state(2, extra=bias))
    checkpoints.close()
    with pytest.raises(UserError, match=r"params/tail/bias float32\[5\] is unexpected"):
        checkpoint.restore_latest(directory, abstract(make_state(0)))


def test_many_wrong_arrays_are_counted(directory):
    many = {f"layer{i}": jnp.zeros(2) for i in range(30)}
    save_all(directory, {1: None})
    with pytest.raises(UserError, match="and 54 more"):  # 2 * 30, 6 of them named
        checkpoint.restore_latest(directory, abstract(make_state(0, extra=many)))


# Orbax gives up at the first read that fails; those under way then end in a thread of
# TensorStore that finds its event loop closed.
def test_what_orbax_cannot_read_is_said(directory):
    save_all(directory, {1: None})
    for path in (directory / "1" / "params").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.unlink()
    checksums.write(directory / "1")
    with pytest.raises(UserError, match="checkpoints/1 is not damaged, but cannot be"):
        checkpoint.restore_latest(directory, abstract(make_state(0)))


FILL = """
import resource
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from diffeq_former.training.checkpoint import Checkpoints
from diffeq_former.training.state import TrainState

resource.setrlimit(resource.RLIMIT_FSIZE, (3000000, 3000000))
state = TrainState(jnp.int32(1), {"a": jax.random.normal(jax.random.key(0), (600000,))},
                   {}, (), *[jnp.int32(0)] * 4)
checkpoints = Checkpoints(Path(sys.argv[1]), 1, 0)
checkpoints.save(1, state)
checkpoints.wait()
checkpoints.save(2, state.replace(params={"a": jnp.tile(state.params["a"], 2)}))
try:
    checkpoints.wait()
except ValueError as error:
    assert "File too large" in str(error), error
    sys.exit(42)
"""


def test_last_good_checkpoint_stands_when_a_save_fails(directory):
    """Files of at most 3 MB stand in for a disk that is full."""
    result = subprocess.run(
        [sys.executable, "-c", FILL, directory],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 42, result.stderr
    assert result.stderr == ""
    assert checkpoint.saved_steps(directory) == [1]
