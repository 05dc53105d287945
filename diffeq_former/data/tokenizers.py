"""Tokenizers: bytes, SentencePiece models and Hugging Face tokenizers.

A tokenizer is identified by the bytes of its model. `save` and `load_saved` store it
with a prepared dataset and with a run.
"""

import abc
import hashlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from diffeq_former.atomic_io import atomic_file
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object

CONFIG = "tokenizer_config.json"
HF_END_OF_TEXT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|im_end|>",
    "[EOS]",
    "[SEP]",
)


class Tokenizer(abc.ABC):
    """Base class. Ids are below `vocab_size`; `eot`, end of text, starts a document.

    An imported model may expect another start: `opening` holds the ids that its
    original tokenizer puts before each text.
    """

    FILE: ClassVar[str]  # the file name of the saved model
    model: bytes
    vocab_size: int
    eot: int
    opening: tuple[int, ...] = ()

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of the text, without special tokens."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids, which may be any below `vocab_size`."""

    @property
    def before(self) -> list[int]:
        """The ids to put before a text that a model reads."""
        return list(self.opening) or [self.eot]

    def described_opening(self, config: dict) -> tuple[int, ...]:
        """Return the `opening` according to the contents of tokenizer_config.json."""
        return ()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model's bytes."""
        return hashlib.sha256(self.model).hexdigest()

    def save(self, directory: str | os.PathLike) -> None:
        """Write the model into the directory, for `load_saved`."""
        path = Path(directory, self.FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            partial.write_bytes(self.model)


class ByteTokenizer(Tokenizer):
    """The bytes of the UTF-8 encoding as ids."""

    FILE = "byte.txt"
    vocab_size = 257
    eot = 256

    def __init__(self, model: bytes = b"byte"):
        if model != b"byte":
            raise UserError(f"{self.FILE} is damaged: expected the word byte")
        self.model = model

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model with an end-of-text piece."""

    FILE = "sentencepiece.model"

    def __init__(self, model: bytes):
        from sentencepiece import SentencePieceProcessor

        self.model = model
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            raise UserError("not a SentencePiece model") from error
        self.vocab_size = self._processor.vocab_size()
        self.eot = self._processor.eos_id()
        if self.eot < 0:
            raise UserError("this SentencePiece model has no end-of-text piece </s>")

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def described_opening(self, config: dict) -> tuple[int, ...]:
        bos = self._processor.bos_id()
        return (bos,) if bos >= 0 and config.get("add_bos_token", True) else ()

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])


class HFTokenizer(Tokenizer):
    """A fast Hugging Face tokenizer (tokenizer.json) with an end-of-text token."""

    FILE = "tokenizer.json"

    def __init__(self, model: bytes):
        from tokenizers import Tokenizer as Backend

        self.model = model
        try:
            self._backend = Backend.from_buffer(model)
        except ValueError as error:
            raise UserError(f"not a tokenizer.json: {error}") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # read "</s>" in a text as text
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        known = [vocabulary[name] for name in HF_END_OF_TEXT if name in vocabulary]
        if not known:
            wanted = ", ".join(HF_END_OF_TEXT)
            raise UserError(f"this tokenizer has no end-of-text token ({wanted})")
        self.eot = known[0]

    def encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def described_opening(self, config: dict) -> tuple[int, ...]:
        encoding = self._backend.encode("a")
        added = itertools.takewhile(bool, encoding.special_tokens_mask)
        return tuple(encoding.ids[: len(list(added))])

    def decode(self, ids: Iterable[int]) -> str:
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "byte": ByteTokenizer,
    "sentencepiece": SentencePieceTokenizer,
    "hf": HFTokenizer,
}


def load(spec: str) -> Tokenizer:
    """Load `byte`, `sentencepiece:PATH` or `hf:PATH`.

    PATH is a file or a folder; for `hf`, it may also be a name on the Hugging Face hub.

    Raises:
      UserError: If there is no such tokenizer, or it cannot be used.
    """
    kind, _, path = spec.partition(":")
    if spec == "byte":
        return ByteTokenizer()
    if kind not in ("sentencepiece", "hf") or not path:
        raise UserError(
            f"tokenizer {spec!r}: expected byte, sentencepiece:PATH or hf:PATH"
        )
    try:
        if kind == "hf" and not os.path.exists(path):
            return HFTokenizer(_from_hub(path))
        return TOKENIZERS[kind](_read(Path(path), TOKENIZERS[kind].FILE))
    except UserError as error:
        raise UserError(f"tokenizer {spec!r}: {error}") from error


def _read(path: Path, name_in_folder: str) -> bytes:
    try:
        return (path / name_in_folder if path.is_dir() else path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from error


def _from_hub(name: str) -> bytes:
    from tokenizers import Tokenizer as Backend

    try:
        return Backend.from_pretrained(name).to_str().encode()
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"no such file or folder, nor on the hub: {reason}") from error


def load_saved(directory: str | os.PathLike) -> Tokenizer:
    """Load the tokenizer that `save` wrote into the directory.

    The tokenizer of an imported model has a tokenizer_config.json beside it, which
    determines its `opening`.

    Raises:
      UserError: If the directory has no tokenizer, or a damaged one.
    """
    for kind in TOKENIZERS.values():
        path = Path(directory, kind.FILE)
        if path.is_file():
            tokenizer = kind(path.read_bytes())
            tokenizer.opening = _opening(tokenizer, path.with_name(CONFIG))
            return tokenizer
    files = ", ".join(kind.FILE for kind in TOKENIZERS.values())
    raise UserError(f"{directory} holds no tokenizer: expected one of {files}")


def _opening(tokenizer: Tokenizer, path: Path) -> tuple[int, ...]:
    if not path.is_file():
        return ()
    return tokenizer.described_opening(read_object(path))
