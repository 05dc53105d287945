"""Trains configs/tiny.py on the text of Python's standard library, then uses it.

tools/demo.py

Runs the commands of the README one after another and prints each. Tokenizer and dataset
are created once; every run gets a new folder.
"""

import itertools
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

from diffeq_former import cli, process_exit

_NUM_STEPS = flags.DEFINE_integer(
    "num_steps", None, "Optimizer steps; default: as in the config.", lower_bound=1
)
_FOLDER = flags.DEFINE_string("folder", ".", "Folder for data/ and runs/.")

ROOT = Path(__file__).parents[1]
SEQ_LEN = 128
VOCAB_SIZE = 1024
PROMPT = "def read(self, "
SOLVER_STEPS = (4, 2, 8)  # those of the config, half and twice as many


def main() -> int:
    start = time.monotonic()
    folder = Path(_FOLDER.value).absolute()
    dataset, workdir = folder / "data" / "stdlib", _new_folder(folder / "runs")
    try:
        _prepare(dataset)
        _train(dataset, workdir)
        num_steps = ",".join(map(str, SOLVER_STEPS))
        lines = _run("tools/evaluate.py", workdir=workdir, num_steps=num_steps)
        evaluations = [json.loads(line) for line in lines.splitlines()]
        sample = _run(
            "tools/generate.py",
            workdir=workdir,
            prompt=PROMPT,
            max_new_tokens=100,
            temperature=0.8,
            top_p=0.95,
        )
    except subprocess.CalledProcessError as error:
        print(f"the command failed with exit code {error.returncode}", file=sys.stderr)
        return error.returncode
    print(_summary(dataset, workdir, evaluations, sample))
    print(f"\nTotal time: {time.monotonic() - start:.0f} s.")
    return process_exit.OK


def _prepare(dataset: Path) -> None:
    model = dataset.with_name("stdlib.model")
    if not model.exists():
        _run(
            "tools/train_tokenizer.py",
            source="stdlib",
            vocab_size=VOCAB_SIZE,
            output=model,
        )
    if not dataset.exists():
        _run(
            "tools/prepare_data.py",
            source="stdlib",
            tokenizer=f"sentencepiece:{model}",
            seq_len=SEQ_LEN,
            validation_fraction=0.03,
            output=dataset,
        )


def _train(dataset: Path, workdir: Path) -> None:
    overrides = {"config.data.path": dataset}
    if _NUM_STEPS.value is not None:
        overrides["config.training.num_steps"] = _NUM_STEPS.value
    _run(
        "-m",
        "diffeq_former.main",
        config="configs/tiny.py",
        workdir=workdir,
        **overrides,
    )


def _run(*arguments: str, **options: object) -> str:
    """Run a Python command of this project and return its stdout."""
    given = (f"--{name}={value}" for name, value in options.items())
    arguments = [*arguments, *given]
    print("\n$ " + shlex.join(["python", *arguments]), file=sys.stderr, flush=True)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _summary(dataset: Path, workdir: Path, evaluations: list[dict], sample: str) -> str:
    from diffeq_former.data import unigram
    from diffeq_former.data.dataset import load
    from diffeq_former.training import metrics_file

    bits, *_ = (evaluation["bits_per_byte"] for evaluation in evaluations)
    own, half, twice = (evaluation["perplexity"] for evaluation in evaluations)
    unigram_bits = unigram.bits_per_byte(load(dataset))
    rates = [line.get("tokens_per_second") for line in metrics_file.read(workdir)]
    rate = statistics.median(filter(None, rates))
    return f"""
Validation perplexity  {own:.1f} per token
Depth is a choice      {half:.1f} in half the steps, {twice:.1f} in twice as many
Bits per byte          {bits:.3f}
Unigram model          {unigram_bits:.3f} bits per byte on the same tokens;
                       ours needs {1 - bits / unigram_bits:.0%} fewer bits
Training speed         {rate:,.0f} tokens/s
TensorBoard            pip install tensorboard; tensorboard --logdir={workdir}

A sample, starting with the prompt:
{sample}"""


def _new_folder(runs: Path) -> Path:
    """Return runs/demo, or the first of runs/demo-2, ... that does not exist."""
    names = itertools.chain(["demo"], (f"demo-{n}" for n in itertools.count(2)))
    return next(runs / name for name in names if not (runs / name).exists())


if __name__ == "__main__":
    cli.run(main)
