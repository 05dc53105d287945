"""Exit codes and messages of command lines, as processes where one ends abruptly."""

import functools
import subprocess
import sys
from pathlib import Path

import command_lines
import pytest
from command_lines import ROOT

SCRIPT = '''
"""Says what it is for."""
import sys
import threading
from absl import flags
from diffeq_former import cli, process_exit
from diffeq_former.errors import DiskFullError, UserError

_COUNT = flags.DEFINE_integer("count", None, "How many.", required=True)
_ENDS = ["well", "stopped", "refused", "full", "bug"]
_END = flags.DEFINE_enum("end", "well", _ENDS, "How.")

def talk():
    while True:
        print("saving failed", file=sys.stderr)

def main():
    print(_COUNT.value)
    if _END.value == "stopped":
        return process_exit.STOPPED
    if _END.value == "refused":
        raise UserError("--count: expected\\n  fewer")
    if _END.value == "full":
        threading.Thread(target=talk).start()
        raise DiskFullError("no room")
    if _END.value == "bug":
        raise ValueError("not the user's fault")

cli.run(main)
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def run(script):
    return functools.partial(command_lines.run, script)


@pytest.fixture
def run_process(script):
    return functools.partial(command_lines.run_process, script)


def test_done(run, run_process):
    for result in (run("--count=3"), run_process("--count=3")):
        assert (result.returncode, result.stdout, result.stderr) == (0, "3\n", "")


def test_stopped_on_request(run):
    assert run("--count=3", "--end=stopped").returncode == 75


def test_wrong_input_is_one_line(run):
    result = run("--count=3", "--end=refused")
    assert result.returncode == 2
    assert result.stderr == "error: --count: expected fewer\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_the_last_line(run_process, monkeypatch, unbuffered):
    """Also where other threads continue to write, each line and its end apart."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for _ in range(5):
        result = run_process("--count=3", "--end=full")
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1] == "error: no room"


@pytest.mark.parametrize(
    "arguments, line",
    [
        (
            [],
            "this command needs --count (how many): add --count=VALUE; see --help",
        ),
        (
            ["--count=three"],
            "flag --count=three: invalid literal for int() with base 10: 'three'",
        ),
        (
            ["--count=3", "--cuont=4"],
            "Unknown command line flag 'cuont'. Did you mean: count ?",
        ),
        (
            ["--count=3", "--end=badly"],
            "flag --end=badly: value should be one of <well|stopped|refused|full|bug>",
        ),
        (["--count=3", "4"], "unexpected argument '4': write flags as --name=value"),
    ],
    ids=str,
)
def test_wrong_flags_are_one_line(run, arguments, line):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: {line}\n"


def test_a_bug_shows_where_it_is(run_process):
    result = run_process("--count=3", "--end=bug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "not the user's fault" in result.stderr


FULL = "stdout cannot be written (No space left on device): the results are lost"


@pytest.mark.parametrize(
    "redirections, code, out, err",
    [
        ("2>&-", 0, "3\n", ""),
        (">&-", 0, "", ""),
        ("<&- >&- 2>&-", 0, "", ""),
        ("2>/dev/full", 0, "3\n", ""),
        (">/dev/full", 2, "", f"error: {FULL}\n"),
        (">/dev/full 2>&1", 2, "", ""),
        ("--end=refused 2>/dev/full", 2, "3\n", ""),
        ("--end=full 2>/dev/full", 2, "3\n", ""),
        ("--end=full >/dev/full 2>&-", 2, "", ""),
        ("> >(true)", 0, "", ""),
    ],
)
def test_streams_that_take_nothing(script, redirections, code, out, err):
    command = f"{sys.executable} {script} --count=3 {redirections}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (code, out, err)


def test_a_closed_stream_is_no_other_file(tmp_path):
    """The first file that is opened would get its number, and what is written to it."""
    code, path = tmp_path / "code.py", tmp_path / "file"
    code.write_text(f"""
import sys
from diffeq_former.cli import streams
streams.guard()
file = open({str(path)!r}, "w")
print("message", file=sys.stderr)
assert file.fileno() > 2
""")
    command = f"{sys.executable} {code} <&- >&- 2>&-"
    subprocess.run(["bash", "-c", command], check=True)
    assert path.read_text() == ""


def test_help(run_process):
    result = run_process("--help")
    assert result.returncode == 0
    assert "Says what it is for." in result.stdout and "How many." in result.stdout


def test_help_whose_reader_ends(tmp_path):
    """It is longer than a pipe, so that writing it fails."""
    path = tmp_path / "script.py"
    lines = "".join(f"Line {i}.\n" for i in range(20_000))
    path.write_text(SCRIPT.replace("it is for.", f"it is for.\n{lines}"))
    command = f"set -o pipefail; {sys.executable} {path} --help | head -2"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "Says what it is for.\nLine 0.\n"


@pytest.mark.parametrize(
    "command",
    [["-m", "diffeq_former.main"], *([p] for p in sorted(ROOT.glob("tools/*.py")))],
    ids=lambda command: Path(command[-1]).stem,
)
def test_help_is_quick_and_leaves_jax_alone(command):
    """Flags are there before anything heavy is imported.

    Commands in the docstring are printed as they are written, to be copied.
    """
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *command, "--help"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    imported = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert "absl.flags" in imported
    assert not imported & {"jax", "flax", "grain", "tensorflow"}
    path = ROOT / "diffeq_former" / "main.py" if "-m" in command else command[0]
    _, docstring, *_ = path.read_text().split('"""')
    assert result.stdout.startswith(docstring)


def test_the_installed_command_finds_the_tools_of_a_checkout():
    code = "import sys; from diffeq_former.cli.commands import main; main()"
    command = [sys.executable, "-c", code, "evaluate"]
    result = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: this command needs --workdir (the run's")
