"""A small prepared dataset for suites that need one."""

import json
import random
from pathlib import Path

from diffeq_former.data import prepare
from diffeq_former.data.dataset import Dataset

WORDS = "the cat sat on a mat while (x) -> y[0] = 1; naïve été 日本語".split(" ")


def random_texts(count: int = 40) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=20)) for _ in range(count)]


def prepare_words(
    folder: Path,
    seq_len: int,
    tokenizer: str = "byte",
    texts: list[str] | None = None,
    name: str = "dataset",
) -> Dataset:
    """Random words, or given texts, in rows of `seq_len` tokens."""
    texts = texts or random_texts()
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return prepare.prepare(
        f"jsonl:{source}",
        tokenizer,
        seq_len,
        folder / name,
        validation_fraction=0.2,
        num_workers=0,
    )
