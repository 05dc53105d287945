"""Checksums of the files in a folder: write them, and verify files against them."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME = "CHECKSUMS.json"
NUM_THREADS = 8  # reading and hashing release Python's global lock


def write(folder: Path) -> None:
    """Record the size in bytes and the SHA-256 of every file in the folder."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path != folder / NAME
    )
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        described = pool.map(lambda name: _describe(folder / name), names)
        files = dict(zip(names, described, strict=True))
    (folder / NAME).write_text(_text(files), encoding="utf-8")


def damages(folder: Path, part: str = "") -> list[str]:
    """Return descriptions of damaged files, such as "x is truncated".

    Files that were added after `write` are ignored.

    Args:
      folder: The folder to verify.
      part: A prefix of names; only files whose names start with it are verified.
    """
    try:
        files = _read(folder / NAME)
    except OSError as error:
        return [f"{NAME} {_reason(error)}"]
    except (ValueError, LookupError, TypeError):
        return [f"{NAME} has changed"]
    names = [name for name in files if name.startswith(part)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = pool.map(lambda name: _damage(folder / name, files[name]), names)
        return [
            f"{n} {damage}" for n, damage in zip(names, found, strict=True) if damage
        ]


def _damage(path: Path, expected: dict) -> str | None:
    """Return how a file is damaged, or None if it is intact."""
    try:
        size = path.stat().st_size  # most damage shows without reading the file
        if size < expected["size"]:
            return "is truncated" if size else "is empty"
        if size == expected["size"] and _describe(path) == expected:
            return None
    except OSError as error:
        return _reason(error)
    return "has changed"


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    return f"cannot be read ({error.strerror})"


def _describe(path: Path) -> dict:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": digest}


def _read(path: Path) -> dict[str, dict]:
    text = path.read_text(encoding="utf-8")
    files = json.loads(text)["files"]
    if _text(files) != text:
        raise ValueError(path)
    return files


def _text(files: dict[str, dict]) -> str:
    """Return the text of the checksum file, which contains a checksum of itself."""
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return json.dumps({"sha256": digest, "files": files}, indent=1) + "\n"
