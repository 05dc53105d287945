import io

import pytest

from diffeq_former.data.text import MAX_CHUNK_BYTES, chunks, clean


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"line\n" * 50_000,
        b"x" * 200_000,
        ("日" * 70_000).encode(),
        b"\n" + b"y" * 70_000 + b"\nend",
        bytes(range(256)) * 700,
    ],
)
def test_chunks(data):
    found = list(chunks(io.BytesIO(data)))
    assert b"".join(found) == data
    assert all(0 < len(chunk) <= MAX_CHUNK_BYTES for chunk in found)


def test_chunks_end_at_lines_and_characters():
    *lines, _ = chunks(io.BytesIO(b"a line\n" * 30_000))
    assert lines and all(chunk.endswith(b"\n") for chunk in lines)
    for chunk in chunks(io.BytesIO(("日" * 70_000).encode())):
        chunk.decode()


def test_clean():
    assert clean("é\ufffd") == ("é\ufffd", 0)
    assert clean("é\ufffd".encode()) == ("é\ufffd", 0)
    assert clean(b"a\xff\xfeb\xe9") == ("a\ufffd\ufffdb\ufffd", 3)
    assert clean("half a pair \ud83d") == ("half a pair \ufffd", 1)
