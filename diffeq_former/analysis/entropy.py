"""Entropy of the logit lens over depth (Entropy-Lens, arXiv 2502.16570).

L sequence length, D model width, V vocabulary, T grid steps.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.analysis import depth, plotting
from diffeq_former.analysis.loaded_model import depths, sentence_states
from diffeq_former.analysis.plotting import plot_over_depth
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import over_sentences
from diffeq_former.analysis.token_heatmap import label_tokens
from diffeq_former.config import ModelConfig


@functools.partial(jax.jit, static_argnums=0)
def entropies(c: ModelConfig, outer: dict, states_TLD: jax.Array) -> jax.Array:
    """Return the entropy in nats of the prediction from each state [T + 1, L].

    H = -sum p log p with p = softmax(W norm(x)), where norm is the final norm and W the
    head; at most log V.
    """

    def entropy_of(x_LD):
        log_p_LV = jax.nn.log_softmax(depth.logits(c, outer, x_LD))
        return -(jnp.exp(log_p_LV) * log_p_LV).sum(-1)

    return jax.lax.map(entropy_of, states_TLD)


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Write entropy.json (per token and averaged) and entropy.png."""
    per_sentence = [
        np.asarray(
            entropies(trained.config, trained.outer, sentence_states(trained, s))
        )
        for s in sentences
    ]
    times, averaged = depths(trained), [x.mean(1) for x in per_sentence]
    summary = over_sentences(averaged)
    measured = [
        {"text": s.text, "tokens": s.tokens, "entropy": x}
        for s, x in zip(sentences, per_sentence, strict=True)
    ]
    numbers = {"unit": "nats", "times": times, "mean": summary, "sentences": measured}
    write_json(folder / "entropy.json", numbers)
    _plot(folder / "entropy.png", times, measured[0], summary)
    return [
        {"time": float(t), "entropy": float(mean), "sentences": len(sentences)}
        for t, mean in zip(times, summary["mean"], strict=True)
    ]


def _plot(path: Path, times, first: dict, summary: dict) -> None:
    width = max(9.6, 5 + 0.3 * len(first["tokens"]))
    with plotting.saved_figure(path, (width, 4), ncols=2) as (left, right):
        plot_over_depth(left, times, summary["mean"], summary)
        left.set_ylabel("entropy of the logit lens (nats)")
        left.legend()
        image = right.imshow(
            first["entropy"], aspect="auto", origin="lower", cmap=plotting.COLORMAP
        )
        label_tokens(right.xaxis, first["tokens"])
        plotting.integer_ticks(right.yaxis)
        right.set(xlabel="token of the first sentence", ylabel="solver steps taken")
        right.figure.colorbar(image, ax=right, label="entropy (nats)")
