"""Accuracies on downstream tasks as bars, beside those of the paper (C.7, tables 4, 5).

The paper evaluates GPT-large and Llama-1B and a DiffEqFormer of the size of each.
"""

from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.errors import UserError

# Tasks by their names in the harness: accuracies in percent with standard errors, with
# no and with five examples; of each pair, first the plain model and then the paper's.
_GPT_LARGE = {
    "arc_challenge": ((20.65, 1.18, 20.90, 1.19), (21.84, 1.21, 21.25, 1.20)),
    "arc_easy": ((36.03, 0.99, 35.82, 0.98), (37.12, 0.99, 36.32, 0.99)),
    "hellaswag": ((25.53, 0.44, 25.61, 0.44), (25.40, 0.43, 25.52, 0.44)),
    "lambada_openai": ((37.24, 0.67, 38.39, 0.68), (27.79, 0.62, 27.83, 0.62)),
    "lambada_standard": ((29.30, 0.63, 30.37, 0.64), (23.05, 0.59, 24.82, 0.60)),
    "logiqa": ((21.35, 1.61, 21.35, 1.61), (20.74, 1.59, 21.81, 1.62)),
    "mmlu": ((22.95, 0.35, 22.99, 0.35), (26.08, 0.37, 25.10, 0.36)),
    "piqa": ((56.26, 1.16, 56.96, 1.16), (55.82, 1.16, 56.69, 1.16)),
    "sciq": ((45.70, 1.58, 47.20, 1.58), (50.30, 1.58, 50.90, 1.58)),
    "winogrande": ((50.75, 1.41, 52.57, 1.40), (49.33, 1.41, 53.67, 1.40)),
    "wsc273": ((55.31, 3.01, 53.11, 3.03), (50.92, 3.03, 53.11, 3.03)),
}
_LLAMA_1B = {
    "arc_challenge": ((22.27, 1.22, 22.27, 1.22), (21.76, 1.21, 22.44, 1.22)),
    "arc_easy": ((29.67, 0.94, 31.10, 0.95), (30.01, 0.94, 31.44, 0.95)),
    "hellaswag": ((25.20, 0.43, 25.32, 0.43), (25.19, 0.43, 25.36, 0.43)),
    "lambada_openai": ((41.84, 0.69, 43.74, 0.69), (30.47, 0.64, 34.41, 0.66)),
    "lambada_standard": ((27.58, 0.62, 31.55, 0.65), (24.04, 0.60, 28.22, 0.63)),
    "logiqa": ((21.51, 1.61, 22.27, 1.63), (21.04, 1.60, 21.20, 1.60)),
    "mmlu": ((22.93, 0.35, 22.98, 0.35), (26.43, 0.37, 24.72, 0.36)),
    "piqa": ((53.26, 1.16, 53.81, 1.16), (53.65, 1.16, 53.10, 1.16)),
    "sciq": ((31.70, 1.47, 33.20, 1.49), (34.20, 1.50, 34.80, 1.51)),
    "winogrande": ((50.51, 1.41, 49.64, 1.41), (51.38, 1.40, 49.33, 1.41)),
    "wsc273": ((53.11, 3.03, 52.38, 3.03), (52.01, 3.03, 50.92, 3.03)),
}
PAPER = {"gpt_large": _GPT_LARGE, "llama1b": _LLAMA_1B}
TASKS = tuple(_GPT_LARGE)
_NUM_FEWSHOT = (0, 5)  # of the paper
_FILLS = ("black", "0.8", "0.5", "0.95", "0.3", "0.65")


def paper_lines(size: str) -> list[dict]:
    """Return the paper's scores as lines of `plot`.

    Args:
      size: A key of `PAPER`.
    """
    names = (f"paper's {size}", "paper's DiffEqFormer")
    return [
        {
            "model": name,
            "task": task,
            "num_fewshot": num_fewshot,
            "acc": acc / 100,
            "acc_stderr": error / 100,
        }
        for task, scores in PAPER[size].items()
        for num_fewshot, pair in zip(_NUM_FEWSHOT, scores, strict=True)
        for name, acc, error in zip(names, pair[::2], pair[1::2], strict=True)
    ]


def plot(path: Path, lines: list[dict]) -> None:
    """Draw accuracies with standard errors: a panel for each number of examples.

    Args:
      path: The .png file to write.
      lines: Dictionaries with model, task, num_fewshot, acc and, if known, acc_stderr.
        Tasks without an accuracy, and those with a `group`, are left out.

    Raises:
      UserError: If nothing is left.
    """
    shown = [line for line in lines if "acc" in line and not line.get("group")]
    if not shown:
        raise UserError(f"{path}: none of the tasks has an accuracy to draw")
    tasks, models, counts = (
        list(dict.fromkeys(line[key] for line in shown))
        for key in ("task", "model", "num_fewshot")
    )
    width = 0.8 / len(models)
    size = (max(6.4, 0.3 * len(tasks) * len(models)), 3.2 * len(counts) + 0.6)
    shape = {"nrows": len(counts), "squeeze": False, "sharex": True, "sharey": True}
    with plotting.saved_figure(path, size, **shape) as grid:
        for axes, num_fewshot in zip(grid[:, 0], counts, strict=True):
            for index, model in enumerate(models):
                found = [
                    line
                    for line in shown
                    if (line["model"], line["num_fewshot"]) == (model, num_fewshot)
                ]
                shift = width * (index - (len(models) - 1) / 2)
                axes.bar(
                    [tasks.index(line["task"]) + shift for line in found],
                    [100 * line["acc"] for line in found],
                    width,
                    yerr=[100 * line.get("acc_stderr", 0.0) for line in found],
                    color=_FILLS[index % len(_FILLS)],
                    edgecolor="black",
                    ecolor="0.5",
                    capsize=2,
                    label=model,
                )
            axes.set_ylabel("accuracy (%)")
            axes.set_title(f"examples before each question: {num_fewshot}")
            axes.grid(alpha=0.3, axis="y")
            axes.set_axisbelow(True)
        grid[-1, 0].set_xticks(range(len(tasks)), tasks, rotation=30, ha="right")
        grid[0, 0].legend(fontsize=8, ncols=2)
