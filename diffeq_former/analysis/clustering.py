"""Clustering of tokens that move by attention alone (paper, appendix C.8).

n tokens, d dimensions, T steps, N heads, D model width.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.analysis import plotting, spectra
from diffeq_former.analysis.drift import directions
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import over_sentences
from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.stabilisers import TERM_NORMS, term_input

NUM_TOKENS, DIMENSIONS, NUM_STEPS = 40, 3, 200  # as in C.8
STEP_SIZE = 0.05  # 200 steps span 10 units of time
DEGREES = (0, 1, 2, 3, 4)  # of the polynomial growth of the weights over time
THRESHOLD = 0.1  # directions closer than this belong to the same cluster


def standardise(z_nd: jax.Array) -> jax.Array:
    """Scale each token to mean 0 and variance 1, as in C.8 (LayerNorm, no weights)."""
    return jax.nn.standardize(z_nd, epsilon=0.0)


def on_sphere(z_nd: jax.Array) -> jax.Array:
    """Project each token onto the unit sphere (Geshkovski et al., arXiv 2312.10794)."""
    return z_nd / jnp.linalg.norm(z_nd, axis=-1, keepdims=True)


def simulate(
    field: Callable, per_step, z_nd: jax.Array, h: float, normalise: Callable
) -> jax.Array:
    """Integrate z <- normalise(z + h field(step, z)) over the steps.

    Args:
      field: Function of one entry of `per_step` and the tokens [n, d].
      per_step: Pytree with a leading axis T: the inputs of the field at each step.
      z_nd: Initial tokens.
      h: Step size.
      normalise: Applied to the initial tokens and after every step.

    Returns:
      All states, including the initial one [T + 1, n, d].
    """

    def body(z_nd, step):
        return normalise(z_nd + h * field(step, z_nd)), z_nd

    last_nd, before_Tnd = jax.lax.scan(body, normalise(z_nd), per_step)
    return jnp.concatenate([before_Tnd, last_nd[None]])


def growing(a_dd: jax.Array, v_dd: jax.Array, degree: int) -> Callable:
    """Return the vector field of C.8: softmax((z A)(z A)^T) z V.

    A and V are the weights at t = 0; both grow as (1 + t)^degree.
    """

    def field(t, z_nd):
        growth = (1 + t) ** degree
        y_nd = z_nd @ (growth * a_dd)
        return jax.nn.softmax(y_nd @ y_nd.T) @ z_nd @ (growth * v_dd)

    return field


def random_weights(seed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sample A and V from N(0, 1) and tokens from U[-2, 2], as in C.8."""
    key_a, key_v, key_z = jax.random.split(jax.random.key(seed), 3)
    shape = (DIMENSIONS, DIMENSIONS)
    z_nd = jax.random.uniform(key_z, (NUM_TOKENS, DIMENSIONS), minval=-2, maxval=2)
    return jax.random.normal(key_a, shape), jax.random.normal(key_v, shape), z_nd


def grown(seed: int, degree: int) -> np.ndarray:
    """Run the simulation of C.8 and return its states [T + 1, n, d]."""
    return np.asarray(_grown(*random_weights(seed), degree))


@jax.jit
def _grown(a_dd, v_dd, z_nd, degree) -> jax.Array:
    times_T = STEP_SIZE * jnp.arange(NUM_STEPS)
    field = growing(a_dd, v_dd, degree)
    return simulate(field, times_T, z_nd, STEP_SIZE, standardise)


def of_model(c: ModelConfig, weights: dict, products: dict, z_nD) -> np.ndarray:
    """Integrate the dynamics of a trained model's attention heads alone over depth.

    dx_i/dt = sum over heads of sum_j softmax_j(y_i QK y_j^T) y_j OV, where y is x after
    the norm before attention. Attention is not causal, as in C.8; biases and rotary
    positions are omitted.

    Args:
      c: The model's config.
      weights: Weights by name, with a leading axis T.
      products: Result of `spectra.products` for these weights.
      z_nD: Initial states.

    Returns:
      The states [T + 1, n, D].
    """

    def field(step, z_nD):
        weights, (q_NDH, k_NHD), (v_NDH, o_NHD) = step
        y_1nD = term_input(c, BLOCKS[c.block].norm, weights, "norm_1", z_nD)[None]
        scores_Nnn = (y_1nD @ q_NDH) @ (k_NHD @ jnp.swapaxes(y_1nD, 1, 2))
        return (jax.nn.softmax(scores_Nnn) @ (y_1nD @ v_NDH) @ o_NHD).sum(0)

    single = jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), products)
    norms = {name: w for name, w in weights.items() if name in TERM_NORMS}
    per_step = (norms, single["qk"], single["ov"])
    h = c.interval / len(per_step[1][0])
    run = jax.jit(lambda *a: simulate(field, *a, h, lambda z_nD: z_nD))
    return np.asarray(run(per_step, jnp.asarray(z_nD)))


def dispersion(states_Tnd: np.ndarray) -> np.ndarray:
    """Return 1 - |mean direction|^2 [T]: 0 if aligned, 1 if directions cancel out."""
    return 1 - np.square(directions(states_Tnd).mean(1)).sum(-1)


