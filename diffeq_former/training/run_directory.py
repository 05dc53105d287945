"""The run directory: everything needed to resume, evaluate or use a run.

It contains config.json, tokenizer/, dataset.json (a copy of the dataset's manifest),
checkpoints/, metrics.jsonl, provenance.jsonl, TensorBoard events, samples.txt,
checkpoints-damaged/ if there were any, and lock, which is held while a run trains.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jax.sharding import Mesh

from diffeq_former.atomic_io import aside, atomic_file, make_directory
from diffeq_former.config import Config, resolve
from diffeq_former.config.dataclass_config import differences
from diffeq_former.data import tokenizers
from diffeq_former.data.dataset import MANIFEST, TOKENIZER, Dataset
from diffeq_former.data.pipeline import check_enough
from diffeq_former.distributed.mesh import check_model_fits
from diffeq_former.distributed.multihost import check_same, is_primary, run_on_all
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object
from diffeq_former.locks import try_lock
from diffeq_former.training import checkpoint, state

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
SAMPLES = "samples.txt"
LOCK = "lock"
# Settings that do not affect the results; they may change when a run is resumed.
_MACHINE_SETTINGS = ("mesh.", "data.", "profile.", "model.attention_implementation")
_SECONDS_TO_DIE = 10  # how long a restarted run waits for the old one to exit


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A trained model and what belongs to it."""

    path: Path  # the folder it was loaded from
    config: Config  # with an attention kernel that is available here
    params: dict = dataclasses.field(repr=False)  # sharded over `mesh`
    tokenizer: tokenizers.Tokenizer
    step: int  # the number of optimizer steps that it was trained for
    mesh: Mesh

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.absolute().name


def fit(config: Config, dataset: Dataset) -> Config:
    """Return the config with the settings filled in that depend on the dataset.

    Raises:
      UserError: If the dataset's sequence length or vocabulary exceeds the model's.
    """
    model = config.model
    for field, available, needed, what in (
        ("max_len", model.max_len, dataset.seq_len, "sequences"),
        ("vocab_size", model.vocab_size, dataset.vocab_size, "vocabulary"),
    ):
        if available < needed:
            raise UserError(
                f"config.model.{field}: {available} is too small for the {what} of"
                f" {dataset.path}: use {needed} or more, or another dataset"
            )
    if model.document_masking:
        model = dataclasses.replace(model, end_of_text=dataset.eot)
    data = dataclasses.replace(config.data, path=str(dataset.path.absolute()))
    return dataclasses.replace(config, model=model, data=data)


def check(
    workdir: Path, config: Config, dataset: Dataset, *, allow_config_change: bool
) -> None:
    """Check that the folder is new, empty, or that of this run, without changing it.

    Raises:
      UserError: If the folder holds something else, a run on another dataset, or a run
        with another config (unless that is allowed; `_MACHINE_SETTINGS` may always
        change), or if the dataset has too few sequences for a batch.
    """
    checkpoint.check_path(workdir)
    check_enough(dataset, config.training.batch_size)
    if not (workdir / CONFIG).exists():
        return _check_empty(workdir)
    _check_dataset(workdir, dataset)
    changes = [
        change
        for change in differences(read_config(workdir), config)
        if not change.startswith(_MACHINE_SETTINGS)
    ]
    if changes and not allow_config_change:
        raise UserError(
            f"{workdir} is a run with another config: {'; '.join(changes)}: use another"
            " --workdir, or --allow_config_change to continue with the new config"
        )


def write(workdir: Path, config: Config, dataset: Dataset) -> None:
    """Write what is needed to resume; config.json last, as it marks a run directory."""
    dataset.tokenizer().save(workdir / TOKENIZER)
    _write_run(workdir, config, (dataset.path / MANIFEST).read_text(encoding="utf-8"))


def write_like(workdir: Path, config: Config, other: Path) -> None:
    """As `write`, for a run with the tokenizer and the data of the run in `other`."""
    shutil.copytree(other / TOKENIZER, workdir / TOKENIZER)
    _write_run(workdir, config, (other / MANIFEST).read_text(encoding="utf-8"))


def write_without_data(
    workdir: Path, config: Config, tokenizer: tokenizers.Tokenizer
) -> None:
    """As `write`, for an imported model, which any data with its tokenizer fit."""
    tokenizer.save(workdir / TOKENIZER)
    manifest = {"tokenizer_fingerprint": tokenizer.fingerprint}
    _write_run(workdir, config, json.dumps(manifest, indent=1) + "\n")


def _write_run(workdir: Path, config: Config, manifest: str) -> None:
    _write(workdir / MANIFEST, manifest)
    _write(workdir / CONFIG, json.dumps(dataclasses.asdict(config), indent=1) + "\n")


def check_same_everywhere(workdir: Path, config: Config, dataset: Dataset) -> None:
    """Check that all processes have the same config and see the same files.

    Raises:
      UserError: In all processes, if they differ.
    """
    check_same("the config", str(config), "start all with the same flags")
    check_same(
        f"the dataset {dataset.path}",
        (dataset.path / MANIFEST).read_text(encoding="utf-8"),
        "all hosts need the same",
    )
    check_same(
        f"the folder {workdir}",
        _run_and_checkpoints(workdir),
        "use one that all hosts share",
    )


