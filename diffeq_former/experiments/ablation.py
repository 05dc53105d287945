"""Ablations: a config with each value of one setting, and what the setting changes.

As the paper does for the width of the time embedding (figures 14 to 16), the two
designs of its MLP (figure 18) and Adam's second decay (figure 7).
"""

import itertools
import math
import statistics
from pathlib import Path

import jax
import jax.numpy as jnp

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import make_directory
from diffeq_former.config import Config, MeshConfig
from diffeq_former.config.dataclass_config import keys
from diffeq_former.errors import UserError
from diffeq_former.experiments.runs import records, report, train, validation_losses
from diffeq_former.hardware import hardware_of
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.closed_form import axis_sizes, needed_memory
from diffeq_former.process_exit import OK
from diffeq_former.training.run_directory import read_config

_MEASURED = ("tokens_per_second", "host_memory_gib", "device_memory_gib")


def run(vary: str, output: Path, config_flags: list[str]) -> int:
    """Train a run for each value, where there is none, and write what they measured.

    Args:
      vary: SECTION.FIELD=VALUE,VALUE,...
      output: The folder of all runs; it gets figures.jsonl and ablation.png.
      config_flags: Flags for `diffeq_former.main` that all runs share.

    Returns:
      The exit code: that of a run that did not end well, if there is one.

    Raises:
      UserError: If there is no such setting, or the study is done.
    """
    setting, values = _varied(vary)
    picture = output / "ablation.png"
    if picture.exists():
        raise UserError(
            f"--output={output}: it is done; name another folder, or remove {picture}"
            " to plot more values"
        )
    plotting.require_matplotlib()
    make_directory(output)
    figures = []
    for value in values:
        workdir = output / f"{setting}={value}"
        if code := train(workdir, *config_flags, f"--config.{setting}={value}"):
            return code
        figures.append({"setting": setting, "value": value} | _figures(workdir))
    report(output, figures)
    _plot(figures, picture)
    return OK


def _varied(vary: str) -> tuple[str, list[str]]:
    setting, _, text = vary.partition("=")
    values = [value for value in text.split(",") if value]
    if setting not in keys(Config()) or "." not in setting or len(set(values)) < 2:
        raise UserError(
            f"--vary={vary}: expected a setting and two or more values, as "
            "model.time_embed_dim=24,48"
        )
    return setting, values


def _figures(workdir: Path) -> dict:
    config, losses = read_config(workdir), validation_losses(workdir)
    measured = {name: records(workdir, name) for name in _MEASURED}
    return {
        "steps": list(losses),
        "losses": list(losses.values()),
        "perplexity": math.exp(list(losses.values())[-1]),
        "parameters": _num_parameters(Transformer(config.model)),
        "planned_memory_gib": _planned_memory(config) / 2**30,
    } | {name: statistics.median(x.values()) for name, x in measured.items() if x}


def _planned_memory(config) -> float:
    sizes, seq_len = axis_sizes(MeshConfig(), num_devices=1), config.model.max_len
    return needed_memory(config, sizes, hardware_of(jax.devices()[0]), seq_len).total


def _num_parameters(model) -> int:
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes["params"]))


def _plot(figures: list[dict], picture: Path) -> None:
    values, setting = [figure["value"] for figure in figures], figures[0]["setting"]
    measured = all("device_memory_gib" in figure for figure in figures)
    memory = "device_memory_gib" if measured else "planned_memory_gib"
    bars = {
        "tokens_per_second": "tokens a second (median)",
        "parameters": "parameters",
        memory: f"GiB on a device ({'measured' if measured else 'planned'})",
    }
    with plotting.saved_figure(picture, (10, 7), nrows=2, ncols=2) as grid:
        curves, *panels = grid.flat
        styles = itertools.cycle(plotting.STYLES)
        for figure in figures:
            perplexities = [math.exp(loss) for loss in figure["losses"]]
            label = figure["value"]
            curves.plot(figure["steps"], perplexities, next(styles), label=label)
        curves.set(xlabel="optimizer step", ylabel="validation perplexity")
        curves.set_yscale("log")
        curves.legend(title=setting)
        for axes, (name, words) in zip(panels, bars.items(), strict=True):
            axes.bar(values, [figure[name] for figure in figures], color="0.6")
            axes.set(xlabel=setting, ylabel=words)
        for axes in grid.flat:
            axes.grid(alpha=0.3, axis="y", which="both")
