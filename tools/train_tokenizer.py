"""Trains a SentencePiece BPE tokenizer on a source of text.

tools/train_tokenizer.py --source=stdlib --vocab_size=4096 --output=data/stdlib.model

For the sources, see tools/prepare_data.py.
"""

from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.json_io import print_line

_SOURCE = flags.DEFINE_string("source", None, "Source of the text.", required=True)
_VOCAB_SIZE = flags.DEFINE_integer(
    "vocab_size", None, "Number of pieces in the vocabulary.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "A new model file.", required=True)


def main() -> None:
    from diffeq_former.atomic_io import atomic_file, check_new
    from diffeq_former.data import sentencepiece_training, sources, tokenizers

    output = Path(_OUTPUT.value)
    check_new(output)
    documents = sources.documents(_SOURCE.value)
    model = sentencepiece_training.train(documents, _VOCAB_SIZE.value)
    with atomic_file(output) as partial:
        partial.write_bytes(model)
    tokenizer = tokenizers.load(f"sentencepiece:{output}")
    print_line(
        {
            "output": str(output),
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
        }
    )


if __name__ == "__main__":
    cli.run(main)
