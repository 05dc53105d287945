"""The bounds of the house, and what the README promises."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from diffeq_former.data.sources import SOURCES

ROOT = Path(__file__).parents[1]
FOLDERS = ("diffeq_former", "tools", "configs", "docs", "tests")
SOURCE_FILES = [
    ROOT / "setup.py",
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))),
]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_files_and_functions_are_short():
    assert len(SOURCE_FILES) > 60
    for path in SOURCE_FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 60, f"{path}: {node.name} has {lines} lines"


def test_readme_is_short():
    assert README.count("\n") <= 200


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    files = re.findall(
        r"(?:tools|configs|docs|tests|launch|diffeq_former)/[\w/.]*\w", text
    )
    for name in links:
        assert (document.parent / name).exists(), name
    for name in files:
        assert (ROOT / name).exists(), name
    assert links or files


def commands(text):
    """Command lines in blocks of code and between backticks, continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        for code in re.findall("`([^`]+)`", line) or [line]:
            words = shlex.split(code, comments=True) if "python " in code else []
            if words and words[0].endswith("python"):
                yield words[1:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_have_flags_that_exist(document):
    found = list(commands(document.read_text(encoding="utf-8")))
    for words in found:
        if words[0] == "-m" and words[1] != "diffeq_former.main":
            continue
        module = words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0]
        source = (ROOT / module).read_text(encoding="utf-8")
        for word in words[1:]:
            name = re.match(r"--((?:no)?(\w+))", word)
            known = name is None or any(f'"{n}"' in source for n in name.groups())
            assert known, f"{module} has no {word}"


def test_readme_names_every_source():
    for name in SOURCES:
        assert f"`{name}" in README, name


def test_readme_code_runs(capsys):
    """The model in ten lines of code, as written."""
    block, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert block.count("\n") <= 12
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out == "(2, 64, 4096)\n"
