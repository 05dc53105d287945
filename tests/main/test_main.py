"""The command that trains. A full disk needs a process of its own."""

import shlex
import shutil
import subprocess
import sys

import command_lines
import pytest
from cases import mesh_of
from runs import (
    NUM_STEPS,
    ROOT,
    Command,
    assert_one_line,
    changed,
    saved_steps,
)

from diffeq_former.training import run_directory


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for two checkpoints."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_full_disk(config, folder, small_disk):
    workdir = small_disk / "run"
    command = Command(folder, changed(config, checkpoint_every=3))
    result = command.run_process(workdir)
    assert result.returncode == 2, result.stderr
    [*_, step] = saved_steps(workdir)
    *lines, last_line = result.stderr.splitlines()
    assert [line for line in lines[1:] if not line.startswith("step ")] == []
    assert last_line.startswith(f"error: no room on the disk for {workdir}: ")
    assert f"the last good checkpoint is that of step {step}" in last_line
    assert run_directory.load(workdir, mesh_of()).step == step


@pytest.mark.parametrize("redirections", ["2>/dev/full", "2>&- >&-", "2>&1 | head -1"])
def test_training_goes_on_without_its_streams(config, folder, tmp_path, redirections):
    workdir = tmp_path / "run"
    arguments = Command(folder, config).arguments(workdir)
    command = f"set -o pipefail; {shlex.join(arguments)} {redirections}"
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert saved_steps(workdir)[-1] == NUM_STEPS


def test_a_shard_that_is_damaged_within(config, folder, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(config.data.path, data)
    [path] = data.glob("train-*")
    content = bytearray(path.read_bytes())
    records = slice(1000, 6000, 32)  # all but the first ones
    content[records] = bytes(len(content[records]))
    path.write_bytes(content)
    result = Command(folder, config).run(tmp_path / "run", f"--config.data.path={data}")
    assert_one_line(result, f"shard {path} is damaged (record ", "copy it again")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (
            ["--config.model.dmodel=3"],
            ["config.model.dmodel: no such", "config.model.d_model"],
        ),
        (["--config.training.num_stps=3"], ["is config.training.num_steps"]),
        (["--config.training.seed=3"], ["training.seed: no such key", "config.seed"]),
        (["--config.modle.num_layers=3"], ["nearest is config.model.num_layers"]),
        (["--config.model.d_model=x"], ["--config.model.d_model=x", "'x'"]),
        (["--config=nowhere.py"], ["No such file", "nowhere.py"]),
        (["--config.model.num_heads=3"], ["config.model.num_heads"]),
        (["--config.data.path="], ["config.data.path", "tools/prepare_data.py"]),
        (["--config.data.path=nowhere"], ["nowhere", "tools/prepare_data.py"]),
        (["--config.model.max_len=8"], ["config.model.max_len", "16 or more"]),
        (["--config.model.vocab_size=9"], ["config.model.vocab_size", "257 or more"]),
        (
            ["--config.model.attention_implementation=cudnn"],
            ["config.model.attention_implementation", "needs an NVIDIA GPU, not cpu"],
        ),
        (["--config.profile.num_steps=25"], ["config.profile.num_steps", "(24)"]),
        (["--config.model.d_ff=2000000000"], ["needs at least", "optimizer"]),
        (["--process_id=1"], ["all three of --coordinator=HOST:PORT"]),
        (["extra"], ["unexpected argument 'extra'"]),
    ],
)
def test_wrong_input(config, folder, flags, parts):
    result = Command(folder, config).run(folder / "wrong", *flags)
    assert_one_line(result, *parts)
    assert not (folder / "wrong").exists()


@pytest.mark.parametrize("given", ["--config=config.py", "--workdir=run"])
def test_missing_flag(given):
    result = command_lines.run(command_lines.MAIN, given)
    missing = "workdir" if "config" in given else "config"
    assert_one_line(result, f"--{missing}")


def test_help_imports_no_jax():
    code = "import sys, diffeq_former.main; sys.exit('jax' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT)}
    )
