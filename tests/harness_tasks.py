"""Small tasks for lm-evaluation-harness: their descriptions, and data as on the hub."""

import json
from pathlib import Path

CHOICE = [
    {"question": "the cat", "options": [" sat", " sits on it", " x"], "answer": 1},
    {"question": "a b ", "options": ["c", "d e f", "zz"], "answer": 0},
    {"question": "one two", "options": [" three", " four"], "answer": 0},
    {"question": "one", "options": [" two", " for the long road home"], "answer": 1},
    {"question": "why", "options": ["!", "?"], "answer": 1},
]
EXAMPLES = [
    {"question": f"of {n}", "options": [".", f" a {n}"], "answer": 1} for n in range(9)
]
TEXTS = [{"text": "the end"}, {"text": "a"}, {"text": "of the long road home " * 3}]
ASKED = [{"text": "the", "answer": "t"}, {"text": "a long road", "answer": "h"}]
ANSWERED = [{"text": f"of {n}", "answer": f"{n} e"} for n in range(9)]
SHARED = {"dataset_kwargs": {}, "test_split": "test", "metadata": {"version": 1}}
TASKS = {
    "own_choice": SHARED
    | {
        "dataset_path": "own/choice",
        "dataset_name": "easy",
        "output_type": "multiple_choice",
        "fewshot_split": "train",
        "doc_to_text": "{{question}}",
        "doc_to_target": "answer",
        "doc_to_choice": "{{options}}",
        "metric_list": [{"metric": "acc"}],
    },
    "own_texts": SHARED
    | {
        "dataset_path": "own/texts",
        "output_type": "loglikelihood_rolling",
        "num_fewshot": 0,
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "own_answers": SHARED
    | {
        "dataset_path": "own/answers",
        "output_type": "generate_until",
        "fewshot_split": "train",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["e"], "max_gen_toks": 6},
        "metric_list": [{"metric": "exact_match"}],
    },
}
CONFIGURATIONS = """\
---
configs:
- config_name: easy
  data_files:
  - {split: train, path: easy/train.jsonl}
  - {split: test, path: easy/test.jsonl}
---
"""


def write_tasks(folder: Path) -> tuple[str, str]:
    """Returns the folder of the descriptions and that of the data."""
    descriptions, data = folder / "tasks", folder / "data"
    for name, task in TASKS.items():
        path = descriptions / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"task": name} | task))
    for name, rows in {
        "choice/easy/test": CHOICE,
        "choice/easy/train": EXAMPLES,
        "texts/test": TEXTS,
        "answers/test": ASKED,
        "answers/train": ANSWERED,
    }.items():
        path = data / "own" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "own/choice/README.md").write_text(CONFIGURATIONS)
    return str(descriptions), str(data)
