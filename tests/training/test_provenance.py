"""Provenance of a run: code, command, machine and data of each start."""

import hashlib
import importlib.metadata
import subprocess
import sys

import jax
import pytest

import diffeq_former
from diffeq_former.errors import UserError
from diffeq_former.training import provenance


def test_each_start_adds_what_it_ran_on(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "x", "--name=a b"])
    for step in (0, 3):
        provenance.record_start(tmp_path, step, dataset)
    first, second = provenance.read(tmp_path)
    assert (first["step"], second["step"]) == (0, 3)
    assert first["command"] == "python -m x '--name=a b'"
    assert first["versions"]["jax"] == jax.__version__
    assert first["versions"]["grain"] == importlib.metadata.version("grain")
    assert first["devices"] == f"{len(jax.devices())} x cpu"
    manifest = (dataset.path / "dataset.json").read_bytes()
    assert first["data_sha256"] == hashlib.sha256(manifest).hexdigest()


def git(folder, *arguments):
    options = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(folder), *options, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_code(dataset, tmp_path, monkeypatch):
    """A repository that the package is merely installed in does not count."""

    def recorded():
        provenance.record_start(tmp_path, 0, dataset)
        record = provenance.read(tmp_path)[-1]
        return record["commit"], record["modified"]

    code = tmp_path / "code" / "diffeq_former" / "__init__.py"
    code.parent.mkdir(parents=True)
    code.touch()
    monkeypatch.setattr(diffeq_former, "__file__", str(code))
    git(tmp_path, "init")
    assert recorded() == (None, None)
    git(tmp_path / "code", "init")
    assert recorded() == (None, None)  # there is no commit yet
    git(tmp_path / "code", "add", ".")
    git(tmp_path / "code", "commit", "-m", "x")
    commit = git(tmp_path / "code", "rev-parse", "HEAD")
    assert recorded() == (commit, False)
    code.write_text("1")
    assert recorded() == (commit, True)


def test_an_incomplete_line_is_ignored_and_damage_named(tmp_path):
    assert provenance.read(tmp_path) == []
    path = tmp_path / provenance.NAME
    path.write_text('{"step": 0}\n{"st')
    assert provenance.read(tmp_path) == [{"step": 0}]
    path.write_text("[1]\n")
    with pytest.raises(UserError, match="provenance.jsonl is damaged: .*; remove it"):
        provenance.read(tmp_path)
