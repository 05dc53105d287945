"""Tokenisation of documents in worker processes, in order and in bounded memory."""

import collections
import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from diffeq_former.data import tokenizers
from diffeq_former.data.text import clean

TRAIN, VALIDATION = "train", "validation"
CHUNK_BYTES = 256 * 1024
CHUNKS_IN_FLIGHT = 3  # per worker: one in progress, two queued


@dataclasses.dataclass
class Encoded:
    """Tokens and statistics of some documents, each after an end-of-text token."""

    tokens: np.ndarray
    text_bytes: int
    documents: int
    replaced: int  # invalid bytes that became U+FFFD


Chunk = list[str | bytes]
EncodedChunk = dict[str, Encoded]


class Encoder:
    """Encodes documents and assigns them to splits by a hash of their text."""

    def __init__(self, tokenizer_directory: str, validation_fraction: float):
        self._tokenizer = tokenizers.load_saved(tokenizer_directory)
        self._fraction = validation_fraction

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        by_split = collections.defaultdict(list)
        for document in chunk:
            text, replaced = clean(document)
            utf8 = text.encode()
            by_split[self._split(utf8)].append((text, len(utf8), replaced))
        return {split: self._encode(texts) for split, texts in by_split.items()}

    def _split(self, utf8: bytes) -> str:
        digest = int.from_bytes(hashlib.sha256(utf8).digest()[:8], "big")
        return VALIDATION if digest < self._fraction * 2**64 else TRAIN

    def _encode(self, texts: list[tuple[str, int, int]]) -> Encoded:
        tokens = []
        for text, _, _ in texts:
            tokens.append(self._tokenizer.eot)
            tokens.extend(self._tokenizer.encode(text))
        _, sizes, replaced = zip(*texts, strict=True)
        return Encoded(
            np.array(tokens, np.uint32), sum(sizes), len(texts), sum(replaced)
        )


def encode_documents(
    documents: Iterable[str | bytes],
    tokenizer_directory: str,
    validation_fraction: float,
    num_workers: int,
) -> Iterator[EncodedChunk]:
    """Yield encoded chunks in the order of the documents.

    Args:
      documents: The documents, valid Unicode or not.
      tokenizer_directory: The directory of the saved tokenizer.
      validation_fraction: The fraction of documents for the validation split.
      num_workers: The number of worker processes; 0: encode in this process.
    """
    arguments = (tokenizer_directory, validation_fraction)
    if num_workers == 0:
        yield from map(Encoder(*arguments), chunks(documents))
        return
    with ProcessPoolExecutor(
        num_workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=arguments,
    ) as pool:
        in_flight = CHUNKS_IN_FLIGHT * num_workers
        yield from _ordered(pool, _encode_in_worker, chunks(documents), in_flight)


def chunks(documents: Iterable[str | bytes]) -> Iterator[Chunk]:
    """Group documents into chunks of about `CHUNK_BYTES`."""
    chunk, size = [], 0
    for document in documents:
        chunk.append(document)
        size += len(document)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _ordered(pool, function: Callable, items: Iterable, limit: int) -> Iterator:
    """Like `pool.map`, with at most `limit` items read ahead of the results."""
    pending = collections.deque()
    try:
        for item in items:
            if len(pending) == limit:
                yield pending.popleft().result()
            pending.append(pool.submit(function, item))
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


_encoder: Encoder | None = None


def _start_worker(*arguments) -> None:
    global _encoder
    _encoder = Encoder(*arguments)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """Wait for the end of the parent; if it was killed, it did not end its workers."""
    with contextlib.suppress(KeyboardInterrupt):
        multiprocessing.parent_process().join()
    os._exit(1)


def _encode_in_worker(chunk: Chunk) -> EncodedChunk:
    return _encoder(chunk)
