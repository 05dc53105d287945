"""Tokenises text into a prepared dataset for training.

tools/prepare_data.py --source=stdlib --tokenizer=byte --seq_len=256 --output=data/std

Sources:
  text:GLOB                 plain text files
  jsonl:GLOB                JSON lines, field "text"
  parquet:GLOB              Parquet files, column "text"
  tfds:NAME[@SPLIT]         TensorFlow Datasets, or a folder with a prepared one
  hf:NAME[:CONFIG][@SPLIT]  Hugging Face datasets, or a local folder
  stdlib                    the standard library of this Python
Tokenizers: byte, sentencepiece:PATH, hf:PATH (tokenizer.json, its folder, a hub name).
WikiText-103:
  --source=hf:dlwh/wikitext_103_detokenized
  --validation_source=hf:dlwh/wikitext_103_detokenized@validation
OpenWebText:
  --source=hf:Skylion007/openwebtext
"""

from absl import flags

from diffeq_former import cli
from diffeq_former.json_io import print_line

_SOURCE = flags.DEFINE_string(
    "source", None, "Source of the text, see above.", required=True
)
_TOKENIZER = flags.DEFINE_string(
    "tokenizer", None, "Tokenizer, see above.", required=True
)
_SEQ_LEN = flags.DEFINE_integer(
    "seq_len", None, "Sequence length in tokens.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "A new directory.", required=True)
_VALIDATION_SOURCE = flags.DEFINE_string(
    "validation_source",
    None,
    "Source of the validation text; by default a share of the documents, by hash.",
)
_VALIDATION_FRACTION = flags.DEFINE_float(
    "validation_fraction", 0.0005, "Fraction of the documents to hold out."
)
_NUM_WORKERS = flags.DEFINE_integer(
    "num_workers", None, "Number of tokenising processes; default: one per core."
)


def main() -> None:
    from diffeq_former.data.prepare import prepare

    dataset = prepare(
        _SOURCE.value,
        _TOKENIZER.value,
        _SEQ_LEN.value,
        _OUTPUT.value,
        validation_source=_VALIDATION_SOURCE.value,
        validation_fraction=_VALIDATION_FRACTION.value,
        num_workers=_NUM_WORKERS.value,
    )
    for name, split in dataset.splits.items():
        counts = {field: getattr(split, field) for field in _COUNTS}
        print_line({"split": name, **counts})


_COUNTS = ("rows", "tokens", "text_bytes", "documents", "replaced")


if __name__ == "__main__":
    cli.run(main)
