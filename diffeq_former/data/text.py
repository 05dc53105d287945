"""Cleaning of documents: split to a bounded size, and made valid Unicode."""

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

MAX_CHUNK_BYTES = 64 * 1024

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(document: str | bytes) -> tuple[str, int]:
    """Replace each invalid byte by U+FFFD; return the text and the number of them."""
    if isinstance(document, bytes):
        document = document.decode("utf-8", "surrogateescape")
    return _SURROGATES.subn("\ufffd", document)


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file in chunks of at most `MAX_CHUNK_BYTES`, split after line ends."""
    rest = b""
    while block := file.read(MAX_CHUNK_BYTES - len(rest)):
        rest += block
        if len(rest) == MAX_CHUNK_BYTES:
            end = _last_cut(rest)
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _last_cut(block: bytes) -> int:
    """Return where to split: after the last line end, or the last whole character."""
    if end := block.rfind(b"\n") + 1:
        return end
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(block)
    unfinished, _ = decoder.getstate()
    return len(block) - len(unfinished)
