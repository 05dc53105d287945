"""The unigram baseline, which knows only the frequency of each token."""

import numpy as np

from diffeq_former.data.dataset import Dataset
from diffeq_former.data.rows import open_shard


def bits_per_byte(dataset: Dataset) -> float:
    """Return the bits per byte of validation text under a unigram model.

    The model is p(v) = (n(v) + 1) / (sum(n) + V), where n are the counts of the train
    split's targets and V is the size of the vocabulary.
    """
    train_V = _target_counts(dataset, "train") + 1
    bits_V = np.log2(train_V.sum()) - np.log2(train_V)
    bits = bits_V @ _target_counts(dataset, "validation")
    return float(bits / dataset.split("validation").text_bytes)


def _target_counts(dataset: Dataset, split: str) -> np.ndarray:
    """Count the target tokens of a split: all but the first of each row."""
    counts_V = np.zeros(dataset.vocab_size, np.int64)
    for path in dataset.shard_paths(split):
        reader = open_shard(str(path))
        tokens = np.frombuffer(b"".join(reader.read_all()), dataset.dtype)
        reader.close()
        counts_V += np.bincount(tokens, minlength=dataset.vocab_size)
        firsts = tokens[:: dataset.seq_len + 1]
        counts_V -= np.bincount(firsts, minlength=dataset.vocab_size)
    return counts_V
