"""Messages for what can go wrong in the file of --config."""

import contextlib
import logging
import os
import re
import traceback
from collections.abc import Iterator, Sequence

import ml_collections
from absl import flags

from diffeq_former.config import Config
from diffeq_former.config.dataclass_config import keys
from diffeq_former.config.loading import nearest_key
from diffeq_former.errors import UserError

_EXPECTED = "return diffeq_former.config.default_config(), with some fields changed"
_TAKES_NO_VARIANT = "get_config() takes 0 positional arguments but 1 was given\n"


def check(path: str, config) -> None:
    """Check what `get_config()` of the file returned.

    Raises:
      UserError: If it is not a ConfigDict.
      OSError: If the file could not be read.
    """
    if type(config).__module__.startswith(ml_collections.__name__):
        _ = config.to_dict  # raises the error that ml_collections has put aside
    else:
        kind = type(config).__name__
        raise UserError(f"--config={path}: get_config() returned {kind}; {_EXPECTED}")


@contextlib.contextmanager
def translated_errors(path: str, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Translate errors raised while the file is loaded into UserError.

    Flags of fields of the config, --config.x=y, are parsed in this context, too.

    Args:
      path: The file.
      overrides: The fields that such flags name, as SECTION.FIELD.
    """
    logging.getLogger("absl").addFilter(_not_by_config_flags)
    try:
        yield
    except (Exception, SystemExit) as error:
        if (message := _message(path, overrides, error)) is not None:
            raise UserError(message) from error
        raise


def _not_by_config_flags(record: logging.LogRecord) -> bool:
    """Filter out a warning of ml_collections, as an error says the same."""
    return not record.pathname.endswith("config_flags.py")


def _message(path: str, overrides: Sequence[str], error: BaseException) -> str | None:
    """Return a message for the error; None if the config has nothing to do with it."""
    flag = f"--config={path}"
    place = _place(path, error)
    if isinstance(error, AttributeError | KeyError) and _is_of_ml_collections(error):
        if "'get_config'" in str(error):
            return f"{flag}: the file defines no get_config()"
        if place is not None:
            return f"{flag}, {place[0]}: {_unknown_key(error)}"
        known = keys(Config())
        for name in overrides:
            if name not in known:
                near = nearest_key(name)
                return f"config.{name}: no such key; the nearest is config.{near}"
        return f"config: {_unknown_key(error)}"
    if place is not None:
        line, cause = place
        if isinstance(cause, UserError):
            return f"{flag}: {cause}"
        text = cause.msg if isinstance(cause, SyntaxError) else cause
        reason = " ".join(f"{type(cause).__name__}: {text}".split())
        return f"{flag}, {line}: {reason}"
    if isinstance(error, flags.Error) and str(error).startswith("flag --config=None"):
        return f"{flag}: get_config() returned None; {_EXPECTED}"
    if isinstance(error, flags.Error) and str(error).endswith(_TAKES_NO_VARIANT):
        return f"{flag}: the file has no variants; leave out what follows the colon"
    if isinstance(error, OSError):
        return f"--config: {str(error).splitlines()[-1]}"
    return None


def _place(path: str, error: BaseException | None) -> tuple[str, BaseException] | None:
    """Return the line of the file that raised the error, or its cause."""
    file = os.path.realpath(path)
    while error is not None:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if os.path.realpath(frame.filename) == file
        ]
        if isinstance(error, SyntaxError) and os.path.realpath(error.filename) == file:
            lines.append(error.lineno)
        if lines:
            return f"line {lines[-1]}", error
        error = error.__cause__ or error.__context__
    return None


def _is_of_ml_collections(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return "ml_collections" in frames[-1].filename


def _unknown_key(error: Exception) -> str:
    """Return the message for a key that ConfigDict refused."""
    text = str(error)
    key = (re.search(r'Key "(\w+)"', text) or re.search(r"(\w+)\W*(\n|$)", text))[1]
    return f"no such key {key!r}; the nearest is config.{nearest_key(key)}"
