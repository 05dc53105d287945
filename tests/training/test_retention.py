"""Retention: checkpoints that are removed after a save, and those that are not."""

import pytest
from small_states import make_state, save_all

from diffeq_former.errors import UserError
from diffeq_former.training import checkpoint
from diffeq_former.training.checkpoint import Checkpoints


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def test_keeps_latest_and_best(directory):
    losses = {1: 3.0, 2: 1.0, 3: None, 4: 2.0, 5: float("nan"), 6: None}
    save_all(directory, losses, keep_latest=2, keep_best=2)
    assert checkpoint.saved_steps(directory) == [2, 4, 5, 6]


def test_latest_is_kept_when_it_is_the_worst(directory):
    save_all(directory, {1: 1.0, 2: 2.0, 3: 3.0}, keep_latest=1, keep_best=1)
    assert checkpoint.saved_steps(directory) == [1, 3]


def test_best_over_a_restart(directory):
    save_all(directory, {1: 1.0, 2: 2.0}, keep_latest=1)
    save_all(directory, {3: 3.0, 4: None}, keep_latest=1)
    assert checkpoint.saved_steps(directory) == [1, 4]


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_what_has_damaged_metrics_is_kept(directory, text):
    save_all(directory, {1: 1.0, 2: 2.0, 3: 3.0}, keep_latest=3)
    (directory / "2" / "metrics" / "metrics").write_text(text)
    save_all(directory, {4: 4.0}, keep_latest=1)
    assert checkpoint.saved_steps(directory) == [1, 2, 4]


def test_what_cannot_be_removed_is_reported_once(directory, capfd):
    """Here because the name it would get first is taken."""
    checkpoints = Checkpoints(directory, 1, 0)
    for step in (1, 2, 3, 4):
        if step == 2:
            (directory / "1.partial" / "x").mkdir(parents=True)
        checkpoints.save(step, make_state(step))
        checkpoints.wait()
    checkpoints.close()
    assert checkpoint.saved_steps(directory) == [1, 4]
    assert capfd.readouterr().err == (
        f"{directory.absolute()}/1 cannot be removed (Directory not empty)\n"
    )


def test_what_is_in_the_way_is_named(directory):
    checkpoints = Checkpoints(directory, 1, 0)
    (directory / "1.partial").mkdir()
    with pytest.raises(UserError, match=r"1\.partial is in the way: remove it"):
        checkpoints.save(1, make_state(1))
    checkpoints.close()


def test_files_of_other_kinds_are_left_alone(directory):
    names = ["7", "08", "notes", "²", "٣"]
    directory.mkdir()
    for name in names[1:]:
        (directory / name).write_text("mine")
    (directory / "7.partial").write_text("half of a file")
    save_all(directory, {1: None, 2: None}, keep_latest=1)
    assert checkpoint.saved_steps(directory) == [2]
    assert sorted(x.name for x in directory.iterdir()) == sorted(["2", *names[1:]])


@pytest.mark.parametrize("victim", ["params/manifest.ocdbt", "training/_METADATA"])
def test_what_cannot_be_read_back_replaces_nothing(directory, monkeypatch, victim):
    """The library loses a file, and reports none."""
    save_all(directory, {1: None})
    checkpoints = Checkpoints(directory, 1, 0)
    wait = checkpoints._checkpointer.wait_until_finished

    def lose():
        wait()
        (directory / "2.partial" / victim).unlink(missing_ok=True)

    monkeypatch.setattr(checkpoints._checkpointer, "wait_until_finished", lose)
    checkpoints.save(2, make_state(2))
    with pytest.raises(UserError, match="step 2 .* cannot be read back .*check the"):
        checkpoints.wait()
    checkpoints.close()
    assert checkpoint.saved_steps(directory) == [1]
