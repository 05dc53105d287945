"""The sections of a run's report, each as HTML."""

import dataclasses
import json
import math
from pathlib import Path

import jax

from diffeq_former.analysis import (
    pages,
    plotting,
    training_curves,
)
from diffeq_former.analysis.loaded_model import Trained, encode
from diffeq_former.analysis.registry import load
from diffeq_former.config import Config
from diffeq_former.config.dataclass_config import differences
from diffeq_former.training.flops import forward_flops_per_token, weights_per_token

DEPTHS = (0.5, 0.75, 1.0, 1.5, 2.0)  # of a continuous model's own


def settings(config: Config) -> str:
    rows = []
    for line in differences(Config(), config):
        name, _, change = line.partition(": ")
        default, _, value = change.partition(" -> ")
        rows.append({"setting": name, "value": value, "default": default})
    whole = json.dumps(dataclasses.asdict(config), indent=1)
    return pages.table(rows) + pages.folded("all settings", pages.verbatim(whole))


def training(metrics: training_curves.Metrics, folder: Path) -> str:
    picture = folder / "curves.png"
    training_curves.draw(metrics, picture)
    names = ("loss", "validation/loss", "validation/perplexity")
    names = (*names, "validation/bits_per_byte")
    last = {name: metrics[name][-1][1] for name in names if name in metrics}
    return pages.table([last] if last else []) + pages.picture(picture)


def samples(path: Path) -> str:
    """The last of samples.txt, and the others folded."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    parts = [part.strip() for part in text.split("--- step ") if part.strip()]
    if not parts:
        return pages.paragraph("The run wrote none (training.sample_every).")
    *earlier, last = (f"after step {part.replace(' ---', ':', 1)}" for part in parts)
    body = pages.verbatim(last)
    if earlier:
        body += pages.folded("earlier ones", pages.verbatim("\n\n".join(earlier)))
    return body


def depth_curve(config: Config, evaluate, seq_len: int, folder: Path) -> str:
    """Perplexity against steps.

    Args:
      config: of the run.
      evaluate: from a model's config to the figures of its evaluation.
      seq_len: of the data.
      folder: for the picture.
    """
    own = config.model.num_layers
    depths = {own}
    if config.model.weights != "layer_table":
        depths = {max(1, round(part * own)) for part in DEPTHS}
    rows = []
    for num_steps in sorted(depths):
        model = config.model.at_depth(num_steps)
        figures = evaluate(model)
        flops = forward_flops_per_token(model, seq_len)
        rows.append(
            {
                "steps": num_steps,
                "loss": figures["loss"],
                "perplexity": figures["perplexity"],
                "flops a token": flops,
            }
        )
    body = pages.table(rows)
    if len(rows) > 1:
        picture = folder / "depth.png"
        with plotting.drawn(picture) as axes:
            steps = [row["steps"] for row in rows]
            axes.plot(steps, [row["perplexity"] for row in rows], plotting.STYLES[0])
            axes.set(xlabel="solver steps", ylabel="perplexity", yscale="log")
            axes.grid(alpha=0.3, which="both")
        body += pages.picture(picture)
    return body


def weights(trained: Trained, folder: Path) -> str:
    return _analysis("spectra", trained, folder)


def sensitivity(trained: Trained, text: str, folder: Path) -> str:
    sentences = encode(trained, [text])
    return pages.verbatim(text) + _analysis(
        "lyapunov", trained, folder, sentences=sentences
    )


def costs(
    config: Config, params: dict, metrics: training_curves.Metrics, seq_len: int
) -> str:
    stored = {
        name: sum(math.prod(x.shape) for x in jax.tree.leaves(part))
        for name, part in params.items()
    }
    rows = [
        {"what": f"parameters, {name}", "value": n, "unit": ""}
        for name, n in stored.items()
    ]
    of_model = {
        "parameters, all": (sum(stored.values()), ""),
        "weights that a token meets": (weights_per_token(config.model), ""),
        "forward pass": (
            forward_flops_per_token(config.model, seq_len),
            "flops a token",
        ),
    }
    measured = {
        "speed": ("tokens_per_second", "tokens a second"),
        "time of a step": ("seconds_per_step", "s"),
        "memory of the host": ("host_memory_gib", "GiB"),
        "memory of a device": ("device_memory_gib", "GiB"),
        "model flops utilisation": ("mfu", ""),
    }
    rows += [{"what": k, "value": v, "unit": unit} for k, (v, unit) in of_model.items()]
    rows += [
        {"what": f"{what} (median)", "value": _median(metrics[name]), "unit": unit}
        for what, (name, unit) in measured.items()
        if name in metrics
    ]
    return pages.table(rows)


def _analysis(kind: str, trained: Trained, folder: Path, **options) -> str:
    """The table and plots of one of the analyses of registry.py."""
    own = folder / kind
    own.mkdir()
    table = pages.table(load(kind)(trained, own, **options))
    return table + "".join(pages.picture(path) for path in sorted(own.glob("*.png")))


def _median(points: list[tuple[int, float]]) -> float:
    values = sorted(value for _, value in points)
    return float(values[len(values) // 2])
