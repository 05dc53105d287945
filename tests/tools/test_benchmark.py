"""tools/benchmark.py as a user runs it, where little more than JAX is installed."""

import json
import subprocess
import sys

import pytest
from runs import ROOT

TOOL = "benchmark.py"
TINY = f"--config={ROOT}/configs/tiny.py"
SMALL = [
    "--config.model.num_layers=2",
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.vocab_size=300",
    "--config.model.max_len=32",
    "--rounds=2",
    "--steps=1",
]
PLAIN = "--variant=plain: model.weights=layer_table model.solver=lie_trotter"

# Runs a tool where nothing but these and what they need can be imported.
ALONE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"grain", "orbax", "clu", "psutil", "tensorboardX",
                "array_record", "datasets", "sentencepiece", "tokenizers", "tqdm",
                "tensorflow_datasets", "pyarrow", "matplotlib"}:
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def lines(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def alone(mode, *flags):
    tool = [str(ROOT / "tools" / TOOL), mode, TINY, *SMALL]
    return subprocess.run(
        [sys.executable, "-c", ALONE, *tool, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def assert_spread(values):
    assert 0 < values["low"] <= values["median"] <= values["high"]


@pytest.mark.slow
def test_steps_of_variants_side_by_side():
    base, plain = lines(alone("train", PLAIN))
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


@pytest.mark.slow
def test_recorded_ratios(tool, tmp_path):
    """What is a quarter worse than recorded ends with 1."""
    file = tmp_path / "ratios.json"
    for recorded, code, word in ((1000.0, 0, "fine"), (0.001, 1, "WORSE")):
        file.write_text(json.dumps({"plain": recorded}))
        result = tool(TOOL, "train", TINY, *SMALL, PLAIN, f"--recorded={file}")
        assert result.returncode == code
        assert f"{recorded:.2f} recorded: {word}\n" in result.stderr
        assert len(result.stdout.splitlines()) == 2


@pytest.mark.slow
def test_generation_against_the_memory():
    found = {line["work"]: line for line in lines(alone("weights"))}
    assert found.keys() == {"copy", "generate", "pull_back", "update"}
    for line in found.values():
        assert_spread(line["seconds"])
        rate = line["bytes"] / line["seconds"]["median"]
        assert line["bytes_per_second"] == pytest.approx(rate)
    assert found["update"]["bytes"] > 3 * found["generate"]["bytes"]


@pytest.mark.slow
def test_compilation_by_depth():
    found = lines(alone("depth", "--config.model.remat=full"))
    assert [line["num_layers"] for line in found] == [6, 12, 24, 48]
    saved = [line["saved_bytes"] for line in found]
    assert saved[3] == 8 * saved[0] > 0
    assert all(line["temp_bytes"] > line["saved_bytes"] for line in found)


@pytest.mark.slow
def test_tokens_of_generation():
    found = lines(alone("decode"))
    assert [line["batch_size"] for line in found] == [1, 4, 16, 64]
    for line in found:
        new = line["tokens_per_second"] * line["seconds"]["median"]
        assert new == pytest.approx(line["batch_size"] * (32 - 16))


def test_the_pipeline(tool):
    found = lines(tool(TOOL, "data", TINY, *SMALL, "--variant=two: data.num_workers=2"))
    assert [line["num_workers"] for line in found] == [0, 2]
    for line in found:
        tokens = line["tokens_per_second"] * line["seconds"]["median"]
        assert tokens == pytest.approx(100 * 8 * 32)
        assert line["seek_step"] == 10**6 and line["seek_seconds"] > 0


@pytest.mark.slow
def test_the_start(tool):
    found = {x["start"]: x for x in lines(tool(TOOL, "startup", TINY, *SMALL))}
    assert found.keys() == {"help", "cold", "warm"}
    median = {start: x["seconds"]["median"] for start, x in found.items()}
    assert median["help"] < median["warm"] < median["cold"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "expected one of train, weights, depth, decode, data, startup; got none"),
        (
            ["speed"],
            "expected one of train, weights, depth, decode, data, startup; got",
        ),
        (["train", "more"], "unexpected argument 'more': write flags as --name=value"),
        (
            ["train", "--variant=model.weights=shared"],
            "--variant: expected 'NAME: SECTION.FIELD=VALUE ...' with a name of its",
        ),
        (
            ["train", "--variant=base: model.weights=shared"],
            "--variant: expected 'NAME: SECTION.FIELD=VALUE ...' with a name of its",
        ),
        (
            ["train", "--variant=a: model.weights"],
            "--variant: expected SECTION.FIELD=VALUE, got 'model.weights'",
        ),
        (
            ["train", "--variant=a: mode.weights=shared"],
            "--variant: expected SECTION.FIELD=VALUE, got 'mode.weights=shared'",
        ),
        (
            ["train", "--variant=a: model.weight=shared"],
            "config.model.weight: no such key; the nearest is config.model.weights",
        ),
        (
            ["train", "--variant=a: model.num_layers=many"],
            "config.model.num_layers: expected int, got 'many' (str)",
        ),
        (["train", "--recorded=nowhere.json"], "--recorded: nowhere.json: [Errno 2]"),
        (
            ["train", f"--recorded={ROOT}/.ci/speed.json"],
            "--recorded: expected the mode train and a --variant each for plain, per",
        ),
        (
            ["weights", "--config.model.weights=layer_table"],
            "config.model.weights: the mode weights needs a hypernetwork",
        ),
    ],
)
def test_wrong_input(refused, flags, message):
    assert refused(TOOL, *flags[:1], TINY, *flags[1:]).startswith(message)
