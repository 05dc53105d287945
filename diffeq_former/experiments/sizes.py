"""Parameters and memory against a setting, without training.

As the paper shows them for the width of the time embedding (table 6 and figure 16).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import atomic_directory
from diffeq_former.config import Config, resolve
from diffeq_former.config.loading import overridden
from diffeq_former.experiments import ablation, runs
from diffeq_former.experiments.measured import num_parameters
from diffeq_former.planning.closed_form import axis_sizes, make_plan
from diffeq_former.planning.report import compile_report
from diffeq_former.planning.targets import Target, topology_devices


def run(
    vary: str,
    output: Path,
    config: ConfigDict,
    target: Target,
    plain: Sequence[str] | None,
    compiled: bool,
) -> None:
    """Report the parameters of each variant, and the memory of its training step.

    Args:
      vary: SECTION.FIELD=VALUE,VALUE,...
      output: A new folder; it gets figures.jsonl and sizes.png.
      config: The config that is varied.
      target: The devices, which need not be present.
      plain: SECTION.FIELD=VALUE of the plain transformer, beside what makes it one;
        None: leave it out.
      compiled: Compile for the target, instead of the closed form alone.

    Raises:
      UserError: If there is no such setting, or the target's compiler is missing.
    """
    setting, values = ablation.varied(vary)
    plotting.require_matplotlib()
    resolve(config)
    jax.config.update("jax_platforms", "cpu")
    devices, rows = None, []
    if compiled:
        devices = topology_devices(target)
        # A cached program could be read back only where its devices are.
        jax.config.update("jax_enable_compilation_cache", False)
    with atomic_directory(output) as folder:
        for value, is_plain in ablation.variants(setting, values, plain):
            settings = ablation.settings_of(setting, (value, is_plain), plain)
            name = ablation.label(value, is_plain)
            print(f"{setting}={name}", file=sys.stderr, flush=True)
            own = overridden(config, settings, flag="vary")
            row = {"model": name, "plain": is_plain, "setting": setting, "value": value}
            rows.append(row | _sizes(own, target, devices))
        runs.report(folder, rows)
        _plot(rows, target, folder / "sizes.png")


def _sizes(config: Config, target: Target, devices: list | None) -> dict:
    plan = make_plan(config, axis_sizes(config.mesh, target.num_devices), target.device)
    row = {
        "target": str(target),
        "parameters": num_parameters(config.model),
        "planned_memory_gib": plan.memory.total / 2**30,
    }
    if devices:
        report = compile_report(plan.config, "train", devices, target.device)
        row["compiled_memory_gib"] = report["memory"]["total"] / 2**30
    return row


def _plot(rows: list[dict], target: Target, picture: Path) -> None:
    kind = "compiled" if "compiled_memory_gib" in rows[0] else "planned"
    panels = {
        "parameters": ("parameters (millions)", 1e6),
        f"{kind}_memory_gib": (f"GiB per device ({target}, {kind})", 1),
    }
    with plotting.saved_figure(picture, (10, 4), ncols=2) as grid:
        for axes, (name, (words, unit)) in zip(grid, panels.items(), strict=True):
            numbers = {(row["value"], row["plain"]): [row[name] / unit] for row in rows}
            ablation.plot_values(axes, numbers)
            axes.set(xlabel=rows[0]["setting"], ylabel=words)
            axes.grid(alpha=0.3, axis="y")
            axes.legend()
