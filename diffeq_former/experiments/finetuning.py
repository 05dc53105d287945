"""Fine-tuning in other numbers of layers (paper, section 6.2 and figure 5).

A DiffEqFormer and its baseline, a plain transformer, are trained on one text and tuned
on another, in full and by LoRA, and the other way round: the first discretised into
half, two thirds, as many and four thirds of its layers, the second in as many as it
has.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle, product
from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import make_directory
from diffeq_former.errors import UserError
from diffeq_former.experiments import runs
from diffeq_former.experiments.measured import validation_losses
from diffeq_former.training import run_directory

DEPTHS = tuple(map(Fraction, ("1/2", "2/3", "1", "4/3")))
MODES = ("full", "lora")


def run(
    data: tuple[str, str],
    output: Path,
    config_flags: list[str],
    num_layers: int,
    tuning_configs: Path,
    settings: dict[str, Sequence[str]],
    seeds: Sequence[int],
) -> None:
    """Train and tune the runs that are not there, and write what they reached.

    Args:
      data: Two prepared texts, with different folder names.
      output: The folder of all runs; it gets figures.jsonl and study.png.
      config_flags: Flags for `diffeq_former.main` of the pre-training.
      num_layers: Number of solver steps of the pre-training.
      tuning_configs: The folder of full.py and lora.py.
      settings: Further SECTION.FIELD=VALUE for each of `MODES` and for "plain".
      seeds: The seeds of each model.

    Raises:
      UserError: If the texts have the same name, or the study is done.
      SystemExit: With the exit code of a run that does not end well.
    """
    check_names(*data)
    make_directory(output)
    picture = plotting.new_plot(str(output / "study.png"))
    models = {
        "continuous": ([], depths(num_layers)),
        "plain": ([*runs.BASELINE, *settings["plain"]], [None]),
    }
    study = runs.Study(output, num_runs(models, seeds), config_flags)
    trained = train(study, data, models, tuning_configs, settings, seeds)
    rows = [row | losses(workdir) for row, workdir in trained]
    runs.report(output, rows)
    plot(rows, picture)


# The settings of a model, and the numbers of layers to tune it in (None: its own).
Models = dict[str, tuple[Sequence[str], Sequence[int | None]]]


def num_runs(models: Models, seeds: Sequence[int]) -> int:
    """Return the number of trainings, pre-training included."""
    tunings = sum(len(depths) for _, depths in models.values()) * len(MODES)
    return (tunings + len(models)) * 2 * len(seeds)


def train(
    study: runs.Study,
    data: tuple[str, str],
    models: Models,
    tuning_configs: Path,
    settings: dict[str, Sequence[str]],
    seeds: Sequence[int],
) -> runs.Trained:
    """Train and tune the models; see `run`."""
    trained = []
    for (source, target), seed, (model, (own, num_layers)) in product(
        (data, data[::-1]), seeds, models.items()
    ):
        # The first text is that of the shared flags.
        text = [] if source == data[0] else [f"data.path={source}"]
        base = study.train_model([*own, *text], seed)
        own_depth = run_directory.read_config(base).model.num_layers
        for mode, depth in product(MODES, [n or own_depth for n in num_layers]):
            tuning = {
                "data.path": target,
                "finetune.base": base,
                "finetune.num_steps": depth,
                "seed": seed,
            }
            given = [*(f"{k}={v}" for k, v in tuning.items()), *settings[mode]]
            flags = [f"--config={tuning_configs}/{mode}.py", *runs.config_flags(given)]
            tuned = study.train(f"{base.name},{mode},{depth}", *flags)
            row = {"direction": direction(source, target), "model": model, "mode": mode}
            trained.append((row | {"num_layers": depth, "seed": seed}, tuned))
    return trained


def check_names(first: str, second: str) -> None:
    """Raise UserError if two texts have folders of one name."""
    if Path(first).name == Path(second).name:
        raise UserError(
            f"--data={second}: its folder is called {Path(first).name} like that of"
            " config.data.path; name another text, or rename one"
        )


def direction(source: str, target: str) -> str:
    """Return the name of a pre-training text and a text to tune on."""
    return f"{Path(source).name} to {Path(target).name}"


def depths(num_layers: int) -> list[int]:
    """Return the fractions `DEPTHS` of a number of layers, each once."""
    return sorted({max(1, round(part * num_layers)) for part in DEPTHS})


def losses(workdir: Path) -> dict:
    """Return the losses of a tuning, with its lowest and last perplexity."""
    found = validation_losses(workdir)
    values = list(found.values())
    return {
        "steps": list(found),
        "losses": values,
        "lowest_perplexity": math.exp(min(values)),
        "last_perplexity": math.exp(values[-1]),
    }


def plot(figures: list[dict], picture: Path) -> None:
    """Plot perplexities over the steps of tuning: a panel for each direction and mode.

    Args:
      figures: Rows of `train`.
      picture: The .png file to write.
    """
    directions = list(dict.fromkeys(figure["direction"] for figure in figures))
    shape = {"nrows": len(directions), "ncols": len(MODES), "sharey": "row"}
    with plotting.saved_figure(picture, (9.6, 7.4), **shape) as grid:
        for row, texts in zip(grid, directions, strict=True):
            for axes, mode in zip(row, MODES, strict=True):
                panel = {"direction": texts, "mode": mode}
                _plot_panel(axes, [f for f in figures if panel.items() <= f.items()])
                axes.set(title=f"{texts}, {mode}", yscale="log")
                axes.set_xlabel("optimizer step of tuning")
                axes.grid(alpha=0.3, which="both")
            row[0].set_ylabel("validation perplexity")
        grid[0, -1].legend()


def _plot_panel(axes, figures: list[dict]) -> None:
    of_model: dict[str, list[dict]] = {}
    for figure in figures:
        label = f"{figure['model']}, {figure['num_layers']} layers"
        of_model.setdefault(label, []).append(figure)
    for (label, found), style in zip(of_model.items(), cycle(plotting.STYLES)):
        perplexities = [list(map(math.exp, figure["losses"])) for figure in found]
        plotting.plot_mean_and_range(
            axes, found[0]["steps"], perplexities, style, label
        )
