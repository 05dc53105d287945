"""A small prepared dataset for suites that need one."""

import json
import random
from pathlib import Path

from diffeq_former.data import prepare
from diffeq_former.data.dataset import Dataset

WORDS = "the cat sat on a mat while (x) -> y[0] = 1; naïve été 日本語".split(" ")


def prepare_words(folder: Path, seq_len: int, num_documents: int = 40) -> Dataset:
    """Byte tokens of random words, in rows of `seq_len`."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=20)) for _ in range(num_documents)]
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return prepare.prepare(
        f"jsonl:{source}",
        "byte",
        seq_len,
        folder / "dataset",
        validation_fraction=0.2,
        num_workers=0,
    )
