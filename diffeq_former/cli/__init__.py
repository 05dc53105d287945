"""Runs a command line: parses flags and reports invalid input in one line, exit code 2.

Running out of device memory counts as invalid input: the same command would fail again.
"""

import contextlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from absl import app, flags

from diffeq_former.cli import streams
from diffeq_former.errors import (
    DiskFullError,
    OutOfMemoryError,
    TransientError,
    UserError,
)
from diffeq_former.process_exit import (
    FAILED,
    OK,
    WRONG_INPUT,
    exit_now,
    fail_now,
    process_name,
)


def run(
    main: Callable[..., int | None], choices: Sequence[str] = (), elsewhere: str = ""
) -> NoReturn:
    """Parse the absl flags and exit with the return value of `main` (None: 0).

    Args:
      main: Function to run.
      choices: If given, the first argument must be one of them; it is passed to `main`.
      elsewhere: Hint that is appended to the error for any other first argument.
    """
    streams.guard()
    app.run(
        lambda argv: sys.exit(_guarded(main, argv[1:])),
        flags_parser=lambda argv: _parse_flags(argv, choices, elsewhere),
    )


def run_modes(modes: dict[str, Callable[..., int | None]]) -> NoReturn:
    """Run the mode that the command line names first; see `run`.

    The parameters of a mode's function are the flags that it takes; those without a
    default are required. Those of fields of the config, --config.x=y, go with --config;
    those of the mesh are read by `mesh_flags`.
    """

    def main(mode: str) -> int | None:
        return modes[mode](**_given_flags(mode, modes[mode]))

    run(main, choices=tuple(modes))


def _given_flags(mode: str, function: Callable) -> dict[str, object]:
    """Return the flags set on the command line, as arguments of a mode's function.

    Args:
      mode: Name of the mode.
      function: Function of the mode, whose parameters are the flags that it takes.

    Raises:
      UserError: If a flag is given that the mode does not take, or one is missing.
    """
    key_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    given = {f.name: f.value for f in key_flags if f.present}
    given = {name: x for name, x in given.items() if not name.startswith("config.")}
    parameters = inspect.signature(function).parameters
    for name in sorted(given.keys() - parameters.keys()):
        raise UserError(f"--{name}: {mode} does not take it; leave it out")
    required = [n for n, p in parameters.items() if p.default is p.empty]
    if missing := [name for name in required if name not in given]:
        raise UserError(_needs(mode, missing))
    return given


def _needs(command: str, missing: Sequence[str]) -> str:
    """Return the message for required flags that are missing."""
    *others, last = (f"--{name} ({_expected(name)})" for name in missing)
    listed = f"{', '.join(others)} and {last}" if others else last
    added = " ".join(f"--{name}=VALUE" for name in missing)
    return f"{command} needs {listed}: add {added}; see --help"


def _expected(name: str) -> str:
    """Return the description of a flag's value, to be put into a sentence."""
    text = flags.FLAGS[name].help.partition(";\n")[0]  # absl's hint on repeated flags
    text = re.sub(r"^[a-z, ]+: |(?<!\.)\.$", "", text)  # the modes that take it
    return text if text[1:2].isupper() else text[0].lower() + text[1:]


def whole_numbers(
    flag: str, values: Sequence[str] | None, least: int = 1
) -> list[int] | None:
    """Return the numbers in the value of a list flag; None: the flag is not given.

    Raises:
      UserError: If there are none, or one is not a whole number of `least` or more.
    """
    if values is None:
        return None
    if not values or not all(v.isdecimal() and int(v) >= least for v in values):
        raise UserError(
            f"--{flag}={','.join(values)}: expected whole numbers of {least} or more, "
            "separated by commas"
        )
    return [int(value) for value in values]


