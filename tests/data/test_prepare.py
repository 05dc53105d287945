import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from diffeq_former.data import dataset, tokenize_workers, tokenizers
from diffeq_former.data.prepare import prepare
from diffeq_former.data.rows import NOTHING
from diffeq_former.errors import UserError


def stream(prepared, split):
    """The tokens of a split, from its rows."""
    rows_RL1 = np.stack(list(prepared.rows(split)))
    targets = rows_RL1[:, 1:].ravel()
    return [rows_RL1[0, 0].item(), *targets[targets != NOTHING].tolist()]


def test_splits_hold_every_document_once(prepared, texts):
    tokenizer = tokenizers.load("byte")
    found = []
    for name, split in prepared.splits.items():
        tokens = stream(prepared, name)
        assert len(tokens) == split.tokens and tokens[0] == tokenizer.eot
        ends = [i for i, t in enumerate(tokens) if t == tokenizer.eot] + [len(tokens)]
        decoded = [
            tokenizer.decode(tokens[a + 1 : b])
            for a, b in zip(ends, ends[1:], strict=False)
        ]
        assert len(decoded) == split.documents
        assert sum(len(t.encode()) for t in decoded) == split.text_bytes
        order = [texts.index(t) for t in decoded]
        assert order == sorted(order), "documents are not in the source's order"
        found += decoded
    assert sorted(found) == sorted(texts)
    assert prepared.split("validation").documents > 3


@pytest.mark.parametrize("kind", ["byte", "sentencepiece", "hf"])
def test_parallel_equals_serial(kind, jsonl, sentencepiece_model, hf_folder, tmp_path):
    spec = {
        "byte": "byte",
        "sentencepiece": f"sentencepiece:{sentencepiece_model}",
        "hf": f"hf:{hf_folder}",
    }[kind]
    for workers in (0, 2):
        prepare(
            f"jsonl:{jsonl}",
            spec,
            32,
            tmp_path / str(workers),
            validation_fraction=0.3,
            num_workers=workers,
        )
    serial, by_two = (
        {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in sorted((tmp_path / name).rglob("*"))
            if path.is_file()
        }
        for name in ("0", "2")
    )
    assert serial == by_two and len(serial) == 4


def test_workers_keep_the_order_of_chunks(tmp_path):
    """Chunks of very different work."""
    sizes = [400_000, 1, 300_000, 300_000, 1, 500_000, 300_000, 2]
    texts = [chr(97 + i) * size for i, size in enumerate(sizes)]
    tokenizers.load("byte").save(tmp_path)
    serial, by_two = (
        list(tokenize_workers.encode_documents(texts, str(tmp_path), 0.0, workers))
        for workers in (0, 2)
    )
    assert len(serial) > 4
    for alone, helped in zip(serial, by_two, strict=True):
        assert (alone["train"].tokens == helped["train"].tokens).all()


def test_validation_source(tmp_path):
    (tmp_path / "a.txt").write_text("to train on")
    (tmp_path / "b.txt").write_bytes(b"held \xff out")
    made = prepare(
        f"text:{tmp_path}/a.txt",
        "byte",
        8,
        tmp_path / "out",
        validation_source=f"text:{tmp_path}/b.txt",
        num_workers=0,
    )
    assert bytes(stream(made, "train")[1:]) == b"to train on"
    assert bytes(stream(made, "validation")[1:]).decode() == "held \ufffd out"
    assert made.split("validation").replaced == 1
    assert made.split("train").replaced == 0
    assert made.split("validation").text_bytes == len("held \ufffd out".encode())


def test_large_vocabulary_takes_four_bytes(tmp_path, hf_folder):
    model = json.loads((hf_folder / "tokenizer.json").read_text())
    special = dict(model["added_tokens"][0], id=70_000, content="</s>")
    model["added_tokens"].append(special)
    model["model"]["vocab"]["</s>"] = 70_000
    model["model"]["vocab"].pop("<|endoftext|>")
    model["added_tokens"].pop(0)
    (tmp_path / "tokenizer.json").write_text(json.dumps(model))
    (tmp_path / "a.txt").write_text("some text")
    made = prepare(
        f"text:{tmp_path}/a.txt",
        f"hf:{tmp_path}",
        4,
        tmp_path / "out",
        validation_source=f"text:{tmp_path}/a.txt",
        num_workers=0,
    )
    assert (made.dtype, made.vocab_size) == ("<u4", 70_001)
    assert stream(made, "train")[0] == made.eot == 70_000


def test_reads_a_bounded_number_of_documents_ahead(tmp_path):
    """A long source: only what is in flight is read before results come."""
    read = 0

    def long():
        nonlocal read
        for _ in range(100):
            read += 1
            yield "x" * tokenize_workers.CHUNK_BYTES

    tokenizers.load("byte").save(tmp_path)
    encoded = tokenize_workers.encode_documents(long(), str(tmp_path), 0.0, 1)
    for number in range(1, 20):
        next(encoded)
        assert read <= number + tokenize_workers.CHUNKS_IN_FLIGHT + 1
    encoded.close()


SLOW = """
import sys, time
from diffeq_former.data import prepare, sources
def slow(argument):
    for number in range(int(argument)):
        time.sleep(0.02)
        yield f"document {number} " * 20_000
sources.SOURCES["slow"] = slow
if __name__ == "__main__":
    prepare.prepare(f"slow:{sys.argv[2]}", "byte", 64, sys.argv[1],
                    validation_fraction=0.5, num_workers=1)
"""


def test_killed_leaves_nothing_that_loads(tmp_path):
    script, output = tmp_path / "slow.py", tmp_path / "dataset"
    script.write_text(SLOW)
    process = subprocess.Popen([sys.executable, script, output, "100000"])
    partial = tmp_path / ".dataset.partial"
    deadline = time.monotonic() + 30
    while not list(partial.glob("train-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(UserError, match="dataset: another process is writing it"):
        prepare("stdlib", "byte", 64, output)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(partial.glob("train-*")), "it was killed before it wrote anything"
    assert not output.exists()
    for path in (output, partial):
        with pytest.raises(UserError, match="no prepared dataset"):
            dataset.load(path)
    subprocess.run([sys.executable, script, output, "8"], check=True)
    assert dataset.load(output).split("train").documents < 8
    assert not partial.exists()
