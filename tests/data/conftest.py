"""Small texts, tokenizers trained on them, and a dataset prepared from them."""

import json
import random

import command_lines
import pytest

from diffeq_former.data import dataset, prepare, rows, sentencepiece_training

WORDS = "the cat sat on a mat while (x) -> y[0] = 1;\n    naïve été 日本語 😀".split(
    " "
)


def documents(count=60, seed=0):
    """Documents that all differ, with spaces, indents and non-ASCII letters."""
    rng = random.Random(seed)
    return [
        f"{number}: " + " ".join(rng.choices(WORDS, k=rng.randrange(3, 60)))
        for number in range(count)
    ]


@pytest.fixture(scope="session")
def texts():
    return documents()


@pytest.fixture(scope="session")
def jsonl(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents()))
    return path


@pytest.fixture(scope="session")
def prepared_path(jsonl, tmp_path_factory):
    """Byte tokens in rows of 16, in several shards: two small, one left over."""
    path = tmp_path_factory.mktemp("prepared") / "dataset"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "SHARD_BYTES", 100 * 17 * 2)
        prepare.prepare(
            f"jsonl:{jsonl}", "byte", 16, path, validation_fraction=0.2, num_workers=0
        )
    return path


@pytest.fixture
def prepared(prepared_path):
    return dataset.load(prepared_path)


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentencepiece") / "small.model"
    path.write_bytes(sentencepiece_training.train(documents(), 320))
    return path


@pytest.fixture(scope="session")
def hf_folder(tmp_path_factory):
    """A byte-level BPE as GPT-2's, with settings that would cut texts if obeyed."""
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(documents(), trainer)
    backend.enable_truncation(8)
    backend.enable_padding()
    folder = tmp_path_factory.mktemp("hf")
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tool():
    """Runs a command line of tools/; gives exit code, stdout and stderr."""

    def run(name, **flags):
        arguments = [f"--{key}={value}" for key, value in flags.items()]
        return command_lines.run(name, *arguments)

    return run


@pytest.fixture
def refused(tool, tmp_path):
    """The line with which prepare_data refuses its input; it leaves no output."""

    def run(**flags):
        output = tmp_path / "new" / "dataset"
        defaults = {"tokenizer": "byte", "seq_len": 8, "output": output}
        result = tool("prepare_data.py", **{**defaults, "num_workers": 0, **flags})
        assert result.returncode == 2, result.stderr
        assert not output.exists()
        assert not list(output.parent.glob(".*")), "something was left aside"
        assert result.stdout == ""
        *progress, line = result.stderr.splitlines()
        assert all(words.startswith("preparing: ") for words in progress)
        return line.removeprefix("error: ")

    return run
