"""The command lines that prepare data and train tokenizers."""

import json
import subprocess
import sys

import command_lines
import pytest

from diffeq_former.data import dataset, tokenizers

TOOL = command_lines.ROOT / "tools" / "prepare_data.py"


def test_prepares(tool, jsonl, texts, tmp_path):
    output = tmp_path / "deep" / "dataset"
    result = tool(
        "prepare_data.py",
        source=f"jsonl:{jsonl}",
        tokenizer="byte",
        seq_len=16,
        output=output,
        validation_fraction=0.2,
    )
    assert result.returncode == 0, result.stderr
    figures = [json.loads(line) for line in result.stdout.splitlines()]
    assert [f["split"] for f in figures] == ["train", "validation"]
    assert sum(f["documents"] for f in figures) == len(texts)
    assert "MB of text" in result.stderr
    assert dataset.load(output).split("train").tokens == figures[0]["tokens"]


def test_trains_a_tokenizer(tool, jsonl, tmp_path):
    models = [tmp_path / "a.model", tmp_path / "b.model"]
    for path in models:
        flags = {"source": f"jsonl:{jsonl}", "vocab_size": 320, "output": path}
        result = tool("train_tokenizer.py", **flags)
        assert result.returncode == 0, result.stderr
    assert models[0].read_bytes() == models[1].read_bytes()
    assert tokenizers.load(f"sentencepiece:{models[0]}").vocab_size == 320
    assert json.loads(result.stdout)["vocab_size"] == 320
    again = tool("train_tokenizer.py", **flags)
    assert again.returncode == 2 and "exists" in again.stderr


def test_vocabulary_larger_than_the_text(tool, jsonl, tmp_path):
    output = tmp_path / "a.model"
    result = tool(
        "train_tokenizer.py", source=f"jsonl:{jsonl}", vocab_size=60_000, output=output
    )
    assert result.returncode == 2
    assert "vocab_size 60000 does not fit the text" in result.stderr
    assert not list(tmp_path.iterdir())


def test_existing_output(tool, jsonl, tmp_path):
    keep = tmp_path / "keep"
    keep.write_text("mine")
    result = tool(
        "prepare_data.py",
        source=f"jsonl:{jsonl}",
        tokenizer="byte",
        seq_len=8,
        output=tmp_path,
    )
    assert (
        result.returncode == 2 and "exists: remove it or name another" in result.stderr
    )
    assert keep.read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"source": "text:/none/*.txt"}, "no file matches '/none/*.txt'"),
        ({"source": "text:/dev/null"}, "has no text"),
        ({"source": "web:x"}, "expected one of text"),
        ({"tokenizer": "words"}, "tokenizer 'words': expected byte"),
        ({"tokenizer": "hf:no/such"}, "no such file or folder, nor on the hub"),
        ({"seq_len": 0}, "seq_len is 0: expected 1 or more"),
        ({"validation_fraction": 1.5}, "validation_fraction is 1.5: expected 0 <="),
        ({"validation_fraction": 0}, "the validation split is empty"),
        ({"num_workers": -1}, "num_workers is -1: expected 0 or more"),
    ],
)
def test_wrong_input(refused, jsonl, flags, message):
    assert message in refused(**{"source": f"jsonl:{jsonl}", **flags})


def test_no_room_on_the_disk(tmp_path):
    """The largest file that the process may write is smaller than a shard."""
    source = tmp_path / "large.txt"
    source.write_text("a line of text\n" * 100_000)
    output = tmp_path / "dataset"
    result = subprocess.run(
        [
            *("bash", "-c", 'ulimit -f 512 && exec "$@"', "bash"),  # KiB
            sys.executable,
            TOOL,
            f"--source=text:{source}",
            "--tokenizer=byte",
            "--seq_len=64",
            f"--output={output}",
            "--num_workers=0",
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2, result.stderr
    assert "no room on the disk" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["large.txt"]
