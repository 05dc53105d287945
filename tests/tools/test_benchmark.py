"""tools/benchmark.py as a user runs it, where little more than JAX is installed."""

import json
import os
import subprocess
import sys

import pytest
from runs import ROOT

from diffeq_former.benchmarks import data, startup, train

TOOL = "benchmark.py"
TINY = f"--config={ROOT}/configs/tiny.py"
SMALL = [
    "--config.model.block=gpt",
    "--config.model.remat=full",
    "--config.model.num_layers=2",
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.vocab_size=300",
    "--config.model.max_len=32",
    "--rounds=2",
    "--steps=1",
]
PLAIN = ["model.weights=layer_table", "model.solver=lie_trotter"]
VARIANT = f"--variant=plain: {' '.join(PLAIN)}"
OF_PLAIN = [f"--config.{setting}" for setting in PLAIN]

# Runs command lines, with smaller sizes than a user measures, where nothing but these
# and what they need can be imported.
ALONE = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"grain", "orbax", "clu", "psutil", "tensorboardX",
                "array_record", "datasets", "sentencepiece", "tokenizers", "tqdm",
                "tensorflow_datasets", "pyarrow", "matplotlib"}:
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Refuse())
import command_lines
from diffeq_former.benchmarks import decode, depth, weights
decode.BATCH_SIZES, depth.NUM_LAYERS, weights.COPIED = (1, 4), (2, 6), 2**20
for words in json.loads(sys.argv[1]):
    result = command_lines.run(*words)
    print(json.dumps([result.returncode, result.stdout, result.stderr]), flush=True)
"""
MODES = {
    "train": [VARIANT],
    "weights": [],
    "depth": [*OF_PLAIN, "--rounds=1"],  # one of its steps is that of `plain`
    "decode": OF_PLAIN,
}


@pytest.fixture(scope="module")
def alone():
    """What each mode prints, in one process, which compiles what they share once."""
    commands = [[TOOL, mode, TINY, *SMALL, *more] for mode, more in MODES.items()]
    environment = {
        "PYTHONPATH": f"{ROOT}:{ROOT}/tests",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    process = subprocess.run(
        [sys.executable, "-c", ALONE, json.dumps(commands)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    results = map(json.loads, process.stdout.splitlines())
    return {
        mode: subprocess.CompletedProcess(mode, *result)
        for mode, result in zip(MODES, results, strict=True)
    }


def lines(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_spread(values):
    assert 0 < values["low"] <= values["median"] <= values["high"]


def test_steps_of_variants_side_by_side(alone):
    base, plain = lines(alone["train"])
    assert (base["variant"], plain["variant"]) == ("base", "plain")
    for line in (base, plain):
        assert_spread(line["seconds"])
        assert_spread(line["ratio"])
        tokens = line["tokens_per_second"] * line["seconds"]["median"]
        assert tokens == pytest.approx(8 * 32)
        assert line["host_peak_bytes"] > 50e6 and line["compile_seconds"] > 0
        assert line["memory"]["total"] > line["memory"]["temp"] > 0
    assert base["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    # The bank and its moments are parameters of the base only.
    assert base["memory"]["argument"] > 2 * plain["memory"]["argument"]


def test_recorded_ratios(tool, tmp_path, monkeypatch):
    """What is a quarter worse than recorded ends with 1."""
    found = {"base": 1.0, "plain": 2.0}
    timed = [{"variant": name, "ratio": {"median": x}} for name, x in found.items()]
    monkeypatch.setattr(train, "benchmark", lambda configs, rounds, steps: timed)
    file = tmp_path / "ratios.json"
    for recorded, code, word in ((1.61, 0, "fine"), (1.59, 1, "WORSE")):
        file.write_text(json.dumps({"base": 1.0, "plain": recorded}))
        result = tool(TOOL, "train", TINY, *SMALL, VARIANT, f"--recorded={file}")
        assert result.returncode == code
        assert result.stderr.splitlines() == [
            "base: 1.00 times as fast as the config, 1.00 recorded: fine",
            f"plain: 2.00 times as fast as the config, {recorded} recorded: {word}",
        ]
        assert [json.loads(line)["ratio"] for line in result.stdout.splitlines()] == [
            {"median": 1.0},
            {"median": 2.0},
        ]


def test_generation_against_the_memory(alone):
    found = {line["work"]: line for line in lines(alone["weights"])}
    assert found.keys() == {"copy", "generate", "pull_back", "update"}
    for line in found.values():
        assert_spread(line["seconds"])
        rate = line["bytes"] / line["seconds"]["median"]
        assert line["bytes_per_second"] == pytest.approx(rate)
    assert found["update"]["bytes"] > 3 * found["generate"]["bytes"]


def test_compilation_by_depth(alone):
    found = lines(alone["depth"])
    assert [line["num_layers"] for line in found] == [2, 6]
    saved = [line["saved_bytes"] for line in found]
    assert saved[1] == 3 * saved[0] > 0
    assert all(line["temp_bytes"] > line["saved_bytes"] for line in found)


def test_tokens_of_generation(alone):
    found = lines(alone["decode"])
    assert [line["batch_size"] for line in found] == [1, 4]
    for line in found:
        new = line["tokens_per_second"] * line["seconds"]["median"]
        assert new == pytest.approx(line["batch_size"] * (32 - 16))


@pytest.fixture
def small_dataset(monkeypatch):
    monkeypatch.setattr(data, "TEXT_BYTES", 2**11)


@pytest.mark.usefixtures("small_dataset")
def test_the_pipeline(tool):
    found = lines(
        tool(TOOL, "data", TINY, *SMALL, "--variant=large: training.batch_size=16")
    )
    assert [line["batch_size"] for line in found] == [8, 16]
    for line in found:
        tokens = line["tokens_per_second"] * line["seconds"]["median"]
        assert tokens == pytest.approx(100 * line["batch_size"] * 32)
        assert line["seek_step"] == 10**6 and line["seek_seconds"] > 0


# As long as a start is: its first step comes after a second, or half of one.
STAND_IN = """
import os, pathlib, sys, time
if "--help" not in sys.argv:
    values = dict(word[2:].split("=", 1) for word in sys.argv[1:])
    assert pathlib.Path(values["config"]).exists()
    cache = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    time.sleep(0.5 if cache.exists() else 1.0)
    cache.mkdir(exist_ok=True)
    workdir = pathlib.Path(values["workdir"])
    workdir.mkdir()
    (workdir / "metrics.jsonl").write_text("{}")
    time.sleep(600)
