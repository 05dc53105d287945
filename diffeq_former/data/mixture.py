"""Mixtures of datasets: weights, and the source of each training sequence.

Sources are interleaved with a fixed pattern, so that after n sequences each source has
given n times its weight, up to less than the number of sources. The pattern depends on
the weights alone: any position in it is known without the ones before.
"""

import bisect
import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from diffeq_former.data import tokenizers
from diffeq_former.data.dataset import Dataset, load
from diffeq_former.errors import UserError


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Datasets with one tokenizer and one sequence length, and their weights."""

    sources: tuple[Dataset, ...]
    weights: tuple[float, ...]  # of their sequences, up to a common factor

    @property
    def seq_len(self) -> int:
        return self.sources[0].seq_len

    @property
    def vocab_size(self) -> int:
        return self.sources[0].vocab_size

    @property
    def eot(self) -> int:
        return self.sources[0].eot

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.sources[0].tokenizer_fingerprint

    @property
    def tokenizer_spec(self) -> str:
        return self.sources[0].tokenizer_spec

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Load the tokenizer of the datasets."""
        return self.sources[0].tokenizer()

    def manifest(self) -> str:
        """Return the manifests of all sources as one JSON object."""
        sources = [json.loads(source.manifest()) for source in self.sources]
        fields = {"tokenizer_fingerprint": self.tokenizer_fingerprint}
        return json.dumps(fields | {"sources": sources}, indent=1) + "\n"

    def __str__(self) -> str:
        return ", ".join(map(str, self.sources))


# What training reads. Both have sources and weights; a dataset is its only source.
Data = Dataset | Mixture


def load_mixture(paths: Sequence[str | Path], weights: Sequence[float]) -> Mixture:
    """Load prepared datasets as a mixture.

    Args:
      paths: The folders of the datasets.
      weights: A positive weight for each.

    Raises:
      UserError: If a dataset cannot be loaded, or they differ in tokenizer or sequence
        length.
    """
    first, *others = sources = tuple(map(load, paths))
    for other in others:
        if other.tokenizer_fingerprint != first.tokenizer_fingerprint:
            raise UserError(
                f"config.data.mixture: {other} has another tokenizer than {first};"
                f" prepare it with --tokenizer={first.tokenizer_spec}"
            )
        if other.seq_len != first.seq_len:
            raise UserError(
                f"config.data.mixture: {other} has sequences of {other.seq_len} tokens,"
                f" and {first} of {first.seq_len}; prepare it with"
                f" --seq_len={first.seq_len}"
            )
    return Mixture(sources, tuple(weights))


class Interleaving(Sequence):
    """The source of each sequence of a mixture, as (source, number within it).

    Grain calls this a selection map. Unlike that of its `MapDataset.mix`, it does not
    round the weights.
    """

    def __init__(self, weights: Sequence[float]):
        exact = [Fraction(repr(float(weight))) for weight in weights]
        scale = math.lcm(*(weight.denominator for weight in exact))
        self._weights = [int(weight * scale) for weight in exact]

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> tuple[int, int]:
        counts = zip(self.counts(index), self.counts(index + 1), strict=True)
        for source, (before, after) in enumerate(counts):
            if before < after:
                return source, before
        raise AssertionError("the counts of all sources add up to the index")

    def counts(self, num_sequences: int) -> list[int]:
        """Return how many of the first sequences each source gives."""
        counts, left, weight_left = [], num_sequences, sum(self._weights)
        for weight in self._weights:
            others = left * (weight_left - weight) // weight_left
            counts.append(left - others)
            left, weight_left = others, weight_left - weight
        return counts


class MixedRows(Sequence):
    """The training sequences of all sources, one source after the other."""

    def __init__(self, dataset: Data):
        self._rows = [source.rows("train") for source in dataset.sources]
        self._ends = list(itertools.accumulate(map(len, self._rows)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int):
        source = bisect.bisect_right(self._ends, index)
        return self._rows[source][index - self._ends[source]]

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first index of each source and that of the next."""
        return list(itertools.pairwise([0, *self._ends]))


def check_enough(dataset: Data, batch_size: int) -> None:
    """Raise UserError if a source has fewer training sequences than one batch takes."""
    counts = Interleaving(dataset.weights).counts(batch_size)
    for source, count in zip(dataset.sources, counts, strict=True):
        if (num_rows := source.split("train").rows) < count:
            part = f"the {count} in " if len(counts) > 1 else ""
            raise UserError(
                f"dataset {source} has {num_rows} training sequences, fewer than"
                f" {part}a batch of {batch_size}: use a smaller batch or more text"
            )


def check_epochs(
    dataset: Data, batch_size: int, num_steps: int, max_epochs: float
) -> None:
    """Raise UserError if a source is read more often than `max_epochs` (0: no limit).

    Args:
      dataset: What is trained on.
      batch_size: The number of sequences in a global batch.
      num_steps: The number of batches.
      max_epochs: The number of passes over each source that are allowed.
    """
    interleaving = Interleaving(dataset.weights)

    def exceeded(step: int) -> list[Dataset]:
        counts = interleaving.counts(step * batch_size)
        return [
            source
            for source, count in zip(dataset.sources, counts, strict=True)
            if count > max_epochs * source.split("train").rows
        ]

    if max_epochs and (used_up := exceeded(num_steps)):
        steps = range(num_steps + 1)
        most = bisect.bisect_left(steps, True, key=lambda step: bool(exceeded(step)))
        advice = "" if len(dataset.sources) == 1 else ", a smaller weight of it"
        raise UserError(
            f"config.data.max_epochs: {max_epochs:g} epochs of {used_up[0]} end before"
            f" training.num_steps ({num_steps}): use at most {most - 1} steps{advice},"
            " or more text"
        )


def progress(dataset: Data, num_sequences: int) -> dict[str, float]:
    """Return for each source of a mixture its weight, its share so far, and epochs.

    Args:
      dataset: What is trained on; of a single dataset, there are no such metrics.
      num_sequences: The number of sequences read so far, 1 or more.
    """
    if len(dataset.sources) == 1:
        return {}
    counts, metrics = Interleaving(dataset.weights).counts(num_sequences), {}
    total = sum(dataset.weights)
    for source, weight, count in zip(
        dataset.sources, dataset.weights, counts, strict=True
    ):
        metrics |= {
            f"data/weight/{source.name}": weight / total,
            f"data/share/{source.name}": count / num_sequences,
            f"data/epoch/{source.name}": count / source.split("train").rows,
        }
    return metrics
