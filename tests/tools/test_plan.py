"""tools/plan.py as a user runs it."""

import importlib.util
import json

import command_lines
import pytest
from command_lines import ROOT
from topologies import on_target

TOOL = "plan.py"
TINY = f"--config={ROOT}/configs/tiny.py"


def plans(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_plan_of_the_configured_mesh(tool):
    flags = ("--config.mesh.fsdp=2", "--config.model.remat=full", "--nocompile")
    result = tool(TOOL, TINY, "--target=gpu:a100-40:1x4", *flags)
    [plan] = plans(result)
    assert plan["mesh"] == {"data": 2, "fsdp": 2, "sequence": 1, "tensor": 1}
    assert (plan["target"], plan["num_devices"]) == ("gpu:a100-40:1x4", 4)
    assert plan["fits"] and plan["remat"] == "full" and 0 < plan["mfu_bound"] <= 1
    kinds = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all"}
    assert plan["sent"].keys() == kinds and "compiled" not in plan
    assert "gpu:a100-40:1x4: 0.0" in result.stderr and "of 40 GB, fits" in result.stderr


def test_the_three_best(tool):
    result = tool(TOOL, TINY, "--target=gpu:h100:1x2", "--search", "--nocompile")
    found = plans(result)
    assert len(found) == 3 and all(plan["fits"] for plan in found)
    seconds = [plan["seconds"] for plan in found]
    assert seconds == sorted(seconds)


def test_nothing_fits(tool):
    config = f"--config={ROOT}/configs/gpt_large.py"
    flags = ("--target=tpu:v5e:1x1", "--search", "--nocompile")
    sizes = ("batch_size=4", "per_device_batch_size=0")
    small = [f"--config.training.{size}" for size in sizes]
    result = tool(TOOL, config, *flags, *small)
    [nearest] = plans(result)
    assert not nearest["fits"] and nearest["memory"]["total"] > 16e9
    assert "0 fit\nnothing fits; the closest plan is:\n" in result.stderr
    assert "of 16 GB, does not fit" in result.stderr


def compiled(target, *flags, config=TINY):
    """In a process, whose compiler has the settings of a run."""
    flags = (config, f"--target={target}", *flags)
    as_released = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    result = command_lines.run_process(TOOL, *flags, **as_released)
    [plan] = plans(result)
    return plan, result.stderr


@pytest.mark.parametrize(
    "target", [on_target("tpu:v5e:2x1"), on_target("gpu:h100:1x2")]
)
def test_compiled_beside_planned(target):
    plan, words = compiled(target, "--config.model.dtype=bfloat16")
    found = plan["compiled"]
    assert (
        found["fits"] and found["memory"]["parameters"] == plan["memory"]["parameters"]
    )
    assert sum(found["sent"].values()) == pytest.approx(sum(plan["sent"].values()), 0.2)
    assert found["sent"].keys() == {"all-reduce data"}
    kernel = "cudnn" if "gpu" in target else "xla"  # splash takes no heads of 32
    assert found["attention"] == kernel
    for word in (
        "compiled   planned",
        "parameters",
        "compiled: fits: 0.0",
        "sends 0.0",
    ):
        assert word in words


@pytest.mark.parametrize("target", [on_target("tpu:v5e:1x1")])
def test_what_the_compiler_finds_too_large(target):
    layers = ("--config.model.num_layers=64", "--config.model.horizon=1")
    rows = "--config.training.batch_size=4096"
    plan, words = compiled(target, rows, *layers, "--config.model.remat=none")
    found = plan["compiled"]
    assert (
        not found["fits"]
        and found["memory"]["total"] > 16e9 > plan["device_memory"] / 2
    )
    assert "compiled: does not fit: " in words and "Traceback" not in words


@pytest.mark.parametrize("target", [on_target("tpu:v5e:3x5")])
def test_an_impossible_topology(target, refused):
    line = refused(TOOL, TINY, f"--target={target}")
    assert line.startswith(
        '--target=tpu:v5e:3x5: INVALID_ARGUMENT: Topology layout "v5e'
    )


@pytest.mark.parametrize(
    "target, extra", [("tpu:v5e:2x2", "tpu"), ("gpu:h100:1x1", "gpu")]
)
def test_a_missing_compiler(target, extra, refused, monkeypatch):
    find = importlib.util.find_spec
    missing = ("libtpu", "jax_plugins")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in missing else find(name),
    )
    line = refused(TOOL, TINY, f"--target={target}")
    assert line.startswith(f"--target={target}: its compiler is missing: pip install ")
    assert f"'.[plan-{extra}]'" in line and line.endswith("--nocompile")


H100 = "--target=gpu:h100:1x{}"
CLOSED = "--nocompile"


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--target=h100"], "--target: expected tpu:KIND:TOPOLOGY or gpu:KIND:HOSTSxG"),
        (
            ["--target=gpu:h100:8"],
            "--target=gpu:h100:8: expected tpu:KIND:TOPOLOGY or ",
        ),
        (
            ["--target=gpu:h100:0x8"],
            "--target=gpu:h100:0x8: expected tpu:KIND:TOPOLOGY",
        ),
        (["--target=gpu:h300:1x8"], "--target=gpu:h300:1x8: expected one of a100-40, "),
        (["--target=gpu:v5e:2x2"], "--target=gpu:v5e:2x2: expected one of a100-40, "),
        (
            [H100.format(2), "--num_slices=2"],
            "--num_slices: expected 1 or more slices ",
        ),
        ([H100.format(7), "--search", CLOSED], "7 devices: no mesh of them divides"),
        (
            [H100.format(7), CLOSED],
            "config.training.batch_size: expected a multiple of 7",
        ),
        (
            [H100.format(2), CLOSED, "--config.mesh.fsdp=3"],
            "config.mesh: data=-1, fsdp=3",
        ),
        ([H100.format(2), "--program=decode", "--search"], "--program=decode: has no "),
        ([], "this command needs --target (devices: "),
        (
            [H100.format(1), "--config.finetune.base=runs/x"],
            "--config.finetune.base=runs/x: a plan does not read a base; leave it",
        ),
    ],
)
def test_wrong_flags(refused, flags, words):
    assert refused(TOOL, TINY, *flags).startswith(words)
