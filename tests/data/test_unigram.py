import math
from collections import Counter

import pytest

from diffeq_former.data.pipeline import validation_batches
from diffeq_former.data.unigram import bits_per_byte


def targets(dataset, split):
    return [
        token
        for batch in validation_batches(dataset, batch_size=1, split=split)
        for token in batch["targets"].ravel().tolist()
        if token != -1
    ]


def test_equals_the_definition(prepared):
    train = Counter(targets(prepared, "train"))
    total = sum(train.values()) + prepared.vocab_size
    validation = targets(prepared, "validation")
    bits = -sum(math.log2((train[token] + 1) / total) for token in validation)
    expected = bits / prepared.split("validation").text_bytes
    assert bits_per_byte(prepared) == pytest.approx(expected, rel=1e-12)
