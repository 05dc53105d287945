"""A transformer as a partial differential equation in token position and depth.

  du/dt = interaction(u) + reaction(u) + diffusion * (Laplacian of u along the sequence)

Attention is the interaction, which is not local; feed-forward is the reaction, which is
(arXiv 2408.09523). Diffusion is in tokens^2 / unit of depth.

The symmetric Laplacian lets a token see its successor, so no language model may use it;
here it is for checking the solver against the heat equation. A causal one does not
exist: a causal stencil is p(z), z the shift to the token before. It nears the second
difference if p(z) = (1 - z)^2 q(z), q(1) = 1, and changes waves e^(ikx) at the rate
Re p(e^(-ik)) = -4 sin(k/2)^2 Re[z q(z)]. As z q(z) is 0 at z = 0, its real part has the
mean 0 over all k, and is 1 at k = 0: so it is negative at others, and these waves grow
without bound. That holds for u_i - 2 u_(i-1) + u_(i-2), which multiplies the shortest
wave by e^(4 diffusion t), and for every other.

What is causal and does smooth also carries along. The shortest such stencil is the
backward difference, 2 (u_(i-1) - u_i) = (u_xx - 2 u_x + ...): an impulse spreads as a
Poisson distribution, whose variance 2 diffusion t is the heat kernel's, and whose mean
moves on by as much. It keeps every value between the lowest and the highest before it,
and moves mass without loss, but at the ends: the first token stays as it is, and
feeds the second; what passes the last is gone.

L length, D model, T grid steps.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from diffeq_former.analysis import depth, plotting
from diffeq_former.analysis.loaded_model import depths
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import interval
from diffeq_former.analysis.trajectory import effective_rank
from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.stabilisers import stabilised_step
from diffeq_former.ode.solvers import SOLVERS

# Of diffusion * step. Up to it Euler's step takes averages, with both stencils; all
# other solvers' steps are averages of such steps, so that none makes new extremes.
LIMIT = 0.5


def symmetric(x_LD: jax.Array) -> jax.Array:
    """u_(i-1) - 2 u_i + u_(i+1); nothing flows through the ends."""
    flow_LD = jnp.diff(x_LD, axis=0)
    return _pad(flow_LD, 0, 1) - _pad(flow_LD, 1, 0)


def causal(x_LD: jax.Array) -> jax.Array:
    """2 (u_(i-1) - u_i); the first token stays."""
    return -2 * _pad(jnp.diff(x_LD, axis=0), 1, 0)


STENCILS = {"causal": causal, "symmetric": symmetric}


def check_stable(diffusion: float, step_size: float) -> None:
    """Raises UserError for diffusion that explicit steps cannot follow."""
    if not 0 <= diffusion * step_size <= LIMIT:
        raise UserError(
            f"diffusion {diffusion:g}: expected 0 to {LIMIT / step_size:g}, as explicit"
            f" steps of {step_size:g} are stable up to diffusion * step = {LIMIT}; use"
            " less, or more steps over the interval"
        )


def states(
    c: ModelConfig,
    table: dict,
    x_LD: jax.Array,
    diffusion: float,
    stencil: str = "causal",
) -> jax.Array:
    """The equation of a model, in its own steps: [T + 1, L, D], x_0 the first.

    Args:
      c: the model; its stabilisers stay as they are.
      table: its weights, units with leading axes [T, S].
      x_LD: the state before the first step.
      diffusion: the coefficient; 0: `depth.states`.
      stencil: a name in `STENCILS`.

    Raises:
      UserError: for diffusion that the model's steps cannot follow.
    """
    check_stable(diffusion, c.step_size)
    return _states(c, stencil, table, x_LD, diffusion)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _states(c: ModelConfig, stencil: str, table: dict, x_LD, diffusion) -> jax.Array:
    def body(x_LD, weights_S):
        attention, feed_forward = depth.terms(c, weights_S)
        both = (_and_diffusion(attention, diffusion, stencil), feed_forward)
        block, h = BLOCKS[c.block], c.step_size
        return stabilised_step(c, block, both, weights_S, x_LD, h), x_LD

    last_LD, before_TLD = jax.lax.scan(body, x_LD, table)
    return jnp.concatenate([before_TLD, last_LD[None]])


def heat(x_LD, diffusion, time, num_steps: int, solver: str, stencil: str):
    """The state [L, D] after diffusion alone; arguments as for `states`."""
    h = time / num_steps
    check_stable(diffusion, h)

    def nothing(node: int, x_LD):
        return jnp.zeros_like(x_LD)

    both = (_and_diffusion(nothing, diffusion, stencil), nothing)

    def body(_, x_LD):
        return SOLVERS[solver].step(both, x_LD, h)

    return jax.lax.fori_loop(0, num_steps, body, x_LD)


def _and_diffusion(interaction, diffusion: float, stencil: str):
    """One term of all that passes between tokens, as splittings have two terms."""

    def non_local(node: int, x_LD):
        return interaction(node, x_LD) + diffusion * STENCILS[stencil](x_LD)

    return non_local


def _pad(x_LD: jax.Array, before: int, after: int) -> jax.Array:
    return jnp.pad(x_LD, [(before, after)] + [(0, 0)] * (x_LD.ndim - 1))


SHARES = (0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the most that is stable
_FIGURES = {
    "effective_rank": "effective rank of the tokens' states",
    "roughness": "|difference of neighbours| / |state|",
}


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Writes pde.json and pde.png: the master equation with causal diffusion."""
    coefficients = [share * LIMIT / trained.config.step_size for share in SHARES]
    rows, over_depth = [], []
    for diffusion in coefficients:
        found = [_measure(trained, s, diffusion) for s in sentences]
        losses = interval([f["loss"] for f in found])
        del losses["count"]
        rows.append({"diffusion": diffusion, "sentences": len(found), **losses})
        over_depth.append({n: np.mean([f[n] for f in found], 0) for n in _FIGURES})
    numbers = {
        "unit of diffusion": "tokens^2 / unit of depth",
        "unit of loss": "nats a token",
        "times": depths(trained),
        "losses": rows,
        "over depth": over_depth,
    }
    write_json(folder / "pde.json", numbers)
    _draw(folder / "pde.png", depths(trained), rows, over_depth)
    return rows


