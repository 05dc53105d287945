import numpy as np
import pytest

from diffeq_former.data import rows as rows_module
from diffeq_former.data.rows import NOTHING, Rows, RowWriter


@pytest.mark.parametrize("num_tokens", [2, 8, 9, 10, 16, 17, 50])
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_every_token_but_the_first_is_a_target_once(tmp_path, num_tokens, dtype):
    tokens = np.random.default_rng(0).integers(0, 60_000, num_tokens)
    writer = RowWriter(tmp_path, "train", 8, dtype)
    for part in np.array_split(tokens, 5):
        writer.add(part)
    shards = writer.close()
    rows = Rows([tmp_path / s.name for s in shards], [s.rows for s in shards], 8, dtype)
    rows_RL1 = np.stack(list(rows))
    targets = rows_RL1[:, 1:].ravel()
    assert targets[targets != NOTHING].tolist() == tokens[1:].tolist()
    inputs = rows_RL1[:, :-1][rows_RL1[:, 1:] != NOTHING]
    assert inputs.tolist() == tokens[:-1].tolist()


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_nothing_to_predict_is_no_row(tmp_path, num_tokens):
    writer = RowWriter(tmp_path, "train", 8, "<u2")
    writer.add(np.zeros(num_tokens, np.uint32))
    assert writer.close() == ()


# Rows of 9 tokens of 2 bytes.
@pytest.mark.parametrize(
    "shard_bytes, counts",
    [(1, [1, 1, 1, 1, 1]), (35, [1, 1, 1, 1, 1]), (36, [2, 2, 1]), (900, [5])],
)
def test_a_shard_has_as_many_rows_as_fit(tmp_path, monkeypatch, shard_bytes, counts):
    """And one at least."""
    monkeypatch.setattr(rows_module, "SHARD_BYTES", shard_bytes)
    writer = RowWriter(tmp_path, "train", 8, "<u2")
    writer.add(np.arange(41))
    assert [shard.rows for shard in writer.close()] == counts


def test_rows_of_several_shards(prepared):
    rows = prepared.rows("train")
    shards = prepared.split("train").shards
    assert len(shards) > 2 and shards[0].rows == 100
    boundary = [rows[i] for i in (99, 100, 199, 200, 0, len(rows) - 1)]
    in_order = list(rows)
    for row, i in zip(boundary, (99, 100, 199, 200, 0, -1), strict=True):
        assert (row == in_order[i]).all()
    with pytest.raises(IndexError):
        rows[len(rows)]
