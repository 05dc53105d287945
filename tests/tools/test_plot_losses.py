import json

import command_lines
import pytest

TOOL = ("plot.py", "losses")


def compare(*workdirs, output):
    flags = [f"--workdir={workdir}" for workdir in workdirs]
    return command_lines.run(*TOOL, *flags, f"--output={output}")


@pytest.fixture
def runs(tmp_path):
    """Two folders with what a run leaves in metrics.jsonl."""
    for name, losses in {"a": [5.0, 4.5, 4.6], "b": [5.5, 4.0]}.items():
        (tmp_path / name).mkdir()
        lines = [{"step": 1, "loss": 9.0, "tokens_per_second": 100.0}]
        lines += [
            {"step": 10 * (i + 1), "validation/loss": loss}
            for i, loss in enumerate(losses)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    return tmp_path / "a", tmp_path / "b"


def test_writes_the_picture_and_its_numbers(runs, tmp_path):
    result = compare(*runs, output=tmp_path / "curves.png")
    assert result.returncode == 0, result.stderr
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["steps"] == [10, 20, 30] and first["losses"] == [5.0, 4.5, 4.6]
    assert (first["lowest_loss"], second["lowest_loss"]) == (4.5, 4.0)
    assert first["tokens_per_second"] == 100.0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "empty/metrics.jsonl; name a run that has"),
        ('{"step": 1}\n', "no evaluation in "),
    ],
)
def test_a_folder_without_curves_is_refused(runs, tmp_path, content, message):
    empty = tmp_path / "empty"
    empty.mkdir()
    if content:
        (empty / "metrics.jsonl").write_text(content)
    result = compare(empty, output=tmp_path / "curves.png")
    assert result.returncode == 2 and not (tmp_path / "curves.png").exists()
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_nothing_is_overwritten(runs, tmp_path):
    (tmp_path / "curves.png").write_text("mine")
    result = compare(*runs, output=tmp_path / "curves.png")
    assert result.returncode == 2 and "exists: remove it" in result.stderr
    assert (tmp_path / "curves.png").read_text() == "mine"


@pytest.mark.parametrize(
    "flags, message",
    [
        (["losses", "--metrics=a"], "--metrics: losses does not take it; leave it out"),
        (
            ["losses"],
            "losses needs --workdir (a run's folder; losses takes several): add"
            " --workdir=VALUE; see --help",
        ),
        (["curves"], "expected one of losses, depth, convergence, trend; got 'curves'"),
    ],
)
def test_each_mode_takes_its_own_flags(tmp_path, flags, message):
    result = command_lines.run("plot.py", *flags, f"--output={tmp_path}/x.png")
    assert (result.returncode, result.stderr) == (2, f"error: {message}\n")
