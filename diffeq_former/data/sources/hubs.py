"""Dataset hubs: TensorFlow Datasets (without TensorFlow) and Hugging Face."""

import os
from collections.abc import Iterable, Iterator

from diffeq_former.errors import UserError

DEFAULT_SPLIT = "train"


def tfds(argument: str) -> Iterator[str | bytes]:
    """Yield a TFDS dataset: `NAME[@SPLIT]`, or `FOLDER[@SPLIT]` of a prepared one.

    NAME is an argument of `tfds.builder` (lm1b, huggingface:...); the dataset is
    downloaded and prepared as ArrayRecord if that has not been done yet.
    """
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise UserError(
            f"source tfds: cannot import tensorflow_datasets ({error})"
        ) from error

    name, split = _name_and_split(argument)
    try:
        builder = _tfds_builder(tensorflow_datasets, name)
        data = builder.as_data_source(split=split)
    except Exception as error:
        raise _unreadable(f"tfds:{argument}", error) from error
    return _texts(data, f"tfds:{argument}")


def _tfds_builder(tensorflow_datasets, name: str):
    if os.path.isdir(name):
        return tensorflow_datasets.builder_from_directory(name)
    builder = tensorflow_datasets.builder(name, file_format="array_record")
    builder.download_and_prepare()
    return builder


def hf(argument: str) -> Iterator[str | bytes]:
    """Yield a Hugging Face dataset, streamed: `NAME[:CONFIG][@SPLIT]`.

    NAME is a name on the hub, or a folder of data files or written by `save_to_disk`.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"source hf: cannot import datasets ({error})") from error

    rest, split = _name_and_split(argument)
    name, _, config = rest.partition(":")
    try:
        if _is_saved(name):
            data = _saved_split(datasets.load_from_disk(name), split)
        else:
            data = datasets.load_dataset(
                name, config or None, split=split, streaming=True
            )
    except Exception as error:
        raise _unreadable(f"hf:{argument}", error) from error
    return _texts(data, f"hf:{argument}")


def _is_saved(folder: str) -> bool:
    files = ("dataset_dict.json", "state.json")
    return any(os.path.exists(os.path.join(folder, file)) for file in files)


def _saved_split(data, split: str):
    """Return a split of a saved DatasetDict; a saved Dataset is a single split."""
    if not isinstance(data, dict):
        data = {str(data.split or DEFAULT_SPLIT): data}
    if split not in data:
        raise UserError(f"no split {split!r} among {', '.join(data)}")
    return data[split]


def _name_and_split(argument: str) -> tuple[str, str]:
    name, _, split = argument.partition("@")
    return name, split or DEFAULT_SPLIT


def _texts(rows: Iterable[dict], spec: str) -> Iterator[str | bytes]:
    field = None
    for row in _rows(rows, spec):
        field = field or _text_field(row, spec)
        text = row.get(field)
        if not isinstance(text, str | bytes | None):
            raise UserError(
                f"source {spec!r}: the field {field} is {type(text).__name__}, expected"
                " text"
            )
        if text is not None:
            yield text


def _rows(rows: Iterable[dict], spec: str) -> Iterator[dict]:
    """Yield the rows; an error of the library of their format raises UserError."""
    iterator = iter(rows)
    while True:
        try:
            row = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise _unreadable(spec, error) from error
        yield row


def _text_field(row: dict, spec: str) -> str:
    """Return "text", or the only field whose name ends so (as pg19's book_text)."""
    names = [name for name in row if name.endswith("text")]
    if "text" not in names and len(names) != 1:
        raise UserError(f"source {spec!r}: no text field among {', '.join(row)}")
    return "text" if "text" in names else names[0]


def _unreadable(spec: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(
        f"source {spec!r} cannot be read: {type(error).__name__}: {reason}. Check the"
        " name and the split, and whether this machine reaches the network"
    )
