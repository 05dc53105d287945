"""Provenance of a run, provenance.jsonl: a JSON object for each start of training."""

import datetime
import hashlib
import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import jax

import diffeq_former
from diffeq_former.data.mixture import Data
from diffeq_former.errors import UserError

NAME = "provenance.jsonl"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
_SECONDS = 10  # how long git may take


def record_start(workdir: Path, step: int, dataset: Data) -> None:
    """Append what this start of training runs on to a run's provenance.

    Args:
      workdir: The run directory.
      step: The step that training starts from.
      dataset: The dataset, whose fingerprint is that of its manifest.
    """
    devices = jax.devices()
    folders = [str(source.path.absolute()) for source in dataset.sources]
    record = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": shlex.join(sys.orig_argv),
        **_source(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "processes": jax.process_count(),
        "data": ", ".join(folders),
        "data_sha256": hashlib.sha256(dataset.manifest().encode()).hexdigest(),
    }
    with (workdir / NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read(workdir: Path) -> list[dict]:
    """Return the records of a run, oldest first; none if it was not trained here.

    A last line without an end is ignored.

    Raises:
      UserError: If the file is damaged.
    """
    path = workdir / NAME
    if not path.exists():
        return []
    try:
        complete, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        return [dict(json.loads(line)) for line in complete.splitlines()]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}; remove it") from error


def _source() -> dict:
    """Return the commit of this code, and whether files of it have changed since.

    Both are None unless the package is imported from its own git repository.
    """
    root = Path(diffeq_former.__file__).resolve().parents[1]
    unknown = {"commit": None, "modified": None}
    if not (root / ".git").exists():
        return unknown
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # no git, or one that fails
        return unknown
    return {"commit": commit, "modified": bool(changes)}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=_SECONDS
    )
    return done.stdout.strip()