def _run_and_checkpoints(workdir: Path) -> str:
    """Return the content of the run's config and the steps of its checkpoints."""
    config = workdir / CONFIG
    content = config.read_bytes() if config.is_file() else b""
    return f"{content} {checkpoint.saved_steps(workdir / CHECKPOINTS)}"


def write_sample(workdir: Path, step: int, text: str) -> None:
    """Append text to samples.txt, replacing samples of this and later steps."""
    path, header = workdir / SAMPLES, f"--- step {step} ---\n"
    before = path.read_text("utf-8", errors="replace") if path.exists() else ""
    _write(path, before.partition(header)[0] + header + text + "\n")


def read_config(workdir: Path) -> Config:
    """Return the config of a run."""
    path = workdir / CONFIG
    if not path.is_file():
        raise UserError(f"{workdir} is not a run: it has no {CONFIG}")
    return resolve(read_object(path))


def tokenizer_fingerprint(workdir: Path) -> str:
    """Return the fingerprint of the tokenizer that the run was trained with."""
    return read_object(workdir / MANIFEST).get("tokenizer_fingerprint")


def load(workdir: Path | str, mesh: Mesh, step: int | None = None) -> LoadedRun:
    """Load a checkpoint of a run.

    Args:
      workdir: The run directory.
      mesh: The mesh to shard the parameters over; it may differ from that of training.
      step: The step of the checkpoint. None: the latest; damaged ones are skipped with
        a warning on stderr.

    Raises:
      UserError: If there is no such run or checkpoint, its files are inconsistent, the
        checkpoint is damaged, or the mesh does not divide the model's dimensions.
    """
    workdir = Path(workdir)
    config = read_config(workdir)
    tokenizer = tokenizers.load_saved(workdir / TOKENIZER)
    if tokenizer.fingerprint != tokenizer_fingerprint(workdir):
        raise UserError(f"{workdir / TOKENIZER} is not the tokenizer of this run")
    check_model_fits(config.model, mesh)
    abstract = state.abstract(config, mesh).params
    params, step, skipped = checkpoint.load_params(
        workdir / CHECKPOINTS, step, abstract
    )
    for damaged in skipped:
        print(f"{damaged}: using that of step {step}", file=sys.stderr)
    model = dataclasses.replace(config.model, attention_implementation="auto")
    config = dataclasses.replace(config, model=model)
    return LoadedRun(workdir, config, params, tokenizer, step, mesh)


def _check_empty(workdir: Path) -> None:
    """Check that the folder is empty; files of an interrupted `write` are ignored."""
    if not workdir.exists():
        return
    if not workdir.is_dir():
        raise UserError(f"{workdir} is a file: --workdir needs a folder")
    files = [workdir / name for name in (MANIFEST, CONFIG)]
    ours = {LOCK, TOKENIZER, MANIFEST, *(aside(path).name for path in files)}
    if foreign := sorted({path.name for path in workdir.iterdir()} - ours):
        raise UserError(
            f"{workdir} is neither empty nor a run (it holds {foreign[0]}): use another"
            " --workdir"
        )


def _check_dataset(workdir: Path, dataset: Dataset) -> None:
    old, new = read_object(workdir / MANIFEST), read_object(dataset.path / MANIFEST)
    changed = [k for k in old if old[k] != new.get(k)]
    if changed:
        raise UserError(
            f"{dataset.path} is not the dataset of the run {workdir}: they differ in"
            f" {', '.join(sorted(changed))}: use that one, or another --workdir"
        )


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Create the folder if needed and hold its lock, in process 0 on behalf of all.

    If the file system has no locks, a warning is printed instead.

    Raises:
      UserError: If another run holds the lock and does not end within some seconds.
    """
    held = run_on_all(lambda: _lock(workdir) if is_primary() else [])
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def _lock(workdir: Path) -> list[int]:
    """Lock the folder and the file in it; return their file descriptors.

    The lock of the folder holds even if the file is removed, but NFS has none.
    """
    file = workdir / LOCK
    make_directory(workdir)
    file.touch()
    deadline = time.monotonic() + _SECONDS_TO_DIE
    held, errors = [], []
    for path in (workdir, file):
        try:
            while (descriptor := try_lock(path)) is None:
                if time.monotonic() > deadline:
                    holder = file.read_text("utf-8", errors="replace").strip()
                    raise UserError(
                        f"another run is training in {workdir} ({holder}): wait until"
                        " it ends, or use another --workdir"
                    )
                time.sleep(0.2)
            held.append(descriptor)
        except OSError as error:
            errors.append(error)
    if not held:
        print(
            f"{file} cannot be locked ({errors[-1].strerror}): make sure that no other"
            " run is training in this folder",
            file=sys.stderr,
        )
    file.write_text(
        f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8"
    )
    return held
