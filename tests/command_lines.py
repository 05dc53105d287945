"""Runs command lines in this process, or as real processes where a test needs one.

A process costs some seconds of imports and shares no compiled program; here a command
line costs what it does. `--help` and what ends a process at once (a full disk, a fault,
a signal) need a real process.
"""

import contextlib
import io
import os
import runpy
import signal
import subprocess
import sys
import warnings
from pathlib import Path

from absl import app, flags

# Command lines share the flags of these, which define them when they are imported.
from diffeq_former.cli import (
    mesh_flags,  # noqa: F401
    process_flags,  # noqa: F401
)

ROOT = Path(__file__).parents[1]
MAIN = "diffeq_former.main"

_MESH_FLAGS = {name: flags.FLAGS[name] for name in flags.FLAGS if "config." in name}

app.define_help_flags()


def run(program: str, *arguments: object) -> subprocess.CompletedProcess:
    """Runs a file of tools/, or a module, in this process.

    Args:
      program: "evaluate.py" for tools/evaluate.py; MAIN for the command that trains.
      arguments: Of the command line.

    Returns:
      Its exit code, stdout and stderr.
    """
    path = str(ROOT / "tools" / program) if program.endswith(".py") else None
    argv = [path or program, *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        _own_flags(argv),
        _own_signal_handlers(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(action="ignore", category=DeprecationWarning),
    ):
        saved, sys.argv = sys.argv, argv
        try:
            if path:
                runpy.run_path(path, run_name="__main__")
            else:
                runpy.run_module(program, run_name="__main__")
            raise AssertionError(f"{program} did not exit")
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.argv = saved
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def run_process(
    program: str, *arguments: object, num_devices: int = 1, **environment: str
) -> subprocess.CompletedProcess:
    """Runs a file of tools/, or a module, as a process with so many CPU devices."""
    where = [ROOT / "tools" / program] if program.endswith(".py") else ["-m", program]
    return subprocess.run(
        [sys.executable, *where, *map(str, arguments)],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)} | environment,
        capture_output=True,
        text=True,
    )


@contextlib.contextmanager
def _own_flags(argv: list[str]):
    """Forgets, at the end, which flags a command line defined and what it parsed.

    Those that libraries define meanwhile stay. A --config defines flags for its fields,
    those of the mesh too.
    """
    takes_config = any(word.startswith("--config=") for word in argv)
    hidden = _MESH_FLAGS if takes_config else {}
    for name in hidden:
        delattr(flags.FLAGS, name)
    try:
        yield
    finally:
        for name in set(flags.FLAGS) - (_MESH_FLAGS.keys() - hidden.keys()):
            defined_by = flags.FLAGS.find_module_defining_flag(name)
            if name.partition(".")[0] == "config" or defined_by == argv[0]:
                delattr(flags.FLAGS, name)
            else:
                flags.FLAGS[name].unparse()
        for name, flag in hidden.items():
            flags.FLAGS[name] = flag
        for flag in _MESH_FLAGS.values():
            flag.unparse()


@contextlib.contextmanager
def _own_signal_handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
