"""A damaged checkpoint is noticed and named, and the run resumes from the one before.

One real run; copies of its folder are damaged.
"""

import dataclasses
import itertools
import os
import shutil
import tempfile

import jax
import numpy as np
import pytest
from cases import mesh_of
from loops import StopAfter, lines, train

from diffeq_former.errors import UserError
from diffeq_former.process_exit import STOPPED
from diffeq_former.training import checkpoint, run_directory, state
from diffeq_former.training.checkpoint import Checkpoints
from diffeq_former.training.checkpoint.integrity import choose, set_aside
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest
from diffeq_former.training.run_directory import LOCK

STEPS = [4, 6, 8]

# The file of a kind is the first in the order of names.
FILES = {
    "arrays": "params/ocdbt.process_0/d/*",
    "arrays of the optimizer": "training/ocdbt.process_0/d/*",
    "index of the arrays": "params/d/*",
    "manifest": "params/manifest.ocdbt",
    "manifest of a process": "training/ocdbt.process_0/manifest.ocdbt",
    "names of the arrays": "params/_METADATA",
    "shardings": "training/_sharding",
    "metrics": "metrics/metrics",
    "metadata": "_CHECKPOINT_METADATA",
    "mark of success": "commit_success.txt",
    "checksums": "CHECKSUMS.json",
}


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "is truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "is empty": lambda path: path.write_bytes(b""),
    "is missing": lambda path: path.unlink(),
    "has changed": flip,
}


@pytest.fixture(scope="module")
def config(config):
    settings = {"eval_every": 4, "checkpoint_every": 2, "keep_latest": 3}
    training = dataclasses.replace(config.training, **settings)
    return dataclasses.replace(config, training=training)


