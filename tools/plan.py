"""Tells whether a config fits on devices that are not there, and what it would send.

tools/plan.py --config=configs/llama1b.py --target=gpu:h100:1x8
tools/plan.py --config=configs/gpt_small.py --target=tpu:v5e:4x4 --search

A target is a number of devices of one kind: tpu:v5e:4x4 is a slice of 16 TPUs,
gpu:h100:2x8 two hosts with eight GPUs each. Each line on stdout is a JSON object:
memory and communication by a closed form, and as found in the program that the devices'
own compiler makes, which takes some minutes; --nocompile leaves it out. The mesh is
config.mesh. --search ranks all meshes, remat policies and numbers of micro-batches by
the closed form and compiles the three best.
"""

import sys

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli
from diffeq_former.errors import UserError
from diffeq_former.json_io import print_line

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_TARGET = flags.DEFINE_string(
    "target", None, "Devices: tpu:KIND:TOPOLOGY or gpu:KIND:HOSTSxGPUS.", required=True
)
_NUM_SLICES = flags.DEFINE_integer("num_slices", 1, "Slices of TPUs.")
_PROGRAM = flags.DEFINE_enum(
    "program",
    "train",
    ["train", "evaluate", "prefill", "decode"],
    "Program to compile. The closed form is of training.",
)
_SEARCH = flags.DEFINE_bool("search", False, "Find the best mesh.")
_COMPILE = flags.DEFINE_bool("compile", True, "Compile, beside the closed form.")
flags.mark_flag_as_required("config")

_LISTED = 3


def main() -> None:
    import jax

    from diffeq_former.config import resolve
    from diffeq_former.planning.closed_form import axis_sizes, make_plan
    from diffeq_former.planning.search import search
    from diffeq_former.planning.targets import parse_target, topology_devices

    target = parse_target(_TARGET.value, _NUM_SLICES.value)
    config = resolve(_CONFIG.value)
    if _PROGRAM.value != "train" and (_SEARCH.value or not _COMPILE.value):
        raise UserError(
            f"--program={_PROGRAM.value}: has no closed form; leave out --search and"
            " --nocompile"
        )
    if config.finetune.base:
        raise UserError(
            f"--config.finetune.base={config.finetune.base}: a plan does not read a"
            " base; leave it empty and plan the base's own config"
        )
    jax.config.update("jax_platforms", "cpu")
    devices = None
    if _COMPILE.value:
        devices = topology_devices(target)
        # A cached program could be read back only where its devices are.
        jax.config.update("jax_enable_compilation_cache", False)
    if _SEARCH.value:
        plans = search(config, target.num_devices, target.device)
        fitting = [plan for plan in plans if plan.fits]
        print(f"{len(plans)} plans tried, {len(fitting)} fit", file=sys.stderr)
        if not fitting:
            print("nothing fits; the closest plan is:", file=sys.stderr)
        plans = fitting[:_LISTED] or plans[:1]
    else:
        sizes = axis_sizes(config.mesh, target.num_devices)
        plans = [make_plan(config, sizes, target.device)]
    for plan in plans:
        _print(plan, target, devices)


def _print(plan, target, devices) -> None:
    from diffeq_former.planning.report import compile_report, table

    line = {"target": str(target), "num_devices": target.num_devices}
    if _PROGRAM.value == "train":
        line |= plan.as_dict()
        needed, available = plan.memory.total / 1e9, plan.device.memory / 1e9
        print(
            f"{target}: {needed:.4g} of {available:.4g} GB,"
            f" {'fits' if plan.fits else 'does not fit'}; {plan.seconds:.3g} s per"
            f" step, MFU at most {plan.mfu_bound:.0%}",
            file=sys.stderr,
        )
    if devices:
        report = compile_report(plan.config, _PROGRAM.value, devices, plan.device)
        line["compiled"] = report
        print(table(plan, report), file=sys.stderr)
        print(f"compiled: {_summary(report)}", file=sys.stderr)
    print_line(line)


def _summary(report: dict) -> str:
    total, available = (report["memory"][name] for name in ("total", "available"))
    fits = "fits" if report["fits"] else "does not fit"
    text = f"{fits}: {total / 1e9:.4g} of {available / 1e9:.4g} GB"
    if "attention" not in report:
        return text
    text += f"; attention: {report['attention']}"
    if "sent" in report:
        sent, blocking = sum(report["sent"].values()), report["sent_blocking"]
        text += (
            f"; sends {sent / 1e9:.4g} GB, {blocking / 1e9:.4g} GB of it while nothing"
            " else runs"
        )
    shares = report.get("cycle_shares", {}).items()
    return f"{text}; {report['compile_seconds']:.0f} s to compile" + "".join(
        f", {name} {share:.0%}" for name, share in shares
    )


if __name__ == "__main__":
    cli.run(main)
