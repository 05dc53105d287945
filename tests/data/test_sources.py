"""Each source reads what an independent writer wrote."""

import json

import pytest

from diffeq_former.data import sources
from diffeq_former.errors import UserError

DOCUMENTS = [f"document {n}: naïve  日本語\n\tend {n}" for n in range(12)]


def write_text(folder):
    for name, part in (("b.txt", DOCUMENTS[6:]), ("a.txt", DOCUMENTS[:6])):
        (folder / name).write_text("\n".join(part), encoding="utf-8")
    return f"text:{folder}/*.txt", ["\n".join(DOCUMENTS[:6]), "\n".join(DOCUMENTS[6:])]


def write_jsonl(folder):
    lines = [json.dumps({"id": 1, "text": d}) + "\n" for d in DOCUMENTS]
    (folder / "1.jsonl").write_text("".join(lines[:5]) + "\n")
    (folder / "2.jsonl").write_text("".join(lines[5:]))
    return f"jsonl:{folder}/*.jsonl", DOCUMENTS


def write_parquet(folder):
    import pyarrow
    import pyarrow.parquet

    for name, part in (("0", DOCUMENTS[:7]), ("1", [*DOCUMENTS[7:], None])):
        table = pyarrow.table({"n": list(range(len(part))), "text": part})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=2)
    return f"parquet:{folder}/*.parquet", DOCUMENTS


def write_hf(folder):
    import datasets

    data = datasets.Dataset.from_dict({"id": list(range(12)), "text": DOCUMENTS})
    other = datasets.Dataset.from_dict({"id": [0], "text": ["held out"]})
    splits = datasets.DatasetDict({"train": data, "test": other})
    splits.save_to_disk(str(folder / "saved"))
    return f"hf:{folder / 'saved'}", DOCUMENTS


def write_tfds(folder):
    import tensorflow_datasets as tfds

    class Small(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            text = tfds.features.Text()
            features = tfds.features.FeaturesDict({"book_title": text, "text": text})
            return self.dataset_info_from_configs(features=features)

        def _split_generators(self, _):
            return {
                "train": self._examples(DOCUMENTS),
                "test": self._examples(["held out"]),
            }

        def _generate_examples(self):
            raise NotImplementedError

        def _examples(self, texts):
            for number, text in enumerate(texts):
                yield number, {"book_title": "t", "text": text}

    builder = Small(data_dir=str(folder), file_format="array_record")
    builder.download_and_prepare()
    return f"tfds:{builder.data_dir}", DOCUMENTS


def write_stdlib(_):
    return "stdlib", None


@pytest.fixture(scope="module", params=sources.SOURCES)
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return globals()[f"write_{request.param}"](folder)


def as_text(document):
    return document if isinstance(document, str) else document.decode()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_reads_what_was_written(written):
    spec, expected = written
    found = [as_text(d) for d in sources.documents(spec)]
    assert found == [as_text(d) for d in sources.documents(spec)], "not deterministic"
    if spec.startswith("tfds:"):  # it shuffles what it writes
        found, expected = sorted(found), sorted(expected)
    if expected is not None:
        assert found == expected


@pytest.mark.parametrize("write", [write_hf, write_tfds])
def test_other_split(write, tmp_path):
    spec, _ = write(tmp_path)
    assert [as_text(d) for d in sources.documents(f"{spec}@test")] == ["held out"]
    with pytest.raises(UserError, match="cannot be read"):
        list(sources.documents(f"{spec}@nowhere"))


def test_hf_folder_of_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text(
        "".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS)
    )
    assert list(sources.documents(f"hf:{data}")) == DOCUMENTS


def write_zstd(path, texts):
    import pyarrow

    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        file.write("".join(json.dumps({"text": t}) + "\n" for t in texts).encode())


def test_hf_folder_laid_out_as_wikitext_103_detokenized(tmp_path, monkeypatch):
    """Beside its eight files of training text it has the same two without text."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "wikitext"
    for number, part in enumerate((DOCUMENTS[:5], DOCUMENTS[5:])):
        write_zstd(folder / f"data/train/train_{number}_of_2.jsonl.zst", part)
    for split in ("validation", "test"):
        write_zstd(folder / f"data/{split}/{split}.jsonl.zst", [f"of {split}"])
    (folder / "metadata.json").write_text('{"text": "no document"}')
    (folder / "dataset.py").write_text("raise RuntimeError")
    assert list(sources.documents(f"hf:{folder}")) == DOCUMENTS
    for split in ("validation", "test"):
        assert list(sources.documents(f"hf:{folder}@{split}")) == [f"of {split}"]


def test_hf_refuses_a_zstd_file_that_is_cut_short(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data" / "train.jsonl.zst"
    write_zstd(path, DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="ended before the end-of-stream marker"):
        list(sources.documents(f"hf:{path.parent}"))


def test_stdlib_holds_a_module_and_a_topic():
    found = [as_text(d) for d in sources.documents("stdlib")]
    assert any("def dataclass(" in d for d in found)
    assert any(d.startswith('The "assert" statement') for d in found)
    assert 5e6 < sum(map(len, found)) < 30e6


def test_large_file_is_streamed(tmp_path):
    """A sparse file far larger than what may be read of it."""
    path = tmp_path / "large.txt"
    with open(path, "wb") as file:
        file.write(b"first line\n")
        file.truncate(2**40)
    first = next(sources.documents(f"text:{path}"))
    assert first == b"first line\n"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("texts:x", "expected one of text, jsonl, parquet, tfds, hf, stdlib"),
        ("text", "write text:WHERE"),
        ("stdlib:x", "write stdlib, with nothing after it"),
        ("text:{}/*.none", "no file matches"),
        ("text:{}/empty.txt", "has no text"),
        ("jsonl:{}/broken.jsonl", "broken.jsonl, line 2: not JSON"),
        (
            "jsonl:{}/field.jsonl",
            'field.jsonl, line 1: expected an object whose "text"',
        ),
        ("parquet:{}/broken.jsonl", "not a Parquet file"),
        ("parquet:{}/field.parquet", 'no column "text" among body'),
        ("parquet:{}/type.parquet", 'column "text" is int64'),
        ("tfds:{}/nothing", "cannot be read"),
        ("hf:{}/fields", "no text field among a, b"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrong_input(tmp_path, spec, message):
    import datasets
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "empty.txt").touch()
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "field.jsonl").write_text('{"body": "a"}\n')
    for name, columns in (("field", {"body": ["a"]}), ("type", {"text": [1]})):
        pyarrow.parquet.write_table(
            pyarrow.table(columns), tmp_path / f"{name}.parquet"
        )
    fields = datasets.Dataset.from_dict({"a": ["x"], "b": ["y"]})
    fields.save_to_disk(str(tmp_path / "fields"))
    with pytest.raises(UserError) as error:
        list(sources.documents(spec.format(tmp_path)))
    assert message in str(error.value)
