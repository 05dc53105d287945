"""Trains a config with each value of one setting, and draws what it changes.

tools/ablation.py --config=configs/small.py --config.data.path=data/books \
  --vary=model.time_embed_dim=12,24,48,96 --output=runs/ablation

For the width of the time embedding (figures 14 to 16 of the paper), the two designs of
its MLP (--vary=model.time_mlp=per_weight,shared; figure 18), Adam's second decay
(--vary=optimizer.b2=0.95,0.99,0.999; figure 7), or any other setting. --output gets a
run for each value, figures.jsonl and ablation.png (needs matplotlib:
pip install -e '.[plot]'). Stdout has a JSON object for each run: the setting and its
value, steps and losses (nats a token) of its evaluations, perplexity (the last),
tokens_per_second and host_memory_gib (medians), parameters.

Runs go on where they stand when the same command is given again.
"""

import json
import math
import statistics
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli, pictures
from diffeq_former.errors import UserError
from diffeq_former.studies import records, train, validation_losses

config_flags.DEFINE_config_file("config", None, "Of all runs.")
flags.mark_flag_as_required("config")
_VARY = flags.DEFINE_string(
    "vary", None, "SECTION.FIELD=VALUE,VALUE,...", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "The folder of all runs.", required=True)


def main() -> int:
    setting, values = _varied()
    output = Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    picture = pictures.new_picture(str(output / "ablation.png"))
    given = [flag for flag in sys.argv if flag.startswith("--config")]
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
    return cli.OK


def _varied() -> tuple[str, list[str]]:
    from diffeq_former.config import Config
    from diffeq_former.settings import keys

    setting, _, text = _VARY.value.partition("=")
    values = [value for value in text.split(",") if value]
    if setting not in keys(Config()) or "." not in setting or len(set(values)) < 2:
        raise UserError(
            f"--vary={_VARY.value}: expected a setting and two or more values, as "
            "model.time_embed_dim=24,48"
        )
    return setting, values


def _figures(workdir: Path) -> dict:
    from diffeq_former.config import ModelConfig
    from diffeq_former.models.transformer import Transformer
    from diffeq_former.training.run_directory import read_config

    model: ModelConfig = read_config(workdir).model
    losses = validation_losses(workdir)
    return {
        "steps": list(losses),
        "losses": list(losses.values()),
        "perplexity": math.exp(list(losses.values())[-1]),
        "parameters": _num_parameters(Transformer(model)),
    } | {
        name: statistics.median(records(workdir, name).values())
        for name in ("tokens_per_second", "host_memory_gib")
    }


def _num_parameters(model) -> int:
    import jax
    import jax.numpy as jnp

    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes["params"]))


def _draw(figures: list[dict], picture: Path) -> None:
    measures = {
        "perplexity": "last validation perplexity",
        "tokens_per_second": "tokens a second",
        "parameters": "parameters",
        "host_memory_gib": "memory of the host (GiB)",
    }
    with pictures.drawn(picture, (10, 7), nrows=2, ncols=2) as grid:
        values = [figure["value"] for figure in figures]
        for axes, (name, words) in zip(grid.flat, measures.items(), strict=True):
            axes.bar(values, [figure[name] for figure in figures], color="0.6")
            axes.set(xlabel=figures[0]["setting"], ylabel=words)
            axes.grid(alpha=0.3, axis="y")


if __name__ == "__main__":
    cli.run(main)
