"""Induction heads, measured on repeated random sequences, beside their eigenvalues.

An induction head completes A B ... A by B: it attends to the token after an earlier
occurrence of the current one and raises that token's logit (Olsson et al.,
2022, "In-context learning and induction heads"). Both are measured for each head at
each solver step. Eigenvalues are said to show both from the weights alone (Elhage et
al., 2021, "A mathematical framework for transformer circuits"; paper, 5.1).

L and J sequence length, R length of the repeated part, K reference tokens, D model
width, V vocabulary, N heads, H head size, T grid steps.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.analysis import depth, induction_plots, spectra
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import correlation_interval
from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.transformer import Transformer

NUM_SEQUENCES = 20
MAX_REPEAT = 50  # tokens
NUM_REFERENCE = 256  # tokens with which the copied ones are compared

# Pairs of a score and a statistic of the eigenvalues whose ranks are compared.
COMPARED = (
    ("prefix_matching", "qk_positive_share"),
    ("prefix_matching", "qk_sum"),
    ("prefix_matching", "least_positive_share"),
    ("copying", "ov_positive_share"),
    ("copying", "ov_sum"),
    ("copying", "full_ov_sum"),
)


@functools.partial(jax.jit, static_argnums=0)
def observe(c: ModelConfig, table: dict, outer: dict, ids_L, reference_K) -> tuple:
    """Return what each head attends to and writes, at the first stage of each step.

    Args:
      c: The model's config.
      table: Weight table, arrays with leading axes [T, S].
      outer: The parameters outside the integration.
      ids_L: Token ids.
      reference_K: Ids of other tokens, with whose logits those of ids_L are compared.

    Returns:
      The attention weights [T, N, L, L], and the ranks of logits [T, N, L, L], from 0
      (lowest) to 1. Entry (i, j) of the latter belongs to the token at position j: the
      share of other reference tokens to which the head's output at position i gives a
      lower logit, where equal logits count half. The logits are those of the output
      alone, after the final norm, without biases of the output projection and the norm.
    """
    states_TLD = depth.states(c, table, depth.embed(c, outer, ids_L))
    unembedding_DV = Transformer(c).apply({"params": outer}, method="unembedding")

    def ranks(weights_and_x):
        weights, x_LD = weights_and_x
        y_NLD = _final_norm_of(c, outer, _outputs_of_heads(c, weights, x_LD))
        logits_NLJ1 = (y_NLD @ unembedding_DV[:, ids_L])[..., None]
        logits_NL1K = (y_NLD @ unembedding_DV[:, reference_K])[..., None, :]
        is_lower = (logits_NL1K < logits_NLJ1) + 0.5 * (logits_NL1K == logits_NLJ1)
        is_other_JK = ids_L[:, None] != reference_K[None]
        lower_NLJ = jnp.where(is_other_JK[None, None], is_lower, 0).sum(-1)
        return lower_NLJ / is_other_JK.sum(-1)[None, None]

    first = jax.tree.map(lambda w: w[:, 0], table)
    ranks_TNLL = jax.lax.map(ranks, (first, states_TLD[:-1]))
    return depth.attention_maps(c, table, states_TLD), ranks_TNLL


def _outputs_of_heads(c: ModelConfig, weights: dict, x_LD) -> jax.Array:
    """Return what each head adds to the attention term [N, L, D]."""
    positions_BL = jnp.arange(len(x_LD))[None]

    def through(heads_11N1):
        def attend(q_BLNH, k_BLKH, v_BLKH):
            return depth.attend(q_BLNH, k_BLKH, v_BLKH) * heads_11N1

        block = BLOCKS[c.block]
        return block.attention(c, weights, x_LD[None], positions_BL, attend)[0]

    each_N11N1 = jnp.eye(c.num_heads)[:, None, None, :, None]
    bias_NLD = jax.vmap(through)(jnp.zeros_like(each_N11N1))
    return jax.vmap(through)(each_N11N1) - bias_NLD


def _final_norm_of(c: ModelConfig, outer: dict, x_NLD) -> jax.Array:
    """Apply the final norm without its shift, which is the norm of zero."""

    def apply(module):
        block, weights = BLOCKS[c.block], module.final_norm()
        zero_NLD = jnp.zeros_like(x_NLD)
        return block.final_norm(weights, x_NLD, c.norm_eps) - block.final_norm(
            weights, zero_NLD, c.norm_eps
        )

    return Transformer(c).apply({"params": outer}, method=apply)


def prefix_matching(maps_TNLL: np.ndarray, repeat: int) -> np.ndarray:
    """Return the prefix-matching score of each head at each step [T, N].

    In a sequence that ends with R tokens repeated once, it is the average attention
    weight of position i on position i - R + 1, the one after the earlier occurrence of
    token i, over the second occurrences.
    """
    L = maps_TNLL.shape[-1]
    queries = np.arange(L - repeat, L)
    return np.asarray(maps_TNLL[..., queries, queries - repeat + 1], float).mean(-1)


def copying(maps_TNLL: np.ndarray, ranks_TNLL: np.ndarray, repeat: int) -> np.ndarray:
    """Return the copying score of each head at each step [T, N].

    It is the mean rank, see `observe`, of the logits of the tokens that the head
    attends to, weighted by the attention, over the last `repeat` positions. It is 1 if
    the head raises them above all others, 0 if it lowers them below, and 1/2 on
    average if they have nothing to do with its output.
    """
    weighted_TNLL = np.asarray(maps_TNLL, float) * np.asarray(ranks_TNLL)
    return weighted_TNLL[..., -repeat:, :].sum(-1).mean(-1)


def eigenvalue_statistics(c: ModelConfig, table: dict, outer: dict) -> dict:
    """Return statistics of each head's eigenvalues at each step's first stage [T, N].

    Returns:
      Arrays by name:
      `qk_positive_share`, `ov_positive_share`: share of positive real parts.
      `least_positive_share`: the smaller of the two, which is large where both are.
      `qk_sum`, `ov_sum`: `spectra.signed_sum` of these products.
      `full_ov_sum`: the same of the circuit from tokens to logits, W_E OV W_U.
    """
    first = {
        name: {"kernel": table[name]["kernel"][:, 0]}
        for name in spectra.attention_names(c)
    }
    factors = spectra.attention_products(c, first)
    v_TNDH, o_TNHD = factors["ov"]
    unembedding_DV = Transformer(c).apply({"params": outer}, method="unembedding")
    # The nonzero eigenvalues of W_E V O W_U, which is [V, V], are those of O G V.
    g_DD = np.asarray(unembedding_DV, float) @ outer["embedding"]["token"]
    qk, ov = (spectra.eigenvalues(factors[name]) for name in ("qk", "ov"))
    full_ov = spectra.eigenvalues((v_TNDH, o_TNHD @ g_DD))
    shares = [spectra.positive_share(found) for found in (qk, ov)]
    return {
        "qk_positive_share": shares[0],
        "ov_positive_share": shares[1],
        "least_positive_share": np.minimum(*shares),
        "qk_sum": spectra.signed_sum(qk),
        "ov_sum": spectra.signed_sum(ov),
        "full_ov_sum": spectra.signed_sum(full_ov),
    }


class Sample(NamedTuple):
    """Start tokens followed by R random tokens and, in `repeated`, the same again."""

    repeat: int  # R
    repeated: list[np.ndarray]  # ids_L of each sequence
    unrepeated: list[np.ndarray]  # the second R tokens are sampled anew
    reference_K: np.ndarray  # random tokens, see `observe`


def sample(trained) -> Sample:
    """Sample tokens from the vocabulary of a model, each with the same probability.

    Raises:
      UserError: If the model's context has no room for two tokens, repeated.
    """
    start, vocab_size = trained.tokenizer.before, trained.tokenizer.vocab_size
    most = trained.config.max_len
    repeat = min(MAX_REPEAT, (most - len(start)) // 2, vocab_size)
    if repeat < 2:
        raise UserError(
            f"{trained.name} reads at most {most} tokens: induction needs a context of"
            f" at least {len(start) + 4}"
        )
    random = np.random.default_rng(0)

    def distinct(count: int) -> np.ndarray:
        return random.choice(vocab_size, count, replace=False)

    halves = [(distinct(repeat), distinct(repeat)) for _ in range(NUM_SEQUENCES)]
    return Sample(
        repeat,
        [np.array([*start, *first, *first]) for first, _ in halves],
        [np.array([*start, *first, *other]) for first, other in halves],
        distinct(min(NUM_REFERENCE, vocab_size)),
    )


def analyze(trained, folder: Path, *, beside=None) -> list[dict]:
    """Write induction.json, scores.png and eigenvalues.png.

    The rows have, for each pair in `COMPARED`, the rank correlation over all heads and
    steps with its 95 % confidence interval, and the head with the largest score.
    """
    models = {"run": trained} | ({} if beside is None else {"beside": beside})
    found = {role: _of_model(model) for role, model in models.items()}
    write_json(folder / "induction.json", found)
    induction_plots.plot_scores(folder / "scores.png", found)
    induction_plots.plot_against_eigenvalues(folder / "eigenvalues.png", found)
    return [row for role, summary in found.items() for row in _rows(role, summary)]


def _of_model(trained) -> dict:
    c, table, outer = trained.config, trained.table, trained.outer
    sampled = sample(trained)
    scores = {name: [] for name in ("prefix_matching", "copying", "without_repeat")}
    for ids_L, other_L in zip(sampled.repeated, sampled.unrepeated, strict=True):
        maps, ranks = observe(c, table, outer, ids_L, sampled.reference_K)
        scores["prefix_matching"].append(prefix_matching(maps, sampled.repeat))
        scores["copying"].append(copying(maps, ranks, sampled.repeat))
        maps, _ = observe(c, table, outer, other_L, sampled.reference_K)
        scores["without_repeat"].append(prefix_matching(maps, sampled.repeat))
    scores = {name: np.mean(values, 0) for name, values in scores.items()}
    statistics = eigenvalue_statistics(c, table, outer)
    correlations = {
        f"{score}, {statistic}": correlation_interval(
            scores[score].ravel(), statistics[statistic].ravel()
        )
        for score, statistic in COMPARED
    }
    return {
        "name": trained.name,
        "sequences": NUM_SEQUENCES,
        "repeat": sampled.repeat,
        "scores": scores,
        "eigenvalues": statistics,
        "rank_correlations": correlations,
    }


def _rows(role: str, summary: dict) -> list[dict]:
    rows, scores = [], summary["scores"]
    chance = {"prefix_matching": float(scores["without_repeat"].mean()), "copying": 0.5}
    for score, statistic in COMPARED:
        values_TN = scores[score]
        step, head = np.unravel_index(values_TN.argmax(), values_TN.shape)
        rows.append(
            {"role": role, "run": summary["name"], "score": score}
            | {"chance": chance[score], "mean": float(values_TN.mean())}
            | {"largest": float(values_TN.max())}
            | {"step": int(step) + 1, "head": int(head), "statistic": statistic}
            | summary["rank_correlations"][f"{score}, {statistic}"]
        )
    return rows
