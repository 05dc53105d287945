"""Tokenizers: bytes, SentencePiece models and Hugging Face tokenizers.

A tokenizer is identified by the bytes of its model. `save` and `load_saved` store it
with a prepared dataset and with a run. Files beside it, as in a Hugging Face folder,
declare the special tokens of the model that it belongs to (`Declared`).
"""

import abc
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from diffeq_former.atomic_io import atomic_file
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object

CONFIG, GENERATION = "tokenizer_config.json", "generation_config.json"
# Names of the end-of-text token of a Hugging Face tokenizer that declares none.
HF_END_OF_TEXT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|im_end|>",
    "[EOS]",
    "[SEP]",
)


class Declared(NamedTuple):
    """Special tokens that the files beside a tokenizer declare."""

    eos_token: str | None = None
    eos_ids: tuple[int, ...] = ()
    is_opened: bool = False  # whether a text starts as tokenizer_config.json says
    add_bos_token: bool = True

    @classmethod
    def read(cls, folder: Path, config: Mapping = {}) -> "Declared":
        """Read them from the files that are in the folder.

        Args:
          folder: The folder.
          config: Contents of config.json, which applies where generation_config.json
            declares nothing.

        Raises:
          UserError: If a file cannot be read.
        """
        path = folder / CONFIG
        own = read_object(path) if path.is_file() else {}
        token = own.get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        ids = config.get("eos_token_id")
        if (generation := folder / GENERATION).is_file():
            ids = read_object(generation).get("eos_token_id", ids)
        ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
        if not all(type(i) is int for i in ids):
            raise UserError(f"{folder}: eos_token_id: expected ids, got {ids}")
        add_bos_token = bool(own.get("add_bos_token", True))
        return cls(token, tuple(ids), path.is_file(), add_bos_token)


_NOTHING = Declared()


class Tokenizer(abc.ABC):
    """Base class. Ids are below `vocab_size`; `eot`, end of text, starts a document.

    An imported model may expect another start, and end texts with more tokens:
    `opening` holds the ids that its original tokenizer puts before each text, and
    `ends`, which include `eot`, those after which generation stops.
    """

    FILE: ClassVar[str]  # the file name of the saved model
    model: bytes
    vocab_size: int
    eot: int
    ends: tuple[int, ...]
    opening: tuple[int, ...] = ()
    _ends_declared = False

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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model's bytes."""
        return hashlib.sha256(self.model).hexdigest()

    def save(self, directory: str | os.PathLike) -> None:
        """Write the model and its `ends` into the directory, for `load_saved`."""
        path = Path(directory, self.FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            partial.write_bytes(self.model)
        if self._ends_declared:
            with atomic_file(path.with_name(GENERATION)) as partial:
                partial.write_text(json.dumps({"eos_token_id": self.ends}))

    def _set_ends(self, declared: Declared, token_id: int | None, known: list[int]):
        """Set `eot` and `ends`.

        Args:
          declared: The declared special tokens.
          token_id: The id of the declared `eos_token`; None: there is none.
          known: Ids of tokens that are known to end texts, the first of which does if
            none is declared.
        """
        given = ([] if token_id is None else [token_id]) + list(declared.eos_ids)
        ids = [i for i in given if 0 <= i < self.vocab_size]
        self._ends_declared, ids = bool(ids), ids or known[:1]
        if not ids:
            wanted = ", ".join(HF_END_OF_TEXT)
            raise UserError(
                f"this tokenizer has no end-of-text token: expected eos_token in"
                f" {CONFIG} beside it, or one of {wanted}"
            )
        self.eot, self.ends = ids[0], tuple(dict.fromkeys(ids))


class ByteTokenizer(Tokenizer):
    """The bytes of the UTF-8 encoding as ids."""

    FILE = "byte.txt"
    vocab_size = 257
    eot = 256
    ends = (256,)

    def __init__(self, model: bytes = b"byte", declared: Declared = _NOTHING):
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

    def __init__(self, model: bytes, declared: Declared = _NOTHING):
        from sentencepiece import SentencePieceProcessor

        self.model = model
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            raise UserError("not a SentencePiece model") from error
        self.vocab_size = self._processor.vocab_size()
        own, token = self._processor.eos_id(), declared.eos_token or ""
        token_id = self._processor.piece_to_id(token)
        is_piece = self._processor.id_to_piece(token_id) == token
        known = [own] if own >= 0 else []
        self._set_ends(declared, token_id if is_piece else None, known)
        bos = self._processor.bos_id()
        if declared.is_opened and declared.add_bos_token and bos >= 0:
            self.opening = (bos,)

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])


class HFTokenizer(Tokenizer):
    """A fast Hugging Face tokenizer (tokenizer.json) with an end-of-text token."""

    FILE = "tokenizer.json"

    def __init__(self, model: bytes, declared: Declared = _NOTHING):
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
        self._set_ends(declared, vocabulary.get(declared.eos_token), known)
        if declared.is_opened:
            encoding = self._backend.encode("a")
            added = itertools.takewhile(bool, encoding.special_tokens_mask)
            self.opening = tuple(encoding.ids[: len(list(added))])

    def encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

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
    The special tokens are those that the files beside it declare.

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
        file = Path(path) / TOKENIZERS[kind].FILE if os.path.isdir(path) else Path(path)
        # In training, a document starts with the end-of-text token, not an opening.
        declared = Declared.read(file.parent)._replace(is_opened=False)
        return TOKENIZERS[kind](_read(file), declared)
    except UserError as error:
        raise UserError(f"tokenizer {spec!r}: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
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

    Raises:
      UserError: If the directory has no tokenizer, or a damaged one.
    """
    for kind in TOKENIZERS.values():
        path = Path(directory, kind.FILE)
        if path.is_file():
            return kind(path.read_bytes(), Declared.read(path.parent))
    files = ", ".join(kind.FILE for kind in TOKENIZERS.values())
    raise UserError(f"{directory} holds no tokenizer: expected one of {files}")
