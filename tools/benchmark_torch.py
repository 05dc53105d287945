"""Benchmarks training of the equivalent plain transformer in PyTorch.

tools/benchmark_torch.py --config=configs/gpt_small.py --batch_sizes=8,16,32
  [--config.SECTION.FIELD=VALUE ...]

The model is GPT-2 or Llama of Hugging Face transformers with random parameters, under
torch.compile, with PyTorch's scaled_dot_product_attention and AdamW, on one device. An
optimizer step uses training.batch_size sequences, in micro-batches of the fastest size
in --batch_sizes.

Each line on stdout is a JSON object with the fields of `tools/benchmark.py train`: one
for the vocabulary as it is, and one for it padded to a multiple of 128.
"""

import importlib.util
import json

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli
from diffeq_former.errors import UserError

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_BATCH_SIZES = flags.DEFINE_list(
    "batch_sizes", None, "Micro-batch sizes, such as 8,16,32.", required=True
)
_COMPILE = flags.DEFINE_bool("compile", True, "Use torch.compile.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of timed rounds.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 3, "Steps per measurement.", lower_bound=1)
flags.mark_flag_as_required("config")


def main() -> None:
    from diffeq_former.config import resolve

    config, batch_sizes = resolve(_CONFIG.value), _batch_sizes()
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"{name} is not installed: pip install -c constraints.txt -e '.[hf]'"
            )
    from diffeq_former.benchmarks.torch_train import benchmark, device_kind

    labels = {"mode": "train", "device": device_kind(), "num_devices": 1}
    repeats = (_ROUNDS.value, _STEPS.value)
    for line in benchmark(config, batch_sizes, *repeats, _COMPILE.value):
        print(json.dumps(labels | line), flush=True)


def _batch_sizes() -> list[int]:
    values = _BATCH_SIZES.value
    if not values or not all(v.isdecimal() and int(v) for v in values):
        raise UserError(
            f"--batch_sizes={','.join(values)}: expected whole numbers of 1 or more, "
            "separated by commas"
        )
    return [int(value) for value in values]


if __name__ == "__main__":
    cli.run(main)
