"""Structure of a checkpoint: the names, dtypes and shapes of its arrays."""

import functools
import logging
import sys
from pathlib import Path

import orbax.checkpoint as ocp
from flax import traverse_util

NAMED_AT_MOST = 6
UNREADABLE = (OSError, ValueError, KeyError, AttributeError)  # raised by Orbax


def make_handler() -> ocp.StandardCheckpointHandler:
    """Return a handler that saves and restores a tree of arrays."""
    _silence_libraries()
    return ocp.StandardCheckpointHandler()


@functools.cache
def _silence_libraries() -> None:
    """Drop what Orbax and TensorStore write to stderr beside raising an error.

    They are log records, and the errors of TensorStore's threads that report to an
    event loop which has ended, as those of a save on a full disk do.
    """
    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
    report = sys.unraisablehook

    def report_others(unraisable) -> None:
        if repr(unraisable.exc_value) != "RuntimeError('Event loop is closed')":
            report(unraisable)

    sys.unraisablehook = report_others


def differences(path: Path, expected: dict[str, dict]) -> list[str]:
    """Return how the items of a checkpoint differ from the expected trees of arrays.

    Raises:
      UNREADABLE: If an item cannot be read.
    """
    handler = make_handler()
    stored = {name: handler.metadata(path.absolute() / name).tree for name in expected}
    expected, stored = _described(expected), _described(stored)
    wrong = [f"{n} {expected[n]} is missing" for n in expected if n not in stored]
    wrong += [f"{n} {stored[n]} is unexpected" for n in stored if n not in expected]
    wrong += [
        f"{n} is {stored[n]}, expected {expected[n]}"
        for n in expected
        if n in stored and stored[n] != expected[n]
    ]
    return wrong


def reason(error: Exception) -> str:
    """Return the first line of an error of Orbax, shortened."""
    return str(error).splitlines()[0][:300]


def listed(items: list) -> str:
    """Join the first items, and count the others."""
    more = len(items) - NAMED_AT_MOST
    named = [str(x) for x in items[:NAMED_AT_MOST]]
    return "; ".join(named + ([f"and {more} more"] if more > 0 else []))


def _described(tree: dict) -> dict[str, str]:
    """Return a description such as `float32[2, 3]` of each array, by name."""
    flat = traverse_util.flatten_dict(tree, sep="/")
    return {name: f"{x.dtype}{list(x.shape)}" for name, x in flat.items()}
