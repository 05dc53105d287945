"""Documents as they arrive: cut to a bounded size, and made valid Unicode."""

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

MAX_PIECE_BYTES = 64 * 1024

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(document: str | bytes) -> tuple[str, int]:
    """Returns the document with U+FFFD for each invalid byte, and how many it had."""
    if isinstance(document, bytes):
        document = document.decode("utf-8", "surrogateescape")
    return _SURROGATES.subn("\ufffd", document)


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """Streams a file as pieces of at most `MAX_PIECE_BYTES`, cut at line ends."""
    rest = b""
    while block := file.read(MAX_PIECE_BYTES - len(rest)):
        rest += block
        if len(rest) == MAX_PIECE_BYTES:
            end = _last_cut(rest)
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _last_cut(block: bytes) -> int:
    """Where to cut: after the last line, or after the last whole character."""
    if end := block.rfind(b"\n") + 1:
        return end
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(block)
    unfinished, _ = decoder.getstate()
    return len(block) - len(unfinished)
