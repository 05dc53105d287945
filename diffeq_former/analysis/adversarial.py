"""The largest change of the loss by a bounded change of a sentence's embeddings.

The ball is that of the L2 norm over all tokens together, and its radius is relative to
the norm of the embeddings. The loss is maximised in one step along its gradient and by
projected gradient ascent (Madry et al. 2018, arXiv 1706.06083).

A perturbation of norm r has at the end of depth at most the norm r e^(lambda T), to
first order in r, where lambda is the leading exponent of the coupled system (eq. 8) and
T the interval of depth. `growth` is the rate of the perturbation that was found.

B batch (always 1), L sequence length, D model width, T grid steps.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.analysis import depth, lyapunov, plotting
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.sensitivity import cross_entropy
from diffeq_former.analysis.statistics import correlation_interval, interval
from diffeq_former.analysis.token_sensitivity import padded, padded_states
from diffeq_former.config import ModelConfig
from diffeq_former.models.loss import NO_TARGET

RADII = (0.003, 0.01, 0.03, 0.1)  # relative to the norm of the embeddings
NUM_STEPS = 10  # of the ascent
NUM_RANDOM = 16  # random directions for each sentence
METHODS = {
    "ascent": f"ascent, {NUM_STEPS} steps",
    "one_step": "one step",
    "random": "random direction, mean |change|",
}


def one_step(value: Callable, x: jax.Array, radius) -> jax.Array:
    """Return the change of x of norm `radius` along the gradient of `value`."""
    return radius * _unit(jax.grad(value)(x))


def ascend(value: Callable, x: jax.Array, radius, num_steps: int) -> jax.Array:
    """Maximise value(x + change) over |change| <= radius; return the change.

    The ascent starts at `one_step`; its steps are 2.5 radius / num_steps long and are
    projected onto the ball. The best point on its way is returned, 0 included, so it is
    at least as good as one step.
    """

    def keep_better(best, change):
        reached = value(x + change)
        return jax.tree.map(
            lambda new, old: jnp.where(reached > best[1], new, old),
            (change, reached),
            best,
        )

    def step(_, carry):
        change, best = carry
        change = change + length * _unit(jax.grad(value)(x + change))
        norm = jnp.linalg.norm(change)
        change = change * jnp.where(norm > radius, radius / norm, 1)
        return change, keep_better(best, change)

    length = 2.5 * radius / num_steps
    first = one_step(value, x, radius)
    best = keep_better((jnp.zeros_like(x), value(x)), first)
    return jax.lax.fori_loop(0, num_steps, step, (first, best))[1][0]


def _unit(x: jax.Array) -> jax.Array:
    norm = jnp.linalg.norm(x)
    return x / jnp.where(norm > 0, norm, 1)


@functools.partial(jax.jit, static_argnums=0)
def attack(
    c: ModelConfig, outer: dict, table: dict, x_LD, targets_L, radii_R
) -> dict[str, dict[str, jax.Array]]:
    """Perturb the embeddings of a sentence by each method of `METHODS`.

    Args:
      c: The model's config.
      outer: Parameters of the embedding, the final norm and the head.
      table: Weight table, arrays with leading axes [T, S].
      x_LD: States before the first step.
      targets_L: Ids of the next tokens; NO_TARGET at the last token and at padding,
        whose embeddings are not changed.
      radii_R: Radii relative to the norm of the embeddings.

    Returns:
      For each method, `change` of the mean loss in nats and `growth`, the rate at which
      the perturbation's norm grows per unit of depth, both [R]; for random directions,
      the mean of |change| and of the rate.
    """
    perturbed_L1 = (targets_L != NO_TARGET)[:, None]
    norm = jnp.linalg.norm(jnp.where(perturbed_L1, x_LD, 0))

    def end(x_LD):
        return depth.states(c, table, x_LD)[-1]

    def loss_at(end_LD):
        return cross_entropy(depth.logits(c, outer, end_LD)[None], targets_L[None])

    def loss(x_LD):
        # The last token and padding affect no loss, so their gradients are 0.
        return loss_at(end(x_LD))

    before_LD = end(x_LD)

    def effect(change_LD):
        after_LD = end(x_LD + change_LD)
        moved_LD = jnp.where(perturbed_L1, after_LD - before_LD, 0)
        stretch = jnp.linalg.norm(moved_LD) / jnp.linalg.norm(change_LD)
        return {
            "change": loss_at(after_LD) - loss_at(before_LD),
            "growth": jnp.log(stretch) / c.interval,
        }

    def random(radius):
        shape = (NUM_RANDOM, *x_LD.shape)
        noise_NLD = jax.random.normal(jax.random.key(0), shape, x_LD.dtype)
        noise_NLD = jnp.where(perturbed_L1[None], noise_NLD, 0)
        found = jax.lax.map(lambda n_LD: effect(radius * _unit(n_LD)), noise_NLD)
        return {"change": abs(found["change"]).mean(), "growth": found["growth"].mean()}

    def at_radius(relative):
        radius = relative * norm
        return {
            "ascent": effect(ascend(loss, x_LD, radius, NUM_STEPS)),
            "one_step": effect(one_step(loss, x_LD, radius)),
            "random": random(radius),
        }

    return jax.lax.map(at_radius, radii_R)


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Write adversarial.json (per sentence and averaged) and adversarial.png.

    The rows have the mean change of the loss for each radius and method, and its rank
    correlation over the sentences with the leading exponent of the coupled system.
    """
    measured = [_measure(trained, s) for s in sentences]
    exponents = [m["exponent"] for m in measured]
    rows = []
    for place, radius in enumerate(RADII):
        for name, label in METHODS.items():
            changes = [m[name]["change"][place] for m in measured]
            growth = np.mean([m[name]["growth"][place] for m in measured])
            row = {"radius": radius, "method": label} | interval(changes)
            row |= {"growth": float(growth)}
            if len(measured) > 2:
                correlation = correlation_interval(changes, exponents)
                del correlation["count"]
                row |= {f"exponent: {key}": x for key, x in correlation.items()}
            rows.append(row)
    unit = {"change": "nats per token", "growth": "1 / unit of depth"}
    numbers = {"unit": unit, "summary": rows, "sentences": measured}
    write_json(folder / "adversarial.json", numbers)
    _plot(folder / "adversarial.png", rows, measured)
    return rows


