"""Sources of text: each is a function from its argument to an iterator of documents.

A document is a str, or bytes that should be UTF-8 (`text.clean` replaces invalid
bytes). To add a source, write such a function and add it to `SOURCES`.
"""

from collections.abc import Callable, Iterator

from diffeq_former.data.sources.files import jsonl, parquet, text
from diffeq_former.data.sources.hubs import hf, tfds
from diffeq_former.data.sources.stdlib import stdlib
from diffeq_former.errors import UserError

Source = Callable[[str], Iterator[str | bytes]]

SOURCES: dict[str, Source] = {
    "text": text,
    "jsonl": jsonl,
    "parquet": parquet,
    "tfds": tfds,
    "hf": hf,
    "stdlib": stdlib,
}


def documents(spec: str) -> Iterator[str | bytes]:
    """Yield the non-empty documents of a source such as `text:books/*.txt`.

    Raises:
      UserError: If the source is unknown, cannot be read, or has no text.
    """
    name, _, argument = spec.partition(":")
    if name not in SOURCES:
        raise UserError(f"source {spec!r}: expected one of {', '.join(SOURCES)}")
    if (name == "stdlib") == bool(argument):
        wanted = "stdlib, with nothing after it" if argument else f"{name}:WHERE"
        raise UserError(f"source {spec!r}: write {wanted}")
    is_empty = True
    for document in SOURCES[name](argument):
        if document:
            is_empty = False
            yield document
    if is_empty:
        raise UserError(f"source {spec!r} has no text: use another source")
