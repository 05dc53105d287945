"""The sections of a run's report, each returned as HTML."""

import dataclasses
import json
import math
from pathlib import Path

import jax

from diffeq_former.analysis import pages, plotting, training_curves
from diffeq_former.analysis.loaded_model import LoadedModel, encode
from diffeq_former.analysis.registry import load
from diffeq_former.config import Config
from diffeq_former.config.dataclass_config import differences
from diffeq_former.training import provenance
from diffeq_former.training.flops import forward_flops_per_token, weights_per_token

DEPTHS = (0.5, 0.75, 1.0, 1.5, 2.0)  # relative to num_layers


def settings(config: Config) -> str:
    """List the settings that differ from the defaults, and all settings, collapsed."""
    rows = []
    for line in differences(Config(), config):
        name, _, change = line.partition(": ")
        default, _, value = change.partition(" -> ")
        rows.append({"setting": name, "value": value, "default": default})
    whole = json.dumps(dataclasses.asdict(config), indent=1)
    return pages.table(rows) + pages.folded("all settings", pages.verbatim(whole))


def provenance_of(workdir: Path) -> str:
    """Show what the last start of training ran on, and earlier ones, collapsed."""
    rows = []
    for record in provenance.read(workdir):
        versions = (f"{name} {x}" for name, x in record["versions"].items())
        rows.append(record | {"versions": ", ".join(versions)})
    body = pages.table(rows[-1:])
    if rows[1:]:
        body += pages.folded("earlier starts", pages.table(rows[:-1]))
    return body


def training(metrics: training_curves.Metrics, folder: Path) -> str:
    """Show the final losses and the training curves; write curves.png."""
    picture = folder / "curves.png"
    training_curves.plot(metrics, picture)
    names = ["loss", "validation/loss", "validation/perplexity"]
    names += ["validation/bits_per_byte"]
    names += [name for name in metrics if name.startswith("validation/loss/")]
    last = {name: metrics[name][-1][1] for name in names if name in metrics}
    return pages.table([last] if last else []) + pages.picture(picture)


def samples(path: Path) -> str:
    """Show the last sample in samples.txt, and the earlier ones collapsed."""
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    parts = [part.strip() for part in text.split("--- step ") if part.strip()]
    if not parts:
        return pages.paragraph("The run wrote no samples; set training.sample_every.")
    *earlier, last = (f"after step {part.replace(' ---', ':', 1)}" for part in parts)
    body = pages.verbatim(last)
    if earlier:
        body += pages.folded("earlier samples", pages.verbatim("\n\n".join(earlier)))
    return body


def depth_curve(config: Config, evaluate, seq_len: int, folder: Path) -> str:
    """Show the perplexity for several numbers of solver steps; write depth.png.

    Args:
      config: Config of the run.
      evaluate: Function from a number of solver steps to evaluation metrics.
      seq_len: Sequence length of the data.
      folder: Folder for the plot.
    """
    depths = {max(1, round(part * config.model.num_layers)) for part in DEPTHS}
    rows = []
    for num_steps in sorted(depths):
        model = config.model.at_depth(num_steps)
        metrics = evaluate(num_steps)
        flops = forward_flops_per_token(model, seq_len)
        rows.append(
            {
                "steps": num_steps,
                "loss": metrics["loss"],
                "perplexity": metrics["perplexity"],
                "FLOPs per token": flops,
            }
        )
    body = pages.table(rows)
    if len(rows) > 1:
        picture = folder / "depth.png"
        with plotting.saved_figure(picture) as axes:
            steps = [row["steps"] for row in rows]
            axes.plot(steps, [row["perplexity"] for row in rows], plotting.STYLES[0])
            axes.set(xlabel="solver steps", ylabel="perplexity")
            plotting.logarithmic_y(axes)
            axes.grid(alpha=0.3, which="both")
        body += pages.picture(picture)
    return body


def weights(trained: LoadedModel, folder: Path) -> str:
    """Show the spectra of the weights."""
    return _analysis("spectra", trained, folder)


def sensitivity(trained: LoadedModel, text: str, folder: Path) -> str:
    """Show which tokens of `text` the prediction of the next one is sensitive to."""
    sentences = encode(trained, [text])
    return pages.verbatim(text) + _analysis(
        "lyapunov", trained, folder, sentences=sentences
    )


def costs(
    config: Config, params: dict, metrics: training_curves.Metrics, seq_len: int
) -> str:
    """List parameter counts, FLOPs, and the measured speed and memory."""
    stored = {
        name: sum(math.prod(x.shape) for x in jax.tree.leaves(part))
        for name, part in params.items()
    }
    rows = [
        {"quantity": f"parameters, {name}", "value": n, "unit": ""}
        for name, n in stored.items()
    ]
    of_model = {
        "parameters, total": (sum(stored.values()), ""),
        "weights applied per token": (weights_per_token(config.model), ""),
        "forward pass": (
            forward_flops_per_token(config.model, seq_len),
            "FLOPs per token",
        ),
    }
    measured = {
        "speed": ("tokens_per_second", "tokens/s"),
        "time per step": ("seconds_per_step", "s"),
        "host memory": ("host_memory_gib", "GiB"),
        "device memory": ("device_memory_gib", "GiB"),
        "model FLOPs utilisation": ("mfu", ""),
    }
    rows += [
        {"quantity": k, "value": v, "unit": unit} for k, (v, unit) in of_model.items()
    ]
    rows += [
        {
            "quantity": f"{name} (median)",
            "value": _median(metrics[metric]),
            "unit": unit,
        }
        for name, (metric, unit) in measured.items()
        if metric in metrics
    ]
    return pages.table(rows)


def _analysis(kind: str, trained: LoadedModel, folder: Path, **options) -> str:
    """Run one of the analyses of registry.py; return its table and plots."""
    own = folder / kind
    own.mkdir()
    table = pages.table(load(kind)(trained, own, **options))
    return table + "".join(pages.picture(path) for path in sorted(own.glob("*.png")))


def _median(points: list[tuple[int, float]]) -> float:
    values = sorted(value for _, value in points)
    return float(values[len(values) // 2])
