"""The baseline that knows only how often each token comes."""

import numpy as np

from diffeq_former.data.dataset import Dataset
from diffeq_former.data.rows import open_shard


def bits_per_byte(dataset: Dataset) -> float:
    """Bits per byte of validation text under the unigram model of the train split.

    p(v) = (n(v) + 1) / (sum(n) + V), n the counts of the train split's targets.
    """
    train_V = _target_counts(dataset, "train") + 1
    bits_V = np.log2(train_V.sum()) - np.log2(train_V)
    bits = bits_V @ _target_counts(dataset, "validation")
    return float(bits / dataset.split("validation").text_bytes)


def _target_counts(dataset: Dataset, split: str) -> np.ndarray:
    """Counts the tokens of a split that are targets: all but each row's first."""
    counts_V = np.zeros(dataset.vocab_size, np.int64)
    for path in dataset.shard_paths(split):
        reader = open_shard(str(path))
        tokens = np.frombuffer(b"".join(reader.read_all()), dataset.dtype)
        reader.close()
        counts_V += np.bincount(tokens, minlength=dataset.vocab_size)
        firsts = tokens[:: dataset.seq_len + 1]
        counts_V -= np.bincount(firsts, minlength=dataset.vocab_size)
    return counts_V
