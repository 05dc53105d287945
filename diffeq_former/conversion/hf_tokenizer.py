"""Import and export of the tokenizer files of a Hugging Face folder.

A run that was imported from such a folder keeps, next to its tokenizer, the related
files: special tokens, chat template and generation settings. An export restores them.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from diffeq_former.conversion.hf_folder import write_json
from diffeq_former.data.tokenizers import CONFIG as TOKENIZER_CONFIG
from diffeq_former.data.tokenizers import (
    GENERATION,
    ByteTokenizer,
    Declared,
    HFTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object

IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_RELATED_FILES = (
    TOKENIZER_CONFIG,
    GENERATION,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
_SENTENCEPIECE = "tokenizer.model"
_END_OF_TEXT = "<|endoftext|>"


def read(folder: Path, config: Mapping, vocab_size: int) -> Tokenizer:
    """Read the tokenizer of a folder.

    Args:
      folder: The folder.
      config: The contents of its config.json.
      vocab_size: The vocabulary size of the model.

    Raises:
      UserError: If there is no tokenizer in a supported format, or it has more tokens
        than the model.
    """
    kinds = {HFTokenizer.FILE: HFTokenizer, _SENTENCEPIECE: SentencePieceTokenizer}
    found = [name for name in kinds if (folder / name).is_file()]
    if not found:
        raise UserError(
            f"{folder} has neither {' nor '.join(kinds)}: save the model's tokenizer"
            " there with transformers' save_pretrained"
        )
    path = folder / found[0]
    try:
        tokenizer = kinds[path.name](path.read_bytes(), Declared.read(folder, config))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if tokenizer.vocab_size > vocab_size:
        raise UserError(
            f"{path} is not this model's tokenizer: it has {tokenizer.vocab_size}"
            f" tokens, the model {vocab_size}"
        )
    return tokenizer


def keep(folder: Path, config: Mapping, tokenizer_folder: Path) -> None:
    """Copy the related files of a folder to the tokenizer folder of a run.

    The ids of special tokens in config.json are kept in generation_config.json, unless
    that has its own.
    """
    for name in _RELATED_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, tokenizer_folder / name)
    _complete(tokenizer_folder / GENERATION, _ids(config))


def write(
    tokenizer: Tokenizer, tokenizer_folder: Path, max_len: int, folder: Path
) -> dict:
    """Write the files of a tokenizer, and the related files that a run has kept.

    Args:
      tokenizer: The tokenizer.
      tokenizer_folder: The tokenizer folder of the run.
      max_len: Maximum sequence length of the model.
      folder: The folder to write to.

    Returns:
      The ids of special tokens, for config.json.
    """
    for name in _RELATED_FILES:
        if (tokenizer_folder / name).is_file():
            shutil.copyfile(tokenizer_folder / name, folder / name)
    if not (folder / TOKENIZER_CONFIG).exists():  # the tokenizer is not imported
        ends = {"bos_token_id": tokenizer.eot, "eos_token_id": tokenizer.eot}
        _complete(folder / GENERATION, ends)
    config = _write_model(tokenizer, folder)
    if not (folder / TOKENIZER_CONFIG).exists():
        write_json(folder / TOKENIZER_CONFIG, config | {"model_max_length": max_len})
    return _ids(read_object(folder / GENERATION))


def _complete(path: Path, defaults: dict) -> None:
    """Add the missing entries to the file of a JSON object, which need not exist."""
    given = read_object(path) if path.exists() else {}
    if missing := {key: x for key, x in defaults.items() if key not in given}:
        write_json(path, given | missing)


def _ids(given: Mapping) -> dict:
    return {name: given[name] for name in IDS if given.get(name) is not None}


def _write_model(tokenizer: Tokenizer, folder: Path) -> dict:
    """Write the tokenizer model; return the contents of tokenizer_config.json."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        (folder / _SENTENCEPIECE).write_bytes(tokenizer.model)
        return _sentencepiece_config(tokenizer)
    model = tokenizer.model
    if isinstance(tokenizer, ByteTokenizer):
        model = byte_tokenizer_json().encode()
    (folder / HFTokenizer.FILE).write_bytes(model)
    from tokenizers import Tokenizer as Backend

    end = Backend.from_buffer(model).id_to_token(tokenizer.eot)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
    }


def _sentencepiece_config(tokenizer: SentencePieceTokenizer) -> dict:
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_proto=tokenizer.model)
    end = pieces.id_to_piece(tokenizer.eot)
    return {
        "tokenizer_class": "LlamaTokenizer",
        "legacy": False,
        "add_prefix_space": pieces.encode("a", out_type=str)[0].startswith("▁"),
        "add_bos_token": False,
        "bos_token": end,
        "eos_token": end,
        "unk_token": pieces.id_to_piece(pieces.unk_id()),
    }


def byte_tokenizer_json() -> str:
    """Return a tokenizer.json for `ByteTokenizer`: byte b is token b, eot is 256."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    tokenizer = Backend(models.BPE({c: b for b, c in enumerate(_byte_letters())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_END_OF_TEXT, special=True)])
    return tokenizer.to_str()


def _byte_letters() -> list[str]:
    """Return GPT-2's character for each byte.

    A printable byte stands for itself; the others get the characters starting at 256.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b if b in printable else next(others)) for b in range(256)]
