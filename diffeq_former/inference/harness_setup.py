"""Folders that lm-evaluation-harness reads, named before it is imported."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.errors import UserError


@contextlib.contextmanager
def local_data(folder: str | None) -> Iterator[None]:
    """Context in which tasks load their data from a folder instead of the hub.

    The harness must be imported within it, as the environment is read then.

    Args:
      folder: Datasets laid out as on the hub; None or "": load from the hub.
    """
    if not folder:
        yield
        return
    with tempfile.TemporaryDirectory() as cache:
        # The default cache could hold an earlier state of the folder.
        os.environ["HF_DATASETS_CACHE"] = cache
        os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
        yield


def check_folders(prefix: str, **folders: str | None) -> None:
    """Raise UserError if a folder does not exist, with the name of its setting.

    Args:
      prefix: What precedes the names of settings.
      **folders: Folders by setting; None and "" are none.
    """
    for name, folder in folders.items():
        if folder and not Path(folder).is_dir():
            raise UserError(f"{prefix}{name}: there is no folder {folder}")
