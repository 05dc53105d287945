"""A dataset that is not whole, or not itself, is refused with the file's name."""

import json
import shutil

import pytest

from diffeq_former.data import dataset, tokenizers
from diffeq_former.data.prepare import prepare
from diffeq_former.errors import UserError

SHARD = "train-00001-of-*.array_record"


@pytest.fixture
def broken(prepared_path, tmp_path):
    return shutil.copytree(prepared_path, tmp_path / "dataset")


def shard(folder):
    return next(folder.glob(SHARD))


def refused(folder):
    with pytest.raises(UserError) as error:
        dataset.load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_whole(prepared_path):
    loaded = dataset.load(prepared_path)
    assert (loaded.seq_len, loaded.vocab_size, loaded.eot) == (16, 257, 256)
    assert loaded.tokenizer().fingerprint == loaded.tokenizer_fingerprint
    with pytest.raises(UserError, match="no split 'test' among train, validation"):
        loaded.split("test")


def test_no_directory(tmp_path):
    assert "tools/prepare_data.py --source=" in refused(tmp_path / "none")


def test_no_manifest(broken):
    (broken / "dataset.json").unlink()
    assert "dataset.json is missing" in refused(broken)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 9}']
)
def test_damaged_manifest(broken, text):
    (broken / "dataset.json").write_text(text)
    message = refused(broken)
    assert "dataset.json" in message and ("damaged" in message or "format" in message)


def test_missing_shard(broken):
    path = shard(broken)
    path.unlink()
    assert f"shard {path} is missing" in refused(broken)


def test_truncated_shard(broken):
    path = shard(broken)
    path.write_bytes(path.read_bytes()[:-1])
    assert f"shard {path} is truncated" in refused(broken)


def test_shard_that_is_no_array_record(broken):
    path = shard(broken)
    path.write_bytes(b"x" * path.stat().st_size)
    assert f"shard {path} is not an ArrayRecord file" in refused(broken)


def test_shard_with_other_rows(broken):
    path = shard(broken)
    shutil.copy(next(broken.glob("validation-*")), path)
    assert f"shard {path} does not belong to this dataset" in refused(broken)


def test_shard_of_the_same_size_and_number_of_rows(broken):
    path = shard(broken)
    first = next(broken.glob("train-00000-*"))
    assert first.stat().st_size == path.stat().st_size
    shutil.copy(first, path)
    assert f"shard {path} does not belong to this dataset" in refused(broken)


def test_shard_with_a_damaged_row(broken):
    """Noticed when it is read."""
    loaded = dataset.load(broken)
    path, rows = loaded.shard_paths("train")[0], loaded.rows("train")
    record, data = rows._read(0, 9), path.read_bytes()
    at = data.index(record)
    path.write_bytes(data[:at] + b"\0" * len(record) + data[at + len(record) :])
    rows = dataset.load(broken).rows("train")
    rows[8]
    with pytest.raises(UserError, match=rf"{path} is damaged \(record 9 .*: copy it"):
        rows[9]


def test_foreign_tokenizer(broken, hf_folder):
    shutil.rmtree(broken / "tokenizer")
    tokenizers.load(f"hf:{hf_folder}").save(broken / "tokenizer")
    assert "is not the tokenizer of this dataset" in refused(broken)


def test_missing_tokenizer(broken):
    shutil.rmtree(broken / "tokenizer")
    assert f"{broken / 'tokenizer'} holds no tokenizer" in refused(broken)


def test_moved(jsonl, tmp_path):
    """A dataset knows no absolute paths."""
    prepare(
        f"jsonl:{jsonl}",
        "byte",
        16,
        tmp_path / "a",
        validation_fraction=0.2,
        num_workers=0,
    )
    (tmp_path / "a").rename(tmp_path / "b")
    assert len(dataset.load(tmp_path / "b").rows("train")) > 0
    assert str(tmp_path) not in json.dumps(
        json.loads((tmp_path / "b/dataset.json").read_text())["splits"]
    )