def num_clusters(states_Tnd: np.ndarray) -> np.ndarray:
    """Count the clusters of tokens at each time [T].

    Two tokens are linked if their directions are closer than `THRESHOLD`; a cluster is
    a connected component.
    """
    u = directions(states_Tnd)
    distances = np.linalg.norm(u[:, :, None] - u[:, None], axis=-1)
    linked = distances < THRESHOLD
    for _ in range(int(np.ceil(np.log2(max(2, u.shape[1]))))):
        linked = np.matmul(linked, linked)
    first = linked.argmax(-1)  # the lowest token index in each token's cluster
    return (first == np.arange(u.shape[1])).sum(-1)


def in_three(states_Tnd: np.ndarray) -> np.ndarray:
    """Project the states onto their three principal axes [T, n, 3], if d > 3."""
    if states_Tnd.shape[-1] == 3:
        return states_Tnd
    flat = states_Tnd.reshape(-1, states_Tnd.shape[-1])
    centred = flat - flat.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:3]
    return (centred @ axes.T).reshape(*states_Tnd.shape[:2], -1)


_MODEL = "model"


def analyze(
    trained, folder: Path, *, num_seeds: int = 5, num_times: int | None = None
) -> list[dict]:
    """Write ways.npz, clustering.json, ways.png (first seed) and clusters.png."""
    runs = {
        f"degree {degree}": [grown(s, degree) for s in range(num_seeds)]
        for degree in DEGREES
    } | {_MODEL: _of_model(trained, num_seeds, num_times)}
    trajectories = {name: in_three(states[0]) for name, states in runs.items()}
    metrics = {
        name: {
            "clusters": over_sentences([num_clusters(s) for s in states]),
            "dispersion": over_sentences([dispersion(s) for s in states]),
        }
        for name, states in runs.items()
    }
    settings = {
        "tokens": NUM_TOKENS,
        "seeds": num_seeds,
        "threshold": THRESHOLD,
        "step size": STEP_SIZE,
    }
    np.savez(folder / "ways.npz", **trajectories)
    write_json(folder / "clustering.json", settings | {"over time": metrics})
    names = {**{n: n for n in runs}, _MODEL: f"heads of {trained.name}"}
    _plot_trajectories(folder / "ways.png", trajectories, names)
    _plot_clusters(folder / "clusters.png", metrics, names)
    return [
        {"weights": names[name]}
        | {f"{key} at the end": x["mean"][-1] for key, x in run_metrics.items()}
        for name, run_metrics in metrics.items()
    ]


def _of_model(trained, num_seeds: int, num_times: int | None) -> list[np.ndarray]:
    """Simulate the model from the embeddings of random tokens, once per seed."""
    c = trained.config
    weights = trained.weights_at(trained.times(num_times))
    products = spectra.products(c, weights)
    token_VD = trained.outer["embedding"]["token"][: trained.tokenizer.vocab_size]
    states = []
    for seed in range(num_seeds):
        sampled = np.random.default_rng(seed).integers(len(token_VD), size=NUM_TOKENS)
        states.append(of_model(c, weights, products, token_VD[sampled]))
    return states


def _plot_trajectories(path: Path, trajectories: dict, names: dict) -> None:
    shape = {"nrows": 2, "ncols": -(-len(trajectories) // 2)}
    with plotting.saved_figure(
        path, (12, 8), subplot_kw={"projection": "3d"}, **shape
    ) as g:
        for axes, (name, trajectory_Tn3) in zip(
            g.flat, trajectories.items(), strict=True
        ):
            for token_T3 in np.swapaxes(trajectory_Tn3, 0, 1):
                axes.plot(*token_T3.T, color="0.7", linewidth=0.5)
            axes.scatter(
                *trajectory_Tn3[0].T, color="0.5", marker="^", s=8, label="start"
            )
            axes.scatter(
                *trajectory_Tn3[-1].T, color="black", marker="o", s=12, label="end"
            )
            axes.set_title(names[name], fontsize=9)
            axes.tick_params(labelsize=6)
            axes.set(xlabel="axis 1", ylabel="axis 2", zlabel="axis 3")
        g.flat[0].legend(fontsize=7)


def _plot_clusters(path: Path, metrics: dict, names: dict) -> None:
    labels = {
        "clusters": "number of clusters (of 40 tokens)",
        "dispersion": "1 - |mean direction|$^2$",
    }
    with plotting.saved_figure(path, (11, 4), ncols=2) as panels:
        for axes, (key, label) in zip(panels, labels.items(), strict=True):
            for style, (name, run_metrics) in zip(
                plotting.STYLES, metrics.items(), strict=True
            ):
                mean = run_metrics[key]["mean"]
                times = np.linspace(0, 1, len(mean))
                every = max(1, len(mean) // 8)
                axes.plot(times, mean, style, markevery=every, label=names[name])
            axes.set(xlabel="time (fraction of the interval)", ylabel=label)
            axes.grid(alpha=0.3)
        panels[0].set_yscale("log")
        panels[1].legend(fontsize=8)
