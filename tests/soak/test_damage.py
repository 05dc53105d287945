"""Random damage to any file of a run or its dataset: noticed, or without effect."""

import dataclasses
import hashlib
import random
import shutil
from pathlib import Path

import command_lines
import pytest
from cases import mesh_of
from loops import StopAfter, last_state, train
from outcome import assert_allowed
from prepared import prepare_words
from runs import Command, tiny_config
from small_states import assert_equal

from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.training import run_directory, run_lock
from diffeq_former.training.evaluation_hooks import EvaluationHooks

STEPS, STOPPED_AT = 8, 6


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A run that was stopped, its dataset, and how an uninterrupted one ends."""
    folder = tmp_path_factory.mktemp("base")
    dataset = prepare_words(folder, seq_len=16)
    config = tiny_config(
        dataset, num_steps=STEPS, eval_every=4, checkpoint_every=2, keep_latest=3
    )
    config = run_directory.fit(config, dataset)
    evaluate = make_evaluate(config, dataset, mesh_of())
    hooks = EvaluationHooks(lambda params, should_stop: evaluate(params), sample=None)
    train(config, folder / "whole", dataset, hooks, StopAfter(STEPS + 1))
    train(config, folder / "run", dataset, hooks, StopAfter(STOPPED_AT))
    return folder, config, last_state(folder / "whole", config)


def damage(path: Path, rng: random.Random) -> str:
    """Damages a file in one of several ways, and returns which."""
    data = path.read_bytes()
    kind = rng.choice(
        ["flip", "truncate", "append", "empty", "remove", "noise", "folder", "link"]
    )
    if kind in ("remove", "folder", "link"):
        path.unlink()
    if kind == "flip":
        flipped = bytearray(data or b"x")
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
    elif kind == "truncate":
        path.write_bytes(data[: rng.randrange(max(1, len(data)))])
    elif kind == "append":
        path.write_bytes(data + rng.randbytes(rng.randint(1, 20)))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "noise":
        path.write_bytes(rng.randbytes(rng.randrange(200)))
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("nowhere")
    return kind


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != run_lock.LOCK
    }


def test_training_resumes_right_or_not_at_all(base, tmp_path, seed):
    rng = random.Random(seed)
    folder, config, expected = base
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.copytree(config.data.path, tmp_path / "data")
    part = rng.choice(["run", "data"])
    path = rng.choice(sorted(x for x in (tmp_path / part).rglob("*") if x.is_file()))
    kind = damage(path, rng)
    before = contents(tmp_path / "run")
    if part == "data":
        moved = dataclasses.replace(config.data, path=str(tmp_path / "data"))
        config = dataclasses.replace(config, data=moved)
    result = Command(tmp_path, config).run(tmp_path / "run")
    print(f"{path.relative_to(tmp_path)}: {kind}: {result.returncode}, {result.stderr}")
    assert_allowed(result)
    if result.returncode == 0:
        assert_equal(last_state(tmp_path / "run", config)[0], expected[0])
    elif part == "run":
        assert contents(tmp_path / "run") == before


TOOLS = {
    "evaluate.py": (),
    "generate.py": ("--prompt=the", "--max_new_tokens=4", "--temperature=0"),
    "report.py": ("--output={new}.html",),
    "plot.py losses": ("--output={new}.png",),
    "analyze.py trajectory": ("--text=the", "--output={new}"),
    "convert.py discretise": ("--num_steps=2", "--output={new}"),
    "export_hf.py": ("--output={new}", "--num_steps=2"),
}


def test_tools_use_what_is_whole_or_refuse(base, tmp_path, seed):
    rng = random.Random(seed)
    folder, *_ = base
    shutil.copytree(folder / "run", tmp_path / "run")
    for _ in range(rng.choice([1, 1, 3])):
        files = [x for x in sorted((tmp_path / "run").rglob("*")) if x.is_file()]
        path = rng.choice(files)
        print(path.relative_to(tmp_path), damage(path, rng))
    before = contents(tmp_path / "run")
    program = rng.choice(list(TOOLS))
    name, *mode = program.split()
    flags = [flag.format(new=tmp_path / "new") for flag in TOOLS[program]]
    result = command_lines.run(name, *mode, f"--workdir={tmp_path / 'run'}", *flags)
    print(program, result)
    assert_allowed(result)
    assert contents(tmp_path / "run") == before
    assert result.returncode == 0 or not list(tmp_path.glob("new*"))
