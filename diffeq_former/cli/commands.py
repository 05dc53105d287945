"""The command `diffeq-former NAME ...`: what `python tools/NAME.py ...` does.

Its command `train` is `python -m diffeq_former.main`. The scripts of tools/ are beside
the package in a checkout, and inside of it where it is installed.
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path
from typing import NoReturn

from diffeq_former.cli import streams
from diffeq_former.process_exit import OK, WRONG_INPUT

_PACKAGE = Path(__file__).parents[1]
_HELP = ("--help", "-h")


def main() -> NoReturn:
    """Run the command that the first argument names, as `__main__`, with the others."""
    name, scripts = sys.argv[1] if sys.argv[1:] else "", _scripts()
    if name in scripts:
        del sys.argv[1]
        runpy.run_path(str(scripts[name]), run_name="__main__")
        raise AssertionError(f"{name} did not exit")
    streams.guard()
    if name in _HELP:
        print(_overview(scripts), flush=True)
        sys.exit(OK)
    print(f"error: {_unknown(name, scripts)}", file=sys.stderr)
    sys.exit(WRONG_INPUT)


def _scripts() -> dict[str, Path]:
    """Return the file of each command."""
    folders = (_PACKAGE / "tools", _PACKAGE.parent / "tools")
    tools = next(folder for folder in folders if folder.is_dir())
    by_name = {path.stem: path for path in sorted(tools.glob("*.py"))}
    return {"train": _PACKAGE / "main.py"} | by_name


def _overview(scripts: dict[str, Path]) -> str:
    """Return the help: each command with the first line of its docstring."""
    width, lines = max(map(len, scripts)), []
    for name, path in scripts.items():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        lines.append(f"  {name:{width}}  {docstring.splitlines()[0]}")
    return "\n".join(
        [
            "diffeq-former COMMAND --flag=value ..., with one of these commands:",
            "",
            *lines,
            "",
            "diffeq-former COMMAND --help lists the flags of a command.",
        ]
    )


def _unknown(name: str, scripts: dict[str, Path]) -> str:
    if not name:
        return "expected a command: see diffeq-former --help"
    nearest = difflib.get_close_matches(name, scripts, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else "see diffeq-former --help"
    return f"there is no command {name!r}: {hint}"
