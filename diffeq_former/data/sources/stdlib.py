"""The standard library of the running Python as a source: text on every machine."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.data.text import chunks

# Third-party code, tests, and tables or copies with little prose in them.
EXCLUDED = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3",
    "encodings", "pydoc_data", "turtledemo", "distutils", "ensurepip", "__pycache__",
}  # fmt: skip


def stdlib(_: str) -> Iterator[str | bytes]:
    """Yield pydoc's topics, then the source code of the modules, sorted."""
    from pydoc_data.topics import topics

    for _, topic in sorted(topics.items()):
        yield topic
    for path in _modules(Path(sysconfig.get_path("stdlib"))):
        with open(path, "rb") as file:
            yield from chunks(file)


def _modules(root: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - EXCLUDED)
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder, name)
