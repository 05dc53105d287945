"""Estimates whether a run fits on devices, what it communicates and how fast it can be.

tools/plan.py --config=configs/llama1b.py --num_devices=8 --device=h200

Each line on stdout is a JSON object, the plan for one of the devices: bytes of memory
and of communication per step, FLOPs, and seconds per step. The mesh is config.mesh;
--search lists the five best combinations of mesh, remat policy and number of
micro-batches. --compile also compiles the step for that many virtual CPU devices. None
of the planned devices is needed.
"""

import sys

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli
from diffeq_former.errors import UserError
from diffeq_former.json_io import print_line

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_NUM_DEVICES = flags.DEFINE_integer(
    "num_devices", None, "Devices on all hosts.", required=True
)
_DEVICE = flags.DEFINE_string(
    "device", "h100", "Type of device; see planning/devices.py."
)
_SEARCH = flags.DEFINE_bool("search", False, "List the five best plans.")
_COMPILE = flags.DEFINE_bool("compile", False, "Compile the step for virtual devices.")
flags.mark_flag_as_required("config")

_LISTED = 5


def main() -> None:
    import jax

    from diffeq_former.config import resolve
    from diffeq_former.planning.closed_form import axis_sizes, make_plan
    from diffeq_former.planning.devices import DEVICES

    num_devices, name = _NUM_DEVICES.value, _DEVICE.value
    if num_devices < 1:
        raise UserError(f"--num_devices: expected 1 or more, got {num_devices}")
    if _SEARCH.value and _COMPILE.value:
        raise UserError("--compile: compiles a single plan; leave out --search")
    if name not in DEVICES:
        known = ", ".join(DEVICES)
        raise UserError(f"--device: expected one of {known}, got {name!r}")
    config, device = resolve(_CONFIG.value), DEVICES[name]
    if config.finetune.base:
        raise UserError(
            f"--config.finetune.base={config.finetune.base}: a plan does not read a"
            " base; leave it empty and plan the base's own config"
        )
    jax.config.update("jax_platforms", "cpu")
    if _COMPILE.value:
        jax.config.update("jax_num_cpu_devices", num_devices)
    if _SEARCH.value:
        _search(config, num_devices, device)
        return
    plan = make_plan(config, axis_sizes(config.mesh, num_devices), device)
    _print(plan, _compiled(plan, num_devices) if _COMPILE.value else {})


def _search(config, num_devices: int, device) -> None:
    from diffeq_former.planning.search import search

    plans = search(config, num_devices, device)
    fitting = [plan for plan in plans if plan.fits]
    print(f"{len(plans)} plans tried, {len(fitting)} fit", file=sys.stderr)
    if not fitting:
        print("nothing fits; the closest plan is:", file=sys.stderr)
    for plan in fitting[:_LISTED] or plans[:1]:
        _print(plan, {})


def _compiled(plan, num_devices: int) -> dict:
    from diffeq_former.planning import compiled

    measured = compiled.measures(compiled.compile_step(plan.config, num_devices))
    predicted, total = plan.memory.total, measured["memory"]["total"]
    print(
        f"compiled for CPUs: {total / 1e9:.4g} GB, predicted {predicted / 1e9:.4g} GB "
        f"({predicted / total:.2f} times that)",
        file=sys.stderr,
    )
    ratio = {"predicted": round(predicted), "ratio": predicted / total}
    return {"compiled": measured | ratio}


def _print(plan, extra: dict) -> None:
    name, num_devices = _DEVICE.value, _NUM_DEVICES.value
    needed, available = plan.memory.total / 1e9, plan.device.memory / 1e9
    print(
        f"{num_devices} x {name}: {needed:.4g} of {available:.4g} GB, "
        f"{'fits' if plan.fits else 'does not fit'}; {plan.seconds:.3g} s per step, "
        f"MFU at most {plan.mfu_bound:.0%}",
        file=sys.stderr,
    )
    line = {"device": name, "num_devices": num_devices, **plan.as_dict(), **extra}
    print_line(line)


if __name__ == "__main__":
    cli.run(main)
