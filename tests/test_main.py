"""The command that trains. Signals and a full disk need processes of their own."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import command_lines
import pytest
from cases import mesh_of
from prepared import prepare_words
from runs import NUM_STEPS, ROOT, Command, signal_when, tiny_config

from diffeq_former.data.pipeline import train_batches, validation_batches
from diffeq_former.inference import perplexity
from diffeq_former.training import checkpoint, loop, run_directory

LONG = 100_000


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    dataset = prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)
    return tiny_config(dataset, checkpoint_every=LONG, sample_every=LONG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")


def changed(config, **training):
    settings = dataclasses.replace(config.training, **training)
    return dataclasses.replace(config, training=settings)


def saved_steps(workdir) -> list[int]:
    return checkpoint.saved_steps(workdir / "checkpoints")


def wait_for(condition, process) -> None:
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def assert_done(result, workdir, start: int) -> None:
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["split"], figures["step"]) == ("validation", NUM_STEPS)
    assert set(figures) >= {"loss", "perplexity", "bits_per_byte", "tokens"}
    assert f"finished at step {NUM_STEPS}" in result.stderr
    assert (
        f"{workdir}: from step {start} to {NUM_STEPS}; attention: xla; "
        in result.stderr
    )
    assert {path.name for path in workdir.iterdir() if "tfevents" not in path.name} == {
        *("config.json", "dataset.json", "tokenizer", "checkpoints"),
        *("metrics.jsonl", "samples.txt", "lock"),
    }
    assert any("tfevents" in path.name for path in workdir.iterdir())


def has_trained(workdir) -> bool:
    path = workdir / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") > 3


def assert_stopped(result, workdir, name: str) -> None:
    assert result.returncode == 75, result.stderr
    [step] = saved_steps(workdir)
    words = f"stopped by {name}: {workdir} is saved up to step {step}; the same"
    assert words in result.stderr
    last = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == step


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_signal_between_steps(config, folder, name, monkeypatch):
    workdir = folder / f"steps-{name}"

    def batches_and_a_signal(*args, **options):
        for count, batch in enumerate(train_batches(*args, **options)):
            if count == 3:
                signal.raise_signal(getattr(signal, name))
            yield batch

    monkeypatch.setattr(loop, "train_batches", batches_and_a_signal)
    result = Command(folder, config).run(workdir)
    assert_stopped(result, workdir, name)
    assert has_trained(workdir)


# Waits for each batch, after the first ones.
SLOW_DATA = """
import runpy, sys, time
from diffeq_former.data import pipeline
train_batches = pipeline.train_batches

def slow_batches(*args, **options):
    for count, batch in enumerate(train_batches(*args, **options)):
        if count > 4:
            time.sleep(1)
        yield batch

pipeline.train_batches = slow_batches
sys.argv[0] = "main"
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)]
)
def test_signal_to_the_process_group(config, folder, name):
    """As from a launcher or a terminal."""
    workdir = folder / f"group-{name}"
    command = Command(folder, config)
    options = {"script": SLOW_DATA, "start_new_session": True}
    with command.start(workdir, **options) as process:
        wait_for(lambda: has_trained(workdir), process)
        os.killpg(process.pid, getattr(signal, name))
        out, err = process.communicate()
    result = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    assert_stopped(result, workdir, name)


def test_stopped_while_evaluating_then_done_then_only_reported(
    config, folder, monkeypatch
):
    workdir, command = folder / "evaluating", Command(folder, config)
    evaluating = threading.Event()
    with monkeypatch.context() as patched:

        def slow_batches(*args, **options):
            [batch, *_] = validation_batches(*args, **options)
            evaluating.set()
            for _ in range(1000):
                time.sleep(0.1)
                yield batch

        patched.setattr(perplexity, "validation_batches", slow_batches)
        with signal_when(evaluating.is_set, signal.SIGTERM):
            result = command.run(workdir)
    assert result.returncode == 75, result.stderr
    assert f"{workdir}: from step 0 to {NUM_STEPS}; " in result.stderr
    assert saved_steps(workdir) == [config.training.eval_every]
    assert "validation/loss" not in (workdir / "metrics.jsonl").read_text()
    done = command.run(workdir)
    assert_done(done, workdir, config.training.eval_every)
    text = (workdir / "metrics.jsonl").read_text()
    assert text.count("validation/loss") == NUM_STEPS // config.training.eval_every
    again = command.run(workdir)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert (workdir / "metrics.jsonl").read_text() == text


# Reports when an evaluation starts, and never looks at a signal in it.
DEAF_EVALUATION = """
import sys, time
from diffeq_former.inference import perplexity

def deaf_batches(*args, **options):
    print("evaluating", flush=True)
    time.sleep(1000)
    yield

perplexity.validation_batches = deaf_batches
sys.argv[0] = "main"
import runpy
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


def test_ctrl_c_twice_ends_at_once(config, folder):
    """The second also where the first is never looked at."""
    workdir, command = folder / "twice", Command(folder, config)
    with command.start(workdir, script=DEAF_EVALUATION) as process:
        assert process.stdout.readline() == "evaluating\n"
        process.send_signal(signal.SIGINT)
        words = "stopping once all is saved; Ctrl-C again stops at once\n"
        assert any(line == words for line in process.stderr)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(10) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.slow
def test_signal_at_any_moment_of_the_start(config, tmp_path):
    """In imports and compilation: stops with 75, and what it leaves continues."""
    long = changed(config, num_steps=LONG, eval_every=LONG)
    command, codes = Command(tmp_path, long), []
    for delay in (0, 1.5, 3):
        workdir = tmp_path / f"after-{delay}"
        with command.start(workdir) as process:
            wait_for(lambda p=process: handles(p.pid, signal.SIGTERM), process)
            time.sleep(delay)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate()
        codes.append(process.returncode)
        assert "the same command continues" in err
        assert len(saved_steps(workdir)) == 1
    assert codes == [75] * 3


def handles(pid: int, number: int) -> bool:
    """Whether a process has installed a handler (Linux)."""
    with open(f"/proc/{pid}/status") as file:
        [mask] = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


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


def assert_one_line(result, *parts: str) -> None:
    assert result.returncode == 2, result.stderr
    [line] = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert result.stderr.endswith(line + "\n") and "Traceback" not in result.stderr
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--config.model.dmodel=3"], ["'dmodel'", "config.model.d_model"]),
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
