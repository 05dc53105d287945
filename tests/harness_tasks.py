"""Small tasks for lm-evaluation-harness: their descriptions, and data as on the hub."""

import contextlib
import functools
import json
from pathlib import Path
from unittest import mock

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


# Configurations (mmlu's are many), splits and a row of the data of the paper's eleven
# tasks, by their name on the hub.
_CHOICES = {"text": ["of", "the"], "label": ["A", "B"]}
_ARC = {"question": "what", "choices": _CHOICES, "answerKey": "B"}
_LAMBADA = {"text": "the long road home"}
_CONTEXT = {"ind": 3, "activity_label": "a", "ctx_a": "the", "ctx_b": "road"}
PAPER_DATA = {
    "allenai/ai2_arc": (["ARC-Easy", "ARC-Challenge"], "train test", _ARC),
    "Rowan/hellaswag": (
        ["default"],
        "train validation",
        _CONTEXT | {"endings": ["is", "was", "a", "b"], "label": "1"},
    ),
    "EleutherAI/lambada_openai": (["default"], "test", _LAMBADA),
    "cimec/lambada": (["default"], "validation test", _LAMBADA),
    "EleutherAI/logiqa": (
        ["logiqa"],
        "train validation test",
        {
            "context": "the",
            "question": "what",
            "options": ["a", "b", "c", "d"],
            "label": "b",
        },
    ),
    "cais/mmlu": (
        [],
        "dev test",
        {"question": "what", "choices": ["a", "b", "c", "d"], "answer": 2},
    ),
    "baber/piqa": (
        ["default"],
        "train validation",
        {"goal": "what", "sol1": "a", "sol2": "of", "label": 1},
    ),
    "allenai/sciq": (
        ["default"],
        "train validation test",
        {
            "support": "the",
            "question": "what",
            "distractor1": "a",
            "distractor2": "b",
            "distractor3": "c",
            "correct_answer": "d",
        },
    ),
    "allenai/winogrande": (
        ["winogrande_xl"],
        "train validation",
        {
            "sentence": "the cat sat on _ of it",
            "option1": "top",
            "option2": "road",
            "answer": "2",
        },
    ),
    "lighteval/winograd_wsc": (
        ["wsc273"],
        "test",
        {
            "text": "the cat and the road as it sat",
            "pronoun": "it",
            "pronoun_loc": 24,
            "options": ["the cat", "the road"],
            "label": 0,
        },
    ),
}


def write_paper_tasks(data: Path, subjects: list[str], num_rows: int) -> None:
    """Writes the data of the paper's tasks; `subjects` are those of mmlu.

    Rows differ in a field that no task reads.
    """
    for name, (configurations, splits, row) in PAPER_DATA.items():
        described = ["---", "configs:"]
        for configuration in configurations or subjects:
            described += [f"- config_name: {configuration}", "  data_files:"]
            for split in splits.split():
                path = data / name / configuration / f"{split}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                rows = (row | {"id": str(n)} for n in range(num_rows))
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
                place = f"{configuration}/{split}.jsonl"
                described.append(f"  - {{split: {split}, path: {place}}}")
        text = "\n".join([*described, "---", ""])
        (data / name / "README.md").write_text(text)


@contextlib.contextmanager
def task_manager_read_once(cache: Path):
    """It reads thousands of files, which takes ten seconds.

    The folder of the datasets' cache is set when they are imported: once in a process.
    """
    import datasets

    from diffeq_former.inference import harness_tasks

    cached = functools.cache(harness_tasks.TaskManager)
    with (
        mock.patch.object(harness_tasks, "TaskManager", cached),
        mock.patch.object(datasets.config, "HF_DATASETS_CACHE", str(cache)),
    ):
        yield


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
