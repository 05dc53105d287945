"""The dataset that a run is evaluated on."""

from diffeq_former.data import dataset as datasets
from diffeq_former.data.dataset import Dataset
from diffeq_former.errors import UserError


def load_dataset(run, workdir: str, path: str | None) -> Dataset:
    """The dataset at `path`; None: the run's own.

    Args:
      run: a `training.run_directory.Run`.
      workdir: its folder.
      path: of a prepared dataset with the run's tokenizer.

    Raises:
      UserError: if there is none, or it has another tokenizer.
    """
    if path is None and not run.config.data.path:
        raise UserError("this run came without a dataset: name one with --data")
    if path is None:
        path = run.dataset_path
        if not path.exists():
            raise UserError(
                f"the run's dataset is no longer at {path}: name it with --data"
            )
    dataset = datasets.load(path)
    if dataset.tokenizer_fingerprint != run.tokenizer.fingerprint:
        raise UserError(
            f"dataset {path} has another tokenizer than the run {workdir}: "
            "prepare it with the run's"
        )
    return dataset