def _measure(trained, sentence) -> dict:
    c, length = trained.config, len(sentence.ids)
    ids_L = padded(trained, sentence.ids)
    targets_L = np.full(len(ids_L), NO_TARGET)
    targets_L[: length - 1] = ids_L[1:length]
    states_TLD = padded_states(trained, sentence.ids)
    found = attack(
        c, trained.outer, trained.table, states_TLD[0], targets_L, jnp.array(RADII)
    )
    # Of the tokens that are perturbed: the last one affects no loss.
    along = (c, trained.table, states_TLD, length - 1)
    return {
        "text": sentence.text,
        "exponent": float(lyapunov.coupled(*along, "whole", 1)[0]),
        **jax.tree.map(np.asarray, found),
    }


def _plot(path: Path, rows: list[dict], measured: list[dict]) -> None:
    several = len(measured) > 1
    size = (10 if several else 5.5, 4)
    shape = {"ncols": 1 + several, "squeeze": False}
    with plotting.saved_figure(path, size, **shape) as grid:
        left, *right = grid[0]
        for label, style in zip(METHODS.values(), plotting.STYLES, strict=False):
            found = [row for row in rows if row["method"] == label]
            means = [row["mean"] for row in found]
            left.plot(RADII, means, style, color="black", ms=4, lw=0.8, label=label)
            if several:
                bounds = [[row[key] for row in found] for key in ("low", "high")]
                left.fill_between(RADII, *bounds, color="0.8")
        left.set(xscale="log", yscale="log", ylabel="change of the loss (nats/token)")
        left.set_xticks(RADII, [f"{radius:g}" for radius in RADII])
        left.set_xlabel("norm of the perturbation / norm of the embeddings")
        left.grid(alpha=0.3)
        left.legend(fontsize=8)
        for axes in right:
            changes = [m["ascent"]["change"][-1] for m in measured]
            axes.plot([m["exponent"] for m in measured], changes, "ko", ms=4)
            axes.set_xlabel("leading exponent, coupled system (1 / unit of depth)")
            axes.set_ylabel(f"change by ascent at {RADII[-1]:g} (nats/token)")
            axes.grid(alpha=0.3)
