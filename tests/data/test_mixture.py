"""Mixtures: the pattern of the sources, and the batches that it gives."""

import collections
import itertools

import grain
import numpy as np
import pytest
from prepared import prepare_words, random_texts

from diffeq_former.data.mixture import (
    Interleaving,
    Mixture,
    check_epochs,
    load_mixture,
    progress,
)
from diffeq_former.data.pipeline import train_batches
from diffeq_former.errors import UserError

WEIGHTS = [(1.0,), (0.7, 0.3), (1, 1, 1), (0.05, 3, 0.3, 1e-7), (1 / 3, 2 / 3)]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    for name, count in (("a", 12), ("b", 20), ("c", 30)):
        texts = [text.replace(" ", name.upper()) for text in random_texts(count)]
        prepare_words(folder, 16, texts=texts, name=name)
    return load_mixture([folder / name for name in "abc"], (0.5, 0.2, 0.3))


def take(dataset, count, *, batch_size=8, seed=3, **options):
    batches = train_batches(dataset, batch_size=batch_size, seed=seed, **options)
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


def rows_of(batches) -> list[bytes]:
    return [
        np.concatenate([inputs[:1], targets]).tobytes()
        for batch in batches
        for inputs, targets in zip(batch["inputs"], batch["targets"], strict=True)
    ]


def rows_on_disk(source) -> list[bytes]:
    return [
        np.concatenate(
            [np.where(row[:1] == -1, source.eot, row[:1]), row[1:]]
        ).tobytes()
        for row in source.rows("train")
    ]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_shares_follow_the_weights_and_no_sequence_is_skipped(weights):
    interleaving, seen = Interleaving(weights), collections.Counter()
    for index in range(500):
        assert interleaving.counts(index) == [seen[i] for i in range(len(weights))]
        source, number = interleaving[index]
        assert number == seen[source]
        seen[source] += 1
        for i, weight in enumerate(weights):
            exact = (index + 1) * weight / sum(weights)
            assert abs(seen[i] - exact) < max(1, len(weights) - 1) + 1e-9


@pytest.mark.parametrize("weights", [(1, 3), (2, 1, 1), (1, 1.5, 4)], ids=str)
def test_the_pattern_is_that_of_grain_where_grain_does_not_round(weights):
    sources = [grain.MapDataset.range(1000 * i, 1000 * i + 900) for i in (1, 2, 3)]
    sources = sources[: len(weights)]
    ours = grain.MapDataset.select_from_datasets(sources, Interleaving(weights))
    theirs = grain.MapDataset.mix(sources, weights)
    assert [ours[i] for i in range(900)] == [theirs[i] for i in range(900)]


def test_the_pattern_is_exact_however_far():
    counts = Interleaving((0.7, 0.3)).counts(10**12)
    assert counts == [7 * 10**11, 3 * 10**11]


def test_each_source_is_shuffled_and_repeated_by_itself(mixture):
    rows = rows_of(take(mixture, 150))
    on_disk = [rows_on_disk(source) for source in mixture.sources]
    counts = Interleaving(mixture.weights).counts(len(rows))
    assert counts == [600, 240, 360]
    epochs = set()
    for own, count in zip(on_disk, counts, strict=True):
        read = [row for row in rows if row in own]
        assert len(read) == count > 2 * len(own)
        for epoch in (read[: len(own)], read[len(own) : 2 * len(own)]):
            assert sorted(epoch) == sorted(own) and epoch != own
            epochs.add(tuple(epoch))
    assert len(epochs) == 6


def test_sources_have_orders_of_their_own(mixture):
    """Also two that are the same; the first has that of the dataset alone."""
    source = mixture.sources[2]
    twice = Mixture((source, source), (1.0, 1.0))
    rows = rows_of(take(twice, 8))
    first, second = rows[::2], rows[1::2]
    assert len(set(first) & set(second)) < len(first)
    assert first == rows_of(take(source, 4))
    others = rows_of(take(twice, 8, number=1))
    assert len({tuple(x) for x in (first, second, others[::2], others[1::2])}) == 4


def test_resumed_equals_uninterrupted(mixture):
    whole = rows_of(take(mixture, 30))
    for first, second in ((1, 2), (7, 22)):
        parts = rows_of(take(mixture, first))
        parts += rows_of(take(mixture, second - first, start_step=first))
        parts += rows_of(take(mixture, 30 - second, start_step=second))
        assert parts == whole
    assert len(take(mixture, 1, start_step=10**7)) == 1


