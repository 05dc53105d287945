import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from cases import mesh_of
from loops import first_state
from prepared import prepare_words

from diffeq_former.config import MeshConfig, ProfileConfig
from diffeq_former.data import dataset as datasets
from diffeq_former.errors import UserError
from diffeq_former.training import run_directory
from diffeq_former.training.checkpoint import Checkpoints


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / "runs" / "one"


def check(workdir, config, dataset, allow=False) -> None:
    run_directory.check(workdir, config, dataset, allow_config_change=allow)


def contents(folder) -> dict:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def with_model(config, **changes):
    model = dataclasses.replace(config.model, **changes)
    return dataclasses.replace(config, model=model)


def test_new_folder_becomes_the_run(workdir, config, dataset):
    check(workdir, config, dataset)
    assert not workdir.exists()
    run_directory.write(workdir, config, dataset)
    check(workdir, config, dataset)
    assert run_directory.read_config(workdir) == config
    assert {p.name for p in workdir.iterdir()} == {
        *("config.json", "dataset.json", "tokenizer")
    }


def test_writing_again_changes_nothing(workdir, config, dataset):
    run_directory.write(workdir, config, dataset)
    before = contents(workdir)
    run_directory.write(workdir, config, dataset)
    assert contents(workdir) == before


def test_interrupted_before_the_config_counts_as_empty(workdir, config, dataset):
    run_directory.write(workdir, config, dataset)
    (workdir / "config.json").rename(workdir / ".config.json.partial")
    check(workdir, config, dataset)


def test_differences_of_the_config_are_listed(workdir, config, dataset):
    run_directory.write(workdir, config, dataset)
    before = contents(workdir)
    training = dataclasses.replace(config.training, num_steps=99)
    other = with_model(dataclasses.replace(config, training=training), d_model=32)
    with pytest.raises(UserError) as error:
        check(workdir, other, dataset)
    message = str(error.value)
    assert "model.d_model: 16 -> 32" in message
    assert "training.num_steps: 24 -> 99" in message
    assert "--allow_config_change" in message
    check(workdir, other, dataset, allow=True)
    assert contents(workdir) == before


def test_folder_of_something_else(workdir, config, dataset):
    workdir.mkdir(parents=True)
    check(workdir, config, dataset)
    (workdir / "thesis.tex").touch()
    with pytest.raises(UserError, match="nor a run .it holds thesis.tex."):
        check(workdir, config, dataset, allow=True)


def test_file_as_folder(tmp_path, config, dataset):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        check(tmp_path / "file", config, dataset)


def test_another_dataset(tmp_path, workdir, config, dataset):
    run_directory.write(workdir, config, dataset)
    other = prepare_words(tmp_path, seq_len=12)
    with pytest.raises(UserError, match="differ in seq_len, source, splits"):
        check(workdir, config, other, allow=True)


def test_a_run_may_go_on_elsewhere(tmp_path, workdir, config, dataset):
    """With the dataset in another folder, another timeout, another mesh and kernel."""
    run_directory.write(workdir, config, dataset)
    moved = datasets.load(shutil.copytree(dataset.path, tmp_path / "moved"))
    there = run_directory.fit(config, moved)
    assert there.data.path != config.data.path
    data = dataclasses.replace(there.data, timeout=30.0)
    there = dataclasses.replace(there, data=data, mesh=MeshConfig(fsdp=2))
    there = with_model(there, attention_implementation="xla")
    there = dataclasses.replace(there, profile=ProfileConfig(num_steps=1))
    check(workdir, there, moved)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_len", 15, "config.model.max_len: 15 is too small for the sequences"),
        ("vocab_size", 256, "config.model.vocab_size: 256 is too small"),
    ],
)
def test_dataset_too_large_for_the_model(config, dataset, field, value, message):
    with pytest.raises(UserError, match=message):
        run_directory.fit(with_model(config, **{field: value}), dataset)


def test_end_of_text_comes_from_the_dataset(config, dataset):
    assert config.model.end_of_text == -1
    masked = run_directory.fit(with_model(config, document_masking=True), dataset)
    assert masked.model.end_of_text == dataset.eot


def test_path_of_the_dataset_does_not_depend_on_where_we_are(
    config, dataset, monkeypatch
):
    monkeypatch.chdir(dataset.path.parent)
    relative = datasets.load("dataset")
    assert run_directory.fit(config, relative).data.path == str(dataset.path)


def test_samples_of_a_lost_future_are_replaced(workdir):
    workdir.mkdir(parents=True)
    for step, text in ((10, "one"), (20, "two"), (30, "three"), (20, "again")):
        run_directory.write_sample(workdir, step, text)
    expected = "--- step 10 ---\none\n--- step 20 ---\nagain\n"
    assert (workdir / "samples.txt").read_text() == expected


def save(workdir, config, steps) -> dict:
    trained = first_state(config, mesh_of())
    checkpoints = Checkpoints(workdir / "checkpoints", 3, 0)
    for step in steps:
        checkpoints.save(step, trained)
    checkpoints.close()
    return trained.params


@pytest.mark.parametrize("num_devices", [1, pytest.param(8, marks=pytest.mark.mesh)])
def test_load_gives_what_was_saved(workdir, config, dataset, num_devices):
    """But for the kernel of attention, which another machine may not have."""
    mesh = mesh_of(num_devices)
    with_kernel = with_model(config, attention_implementation="cudnn")
    run_directory.write(workdir, with_kernel, dataset)
    params = save(workdir, config, [5, 9])
    before = contents(workdir)
    run = run_directory.load(workdir, mesh)
    assert (run.step, run.config, run.path) == (9, config, workdir)
    assert run.tokenizer.fingerprint == dataset.tokenizer_fingerprint
    jax.tree.map(np.testing.assert_array_equal, run.params, params)
    assert run_directory.load(str(workdir), mesh, step=5).step == 5
    assert {len(x.sharding.device_set) for x in jax.tree.leaves(run.params)} == {
        num_devices
    }
    assert contents(workdir) == before


def test_load_refuses(workdir, config, dataset):
    with pytest.raises(UserError, match="is not a run: it has no config.json"):
        run_directory.load(workdir, mesh_of())
    run_directory.write(workdir, config, dataset)
    with pytest.raises(UserError, match="no checkpoint yet"):
        run_directory.load(workdir, mesh_of())
    save(workdir, config, [5])
    with pytest.raises(UserError, match="no step 6, but steps 5"):
        run_directory.load(workdir, mesh_of(), step=6)


def test_load_refuses_another_tokenizer(workdir, config, dataset):
    run_directory.write(workdir, config, dataset)
    save(workdir, config, [5])
    path = workdir / "dataset.json"
    fields = json.loads(path.read_text()) | {"tokenizer_fingerprint": "0"}
    path.write_text(json.dumps(fields))
    with pytest.raises(UserError, match="is not the tokenizer of this run"):
        run_directory.load(workdir, mesh_of())


def test_damaged_config(workdir, config, dataset):
    run_directory.write(workdir, config, dataset)
    (workdir / "config.json").write_text("{")
    with pytest.raises(UserError, match="config.json is missing or damaged"):
        check(workdir, config, dataset)
