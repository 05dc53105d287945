"""Ablations: a config with each value of one setting, and what the setting changes.

As the paper does for the width of the time embedding (figures 14 to 16), the two
designs of its MLP (figure 18) and Adam's second decay (figure 7), each beside the plain
transformer.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import make_directory
from diffeq_former.config import Config, MeshConfig
from diffeq_former.config.dataclass_config import keys
from diffeq_former.errors import UserError
from diffeq_former.experiments import runs
from diffeq_former.hardware import hardware_of
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.closed_form import axis_sizes, needed_memory
from diffeq_former.process_exit import OK
from diffeq_former.training.run_directory import read_config

_MEASURED = ("tokens_per_second", "host_memory_gib", "device_memory_gib")
# How settings begin that a plain transformer does not have.
_OF_HYPERNETWORKS = ("model.time_", "model.generate_weights", "optimizer.bank_")
# A value of the setting (None: the model does not have it), and whether it is plain.
Variant = tuple[str | None, bool]


def run(
    vary: str,
    output: Path,
    config_flags: list[str],
    seeds: Sequence[int],
    plain: Sequence[str] | None,
) -> int:
    """Train a run for each value and seed, where there is none, and report them.

    Args:
      vary: SECTION.FIELD=VALUE,VALUE,...
      output: The folder of all runs; it gets figures.jsonl and ablation.png.
      config_flags: Flags for `diffeq_former.main` that all runs share.
      seeds: The seeds of each model.
      plain: SECTION.FIELD=VALUE of the plain transformer, beside what makes it one;
        None: leave it out.

    Returns:
      The exit code: that of a run that did not end well, if there is one.

    Raises:
      UserError: If there is no such setting, or the study is done.
    """
    setting, values = varied(vary)
    picture = output / "ablation.png"
    if picture.exists():
        raise UserError(
            f"--output={output}: it is done; name another folder, or remove {picture}"
            " to plot more values"
        )
    plotting.require_matplotlib()
    make_directory(output)
    wanted = [*itertools.product(variants(setting, values, plain), seeds)]
    study, figures = runs.Study(output, len(wanted)), []
    for variant, seed in wanted:
        changes = changes_of(setting, variant, plain)
        value, is_plain = variant
        name = ",".join(
            ["plain"] * is_plain
            + [f"{setting}={value}"] * (value is not None)
            + [f"seed={seed}"]
        )
        flags = runs.config_flags([*changes, f"seed={seed}"])
        if code := study.train(name, *config_flags, *flags):
            return code
        row = {"plain": is_plain, "setting": setting, "value": value, "seed": seed}
        figures.append(row | _figures(output / name))
    runs.report(output, figures)
    _plot(figures, picture)
    return OK


def varied(vary: str) -> tuple[str, list[str]]:
    """Return the setting and the values of SECTION.FIELD=VALUE,VALUE,...

    Raises:
      UserError: If there is no such setting, or fewer than two values.
    """
    setting, _, text = vary.partition("=")
    values = [value for value in text.split(",") if value]
    if setting not in keys(Config()) or "." not in setting or len(set(values)) < 2:
        raise UserError(
            f"--vary={vary}: expected a setting and two or more values, as "
            "model.time_embed_dim=24,48"
        )
    return setting, values


def variants(
    setting: str, values: list[str], plain: Sequence[str] | None
) -> list[Variant]:
    """Return the config with each value, and the plain transformer where wanted.

    The plain transformer is there with each value, too, or once, if it has no such
    setting or only one value of it.
    """
    found: list[Variant] = [(value, False) for value in values]
    if plain is None:
        return found
    of_plain = {change.partition("=")[0] for change in (*runs.BASELINE, *plain)}
    fixed = setting.startswith(_OF_HYPERNETWORKS) or setting in of_plain
    return found + [(value, True) for value in ([None] if fixed else values)]


def changes_of(
    setting: str, variant: Variant, plain: Sequence[str] | None
) -> list[str]:
    """Return the variant's settings, as SECTION.FIELD=VALUE."""
    value, is_plain = variant
    changes = [*runs.BASELINE, *(plain or ())] if is_plain else []
    return changes + ([] if value is None else [f"{setting}={value}"])


def _figures(workdir: Path) -> dict:
    config, losses = read_config(workdir), runs.validation_losses(workdir)
    measured = {name: runs.records(workdir, name) for name in _MEASURED}
    return {
        "steps": list(losses),
        "losses": list(losses.values()),
        "perplexity": math.exp(list(losses.values())[-1]),
        "parameters": num_parameters(Transformer(config.model)),
        "planned_memory_gib": _planned_memory(config) / 2**30,
    } | {name: statistics.median(x.values()) for name, x in measured.items() if x}


def _planned_memory(config) -> float:
    sizes, seq_len = axis_sizes(MeshConfig(), num_devices=1), config.model.max_len
    return needed_memory(config, sizes, hardware_of(jax.devices()[0]), seq_len).total


def num_parameters(model) -> int:
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes["params"]))


def _plot(figures: list[dict], picture: Path) -> None:
    setting = figures[0]["setting"]
    measured = all("device_memory_gib" in figure for figure in figures)
    memory = "device_memory_gib" if measured else "planned_memory_gib"
    panels = {
        "perplexity": "validation perplexity",
        "tokens_per_second": "tokens a second (median)",
        memory: f"GiB on a device ({'measured' if measured else 'planned'})",
    }
    of_model: dict[Variant, list[dict]] = {}
    for figure in figures:
        of_model.setdefault((figure["value"], figure["plain"]), []).append(figure)
    with plotting.saved_figure(picture, (10, 7), nrows=2, ncols=2) as grid:
        curves, *others = grid.flat
        styles = itertools.cycle(plotting.STYLES)
        for (value, is_plain), found in of_model.items():
            label = ", ".join([*["plain"] * is_plain, *filter(None, [value])])
            perplexities = [[math.exp(x) for x in figure["losses"]] for figure in found]
            plotting.plot_mean_and_range(
                curves, found[0]["steps"], perplexities, next(styles), label
            )
        curves.set(xlabel="optimizer step", ylabel="validation perplexity")
        curves.set_yscale("log")
        curves.legend(title=setting)
        for axes, (name, words) in zip(others, panels.items(), strict=True):
            rows = {
                variant: [row[name] for row in found]
                for variant, found in of_model.items()
            }
            plot_values(axes, rows)
            axes.set(xlabel=setting, ylabel=words)
            axes.legend()
        for axes in grid.flat:
            axes.grid(alpha=0.3, axis="y", which="both")


def plot_values(axes, numbers: dict[Variant, list[float]]) -> None:
    """Plot numbers against the values of the setting: their mean and range.

    A plain transformer without the setting is a horizontal line.
    """
    for is_plain, style, name in ((False, "-o", "config"), (True, "--s", "plain")):
        found = {v: x for (v, p), x in numbers.items() if p == is_plain}
        if None in found:
            axes.axhline(statistics.mean(found[None]), color="0.4", ls="--", label=name)
            axes.axhspan(min(found[None]), max(found[None]), color="0.8", alpha=0.5)
        elif found:
            plotting.plot_mean_and_range(
                axes, list(found), list(zip(*found.values(), strict=True)), style, name
            )
