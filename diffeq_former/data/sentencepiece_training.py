"""Training of a SentencePiece model on a bounded sample of a source.

The model uses byte-pair encoding with byte fallback and no normalisation: any text is
decoded as it was, including spaces and line ends (except that U+2581, SentencePiece's
mark for a space, becomes a space).
"""

import hashlib
import io
import sys
from collections.abc import Iterable, Iterator

from diffeq_former.data.text import clean
from diffeq_former.errors import UserError

SAMPLE_BYTES = 10 * 10**6
READ_BYTES = 10**9


def train(documents: Iterable[str | bytes], vocab_size: int) -> bytes:
    """Train a model and return its bytes; deterministic for given documents.

    Raises:
      UserError: If the text is too small for the vocabulary.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_lines(_sample(documents)),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="bpe",
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            bos_id=-1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"vocab_size {vocab_size} does not fit the text: {reason}"
        ) from error
    return model.getvalue()


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from filter(None, text.split("\n"))


def _sample(documents: Iterable[str | bytes]) -> Iterator[str]:
    """Return a uniform sample of the documents: those with the smallest hashes.

    The sampled fraction is halved each time the sample exceeds its limit.
    """
    sample, sample_bytes, read_bytes, bound = [], 0, 0, 2**64
    for document in documents:
        text, _ = clean(document)
        utf8 = text.encode()
        read_bytes += len(utf8)
        rank = int.from_bytes(hashlib.sha256(utf8).digest()[:8], "big")
        if rank < bound:
            sample.append((rank, text, len(utf8)))
            sample_bytes += len(utf8)
        while sample_bytes > SAMPLE_BYTES and len(sample) > 1:
            bound //= 2
            sample = [item for item in sample if item[0] < bound]
            sample_bytes = sum(size for _, _, size in sample)
        if read_bytes >= READ_BYTES:
            break
    print(
        f"training on a sample of {sample_bytes / 1e6:.1f} MB from the first"
        f" {read_bytes / 1e6:.1f} MB of text",
        file=sys.stderr,
    )
    return (text for _, text, _ in sample)
