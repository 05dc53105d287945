"""Files that are not what their name promises: one line names them."""

import json
import os

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffeq_former.data import sources
from diffeq_former.data.sources import files
from diffeq_former.errors import UserError

TEXTS = [f"document {n} " * 20 for n in range(200)]


def refused(spec: str) -> str:
    with pytest.raises(UserError) as error:
        list(sources.documents(spec))
    return str(error.value)


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_a_folder(tmp_path, kind):
    (tmp_path / "a").mkdir()
    line = refused(f"{kind}:{tmp_path}/a")
    assert line == (
        f"no file matches '{tmp_path}/a': it matches folders; add the names of files,"
        " such as /*.txt"
    )


def test_folders_beside_files_are_left_out(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "file.txt").write_text("a")
    assert list(sources.documents(f"text:{tmp_path}/*.txt")) == [b"a"]


@pytest.mark.parametrize(
    "line, problem",
    [
        ("[" * 100_000, "cannot be parsed (maximum recursion depth exceeded"),
        ('{"n": ' + "9" * 5000 + "}", "cannot be parsed (Exceeds the limit"),
        ('{"text": "a"', "not JSON (Expecting ',' delimiter)"),
        ('["text"]', 'expected an object whose "text" is a string'),
    ],
    ids=["nested", "number", "open", "list"],
)
def test_json(tmp_path, line, problem):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + line)
    assert refused(f"jsonl:{path}").startswith(f"{path}, line 2: {problem}")


def test_a_line_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + json.dumps({"text": "b" * 100}))
    line = refused(f"jsonl:{path}")
    assert line == f"{path}, line 2: longer than 100 characters; split it"


def test_two_columns_of_one_name(tmp_path):
    path = tmp_path / "a.parquet"
    column = pyarrow.array(["a"])
    table = pyarrow.Table.from_arrays([column, column], names=["text", "text"])
    pyarrow.parquet.write_table(table, path)
    assert refused(f"parquet:{path}") == f'{path}: 2 columns "text" among text, text'


def write(path, kind) -> None:
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), path)
    else:
        path.write_text("".join(json.dumps({"text": x}) + "\n" for x in TEXTS))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_damage(tmp_path_factory, kind, data):
    """Documents come out, or one line that names the file."""
    path = tmp_path_factory.mktemp("damaged") / "file"
    write(path, kind)
    start = data.draw(st.integers(0, os.path.getsize(path) - 1))
    with open(path, "r+b") as file:
        if data.draw(st.booleans()):
            file.truncate(start)
        else:
            file.seek(start)
            file.write(data.draw(st.binary(min_size=1, max_size=8)))
    try:
        list(sources.documents(f"{kind}:{path}"))
    except UserError as error:
        assert str(path) in str(error)
