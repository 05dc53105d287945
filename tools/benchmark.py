"""Benchmarks a config and variants of it, alternately in one process.

tools/benchmark.py MODE --config=configs/gpt_small.py [--config.SECTION.FIELD=VALUE ...]
  --variant="plain: model.weights=layer_table model.solver=lie_trotter"

Modes: train (steps on random tokens), weights (generation, pullback and update of the
banks, relative to the device's memory bandwidth), depth (compile time and memory by
number of layers), decode (text generation by batch size), data (the pipeline alone),
startup (from the start of Python to the first step).

Each line on stdout is a JSON object. Variants take turns; seconds and ratios are
medians over the rounds, with the lowest and the highest. With --recorded, a JSON file
{VARIANT: ratio}, the exit code is 1 if a variant has become more than a quarter faster
relative to the config itself.
"""

import importlib
import json
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli, process_exit
from diffeq_former.errors import UserError

MODES = ("train", "weights", "depth", "decode", "data", "startup")

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_VARIANTS = flags.DEFINE_multi_string(
    "variant", [], "NAME: SECTION.FIELD=VALUE ...; may be repeated."
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of timed rounds.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 3, "Steps per measurement.", lower_bound=1)
_RECORDED = flags.DEFINE_string(
    "recorded", None, "JSON file of reference ratios (train)."
)
flags.mark_flag_as_required("config")

_TOLERANCE = 1.25


def main(mode: str) -> int:
    from diffeq_former.benchmarks.variants import variants

    benchmark = importlib.import_module(f"diffeq_former.benchmarks.{mode}").benchmark
    configs = variants(_CONFIG.value, _VARIANTS.value)
    recorded, worse = _recorded(mode, configs), False
    for line in benchmark(configs, _ROUNDS.value, _STEPS.value):
        print(json.dumps({"mode": mode, **_where(), **line}), flush=True)
        if line["variant"] in recorded:
            worse |= _is_worse(line, recorded[line["variant"]])
    return process_exit.FAILED if worse else process_exit.OK


def _recorded(mode: str, configs: dict) -> dict[str, float]:
    if not _RECORDED.value:
        return {}
    try:
        recorded = json.loads(Path(_RECORDED.value).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--recorded: {_RECORDED.value}: {error}") from error
    if mode != "train" or not recorded.keys() <= configs.keys():
        raise UserError(
            f"--recorded: expected the mode train and a --variant each for"
            f" {', '.join(recorded)}"
        )
    return recorded


def _is_worse(line: dict, recorded: float) -> bool:
    ratio, name = line["ratio"]["median"], line["variant"]
    worse = ratio > _TOLERANCE * recorded
    print(
        f"{name}: {ratio:.2f} times as fast as the config, {recorded:.2f} recorded:"
        f" {'WORSE' if worse else 'fine'}",
        file=sys.stderr,
    )
    return worse


def _where() -> dict:
    import jax

    device = jax.devices()[0]
    return {"device": device.device_kind, "num_devices": jax.device_count()}


if __name__ == "__main__":
    cli.run(main, choices=MODES)
