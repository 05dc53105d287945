"""tools/plan.py as a user runs it."""

import json

import command_lines
import pytest
from command_lines import ROOT

TOOL = "plan.py"
TINY = f"--config={ROOT}/configs/tiny.py"


def plans(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_plan_of_the_configured_mesh(tool):
    flags = ("--config.mesh.fsdp=2", "--config.model.remat=full")
    result = tool(TOOL, TINY, "--num_devices=4", "--device=a100-40", *flags)
    [plan] = plans(result)
    assert plan["mesh"] == {"data": 2, "fsdp": 2, "sequence": 1, "tensor": 1}
    assert (plan["device"], plan["num_devices"]) == ("a100-40", 4)
    assert plan["fits"] and plan["remat"] == "full" and 0 < plan["mfu_bound"] <= 1
    assert plan["sent"].keys() == {"all-gather", "all-reduce"}
    assert "4 x a100-40" in result.stderr and "of 40 GB, fits" in result.stderr


def test_the_five_best(tool):
    result = tool(TOOL, TINY, "--num_devices=2", "--search")
    found = plans(result)
    assert len(found) == 5 and all(plan["fits"] for plan in found)
    seconds = [plan["seconds"] for plan in found]
    assert seconds == sorted(seconds)


def test_nothing_fits(tool):
    config = f"--config={ROOT}/configs/gpt_large.py"
    flags = ("--num_devices=1", "--device=tpu-v5e", "--search")
    sizes = ("batch_size=4", "per_device_batch_size=0")
    small = [f"--config.training.{size}" for size in sizes]
    result = tool(TOOL, config, *flags, *small)
    [nearest] = plans(result)
    assert not nearest["fits"] and nearest["memory"]["total"] > 16e9
    assert "0 fit\nnothing fits; the closest plan is:\n" in result.stderr
    assert "of 16 GB, does not fit" in result.stderr


@pytest.mark.slow
def test_compiled_beside_predicted():
    flags = ("--num_devices=2", "--compile")  # in a process, which makes two devices
    [plan] = plans(command_lines.run_process(TOOL, TINY, *flags))
    measured = plan["compiled"]
    assert measured["sent"] == pytest.approx(plan["sent"], rel=0.02)
    assert measured["ratio"] == measured["predicted"] / measured["memory"]["total"]
    assert 0.8 < measured["ratio"] < 1.2


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--num_devices=0"], "--num_devices: expected 1 or more, got 0"),
        (["--num_devices=x"], "flag --num_devices=x: "),
        (["--num_devices=2", "--device=h300"], "--device: expected one of a100-40, "),
        (["--num_devices=2", "--search", "--compile"], "--compile: compiles a single"),
        (["--num_devices=7", "--search"], "--num_devices=7: no mesh of them divides"),
        (["--num_devices=7"], "config.training.batch_size: expected a multiple of 7"),
        (["--num_devices=2", "--config.mesh.fsdp=3"], "config.mesh: data=-1, fsdp=3"),
        ([], "flag --num_devices=None: "),
        (
            ["--num_devices=1", "--config.finetune.base=runs/x"],
            "--config.finetune.base=runs/x: a plan does not read a base; leave it",
        ),
    ],
)
def test_wrong_flags(refused, flags, words):
    assert refused(TOOL, TINY, *flags).startswith(words)
