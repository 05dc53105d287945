"""Sensitivity of the prediction at the last token to each token of a text.

The measures are Lyapunov exponents (paper, eq. 7 and 8), influence through all tokens,
attention rollout and gradient x input.

L sequence length, D model width, K exponents, N heads, T grid steps, V vocabulary.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.analysis import depth, lyapunov, token_heatmap
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import interval, rank_correlation
from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.json_io import plain


@jax.jit
def rollout(maps_TNLL: jax.Array, last) -> jax.Array:
    """Return the attention rollout of one token [L], which sums to one.

    It is the product over depth of (mean over heads + identity) / 2 (Abnar and Zuidema
    2020, arXiv 2005.00928).
    """
    L = maps_TNLL.shape[-1]
    mixed_TLL = (maps_TNLL.mean(1) + jnp.eye(L)[None]) / 2
    row_L, _ = jax.lax.scan(
        lambda row_L, mixed_LL: (row_L @ mixed_LL, None),
        jnp.zeros(L).at[last].set(1.0),
        mixed_TLL,
        reverse=True,
    )
    return row_L


@functools.partial(jax.jit, static_argnums=0)
def gradient_x_input(
    c: ModelConfig, outer: dict, table: dict, x_LD: jax.Array, last
) -> jax.Array:
    """Return gradient x input for the logit of the likeliest next token [L].

    The input is the state x_LD before the first step.
    """

    def largest_logit(x_LD):
        at_end_LD = depth.states(c, table, x_LD)[-1]
        return depth.logits(c, outer, at_end_LD)[last].max()

    return (jax.grad(largest_logit)(x_LD) * x_LD).sum(-1)


ROWS = {
    "attention": "exponent, attention field (eq. 7)",
    "whole": "exponent, whole field (eq. 7)",
    "influence": "influence through all tokens",
    "rollout": "attention rollout",
    "gradient_x_input": "|gradient x input|",
}
_EXPONENTS = ("attention", "whole")
_MULTIPLE = 16  # sentences are padded to multiples of it, to compile fewer shapes
_MAX_PROBES = 32


def analyze(trained, folder: Path, *, sentences, num_exponents: int = 3) -> list[dict]:
    """Write lyapunov.json (per sentence and averaged), tokens.html and tokens.png.

    Raises:
      UserError: If `num_exponents` exceeds the model's d_model.
    """
    if num_exponents > trained.config.d_model:
        raise UserError(
            f"--num_exponents={num_exponents}: expected at most the model's d_model,"
            f" {trained.config.d_model}"
        )
    measured = [_measure(trained, s, num_exponents) for s in sentences]
    summary = _summary(measured)
    unit = f"1 / interval of depth (interval {trained.config.interval:g})"
    numbers = {"unit": unit, "summary": summary, "sentences": measured}
    write_json(folder / "lyapunov.json", numbers)
    first = [plain(leading(sentence)) for sentence in measured]
    title = f"{trained.name}: sensitivity of the next-token prediction"
    token_heatmap.write_page(folder / "tokens.html", title, first, ROWS)
    token_heatmap.plot(folder / "tokens.png", first, ROWS)
    return [{"measure": name} | statistics for name, statistics in summary.items()]


def _measure(trained, sentence, num_exponents: int) -> dict:
    length = len(sentence.ids)
    states_TLD = padded_states(trained, sentence.ids)
    whole = (trained.config, trained.table, states_TLD, length)
    return {
        "text": sentence.text,
        "tokens": sentence.tokens,
        "predicted": trained.tokenizer.decode(
            [likeliest(trained, states_TLD, length - 1)]
        ),
        **per_token(trained, states_TLD, length - 1, num_exponents),
        "coupled": {
            field: np.asarray(lyapunov.coupled(*whole, field, num_exponents))
            for field in depth.FIELDS
        },
    }


def padded(trained, ids) -> np.ndarray:
    """Pad the ids of a sentence to one of a few lengths, so that few are compiled for.

    Attention is causal, so padding affects no earlier token.
    """
    length = min(trained.config.max_len, -(-len(ids) // _MULTIPLE) * _MULTIPLE)
    return np.pad(ids, (0, length - len(ids)))


def padded_states(trained, ids) -> jax.Array:
    """Return the states of a padded sentence, before and after all steps [T + 1, L, D].

    See `padded`.
    """
    c = trained.config
    x_LD = depth.embed(c, trained.outer, padded(trained, ids))
    return depth.states(c, trained.table, x_LD)


def per_token(trained, states_TLD, last: int, num_exponents: int) -> dict:
    """Return the measures named in `ROWS`, of the tokens up to `last`.

    The prediction is that of the token `last`.

    Returns:
      An array [last + 1] for each measure, [last + 1, K] for exponents.
    """
    c, outer, table = trained.config, trained.outer, jax.device_put(trained.table)
    along = (c, table, states_TLD, last)
    maps_TNLL = depth.attention_maps(c, table, states_TLD)
    probes = min(_MAX_PROBES, c.d_model)
    measures = {
        field: lyapunov.token_to_token(*along, field, num_exponents)
        for field in depth.FIELDS
    } | {
        "influence": lyapunov.influence(*along, "whole", probes),
        "rollout": rollout(maps_TNLL, last),
        "gradient_x_input": gradient_x_input(c, outer, table, states_TLD[0], last),
    }
    return {name: np.asarray(x)[: last + 1] for name, x in measures.items()}


def likeliest(trained, states_TLD, last: int) -> int:
    """Return the id of the likeliest next token after the token `last`."""
    logits_LV = depth.logits(trained.config, trained.outer, states_TLD[-1])
    return int(logits_LV[last, : trained.tokenizer.vocab_size].argmax())


def leading(sentence: dict) -> dict:
    """Reduce to one value per token: the largest exponent, the absolute gradient."""
    return sentence | {
        "gradient_x_input": abs(sentence["gradient_x_input"]),
        **{field: sentence[field].max(-1) for field in _EXPONENTS},
    }


def _summary(measured: list[dict]) -> dict[str, dict]:
    """Average over the sentences, with 95 % confidence intervals."""
    reduced, summary = [leading(sentence) for sentence in measured], {}
    for field in _EXPONENTS:
        summary |= {
            f"{field}: leading exponent, token on itself": interval(
                [s[field][-1] for s in reduced]
            ),
            f"{field}: leading exponent, mean over earlier tokens": interval(
                [s[field][:-1].mean() for s in reduced]
            ),
            f"{field}: leading exponent, coupled system": interval(
                [s["coupled"][field].max() for s in measured]
            ),
        }
        for other in ROWS.keys() - {field}:
            correlations = [rank_correlation(s[field], s[other]) for s in reduced]
            key = f"{field}: rank correlation with {other}"
            summary[key] = interval(correlations)
    return dict(sorted(summary.items()))