def _measure(trained, sentence, diffusion: float) -> dict:
    c, ends, ids_L = trained.config, trained.ends, np.asarray(sentence.ids)
    x_LD = depth.embed(c, ends, ids_L)
    x_TLD = np.asarray(states(c, trained.table, x_LD, diffusion), float)
    logits_LV = depth.logits(c, ends, x_TLD[-1].astype("float32"))[:-1]
    losses_L = optax.softmax_cross_entropy_with_integer_labels(logits_LV, ids_L[1:])
    steps_TLD = np.diff(x_TLD, axis=1)
    lengths = (np.linalg.norm(x, axis=-1).mean(-1) for x in (steps_TLD, x_TLD))
    return {
        "loss": float(losses_L.mean()),
        "roughness": np.divide(*lengths),
        "effective_rank": np.array([effective_rank(x_LD) for x_LD in x_TLD]),
    }


def _draw(path: Path, times, rows: list[dict], over_depth: list[dict]) -> None:
    with plotting.drawn(path, (12, 4), ncols=3) as (left, *panels):
        coefficients = [row["diffusion"] for row in rows]
        left.plot(coefficients, [row["mean"] for row in rows], "k-o")
        left.set(xlabel="diffusion (tokens^2 / unit of depth)")
        left.set_ylabel("loss (nats/token)")
        left.grid(alpha=0.3)
        for axes, (name, words) in zip(panels, _FIGURES.items(), strict=True):
            styled = zip(coefficients, over_depth, plotting.STYLES, strict=True)
            for diffusion, figures, style in styled:
                label = f"diffusion {diffusion:.3g}"
                axes.plot(times, figures[name], style, label=label, ms=4, lw=0.8)
            axes.set(xlabel="time t (share of depth)", ylabel=words)
            axes.grid(alpha=0.3)
        panels[0].legend(fontsize=7)
