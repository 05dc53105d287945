"""Fine-tuning in other numbers of layers (paper, section 6.2 and figure 5).

A DiffEqFormer and its baseline, a plain transformer, are trained on one text and tuned
on another, in full and by LoRA, and the other way round: the first discretised into
half, two thirds, as many and four thirds of its layers, the second in as many as it
has.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path

from ml_collections import ConfigDict

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import make_directory
from diffeq_former.config.loading import overridden
from diffeq_former.errors import UserError
from diffeq_former.experiments import runs
from diffeq_former.experiments.curves import plot_perplexities
from diffeq_former.experiments.measured import validation_losses

DEPTHS = tuple(map(Fraction, ("1/2", "2/3", "1", "4/3")))
MODES = ("full", "lora")


def run(
    config: ConfigDict,
    data: str,
    study: runs.Study,
    tuning_configs: Path,
    settings: dict[str, Sequence[str]],
    seeds: Sequence[int],
) -> None:
    """Train and tune the runs that are not there, and write what they reached.

    Args:
      config: The config of the pre-training.
      data: A second prepared text, whose folder has another name.
      study: The study, whose folder gets figures.jsonl and study.png.
      tuning_configs: The folder of full.py and lora.py.
      settings: Further SECTION.FIELD=VALUE for each of `MODES` and for "plain".
      seeds: The seeds of each model.

    Raises:
      UserError: If the texts have the same name, or the study is done.
      SystemExit: With the exit code of a run that does not end well.
    """
    texts = (config.data.path, data)
    check_names(*texts)
    plain = [*runs.BASELINE, *settings["plain"]]
    plain_layers = overridden(config, plain, flag="plain").model.num_layers
    make_directory(study.folder)
    picture = plotting.new_plot(str(study.folder / "study.png"))
    models = {
        "continuous": ([], depths(config.model.num_layers)),
        "plain": (plain, [plain_layers]),
    }
    planned = plan(study, texts, models, tuning_configs, settings, seeds)
    study.train(planned)
    rows = [row | losses(run.workdir) for row, run in planned]
    runs.report(study.folder, rows)
    plot(rows, picture)


# The settings of a model, and the numbers of layers to tune it in.
Models = dict[str, tuple[Sequence[str], Sequence[int]]]


def plan(
    study: runs.Study,
    data: tuple[str, str],
    models: Models,
    tuning_configs: Path,
    settings: dict[str, Sequence[str]],
    seeds: Sequence[int],
) -> runs.Rows:
    """Return the runs of the fine-tunings of both texts; see `run`."""
    planned = []
    for (source, target), seed, (model, (own, num_layers)) in product(
        (data, data[::-1]), seeds, models.items()
    ):
        # The first text is that of the shared flags.
        text = [] if source == data[0] else [f"data.path={source}"]
        base = study.of_model([*own, *text], seed)
        for mode, depth in product(MODES, num_layers):
            tuning = {
                "data.path": target,
                "finetune.base": base.workdir,
                "finetune.num_steps": depth,
                "seed": seed,
            }
            given = [*(f"{k}={v}" for k, v in tuning.items()), *settings[mode]]
            flags = [f"--config={tuning_configs}/{mode}.py", *runs.config_flags(given)]
            tuned = study.tuned(base, f"{mode},{depth}", flags)
            row = {"direction": direction(source, target), "model": model, "mode": mode}
            planned.append((row | {"num_layers": depth, "seed": seed}, tuned))
    return planned


def check_names(first: str, second: str) -> None:
    """Raise UserError if two texts have folders of one name, or the first has none."""
    if not first:
        raise UserError(
            "config.data.path is empty: name the folder of one prepared text; the study"
            " takes no mixture"
        )
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
      figures: Rows of `plan`, with their `losses`.
      picture: The .png file to write.
    """
    directions = list(dict.fromkeys(figure["direction"] for figure in figures))
    shape = {"nrows": len(directions), "ncols": len(MODES), "sharey": "row"}
    with plotting.saved_figure(picture, (9.6, 7.4), **shape) as grid:
        for row, texts in zip(grid, directions, strict=True):
            for axes, mode in zip(row, MODES, strict=True):
                panel = {"direction": texts, "mode": mode}
                found = [row for row in figures if panel.items() <= row.items()]
                plot_perplexities(axes, found, label=_label)
                axes.set(title=f"{texts}, {mode}", xlabel="optimizer step of tuning")
            row[0].set_ylabel("validation perplexity")
        grid[0, -1].legend()


def _label(row: dict) -> str:
    return f"{row['model']}, {row['num_layers']} layers"
