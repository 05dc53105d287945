"""Pre-trains on one text, tunes on another at several depths, and draws the outcome.

tools/finetune_study.py --config=configs/small.py --config.data.path=data/books \
  --data=data/wikitext --output=runs/study --full=training.num_steps=150 \
  --lora=training.num_steps=150

Figure 5 of the paper (section 6.2) at the size of --config: a DiffEqFormer, trained as
by diffeq_former.main with the same --config flags, is cut into half, two thirds, as
many and four thirds of its layers and tuned on --data, in full and by LoRA; so is its
plain twin, in as many. --output gets a run for each, figures.jsonl and
study.png (needs matplotlib: pip install -e '.[plot]'). Stdout has a JSON object for
each run: model, mode, num_layers, and at the steps of its evaluations the validation
losses (nats a token), with the lowest and the last perplexity.

--full and --lora change configs/finetune/full.py and lora.py, and may be given again.
All runs go on where they stand when the same command is given again.
"""

import json
import math
import sys
from fractions import Fraction
from itertools import cycle
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli, process_exit
from diffeq_former.analysis import plotting
from diffeq_former.experiments.runs import config_words, train, validation_losses

config_flags.DEFINE_config_file("config", None, "Of the pre-training.")
flags.mark_flag_as_required("config")
_DATA = flags.DEFINE_string("data", None, "Prepared text to tune on.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "The folder of all runs.", required=True)
_SETTINGS = {
    "full": flags.DEFINE_multi_string(
        "full", [], "SECTION.FIELD=VALUE of full tuning."
    ),
    "lora": flags.DEFINE_multi_string("lora", [], "SECTION.FIELD=VALUE of LoRA."),
}

TWIN = ("--config.model.weights=layer_table", "--config.model.solver=lie_trotter")
DEPTHS = tuple(map(Fraction, ("1/2", "2/3", "1", "4/3")))
MODES = ("full", "lora")
CONFIGS = Path(__file__).parents[1] / "configs" / "finetune"


def main() -> int:
    from diffeq_former.training import run_directory

    output = Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    picture = plotting.new_picture(str(output / "study.png"))
    figures, given = [], config_words(sys.argv)
    for model, settings in (("continuous", ()), ("plain", TWIN)):
        base = output / model
        if code := train(base, *given, *settings):
            return code
        depth = run_directory.read_config(base).model.num_layers
        for mode in MODES:
            for num_layers in _depths(depth) if model == "continuous" else [depth]:
                workdir = output / f"{model}-{mode}-{num_layers}"
                if code := _tune(base, workdir, mode, num_layers):
                    return code
                figure = {"model": model, "mode": mode, "num_layers": num_layers}
                figures.append(figure | _losses(workdir))
    lines = [json.dumps(figure) for figure in figures]
    (output / "figures.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines), flush=True)
    _draw(figures, picture)
    return process_exit.OK


def _depths(num_layers: int) -> list[int]:
    """The parts of it, rounded; a depth that two parts give is taken once."""
    return sorted({max(1, round(part * num_layers)) for part in DEPTHS})


def _tune(base: Path, workdir: Path, mode: str, num_layers: int) -> int:
    settings = (
        f"data.path={_DATA.value}",
        f"finetune.base={base}",
        f"finetune.num_steps={num_layers}",
        *_SETTINGS[mode].value,
    )
    changes = (f"--config.{setting}" for setting in settings)
    return train(workdir, f"--config={CONFIGS / mode}.py", *changes)


def _losses(workdir: Path) -> dict:
    found = validation_losses(workdir)
    losses = list(found.values())
    return {
        "steps": list(found),
        "losses": losses,
        "lowest_perplexity": math.exp(min(losses)),
        "last_perplexity": math.exp(losses[-1]),
    }


def _draw(figures: list[dict], picture: Path) -> None:
    with plotting.drawn(picture, (9.6, 4), ncols=2, sharey=True) as both:
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


if __name__ == "__main__":
    cli.run(main)
