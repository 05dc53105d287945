import os

import pytest

from diffeq_former.training.checkpoint import checksums

FILES = {"a/b/large": os.urandom(3_000_000), "a/small": b"123", "c": b"", "d": b"x"}


@pytest.fixture
def folder(tmp_path):
    for name, data in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    checksums.write(tmp_path)
    return tmp_path


def test_as_written(folder):
    assert checksums.damages(folder) == []
    before = (folder / checksums.NAME).read_bytes()
    checksums.write(folder)
    assert (folder / checksums.NAME).read_bytes() == before


@pytest.mark.parametrize("name", [name for name in FILES if name != "c"])
def test_each_damage_is_told(folder, name):
    path, data = folder / name, FILES[name]

    def told(data: bytes) -> str:
        path.write_bytes(data)
        [words] = checksums.damages(folder)
        return words

    assert told(b"") == f"{name} is empty"
    assert told(data + b"\0") == f"{name} has changed"
    assert told(data[:-1] + bytes([data[-1] ^ 1])) == f"{name} has changed"
    assert told(bytes([data[0] ^ 128]) + data[1:]) == f"{name} has changed"
    if len(data) > 1:
        assert told(data[:-1]) == f"{name} is truncated"
    path.unlink()
    assert checksums.damages(folder) == [f"{name} is missing"]
    path.symlink_to(path)
    [words] = checksums.damages(folder)
    assert words == f"{name} cannot be read (Too many levels of symbolic links)"


def test_a_folder_gone_and_a_file_in_its_place(folder):
    (folder / "a").rename(folder / "e")
    gone = ["a/b/large is missing", "a/small is missing"]
    assert checksums.damages(folder) == gone
    (folder / "a").touch()
    assert checksums.damages(folder) == gone


def test_a_part(folder):
    (folder / "c").unlink()
    assert checksums.damages(folder, "a/") == []
    (folder / "a/small").unlink()
    assert checksums.damages(folder, "a/") == ["a/small is missing"]


def test_every_damage_to_the_checksums_themselves(folder):
    path = folder / checksums.NAME
    data = path.read_bytes()
    for i in range(len(data)):
        flipped = bytes([data[i] ^ 1 << i % 8])
        for damaged in (data[:i], data[:i] + flipped + data[i + 1 :]):
            path.write_bytes(damaged)
            assert checksums.damages(folder) == ["CHECKSUMS.json has changed"]
    path.unlink()
    assert checksums.damages(folder) == ["CHECKSUMS.json is missing"]
