"""The dataset or mixture that a config names, or that a run is evaluated on."""

from pathlib import Path

from diffeq_former.config import DataConfig
from diffeq_former.data import dataset as datasets
from diffeq_former.data.mixture import Data, load_mixture
from diffeq_former.errors import UserError


def load_configured(c: DataConfig) -> Data:
    """Load the dataset or the mixture of a config.

    Raises:
      UserError: If the config names none, or it cannot be loaded.
    """
    if not c.folders:
        raise UserError(
            "config.data.path is empty: name the folder of a dataset; make one with"
            " tools/prepare_data.py --source=... --tokenizer=... --output=DIR"
        )
    if c.mixture:
        return load_mixture(c.mixture, c.weights)
    return datasets.load(c.path)


def load_dataset(run, path: str | Path | None) -> Data:
    """Load the dataset at `path`, or that of the run, which may be a mixture.

    Args:
      run: A `training.run_directory.LoadedRun`.
      path: A prepared dataset with the run's tokenizer; None: the run's dataset.

    Raises:
      UserError: If there is no dataset, or it has another tokenizer than the run.
    """
    folders = run.config.data.folders if path is None else (path,)
    if not folders:
        raise UserError("this run has no dataset: name one with --data")
    missing = [folder for folder in folders if not Path(folder).exists()]
    if path is None and missing:
        raise UserError(
            f"the run's dataset is no longer at {missing[0]}: name it with --data"
        )
    dataset = load_configured(run.config.data) if path is None else datasets.load(path)
    if dataset.tokenizer_fingerprint != run.tokenizer.fingerprint:
        raise UserError(
            f"dataset {dataset} has a different tokenizer than the run {run.path}: "
            "prepare it with the run's"
        )
    return dataset
