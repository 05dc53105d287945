"""Choice of the dataset that a run is evaluated on."""

from pathlib import Path

from diffeq_former.data import dataset as datasets
from diffeq_former.data.dataset import Dataset
from diffeq_former.errors import UserError


def load_dataset(run, path: str | Path | None) -> Dataset:
    """Load the dataset at `path`, or the dataset of the run.

    Args:
      run: A `training.run_directory.LoadedRun`.
      path: A prepared dataset with the run's tokenizer; None: the run's dataset.

    Raises:
      UserError: If there is no dataset, or it has another tokenizer than the run.
    """
    if path is None and not run.config.data.path:
        raise UserError("this run has no dataset: name one with --data")
    if path is None:
        path = Path(run.config.data.path)
        if not path.exists():
            raise UserError(
                f"the run's dataset is no longer at {path}: name it with --data"
            )
    dataset = datasets.load(path)
    if dataset.tokenizer_fingerprint != run.tokenizer.fingerprint:
        raise UserError(
            f"dataset {path} has a different tokenizer than the run {run.path}: "
            "prepare it with the run's"
        )
    return dataset