"""


@pytest.mark.usefixtures("small_dataset")
@pytest.mark.parametrize(
    "stand_in", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_the_start(tool, monkeypatch, stand_in):
    """Cold and warm starts of a process that takes a while, and of the real command."""
    if stand_in:
        monkeypatch.setattr(startup, "MAIN", [sys.executable, "-S", "-c", STAND_IN])
    flags = (*SMALL, *OF_PLAIN, "--config.training.sample_every=0", "--rounds=1")
    result = tool(TOOL, "startup", TINY, *flags)
    found = {line["start"]: line for line in lines(result)}
    assert found.keys() == {"help", "cold", "warm"}
    median = {start: x["seconds"]["median"] for start, x in found.items()}
    assert median["help"] < median["warm"] < median["cold"]
    if stand_in:
        assert 0.5 < median["warm"] and 1.0 < median["cold"] < 600


ALL_MODES = "train, weights, depth, decode, data, startup, torch, speculation, serve"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], f"expected one of {ALL_MODES}; got none"),
        (
            ["speed"],
            f"expected one of {ALL_MODES}; got 'speed'",
        ),
        (["train", "more"], "unexpected argument 'more': write flags as --name=value"),
        (
            ["train", "--variant=model.weights=shared"],
            "--variant: expected 'NAME: SECTION.FIELD=VALUE ...' with a unique"
            " name, got 'model.weights=shared'",
        ),
        (
            ["train", "--variant=base: model.weights=shared"],
            "--variant: expected 'NAME: SECTION.FIELD=VALUE ...' with a unique"
            " name, got 'base: model.weights=shared'",
        ),
        (
            ["train", "--variant=a: model.weights"],
            "--variant: expected SECTION.FIELD=VALUE, got 'model.weights'",
        ),
        (
            ["train", "--variant=a: mode.weights=shared"],
            "config.mode.weights: no such key; the nearest is config.model.weights",
        ),
        (
            ["train", "--variant=a: model.weight=shared"],
            "config.model.weight: no such key; the nearest is config.model.weights",
        ),
        (
            ["train", "--variant=a: model.num_layers=many"],
            "config.model.num_layers: expected int, got 'many' (str)",
        ),
        (
            ["train", "--recorded=nowhere.json"],
            "nowhere.json is missing or damaged: [Errno 2] No such file or directory:"
            " 'nowhere.json'",
        ),
        (
            ["train", f"--recorded={ROOT}/.ci/speed.json"],
            "--recorded: expected the mode train and a --variant each for plain,"
            " per_step",
        ),
        (
            ["weights", "--config.model.weights=layer_table"],
            "config.model.weights: the mode weights needs a hypernetwork, got"
            " 'layer_table'",
        ),
    ],
)
def test_wrong_input(refused, flags, message):
    assert refused(TOOL, *flags[:1], TINY, *flags[1:]) == message
