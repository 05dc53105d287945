"""Models, plots and claims of the paper's figures and tables."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.config import Config
from diffeq_former.experiments import ablation, finetuning, runs
from diffeq_former.experiments.claims import Claim
from diffeq_former.experiments.curves import plot_perplexities
from diffeq_former.experiments.measured import measured, records

OURS, PLAIN, SHARED = "DiffEqFormer", "plain", "shared weights"


@dataclasses.dataclass(frozen=True)
class Section:
    """A figure or table, or several of the same models."""

    title: str
    name: str  # of its picture
    plan: Callable[[runs.Study], runs.Rows]
    measure: Callable[[Path], dict]  # of a run's folder
    plot: Callable[[list[dict], Path], None]
    columns: tuple[str, ...]  # of its table
    claims: tuple[Claim, ...]


def sections(
    config: Config,
    data: str,
    tuning_configs: Path,
    tuning: dict[str, Sequence[str]],
    seeds: Sequence[int],
) -> list[Section]:
    """Return all sections, beginning with `OURS` and `PLAIN`; see `page.run`."""
    return [
        _gpt(seeds),
        _llama(seeds),
        _b2(config, seeds),
        _widths(config, seeds),
        _time_mlp(config, seeds),
        _finetuning(config, data, tuning_configs, tuning, seeds),
    ]


def _gpt(seeds: Sequence[int]) -> Section:
    models = {OURS: (), PLAIN: runs.BASELINE, SHARED: runs.SHARED}
    claims = (
        _lower("perplexity", OURS, PLAIN),
        _lower("perplexity", PLAIN, SHARED),
        _lower("ratio of validation to training perplexity", OURS, PLAIN),
    )
    title = "Table 1, Figure 4: GPT blocks"
    return _comparison(title, "gpt", models, claims, seeds)


def _llama(seeds: Sequence[int]) -> Section:
    block = "model.block=llama"
    models = {OURS: (block,), PLAIN: (block, *runs.BASELINE)}
    claims = (_lower("perplexity", OURS, PLAIN),)
    title = "Table 2, Figure 8: Llama blocks"
    return _comparison(title, "llama", models, claims, seeds)


def _b2(config: Config, seeds: Sequence[int]) -> Section:
    low, high = "0.95", "0.999"
    claims = (
        _lower("perplexity", low, high, of="b2"),
        _lower("perplexity", f"{PLAIN}, {high}", f"{PLAIN}, {low}", of="b2"),
    )
    vary = ("optimizer.b2", [low, high])
    return _ablation("Figure 7: Adam's b2", "b2", vary, (), claims, config, seeds)


def _widths(config: Config, seeds: Sequence[int]) -> Section:
    own = config.model.time_embed_dim
    widths = [str(max(1, round(part * own))) for part in (0.25, 0.5, 1, 2)]
    claims = (
        _lower("perplexity", widths[-1], widths[0], of="E"),
        _lower("perplexity", widths[-1], PLAIN, of="E"),
        _lower("tokens per second", widths[-1], PLAIN, of="E"),
    )
    title = "Table 6, Figures 14, 15 and 16: width E of the time embedding"
    vary = ("model.time_embed_dim", widths)
    return _ablation(title, "widths", vary, (), claims, config, seeds)


def _time_mlp(config: Config, seeds: Sequence[int]) -> Section:
    designs = ["per_weight", "shared"]
    claims = (_lower("perplexity", *designs),)
    title, vary = "Figure 18: time MLPs", ("model.time_mlp", designs)
    return _ablation(title, "time_mlp", vary, None, claims, config, seeds)


def _lower(metric: str, less: str, more: str, of: str = "") -> Claim:
    """Claim that a metric is lower for one model; `of` names what their labels say."""
    prefix = f"{of}, " if of else ""
    text = f"{prefix}{less}: lower {metric} than {more}"
    key = metric.replace(" ", "_")
    return Claim(text, key, {"model": less}, {"model": more})


def _comparison(
    title: str,
    name: str,
    models: dict[str, Sequence[str]],
    claims: tuple[Claim, ...],
    seeds: Sequence[int],
) -> Section:
    def plan(study: runs.Study) -> runs.Rows:
        return [
            ({"model": model, "seed": seed}, study.of_model(settings, seed))
            for (model, settings), seed in product(models.items(), seeds)
        ]

    return Section(
        title,
        name,
        plan,
        _measured_with_training,
        _plot_curves,
        ("model", "seed", "perplexity", "training_perplexity", "parameters"),
        claims,
    )


def _measured_with_training(workdir: Path) -> dict:
    """Add the training losses, each averaged since the evaluation before."""
    row, losses = measured(workdir), records(workdir, "loss")
    means, start = [], 0
    for step in row["steps"]:
        means.append(
            statistics.mean(x for at, x in losses.items() if start < at <= step)
        )
        start = step
    training = math.exp(means[-1])
    return row | {
        "training_losses": means,
        "training_perplexity": training,
        "ratio_of_validation_to_training_perplexity": row["perplexity"] / training,
    }


def _plot_curves(rows: list[dict], picture: Path) -> None:
    panels = {"training_losses": "training", "losses": "validation"}
    with plotting.saved_figure(picture, (10, 4), ncols=2, sharey=True) as grid:
        for axes, (key, split) in zip(grid, panels.items(), strict=True):
            plot_perplexities(axes, rows, key)
            axes.set_ylabel(f"{split} perplexity")
        grid[0].legend()


def _ablation(
    title: str,
    name: str,
    vary: tuple[str, list[str]],
    plain: Sequence[str] | None,
    claims: tuple[Claim, ...],
    config: Config,
    seeds: Sequence[int],
) -> Section:
    setting, values = vary
    wanted = ablation.variants(setting, values, plain)
    plan = functools.partial(
        ablation.plan,
        config=config,
        setting=setting,
        wanted=wanted,
        seeds=seeds,
        plain=plain,
    )
    return Section(
        title,
        name,
        plan,
        measured,
        ablation.plot,
        (
            *("model", "seed", "perplexity", "tokens_per_second", "parameters"),
            "planned_memory_gib",
        ),
        claims,
    )


def _finetuning(
    config: Config,
    data: str,
    tuning_configs: Path,
    tuning: dict[str, Sequence[str]],
    seeds: Sequence[int],
) -> Section:
    """Pre-train in 18 steps where the plain transformer has 24 layers (section 6.2)."""
    texts, num_layers = (config.data.path, data), config.model.num_layers
    num_steps = max(1, round(num_layers * 18 / 24))
    models = {
        OURS: ([f"model.num_layers={num_steps}"], finetuning.depths(num_steps)),
        PLAIN: (runs.BASELINE, [num_layers]),
    }

    def plan(study: runs.Study) -> runs.Rows:
        return finetuning.plan(study, texts, models, tuning_configs, tuning, seeds)

    def claim(direction: str, mode: str) -> Claim:
        panel = {"direction": direction, "mode": mode}
        return Claim(
            f"{direction}, {mode}: {OURS} of {num_steps} steps: lower perplexity than"
            f" {PLAIN} of {num_layers} layers",
            "last_perplexity",
            panel | {"model": OURS, "num_layers": num_steps},
            panel | {"model": PLAIN, "num_layers": num_layers},
        )

    directions = [finetuning.direction(*texts), finetuning.direction(*texts[::-1])]
    return Section(
        "Figure 5: fine-tuning in other numbers of layers",
        "finetuning",
        plan,
        finetuning.losses,
        finetuning.plot,
        (
            *("direction", "model", "mode", "num_layers", "seed", "lowest_perplexity"),
            "last_perplexity",
        ),
        tuple(claim(*panel) for panel in product(directions, finetuning.MODES)),
    )
