"""tools/experiment.py sizes as a user runs it."""

import json

import command_lines
import pytest
from command_lines import ROOT
from topologies import on_target

TOOL = ("experiment.py", "sizes")
D, LAYERS, VOCABULARY, LENGTH, FREQUENCIES = 64, 4, 512, 32, 8
SETTINGS = {
    "model.block": "gpt",
    "model.d_model": D,
    "model.num_layers": LAYERS,
    "model.vocab_size": VOCABULARY,
    "model.max_len": LENGTH,
    "model.num_frequencies": FREQUENCIES,
    "training.batch_size": 4,
    "optimizer.name": "adamw",  # with two moments of each parameter
}
CONFIG = [f"--config={ROOT}/configs/tiny.py"]
CONFIG += [f"--config.{name}={value}" for name, value in SETTINGS.items()]
TARGET = "--target=gpu:h100:1x2"
VARY = "--vary=model.time_embed_dim=4,16"


def of_hypernetwork(E):
    """Its parameters, counted by hand: kernels, biases, norms, time MLPs, outside."""
    of_blocks = (E + 1) * 12 * D**2 + 9 * E * D + 4 * E * D
    time_mlps = 6 * ((2 * FREQUENCIES + 2) * E + (E + 1) * E)
    return of_blocks + time_mlps + 2 * D + (VOCABULARY + LENGTH) * D


def of_plain():
    return LAYERS * (12 * D**2 + 13 * D) + 2 * D + (VOCABULARY + LENGTH) * D


def test_parameters_and_memory_of_each_variant(tool, tmp_path):
    output = tmp_path / "sizes"
    result = tool(*TOOL, *CONFIG, VARY, TARGET, "--baseline", f"--output={output}")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    found = {row["model"]: row["parameters"] for row in rows}
    assert found == {
        "4": of_hypernetwork(4),
        "16": of_hypernetwork(16),
        "plain": of_plain(),
    }
    for row in rows[:2]:
        changed = f"--config.model.time_embed_dim={row['value']}"
        plan = tool("plan.py", *CONFIG, changed, TARGET, "--nocompile")
        total = json.loads(plan.stdout)["memory"]["total"]
        assert row["planned_memory_gib"] * 2**30 == pytest.approx(total, abs=1)
    assert (output / "sizes.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "figures.jsonl").read_text() == result.stdout


@pytest.mark.parametrize("target", [on_target("gpu:h100:1x2")])
def test_memory_as_compiled(target, tmp_path):
    output = tmp_path / "sizes"
    given = (VARY, f"--target={target}", "--compile", f"--output={output}")
    result = command_lines.run_process(*TOOL, *CONFIG, *given)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    smaller, larger = (row["compiled_memory_gib"] for row in rows)
    # Values and two moments, in float32.
    added = 3 * 4 * (of_hypernetwork(16) - of_hypernetwork(4)) / 2**30
    assert larger - smaller > 0.9 * added


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--target=gpu:h100", "--target: expected tpu:KIND:TOPOLOGY"),
        ("--vary=model.time_embed_dim=a,b", "config.model.time_embed_dim"),
        ("--plain=optimizer.b2=0.9", "--plain=optimizer.b2=0.9: needs --baseline"),
    ],
)
def test_wrong_input_leaves_no_folder(tool, tmp_path, flag, message):
    output = tmp_path / "sizes"
    result = tool(*TOOL, *CONFIG, VARY, TARGET, f"--output={output}", flag)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"error: {message}")
    assert not output.exists()
