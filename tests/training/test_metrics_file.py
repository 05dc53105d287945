"""Damage of metrics.jsonl is set aside when a run resumes, and named elsewhere."""

import json

import pytest

from diffeq_former.errors import UserError
from diffeq_former.training import metrics_file
from diffeq_former.training.writers import MetricsWriter

RECORDS = [{"step": step, "loss": 1.0 / step} for step in (1, 2, 3)]
DAMAGED = [
    b"{",
    b'{"loss": 1.0}',
    b"[1]",
    b"\xff\xfe",
    b"",
    b'{"step": "3"}',
    b"\0" * 9,
]


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / metrics_file.NAME).write_text(
        "".join(json.dumps(record) + "\n" for record in RECORDS)
    )
    return tmp_path


def insert(workdir, line: bytes):
    """Insert a line after the first."""
    path = workdir / metrics_file.NAME
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + b"\n" + rest)


@pytest.mark.parametrize("line", DAMAGED, ids=repr)
def test_a_damaged_line_is_named(workdir, line):
    assert metrics_file.read(workdir) == RECORDS
    insert(workdir, line)
    with pytest.raises(UserError) as error:
        metrics_file.read(workdir)
    assert str(error.value) == (
        f"{workdir / 'metrics.jsonl'}: line 2 is damaged; remove it, or resume the run,"
        " which moves it to metrics-damaged.jsonl"
    )


@pytest.mark.parametrize("line", DAMAGED, ids=repr)
def test_a_resumed_run_sets_it_aside(workdir, line, capsys):
    insert(workdir, line)
    MetricsWriter(workdir, step=2).close()
    assert metrics_file.read(workdir) == RECORDS[:2]
    assert (workdir / metrics_file.DAMAGED).read_bytes() == line + b"\n"
    assert capsys.readouterr().err == (
        f"{workdir / 'metrics.jsonl'}: damaged lines, moved to metrics-damaged.jsonl: 1"
        "\n"
    )
    MetricsWriter(workdir, step=2).close()
    assert capsys.readouterr().err == ""


def test_a_line_that_is_being_written_is_no_damage(workdir):
    with (workdir / metrics_file.NAME).open("a") as file:
        file.write('{"step": 4, "lo')
    assert metrics_file.read(workdir) == RECORDS


def test_a_run_that_was_not_trained_has_no_metrics(tmp_path):
    assert metrics_file.read(tmp_path) == []


def test_a_path_through_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=r"metrics\.jsonl: Not a directory; is .* a run"
    ):
        metrics_file.read(tmp_path / "file")