@pytest.mark.parametrize("num_hosts", [2, 4])
def test_hosts_share_the_global_batches(mixture, num_hosts):
    whole = take(mixture, 6, start_step=5)
    shares = [
        take(mixture, 6, start_step=5, positions=range(i, 8, num_hosts))
        for i in range(num_hosts)
    ]
    for step, batch in enumerate(whole):
        for key in batch:
            together = np.stack([share[step][key] for share in shares], axis=1)
            assert (together.reshape(8, 16) == batch[key]).all()


def test_progress_counts_what_was_read(mixture):
    assert progress(mixture.sources[0], 80) == {}
    metrics = progress(mixture, 3 * 8)
    rows = rows_of(take(mixture, 3))
    for source, weight in zip(mixture.sources, mixture.weights, strict=True):
        own = rows_on_disk(source)
        count = sum(row in own for row in rows)
        assert metrics[f"data/weight/{source.name}"] == pytest.approx(weight)
        assert metrics[f"data/share/{source.name}"] == count / 24
        assert metrics[f"data/epoch/{source.name}"] == count / len(own)
    assert len(metrics) == 9


def test_a_source_that_is_smaller_than_its_part_of_a_batch(mixture):
    num_rows = len(mixture.sources[0].rows("train"))
    most = 2 * num_rows
    assert len(take(mixture, 1, batch_size=most)) == 1
    with pytest.raises(UserError) as error:
        take(mixture, 1, batch_size=most + 2)
    assert str(error.value) == (
        f"dataset {mixture.sources[0]} has {num_rows} training sequences, fewer than"
        f" the {num_rows + 1} in a batch of {most + 2}: use a smaller batch or more"
        " text"
    )


def test_a_source_that_is_used_up(mixture):
    """Up to the step that the message names, no row is read more often; then one is."""
    with pytest.raises(UserError) as error:
        check_epochs(mixture, 8, 1000, 1.5)
    path, num_rows = mixture.sources[0].path, len(mixture.sources[0].rows("train"))
    most = int(1.5 * num_rows / 4)  # it gives 4 of the 8 sequences of a batch
    assert str(error.value) == (
        f"config.data.max_epochs: 1.5 epochs of {path} end before training.num_steps"
        f" (1000): use at most {most} steps, a smaller weight of it, or more text"
    )
    check_epochs(mixture, 8, most, 1.5)
    with pytest.raises(UserError, match=f"use at most {most} steps"):
        check_epochs(mixture, 8, most + 1, 1.5)
    check_epochs(mixture, 8, 10**9, 0.0)
    check_epochs(mixture.sources[0], num_rows, 3, 3.0)
    with pytest.raises(UserError, match="use at most 3 steps"):
        check_epochs(mixture.sources[0], num_rows, 4, 3.0)
    seen = collections.Counter(rows_of(take(mixture, most)))
    assert max(seen[row] for row in rows_on_disk(mixture.sources[0])) == 2
    with pytest.raises(UserError, match=r"use at most \d+ steps, or more text$"):
        check_epochs(mixture.sources[0], 8, 1000, 1.0)


def test_sources_that_do_not_fit_each_other(mixture, tmp_path):
    first = mixture.sources[0].path
    longer = prepare_words(tmp_path, 24, name="longer").path
    with pytest.raises(UserError) as error:
        load_mixture([first, longer], (1.0, 1.0))
    assert str(error.value) == (
        f"config.data.mixture: {longer} has sequences of 24 tokens, and {first} of 16;"
        " prepare it with --seq_len=16"
    )
    with pytest.raises(UserError, match="no prepared dataset at nowhere"):
        load_mixture([first, "nowhere"], (1.0, 1.0))


def test_sources_with_other_tokenizers(mixture, sentencepiece_model, tmp_path):
    other = prepare_words(tmp_path, 16, f"sentencepiece:{sentencepiece_model}").path
    with pytest.raises(UserError) as error:
        load_mixture([mixture.sources[0].path, other], (1.0, 1.0))
    assert str(error.value) == (
        f"config.data.mixture: {other} has another tokenizer than"
        f" {mixture.sources[0].path}; prepare it with --tokenizer=byte"
    )
