"""Runs a command line: flags in, one clear line and exit code 2 for wrong input."""

import sys
from collections.abc import Callable
from typing import NoReturn

from absl import app, flags

from diffeq_former.errors import UserError

OK = 0
WRONG_INPUT = 2
STOPPED = 75  # EX_TEMPFAIL: everything is saved, run the same command again


def run(main: Callable[[], int | None]) -> NoReturn:
    """Parses the absl flags and exits with what `main()` returns (None: 0)."""
    app.run(lambda _: sys.exit(_guarded(main)), flags_parser=_parse_flags)


def _guarded(main: Callable[[], int | None]) -> int:
    try:
        return main() or OK
    except UserError as error:
        return _refuse(error)


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except (flags.Error, UserError) as error:
        sys.exit(_refuse(error))
    except SystemExit:  # --help was printed; absl would exit with 1
        sys.exit(OK)
    if rest[1:]:
        sys.exit(
            _refuse(f"unexpected argument {rest[1]!r}: write flags as --name=value")
        )
    return rest


def _refuse(error: Exception | str) -> int:
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    return WRONG_INPUT