def _guarded(main: Callable[..., int | None], arguments: list[str]) -> int:
    try:
        with _path_errors():
            code = main(*arguments) or OK
            sys.stdout.flush()
            return code
    except UserError as error:
        if process_name() or isinstance(error, DiskFullError):
            exit_now(WRONG_INPUT, _line(error))
        return _refuse(error)
    except TransientError as error:
        exit_now(FAILED, _line(error))
    except (Exception, KeyboardInterrupt):
        if (name := process_name()) is None:
            raise
        traceback.print_exc()
        fail_now(
            f"{name} failed, and the other processes stop too; if a collective "
            "operation failed, another process died first"
        )


@contextlib.contextmanager
def _path_errors() -> Iterator[None]:
    """Translate errors of the file system into UserError.

    Their paths are those that the user gave, or lie in folders that the user gave.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        paths = [p for p in (error.filename, error.filename2) if p is not None]
        raise UserError(f"{' -> '.join(map(str, paths))}: {error.strerror}") from error
    except UnicodeEncodeError as error:  # a file name or a prompt that is not UTF-8
        raise UserError(f"{error.object!r} is not valid Unicode") from error


def _parse_flags(argv: list[str], choices: Sequence[str], elsewhere: str) -> list[str]:
    if argv[1:] and not argv[1].startswith("-"):  # check before its flags are parsed
        _check_choice(argv[1:], choices, elsewhere)
    try:
        with _config_file_errors(argv):
            rest = flags.FLAGS(argv)
        if flags.FLAGS["verbosity"].using_default_value:
            flags.FLAGS.verbosity = -1  # warnings; absl.app would show more
    except (flags.Error, UserError) as error:
        missing = _missing_flags(error)
        sys.exit(_refuse(_needs("this command", missing) if missing else error))
    except SystemExit:  # --help was printed; absl would exit with 1
        sys.exit(OK)
    _check_choice(rest[1:], choices, elsewhere)
    if unexpected := rest[1 + bool(choices) :]:
        sys.exit(
            _refuse(
                f"unexpected argument {unexpected[0]!r}: write flags as --name=value"
            )
        )
    return rest


def _missing_flags(error: Exception) -> list[str]:
    """Return the names of the flags that absl reports as required, each once."""
    pattern = r"flag --(.+)=None: Flag --\1 must have a value other than None\."
    matches = [re.fullmatch(pattern, line) for line in str(error).splitlines()]
    return list(dict.fromkeys(match[1] for match in matches if match))


def _check_choice(arguments: list[str], choices: Sequence[str], elsewhere: str) -> None:
    if choices and (not arguments or arguments[0] not in choices):
        got = f"got {arguments[0]!r}" if arguments else "got none"
        known = ", ".join(choices)
        sys.exit(_refuse(f"expected one of {known}; {got}{elsewhere}"))


@contextlib.contextmanager
def _config_file_errors(argv: list[str]) -> Iterator[None]:
    """Translate errors in the file of --config into UserError, if there is one."""
    path = _config_path(argv)
    if path is None:
        yield
        return
    from diffeq_former.cli import config_file

    matches = [re.match(r"--?config\.([\w.]+)", argument) for argument in argv]
    overrides = [match[1] for match in matches if match]
    with config_file.translated_errors(path, overrides):
        yield
        config_file.check(path, flags.FLAGS.config)


def _config_path(argv: list[str]) -> str | None:
    """Return the file of the last --config, without its argument (path.py:argument)."""
    paths = [
        argv[i + 1] if match[1] is None else match[1]
        for i, argument in enumerate(argv)
        if (match := re.fullmatch(r"--?config(?:=(.*))?", argument, re.DOTALL))
        and (match[1] is not None or i + 1 < len(argv))
    ]
    return paths[-1].partition(":")[0] if paths else None


def _refuse(error: Exception | str) -> int:
    print(_line(error), file=sys.stderr)
    return WRONG_INPUT


def _line(error: Exception | str) -> str:
    lines = str(error).splitlines()
    if isinstance(error, OutOfMemoryError):  # a table of several lines
        return f"error: {error}"
    if any(line.startswith("Traceback") for line in lines):  # raised in a config file
        lines = [lines[0], lines[-1]]
    return "error: " + " ".join(" ".join(lines).split())
