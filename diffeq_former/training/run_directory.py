"""The run directory: everything needed to resume, evaluate or use a run.

It contains config.json, tokenizer/, dataset.json (a copy of the dataset's manifest, or
of all those of a mixture), checkpoints/, metrics.jsonl, provenance.jsonl, TensorBoard
events, samples.txt, checkpoints-damaged/ if there were any, tracking.json and wandb/ if
they are used, and lock, which is held while a run trains.
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

from jax.sharding import Mesh

from diffeq_former.atomic_io import aside, atomic_file
from diffeq_former.config import Config, resolve
from diffeq_former.config.dataclass_config import differences
from diffeq_former.data import tokenizers
from diffeq_former.data.dataset import MANIFEST, TOKENIZER
from diffeq_former.data.mixture import Data, Mixture, check_enough, check_epochs
from diffeq_former.distributed.mesh import check_model_fits
from diffeq_former.distributed.multihost import check_same
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object
from diffeq_former.training import checkpoint, state, tracking
from diffeq_former.training.run_lock import LOCK

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
SAMPLES = "samples.txt"
# Settings that do not affect the results; they may change when a run is resumed.
_MACHINE_SETTINGS = (
    *("mesh.", "profile.", "tracking.", "harness.", "model.attention_implementation"),
    *("data.path", "data.mixture", "data.max_epochs", "data.timeout"),
)


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


def fit(config: Config, dataset: Data) -> Config:
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
                f" {dataset}: use {needed} or more, or another dataset"
            )
    if model.document_masking:
        model = dataclasses.replace(model, end_of_text=dataset.eot)
    folders = tuple(str(source.path.absolute()) for source in dataset.sources)
    named = {"path": folders[0], "mixture": (), "weights": ()}
    if isinstance(dataset, Mixture):
        named = {"path": "", "mixture": folders, "weights": dataset.weights}
    data = dataclasses.replace(config.data, **named)
    return dataclasses.replace(config, model=model, data=data)


def check(
    workdir: Path, config: Config, dataset: Data, *, allow_config_change: bool
) -> None:
    """Check that the folder is new, empty, or that of this run, without changing it.

    Raises:
      UserError: If the folder holds something else, a run on another dataset, or a run
        with another config (unless that is allowed; `_MACHINE_SETTINGS` may always
        change), if a dataset has too few sequences for a batch or for the limit of
        epochs, or if the library of an experiment tracker is missing.
    """
    checkpoint.check_path(workdir)
    tracking.check_installed(config.tracking)
    batch_size, num_steps = config.training.batch_size, config.training.num_steps
    check_enough(dataset, batch_size)
    check_epochs(dataset, batch_size, num_steps, config.data.max_epochs)
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


def write(workdir: Path, config: Config, dataset: Data) -> None:
    """Write what is needed to resume; config.json last, as it marks a run directory."""
    dataset.tokenizer().save(workdir / TOKENIZER)
    _write_run(workdir, config, dataset.manifest())


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


def check_same_everywhere(workdir: Path, config: Config, dataset: Data) -> None:
    """Check that all processes have the same config and see the same files.

    Raises:
      UserError: In all processes, if they differ.
    """
    check_same("the config", str(config), "start all with the same flags")
    advice = "all hosts need the same"
    check_same(f"the dataset {dataset}", dataset.manifest(), advice)
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
    given = read_object(path)
    if "model_type" in given:
        tool = f"tools/import_hf.py --model={workdir} --output=..."
        raise UserError(f"{workdir} is a Hugging Face model, not a run: use {tool}")
    return resolve(given)


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


def _check_dataset(workdir: Path, dataset: Data) -> None:
    old, new = read_object(workdir / MANIFEST), json.loads(dataset.manifest())
    changed = [k for k in old if old[k] != new.get(k)]
    if changed:
        raise UserError(
            f"{dataset} is not the dataset of the run {workdir}: they differ in"
            f" {', '.join(sorted(changed))}: use that one, or another --workdir"
        )


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
