"""The command diffeq-former, from a wheel in an environment of its own."""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from prepared import random_texts
from runs import ROOT

SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
FOLDERS = ("diffeq_former", "tools", "configs")


def away_from_the_checkout() -> dict[str, str]:
    return {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with the wheel, which sees the libraries of this one."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "source").mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, folder / "source")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)

    def pip(*arguments):
        quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
        words = [sys.executable, "-m", "pip", *arguments, *quiet]
        subprocess.run(words, check=True, env=away_from_the_checkout())

    pip("wheel", folder / "source", "--no-build-isolation", "--wheel-dir", folder)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv/bin/python"
    pip("--python", python, "install", wheel, "--no-compile")
    [site] = folder.glob("venv/lib/*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv"


@pytest.fixture
def command(environment, tmp_path):
    """Runs diffeq-former in an empty folder, far from the checkout."""

    def run(*arguments):
        return subprocess.run(
            [environment / "bin/diffeq-former", *map(str, arguments)],
            cwd=tmp_path,
            env=away_from_the_checkout(),
            capture_output=True,
            text=True,
        )

    return run


def test_help_lists_every_tool_with_the_first_line_of_its_help(command):
    result = command("--help")
    assert (result.returncode, result.stderr) == (0, "")
    paths = [ROOT / "diffeq_former/main.py", *sorted((ROOT / "tools").glob("*.py"))]
    for path in paths:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        name = "train" if path.stem == "main" else path.stem
        line = docstring.partition("\n")[0]
        assert [name, line] in [x.split(maxsplit=1) for x in result.stdout.splitlines()]


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["evalaute"], "there is no command 'evalaute': did you mean evaluate?"),
        (["prepare-data"], "there is no command 'prepare-data': did you mean prepare_"),
        (["x"], "there is no command 'x': see diffeq-former --help"),
        ([], "expected a command: see diffeq-former --help"),
        (["report"], "this command needs --workdir (the run's folder) and --output (a"),
        (
            ["evaluate", "--cofig=3"],
            "Unknown command line flag 'cofig'. Did you mean: ",
        ),
        (["convert", "x"], "expected one of discretise, merge_lora, export_adapter; g"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(command, arguments, line):
    result = command(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    [found] = result.stderr.splitlines()
    assert found.startswith(f"error: {line}")


@pytest.mark.slow
def test_a_text_becomes_a_model(command, environment, tmp_path):
    """Processes that prepare data start anew from the command's module."""
    lines = [json.dumps({"text": text}) for text in random_texts()]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    [site] = environment.glob("lib/*/site-packages")
    sizes = ("num_layers=2", "d_model=16", "num_heads=2", "vocab_size=257")
    for name, *flags in (
        (
            *("prepare_data", "--source=jsonl:texts.jsonl", "--tokenizer=byte"),
            *("--seq_len=16", "--validation_fraction=0.2", "--num_workers=2"),
            "--output=data",
        ),
        (
            *("train", f"--config={site}/diffeq_former/configs/tiny.py"),
            *("--workdir=run", "--config.data.path=data", "--config.model.max_len=16"),
            *(f"--config.model.{size}" for size in sizes),
            *("--config.training.num_steps=2", "--config.training.batch_size=8"),
        ),
        ("evaluate", "--workdir=run", "--num_steps=2,4"),
    ):
        result = command(name, *flags)
        assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["num_steps"] for line in lines] == [2, 4]
    [start] = (tmp_path / "run/provenance.jsonl").read_text().splitlines()
    assert str(Path("bin/diffeq-former")) in json.loads(start)["command"]
    assert json.loads(start)["commit"] is None
