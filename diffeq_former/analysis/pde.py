"""A transformer as a partial differential equation in token position and depth.

  du/dt = interaction(u) + reaction(u) + diffusion * (Laplacian of u along the sequence)

Attention is the non-local interaction and the feed-forward term the local reaction
(arXiv 2408.09523). The diffusion coefficient is in tokens^2 per unit of depth.

The symmetric Laplacian lets a token see its successor, so it is no option for language
models; it serves to check the solver against the heat equation. No causal Laplacian is
stable: a causal stencil is p(z), where z shifts to the previous token. It approximates
the second difference if p(z) = (1 - z)^2 q(z), q(1) = 1, and waves e^(ikx) grow at the
rate Re p(e^(-ik)) = -4 sin(k/2)^2 Re[z q(z)]. As z q(z) is 0 at z = 0, its real part
averages to 0 over all k. It is 1 at k = 0, so it is negative at some other k, and these
waves grow without bound. An example is u_i - 2 u_(i-1) + u_(i-2), which multiplies the
shortest wave by e^(4 diffusion t).

A stable causal stencil also transports. The shortest one is the backward difference,
2 (u_(i-1) - u_i) = (u_xx - 2 u_x + ...): an impulse spreads as a Poisson distribution,
whose variance 2 diffusion t equals that of the heat kernel, and whose mean moves by the
same number of tokens. Every value stays between the lowest and the highest value before
it, and mass is conserved except at the ends: the first token is constant and feeds the
second, and what passes the last token is lost.

L sequence length, D model width, T grid steps.
"""

import functools
from itertools import cycle
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

# Upper bound of diffusion * step. Up to it, Euler's step is a weighted average of
# tokens for both stencils, and the steps of all other solvers are averages of such
# steps: no step creates new extremes.
LIMIT = 0.5


def symmetric(x_LD: jax.Array) -> jax.Array:
    """Return u_(i-1) - 2 u_i + u_(i+1), without flow through the ends."""
    flow_LD = jnp.diff(x_LD, axis=0)
    return _pad(flow_LD, 0, 1) - _pad(flow_LD, 1, 0)


def causal(x_LD: jax.Array) -> jax.Array:
    """Return 2 (u_(i-1) - u_i), and zero for the first token."""
    return -2 * _pad(jnp.diff(x_LD, axis=0), 1, 0)


STENCILS = {"causal": causal, "symmetric": symmetric}


def check_stable(diffusion: float, step_size: float) -> None:
    """Raise UserError if explicit steps with this diffusion are unstable."""
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
    """Solve the equation in the model's own steps; return all states [T + 1, L, D].

    Args:
      c: The model's config; its stabilisers are applied.
      table: Weight table, arrays with leading axes [T, S].
      x_LD: The state before the first step.
      diffusion: The coefficient; 0 gives the same as `depth.states`.
      stencil: A name in `STENCILS`.

    Raises:
      UserError: If the model's steps are unstable with this diffusion.
    """
    check_stable(diffusion, c.step_size)
    return _states(c, stencil, table, x_LD, diffusion)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _states(c: ModelConfig, stencil: str, table: dict, x_LD, diffusion) -> jax.Array:
    def body(x_LD, weights_S):
        attention, feed_forward = depth.terms(c, weights_S)
        both = (with_diffusion(attention, diffusion, stencil), feed_forward)
        block, h = BLOCKS[c.block], c.step_size
        return stabilised_step(c, block, both, weights_S, x_LD, h), x_LD

    last_LD, before_TLD = jax.lax.scan(body, x_LD, table)
    return jnp.concatenate([before_TLD, last_LD[None]])


def heat(x_LD, diffusion, time, num_steps: int, solver: str, stencil: str):
    """Return the state [L, D] after diffusion for `time`; Args as for `states`."""
    h = time / num_steps
    check_stable(diffusion, h)

    def nothing(node: int, x_LD):
        return jnp.zeros_like(x_LD)

    both = (with_diffusion(nothing, diffusion, stencil), nothing)

    def body(_, x_LD):
        return SOLVERS[solver].step(both, x_LD, h)

    return jax.lax.fori_loop(0, num_steps, body, x_LD)


def with_diffusion(interaction, diffusion: float, stencil: str):
    """Add diffusion to the interaction: splitting methods have exactly two terms."""

    def non_local(node: int, x_LD):
        return interaction(node, x_LD) + diffusion * STENCILS[stencil](x_LD)

    return non_local


def _pad(x_LD: jax.Array, before: int, after: int) -> jax.Array:
    return jnp.pad(x_LD, [(before, after)] + [(0, 0)] * (x_LD.ndim - 1))


SHARES = (0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the largest stable coefficient
_METRICS = {
    "effective_rank": "effective rank of the tokens' states",
    "roughness": "|difference of neighbours| / |state|",
}


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Write pde.json and pde.png: the equation with several causal diffusions."""
    coefficients = [share * LIMIT / trained.config.step_size for share in SHARES]
    rows, over_depth = [], []
    for diffusion in coefficients:
        found = [_measure(trained, s, diffusion) for s in sentences]
        losses = interval([f["loss"] for f in found])
        del losses["count"]
        rows.append({"diffusion": diffusion, "sentences": len(found), **losses})
        over_depth.append({n: np.mean([f[n] for f in found], 0) for n in _METRICS})
    numbers = {
        "unit of diffusion": "tokens^2 / unit of depth",
        "unit of loss": "nats per token",
        "times": depths(trained),
        "losses": rows,
        "over depth": over_depth,
    }
    write_json(folder / "pde.json", numbers)
    _plot(folder / "pde.png", depths(trained), rows, over_depth)
    return rows


def _measure(trained, sentence, diffusion: float) -> dict:
    c, outer, ids_L = trained.config, trained.outer, np.asarray(sentence.ids)
    x_LD = depth.embed(c, outer, ids_L)
    x_TLD = np.asarray(states(c, trained.table, x_LD, diffusion), float)
    logits_LV = depth.logits(c, outer, x_TLD[-1].astype("float32"))[:-1]
    losses_L = optax.softmax_cross_entropy_with_integer_labels(logits_LV, ids_L[1:])
    steps_TLD = np.diff(x_TLD, axis=1)
    lengths = (np.linalg.norm(x, axis=-1).mean(-1) for x in (steps_TLD, x_TLD))
    return {
        "loss": float(losses_L.mean()),
        "roughness": np.divide(*lengths),
        "effective_rank": np.array([effective_rank(x_LD) for x_LD in x_TLD]),
    }


def _plot(path: Path, times, rows: list[dict], over_depth: list[dict]) -> None:
    with plotting.saved_figure(path, (12, 4), ncols=3) as (left, *panels):
        coefficients = [row["diffusion"] for row in rows]
        left.plot(coefficients, [row["mean"] for row in rows], "k-o")
        left.set(xlabel="diffusion (tokens^2 / unit of depth)")
        left.set_ylabel("loss (nats/token)")
        left.grid(alpha=0.3)
        for axes, (name, label_y) in zip(panels, _METRICS.items(), strict=True):
            styled = zip(coefficients, over_depth, cycle(plotting.STYLES))
            for diffusion, metrics, style in styled:
                label = f"diffusion {diffusion:.3g}"
                axes.plot(times, metrics[name], style, label=label, ms=4, lw=0.8)
            axes.set(xlabel="time t (fraction of depth)", ylabel=label_y)
            axes.grid(alpha=0.3)
        panels[0].legend(fontsize=7)