@pytest.fixture(scope="module")
def whole(config, dataset, hooks, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    assert train(config, workdir, dataset, hooks, StopAfter(8)) == STOPPED
    assert not (workdir / "checkpoints-damaged").exists()
    assert checkpoint.saved_steps(workdir / "checkpoints") == STEPS
    return workdir


@pytest.fixture
def workdir(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def directory(workdir):
    return workdir / "checkpoints"


@pytest.fixture(scope="module")
def abstract(config):
    return state.abstract(config, mesh_of())


@pytest.fixture(scope="module")
def states(whole, abstract, tmp_path_factory):
    """By step, each from a directory with this one alone."""
    found = {}
    for step in STEPS:
        directory = tmp_path_factory.mktemp("alone") / "checkpoints"
        source = whole / "checkpoints" / str(step)
        shutil.copytree(source, directory / str(step))
        found[step], _, damaged = checkpoint.restore_latest(directory, abstract)
        assert (int(found[step].step), damaged) == (step, [])
    return found


def assert_equal(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def contents(folder) -> dict:
    """Of all files but the lock, which names the process."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path != folder / LOCK
    }


def damage(folder, kind: str = "arrays", words: str = "has changed") -> str:
    """Damages a file of the folder, and returns its name."""
    path = min(folder.glob(FILES[kind]))
    DAMAGES[words](path)
    return path.relative_to(folder).as_posix()


@pytest.mark.parametrize("words", DAMAGES)
@pytest.mark.parametrize("kind", FILES)
def test_noticed_named_and_kept_aside(directory, kind, words):
    name = damage(directory / "8", kind, words)
    left = contents(directory / "8")
    step, [damaged] = choose(directory, STEPS)
    assert step == 6
    if kind == "checksums" and words != "is missing":
        words = "has changed"
    assert str(damaged) == f"checkpoint {directory}/8 is damaged: {name} {words}"
    assert contents(directory / "8") == left
    place = set_aside(damaged)
    assert place == directory.parent / "checkpoints-damaged" / "8"
    assert contents(place) == left
    assert checkpoint.saved_steps(directory) == [4, 6]
    assert choose(directory, [4, 6]) == (6, [])


@pytest.mark.parametrize(
    "kind, words", [*zip(FILES, itertools.cycle(DAMAGES), strict=False)]
)
def test_the_one_before_is_restored(directory, abstract, states, kind, words):
    name = damage(directory / "8", kind, words)
    restored, _, [damaged] = checkpoint.restore_latest(directory, abstract)
    assert_equal(restored, states[6])
    assert damaged.path == directory / "8"
    assert damaged.damages[0].startswith(f"{name} ")


@pytest.mark.parametrize("name", ["params", "training", "metrics", "."])
def test_a_folder_is_gone(directory, abstract, states, name):
    shutil.rmtree(directory / "8" / name)
    (directory / "8").mkdir(exist_ok=True)
    restored, _, [damaged] = checkpoint.restore_latest(directory, abstract)
    assert_equal(restored, states[6])
    first = "CHECKSUMS.json" if name == "." else f"{name}/"
    assert f"checkpoint {directory}/8 is damaged: {first}" in str(damaged)
    assert " is missing" in str(damaged)


def test_several_are_damaged(directory, abstract, states):
    names = [damage(directory / "8"), damage(directory / "6", "manifest", "is empty")]
    restored, _, damaged = checkpoint.restore_latest(directory, abstract)
    assert_equal(restored, states[4])
    assert [(x.path.name, x.damages) for x in damaged] == [
        ("8", [f"{names[0]} has changed"]),
        ("6", [f"{names[1]} is empty"]),
    ]


def test_set_aside_on_another_device(directory, abstract, states):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert os.stat(other).st_dev != directory.stat().st_dev
        directory.with_name("checkpoints-damaged").symlink_to(other)
        flip(directory / "8" / "params" / "_METADATA")
        _, damaged = choose(directory, STEPS)
        target = set_aside(damaged[0])
        assert not (directory / "8").exists()
        assert (target / "params" / "_METADATA").is_file()


def test_damage_before_the_latest_does_not_matter(directory, abstract, states):
    damage(directory / "6")
    restored, _, damaged = checkpoint.restore_latest(directory, abstract)
    assert_equal(restored, states[8])
    assert damaged == []


def test_the_step_is_saved_again_and_both_damaged_ones_are_kept(
    directory, abstract, states
):
    for place in ("8", "8.1"):
        damage(directory / "8")
        [damaged] = checkpoint.restore_latest(directory, abstract)[2]
        assert set_aside(damaged) == directory.parent / "checkpoints-damaged" / place
        checkpoints = Checkpoints(directory, 3, 0)
        checkpoints.save(8, states[8])
        checkpoints.close()
    restored, _, damaged = checkpoint.restore_latest(directory, abstract)
    assert_equal(restored, states[8])
    assert damaged == []
    assert checkpoint.saved_steps(directory) == STEPS


def test_all_are_damaged(workdir, directory, dataset, config):
    names = [damage(directory / str(step)) for step in STEPS]
    before = contents(workdir)
    hooks = EvaluationHooks(evaluate=None, sample=None)
    with pytest.raises(UserError) as error:
        train(config, workdir, dataset, hooks, StopRequest())
    message = str(error.value)
    for step, name in zip(STEPS, names, strict=True):
        assert f"{directory}/{step} is damaged: {name} has changed" in message
    assert f"use another --workdir, or remove {directory} to start again" in message
    assert "\n" not in message
    assert contents(workdir) == before


def test_parameters_alone(directory, abstract, states):
    """Tools read only those."""
    damage(directory / "8", "arrays of the optimizer")
    params, step, damaged = checkpoint.load_params(directory, None, abstract.params)
    assert (step, damaged) == (8, [])
    assert_equal(params, states[8].params)
    name = damage(directory / "8")
    params, step, [damaged] = checkpoint.load_params(directory, None, abstract.params)
    assert (step, damaged.damages) == (6, [f"{name} has changed"])
    assert_equal(params, states[6].params)
    named = f"checkpoint {directory}/8 is damaged: {name} has changed"
    with pytest.raises(UserError, match=f"^{named}: use another step or another run$"):
        checkpoint.load_params(directory, 8, abstract.params)
    assert checkpoint.load_params(directory, 4, abstract.params)[1] == 4
    for step in (4, 6):
        damage(directory / str(step))
    with pytest.raises(UserError, match=f"{named}.*/6 is damaged.*/4 is damaged"):
        checkpoint.load_params(directory, None, abstract.params)


def test_a_run_is_loaded_from_what_is_not_damaged(workdir, directory, capsys):
    name = damage(directory / "8")
    before = contents(workdir)
    assert run_directory.load(workdir, mesh_of()).step == 6
    assert capsys.readouterr().err == (
        f"checkpoint {directory}/8 is damaged: {name} has changed: using that of step 6"
        "\n"
    )
    assert contents(workdir) == before


def test_the_run_resumes_as_if_undamaged(
    workdir, directory, config, dataset, hooks, whole, abstract, states, capsys
):
    name = damage(directory / "8")
    damaged = contents(directory / "8")
    assert train(config, workdir, dataset, hooks, StopAfter(2)) == STOPPED
    err = capsys.readouterr().err
    place = workdir / "checkpoints-damaged" / "8"
    assert (
        f"checkpoint {directory}/8 is damaged: {name} has changed: moved to {place},"
        " using step 6\n"
    ) in err
    assert f"{workdir}: from step 6 to 24" in err
    assert contents(place) == damaged
    final, loss, others = checkpoint.restore_latest(directory, abstract)
    assert_equal(final, states[8])
    assert others == []
    assert loss == lines(workdir)[-1]["validation/loss"] is not None
    assert lines(workdir) == lines(whole)
