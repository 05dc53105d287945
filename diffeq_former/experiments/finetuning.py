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
from diffeq_former.process_exit import OK
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
) -> int:
    """Train and tune the runs that are not there, and write what they reached.

    Args:
      data: Two prepared texts, with different folder names.
      output: The folder of all runs; it gets figures.jsonl and study.png.
      config_flags: Flags for `diffeq_former.main` of the pre-training.
      num_layers: Number of solver steps of the pre-training.
      tuning_configs: The folder of full.py and lora.py.
      settings: Further SECTION.FIELD=VALUE for each of `MODES` and for "plain".
      seeds: The seeds of each model.

    Returns:
      The exit code: that of a run that did not end well, if there is one.
    """
    _check_names(*data)
    make_directory(output)
    picture = plotting.new_plot(str(output / "study.png"))
    models = {
        "continuous": ([], _depths(num_layers)),
        "plain": ([*runs.BASELINE, *settings["plain"]], [None]),
    }
    num_tunings = sum(len(depths) for _, depths in models.values()) * len(MODES)
    study = runs.Study(output, (num_tunings + len(models)) * 2 * len(seeds))
    figures = []
    for (source, target), seed, (model, (changes, depths)) in product(
        (data, data[::-1]), seeds, models.items()
    ):
        names = [Path(source).name, Path(target).name]
        base = f"{model},{names[0]},seed={seed}"
        given = [*changes, f"data.path={source}", f"seed={seed}"]
        if code := study.train(base, *config_flags, *runs.config_flags(given)):
            return code
        own_depth = run_directory.read_config(output / base).model.num_layers
        for mode, depth in product(MODES, [depth or own_depth for depth in depths]):
            name = f"{base},{mode},{depth}"
            tuning = {
                "data.path": target,
                "finetune.base": output / base,
                "finetune.num_steps": depth,
                "seed": seed,
            }
            given = [*(f"{k}={v}" for k, v in tuning.items()), *settings[mode]]
            config = f"--config={tuning_configs}/{mode}.py"
            if code := study.train(name, config, *runs.config_flags(given)):
                return code
            row = {"direction": " to ".join(names), "model": model, "mode": mode}
            row |= {"num_layers": depth, "seed": seed} | _losses(output / name)
            figures.append(row)
    runs.report(output, figures)
    _plot(figures, picture)
    return OK


def _check_names(first: str, second: str) -> None:
    if Path(first).name == Path(second).name:
        raise UserError(
            f"--data={second}: its folder is called {Path(first).name} like that of"
            " config.data.path; name another text, or rename one"
        )


def _depths(num_layers: int) -> list[int]:
    """Return the fractions `DEPTHS` of a number of layers, each once."""
    return sorted({max(1, round(part * num_layers)) for part in DEPTHS})


def _losses(workdir: Path) -> dict:
    found = runs.validation_losses(workdir)
    losses = list(found.values())
    return {
        "steps": list(found),
        "losses": losses,
        "lowest_perplexity": math.exp(min(losses)),
        "last_perplexity": math.exp(losses[-1]),
    }


def _plot(figures: list[dict], picture: Path) -> None:
    directions = list(dict.fromkeys(figure["direction"] for figure in figures))
    shape = {"nrows": len(directions), "ncols": len(MODES), "sharey": "row"}
    with plotting.saved_figure(picture, (9.6, 7.4), **shape) as grid:
        for row, direction in zip(grid, directions, strict=True):
            for axes, mode in zip(row, MODES, strict=True):
                panel = {"direction": direction, "mode": mode}
                _plot_panel(axes, [f for f in figures if panel.items() <= f.items()])
                axes.set(title=f"{direction}, {mode}", yscale="log")
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
