"""Throughput of the data pipeline, and the time to start at a late step."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from diffeq_former.benchmarks.timing import alternate, spread
from diffeq_former.config import Config
from diffeq_former.data.dataset import Dataset
from diffeq_former.data.mixture import Data
from diffeq_former.data.pipeline import train_batches
from diffeq_former.data.prepare import prepare
from diffeq_former.inference.resolve_dataset import load_configured

FAR = 10**6  # the late step
NUM_TEXTS, TEXT_BYTES = 64, 2**17


def benchmark(configs: dict[str, Config], rounds: int, steps: int) -> Iterator[dict]:
    """Yield one record per config.

    Each measurement reads 100 * `steps` batches, of the configured dataset or, without
    one, of random bytes in sequences of length `max_len`.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, config in configs.items():
            if config.data.folders:
                dataset = load_configured(config.data)
            else:
                dataset = random_dataset(Path(folder) / name, config)
            yield {"variant": name, **_measure(config, dataset, rounds, 100 * steps)}


def _measure(config: Config, dataset: Data, rounds: int, num_batches: int) -> dict:
    options = {
        "batch_size": config.training.batch_size,
        "seed": config.seed,
    }
    batches = train_batches(dataset, **options)

    def read():
        for _ in range(num_batches):
            next(batches)

    seconds = spread(alternate({"read": read}, rounds)["read"])
    batches.close()
    start = time.perf_counter()
    far = train_batches(dataset, start_step=FAR, **options)
    next(far)
    seek = time.perf_counter() - start
    far.close()
    tokens = num_batches * options["batch_size"] * dataset.seq_len
    return {
        "batch_size": options["batch_size"],
        "seq_len": dataset.seq_len,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds["median"],
        "seek_step": FAR,
        "seek_seconds": seek,
    }


def random_dataset(folder: Path, config: Config) -> Dataset:
    """Prepare a dataset of random letters in sequences of length `max_len`."""
    folder.mkdir(exist_ok=True)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     \n", np.uint8)
    random = np.random.default_rng(0)
    for number in range(NUM_TEXTS):
        text = random.choice(letters, TEXT_BYTES).tobytes()
        (folder / f"{number}.txt").write_bytes(text)
    return prepare(
        f"text:{folder}/*.txt",
        "byte",
        config.model.max_len,
        folder / "dataset",
        validation_fraction=0.1,
        num_workers=0,
    )
