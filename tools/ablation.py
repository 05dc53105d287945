"""Trains a config with each value of one setting, and draws what it changes.

tools/ablation.py --config=configs/small.py --config.data.path=data/books \
  --vary=model.time_embed_dim=12,24,48,96 --output=runs/ablation

For the width of the time embedding (figures 14 to 16 of the paper), the two designs of
its MLP (--vary=model.time_mlp=per_weight,shared; figure 18), Adam's second decay
(--vary=optimizer.b2=0.95,0.99,0.999; figure 7), or any other setting. --output gets a
run for each value, figures.jsonl and ablation.png (needs matplotlib:
pip install -e '.[plot]'). Stdout has a JSON object for each run: the setting and its
value, steps and losses (nats a token) of its evaluations, perplexity (the last),
tokens_per_second (median), parameters, and memory in GiB: planned_memory_gib (of a step
on one device, by the closed form of tools/plan.py), host_memory_gib (measured, of the
whole process) and device_memory_gib (measured, its peak, where the device tells).

Runs go on where they stand when the same command is given again.
"""

import itertools
import json
import math
import statistics
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli, process_exit
from diffeq_former.analysis import plotting
from diffeq_former.errors import UserError
from diffeq_former.experiments.runs import (
    config_words,
    records,
    train,
    validation_losses,
)

config_flags.DEFINE_config_file("config", None, "Of all runs.")
flags.mark_flag_as_required("config")
_VARY = flags.DEFINE_string(
    "vary", None, "SECTION.FIELD=VALUE,VALUE,...", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "The folder of all runs.", required=True)
_MEASURED = ("tokens_per_second", "host_memory_gib", "device_memory_gib")


def main() -> int:
    setting, values = _varied()
    output = Path(_OUTPUT.value)
    picture = output / "ablation.png"
    if picture.exists():
        raise UserError(
            f"--output={output}: it is done; name another folder, or remove {picture}"
            " to draw more values"
        )
    plotting.require_matplotlib()
    output.mkdir(parents=True, exist_ok=True)
    given = config_words(sys.argv)
    figures = []
    for value in values:
        workdir = output / f"{setting}={value}"
        if code := train(workdir, *given, f"--config.{setting}={value}"):
            return code
        figures.append({"setting": setting, "value": value} | _figures(workdir))
    lines = [json.dumps(figure) for figure in figures]
    (output / "figures.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines), flush=True)
    _draw(figures, picture)
    return process_exit.OK


def _varied() -> tuple[str, list[str]]:
    from diffeq_former.config import Config
    from diffeq_former.config.dataclass_config import keys

    setting, _, text = _VARY.value.partition("=")
    values = [value for value in text.split(",") if value]
    if setting not in keys(Config()) or "." not in setting or len(set(values)) < 2:
        raise UserError(
            f"--vary={_VARY.value}: expected a setting and two or more values, as "
            "model.time_embed_dim=24,48"
        )
    return setting, values


def _figures(workdir: Path) -> dict:
    from diffeq_former.models.transformer import Transformer
    from diffeq_former.training.run_directory import read_config

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
    from diffeq_former.config import MeshConfig
    from diffeq_former.models.attention_kernels import this_hardware
    from diffeq_former.planning.closed_form import axis_sizes, needed_memory

    sizes, seq_len = axis_sizes(MeshConfig(), num_devices=1), config.model.max_len
    return needed_memory(config, sizes, this_hardware(), seq_len).total


def _num_parameters(model) -> int:
    import jax
    import jax.numpy as jnp

    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes["params"]))


def _draw(figures: list[dict], picture: Path) -> None:
    values, setting = [figure["value"] for figure in figures], figures[0]["setting"]
    measured = all("device_memory_gib" in figure for figure in figures)
    memory = "device_memory_gib" if measured else "planned_memory_gib"
    bars = {
        "tokens_per_second": "tokens a second (median)",
        "parameters": "parameters",
        memory: f"GiB on a device ({'measured' if measured else 'planned'})",
    }
    with plotting.drawn(picture, (10, 7), nrows=2, ncols=2) as grid:
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


if __name__ == "__main__":
    cli.run(main)
