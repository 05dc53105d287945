"""Checksums of the files in a folder, and what is wrong with a folder that has them."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME = "CHECKSUMS.json"
NUM_THREADS = 8  # reading and hashing run beside each other in Python's threads


def write(folder: Path) -> None:
    """Writes down the size in bytes and the SHA-256 of every file in the folder."""
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
    """What is wrong with the files whose names start with `part`: "x is truncated".

    Files that `write` did not see do not matter.
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
    """The size alone tells most damage, without reading the file."""
    try:
        size = path.stat().st_size
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
    """With a checksum of itself."""
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return json.dumps({"sha256": digest, "files": files}, indent=1) + "\n"
