"""Ablations: a config with each value of one setting, and what the setting changes.

As the paper does for the width of the time embedding (figures 14 to 16), the two
designs of its MLP (figure 18) and Adam's second decay (figure 7), each beside the plain
transformer.
"""

import functools
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import make_directory
from diffeq_former.config import Config
from diffeq_former.config.dataclass_config import keys
from diffeq_former.config.loading import nearest_key
from diffeq_former.errors import UserError
from diffeq_former.experiments import runs
from diffeq_former.experiments.curves import plot_perplexities
from diffeq_former.experiments.measured import measured

# How settings begin that a plain transformer does not have.
_OF_HYPERNETWORKS = ("model.time_", "model.generate_weights", "optimizer.bank_")
# A value of the setting (None: the model does not have it), and whether it is plain.
Variant = tuple[str | None, bool]


def run(
    vary: str,
    study: runs.Study,
    config: Config,
    seeds: Sequence[int],
    plain: Sequence[str] | None,
) -> None:
    """Train a run for each value and seed, where there is none, and report them.

    Args:
      vary: SECTION.FIELD=VALUE,VALUE,...
      study: The study, whose folder gets figures.jsonl and ablation.png.
      config: The config of the runs.
      seeds: The seeds of each model.
      plain: SECTION.FIELD=VALUE of the plain transformer, beside what makes it one;
        None: leave it out.

    Raises:
      UserError: If there is no such setting, or the study is done.
      SystemExit: With the exit code of a run that does not end well.
    """
    setting, values = varied(vary)
    picture = study.folder / "ablation.png"
    if picture.exists():
        raise UserError(
            f"--output={study.folder}: it is done; name another folder, or remove"
            f" {picture} to plot more values"
        )
    plotting.require_matplotlib()
    make_directory(study.folder)
    wanted = variants(setting, values, plain)
    planned = plan(study, config, setting, wanted, seeds, plain)
    study.train(planned)
    rows = [row | measured(run.workdir) for row, run in planned]
    runs.report(study.folder, rows)
    plot(rows, picture)


def plan(
    study: runs.Study,
    config: Config,
    setting: str,
    wanted: Sequence[Variant],
    seeds: Sequence[int],
    plain: Sequence[str] | None,
) -> runs.Rows:
    """Return the run of each variant and seed; see `run`."""
    own = str(functools.reduce(getattr, setting.split("."), config))
    planned = []
    for (value, is_plain), seed in itertools.product(wanted, seeds):
        changed = None if value == own else value
        settings = settings_of(setting, (changed, is_plain), plain)
        row = {"model": label(value, is_plain), "plain": is_plain}
        row |= {"setting": setting, "value": value, "seed": seed}
        planned.append((row, study.of_model(settings, seed)))
    return planned


def settings_of(
    setting: str, variant: Variant, plain: Sequence[str] | None
) -> list[str]:
    """Return the settings of a variant, as SECTION.FIELD=VALUE."""
    value, is_plain = variant
    settings = [*runs.BASELINE, *(plain or ())] if is_plain else []
    return settings + [f"{setting}={value}"] * (value is not None)


def label(value: str | None, is_plain: bool) -> str:
    """Return the name of a variant in plots."""
    return ", ".join([*["plain"] * is_plain, *filter(None, [value])])


def varied(vary: str) -> tuple[str, list[str]]:
    """Return the setting and the values of SECTION.FIELD=VALUE,VALUE,...

    Raises:
      UserError: If there is no such setting (the message names the nearest), or there
        are fewer than two values.
    """
    setting, _, text = vary.partition("=")
    values = [value for value in text.split(",") if value]
    known = keys(Config())
    if values and setting not in known:
        near = nearest_key(setting)
        raise UserError(f"--vary={vary}: no such key; the nearest is {near}")
    if setting not in known or "." not in setting or len(set(values)) < 2:
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


def plot(figures: list[dict], picture: Path) -> None:
    """Plot perplexities over training, and what the setting changes.

    Args:
      figures: Rows of `plan`, measured.
      picture: The .png file to write.
    """
    setting = figures[0]["setting"]
    known = all("device_memory_gib" in figure for figure in figures)
    memory = "device_memory_gib" if known else "planned_memory_gib"
    panels = {
        "perplexity": "validation perplexity",
        "tokens_per_second": "tokens a second (median)",
        memory: f"GiB on a device ({'measured' if known else 'planned'})",
    }
    of_model: dict[Variant, list[dict]] = {}
    for figure in figures:
        of_model.setdefault((figure["value"], figure["plain"]), []).append(figure)
    with plotting.saved_figure(picture, (10, 7), nrows=2, ncols=2) as grid:
        curves, *others = grid.flat
        plot_perplexities(curves, figures)
        curves.set(xlabel="optimizer step", ylabel="validation perplexity")
        curves.legend(title=setting)
        for axes, (name, words) in zip(others, panels.items(), strict=True):
            rows = {
                variant: [row[name] for row in found]
                for variant, found in of_model.items()
            }
            plot_values(axes, rows)
            axes.set(xlabel=setting, ylabel=words)
            axes.legend()
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
            places = _places(list(found))
            values = list(zip(*found.values(), strict=True))
            plotting.plot_mean_and_range(axes, places, values, style, name)
            axes.set_xticks(places, list(found))


def _places(values: list[str]) -> list[float]:
    """Return the places of the values on an axis: those of numbers, or in a row."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return [float(index) for index in range(len(values))]
