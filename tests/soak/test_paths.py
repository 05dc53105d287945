"""Random names of folders and files: they work, or one line says what is wrong."""

import os
import random
import shutil
import string

import pytest
from command_lines import run as run_command
from outcome import assert_allowed
from runs import Command, saved_steps

ODD = [
    *"[]*?\\:'\"$%&;|<>(){}!#~`^,=+@",
    "..",
    "é",
    "日",
    "\u202e",
    " ",
    "\t",
    "\n",
    "-",
]
ODD += ["\udcff", "gs:", "s3:", "%s", "{x}", "--", "x" * 255]


def name(rng: random.Random) -> str:
    parts = rng.choices(ODD + list(string.ascii_letters), k=rng.randint(1, 4))
    return "".join(parts)


def test_a_run_in_a_folder_of_any_name(tiny_run, tmp_path, seed):
    folder, _, config = tiny_run
    rng = random.Random(seed)
    workdir = tmp_path.joinpath(*(name(rng) for _ in range(rng.randint(1, 2))))
    before = sorted(os.listdir(tmp_path.parent))
    result = Command(folder, config).run(workdir)
    print(repr(str(workdir)), result)
    assert_allowed(result)
    if result.returncode == 0:
        assert saved_steps(workdir) == [2]
        assert_allowed(evaluated := run_command("evaluate.py", f"--workdir={workdir}"))
        assert evaluated.returncode == 0
    else:
        assert list(tmp_path.rglob("*")) == []
    assert sorted(os.listdir(tmp_path.parent)) == before


def test_a_dataset_of_any_name(tiny_run, tmp_path, seed):
    folder, dataset, config = tiny_run
    rng = random.Random(seed)
    path = tmp_path / name(rng)
    try:
        shutil.copytree(dataset.path, path)
    except OSError:
        pytest.skip("the file system does not take this name")
    result = Command(folder, config).run(tmp_path / "run", f"--config.data.path={path}")
    print(repr(str(path)), result)
    assert_allowed(result)
    assert result.returncode == 0 or "\udcff" in str(path)
