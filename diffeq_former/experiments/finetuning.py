"""Fine-tuning in other numbers of layers (paper, section 6.2 and figure 5).

A DiffEqFormer and its baseline, a plain transformer, are trained on one text and tuned
on another, in full and by LoRA: the first discretised into half, two thirds, as many
and four thirds of its layers, the second in as many as it has.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle
from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import make_directory
from diffeq_former.experiments.runs import report, train, validation_losses
from diffeq_former.process_exit import OK
from diffeq_former.training import run_directory

BASELINE = ("--config.model.weights=layer_table", "--config.model.solver=lie_trotter")
DEPTHS = tuple(map(Fraction, ("1/2", "2/3", "1", "4/3")))
MODES = ("full", "lora")


def run(
    data: str,
    output: Path,
    config_flags: list[str],
    tuning_configs: Path,
    settings: dict[str, Sequence[str]],
) -> int:
    """Train and tune the runs that are not there, and write what they reached.

    Args:
      data: Prepared text to tune on.
      output: The folder of all runs; it gets figures.jsonl and study.png.
      config_flags: Flags for `diffeq_former.main` of the pre-training.
      tuning_configs: The folder of full.py and lora.py.
      settings: SECTION.FIELD=VALUE by which those are changed, for each of `MODES`.

    Returns:
      The exit code: that of a run that did not end well, if there is one.
    """
    make_directory(output)
    picture, figures = plotting.new_plot(str(output / "study.png")), []
    for model, changes in (("continuous", ()), ("plain", BASELINE)):
        base = output / model
        if code := train(base, *config_flags, *changes):
            return code
        depth = run_directory.read_config(base).model.num_layers
        for mode in MODES:
            config = tuning_configs / f"{mode}.py"
            for num_layers in _depths(depth) if model == "continuous" else [depth]:
                workdir = output / f"{model}-{mode}-{num_layers}"
                tuning = (
                    f"data.path={data}",
                    f"finetune.base={base}",
                    f"finetune.num_steps={num_layers}",
                    *settings[mode],
                )
                given = (f"--config.{setting}" for setting in tuning)
                if code := train(workdir, f"--config={config}", *given):
                    return code
                figure = {"model": model, "mode": mode, "num_layers": num_layers}
                figures.append(figure | _losses(workdir))
    report(output, figures)
    _plot(figures, picture)
    return OK


def _depths(num_layers: int) -> list[int]:
    """Return the fractions `DEPTHS` of a number of layers, each once."""
    return sorted({max(1, round(part * num_layers)) for part in DEPTHS})


def _losses(workdir: Path) -> dict:
    found = validation_losses(workdir)
    losses = list(found.values())
    return {
        "steps": list(found),
        "losses": losses,
        "lowest_perplexity": math.exp(min(losses)),
        "last_perplexity": math.exp(losses[-1]),
    }


def _plot(figures: list[dict], picture: Path) -> None:
    with plotting.saved_figure(picture, (9.6, 4), ncols=2, sharey=True) as both:
        for axes, mode in zip(both, MODES, strict=True):
            styles = cycle(plotting.STYLES)
            for figure in (f for f in figures if f["mode"] == mode):
                label = f"{figure['model']}, {figure['num_layers']} layers"
                perplexities = list(map(math.exp, figure["losses"]))
                axes.plot(figure["steps"], perplexities, next(styles), label=label)
            axes.set(title=mode, xlabel="optimizer step of tuning", yscale="log")
            axes.grid(alpha=0.3, which="both")
        both[0].set_ylabel("validation perplexity")
        both[1].legend()
