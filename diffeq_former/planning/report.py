"""The report of a compiled program, beside the closed form."""

import re
import time

import jax

from diffeq_former.config import Config
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.errors import UserError
from diffeq_former.planning import shapes
from diffeq_former.planning.closed_form import USABLE, Plan, state_bytes
from diffeq_former.planning.collectives import collectives, sent_bytes
from diffeq_former.planning.compiled import attention_kernel, memory_bytes
from diffeq_former.planning.cycles import cycles_by_scope
from diffeq_former.planning.devices import Device
from diffeq_former.planning.hlo import Program
from diffeq_former.planning.programs import compile_program
from diffeq_former.planning.shapes import Sizes

# The compiler for TPUs says what a program that does not fit needs and what there is,
# such as "Used 18.37G of 15.75G hbm".
_SIZES = re.compile(r"([\d.]+)([MGT])\b")
_UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}


def compile_report(
    config: Config, program: str, devices: list[jax.Device], device: Device
) -> dict:
    """Compile a program of a config and describe it, for JSON.

    Args:
      config: The config, with the mesh of the devices.
      program: A key of `compiled.PROGRAMS`.
      devices: The devices to compile for; they need not be present.
      device: Their data sheet.

    Returns:
      `fits` and `memory`, in bytes of one device. If the compiler found that the
      program does not fit, this is all. Otherwise also `attention`, the kernel that the
      program calls; `sent`, by kind of collective and mesh axes; `sent_blocking`, the
      bytes that are sent while nothing else runs; for TPUs `cycles`, the compiler's
      estimate, and `cycle_shares`, by scope; `compile_seconds`. With binomial
      checkpointing, whose loops have no fixed length, nothing that depends on how often
      a loop is executed.

    Raises:
      UserError: If the compiler fails for another reason.
    """
    mesh, start = make_mesh(config.mesh, devices), time.monotonic()
    try:
        compiled, given = compile_program(config, mesh, program)
    except jax.errors.JaxRuntimeError as error:
        found = _SIZES.findall(str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or len(found) < 2:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"the compiler for {device.name} fails on this program ({reason}):"
                " change a size in the config, or leave out compilation"
            ) from None
        needed, available = (round(float(n) * _UNITS[unit]) for n, unit in found[:2])
        memory = {"total": needed, "available": available}
        return {"program": program, "fits": False, "memory": memory}
    seconds, sizes = time.monotonic() - start, dict(mesh.shape)
    text = compiled.as_text()
    available = round(USABLE * device.memory)
    memory = memory_bytes(compiled)
    memory["total"] += max(0, given - memory["argument"])  # those that it does not read
    has_lengths = program != "train" or config.model.backward != "binomial"
    return {
        "program": program,
        "fits": memory["total"] <= available,
        "memory": _by_class(config, program, sizes, memory) | {"available": available},
        "attention": attention_kernel(text),
        **(_executed(Program(text), sizes) if has_lengths else {}),
        "compile_seconds": seconds,
    }


def _executed(program: Program, sizes: Sizes) -> dict:
    """Report what a program sends and, for TPUs, its estimated cycles."""
    found, cycles = collectives(program, sizes), cycles_by_scope(program)
    return {
        "sent": _named(sent_bytes(found, "kind", "axes")),
        "sent_blocking": sum(x.num_bytes for x in found if not x.overlapped),
        "cycles": sum(cycles.values()),
        "cycle_shares": {k: n / sum(cycles.values()) for k, n in cycles.items()},
    }


def _by_class(config: Config, program: str, sizes: Sizes, memory: dict) -> dict:
    """Divide the memory of a program by what it is for.

    Parameters and optimizer state are arguments, whose sizes are known, as are those of
    the table. The rest is activations, gradients and what else the program needs.
    """
    parameters, optimizer = state_bytes(config, sizes)
    if program != "train":
        optimizer = 0
    table = sum(array.num_bytes(sizes) for array in shapes.table(config.model))
    known = {"parameters": parameters, "optimizer": optimizer, "table": round(table)}
    rest = memory["total"] - sum(known.values())
    return known | {"activations": rest, "total": memory["total"], "stated": memory}


def _named(sent: dict) -> dict:
    return {f"{kind} {'+'.join(axes)}": size for (kind, axes), size in sent.items()}


def table(plan: Plan, compiled: dict) -> str:
    """Return a table of the memory of one device in GB.

    The closed form is that of training; its error is relative to the compiled program.
    """
    needed, planned = plan.memory, {}
    if compiled["program"] == "train":
        names = ("parameters", "optimizer", "table", "total")
        planned = {name: getattr(needed, name) for name in names}
        known = needed.parameters + needed.optimizer + needed.table
        planned["activations"] = needed.total - known
    lines = [f"{'GB on each device':20}{'compiled':>10}{'planned':>10}{'error':>9}"]
    for name in ("parameters", "optimizer", "table", "activations", "total"):
        found, expected = compiled["memory"].get(name), planned.get(name)
        columns = [f"{x / 1e9:.3f}" if x is not None else "" for x in (found, expected)]
        error = f"{expected / found - 1:+.1%}" if found and expected else ""
        lines.append(f"{name:20}{columns[0]:>10}{columns[1]:>10}{error:>9}")
    return "\n".join(lines)
