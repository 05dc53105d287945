"""The llama block with euler, in the format of `Cohere2MoeForCausalLM`.

This is the family of transformers whose layers add attention and feed-forward at once,
x + attention(norm(x)) + feed_forward(norm(x)), with RMSNorm and SwiGLU, if all of its
layers are dense. One norm serves both terms, so an export folds our scales into the
kernels that follow. Rotary embeddings rotate neighbours, not halves: queries and keys
are permuted.
"""

from collections.abc import Mapping

import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.hf_settings import expect
from diffeq_former.conversion.llama import MODULES, family, read_bias
from diffeq_former.errors import UserError

_AFTER_NORM = {"norm_1": ("query", "key", "value"), "norm_2": ("gate", "up")}


def _read(given: Mapping) -> dict:
    expect({"logit_scale": 0.0625} | dict(given), "logit_scale", 1.0)
    expect(given, "prefix_dense_sliding_window_pattern", 1)
    for name, kind in (("layer_types", "full_attention"), ("mlp_layer_types", "dense")):
        if set(given.get(name) or [None]) != {kind}:
            raise UserError(f"{name}: only {kind!r} is supported, for all layers")
    if given.get("rms_norm_eps") is None:
        raise UserError("rms_norm_eps: expected a number, as our norm is RMSNorm")
    return {"solver": "euler", **read_bias(given)}


def _write(c: ModelConfig) -> dict:
    return {
        "logit_scale": 1.0,
        "layer_types": ["full_attention"] * c.num_layers,
        "mlp_layer_types": ["dense"] * c.num_layers,
        "prefix_dense_intermediate_size": c.ff_dim,
        "prefix_dense_sliding_window_pattern": 1,
        "sliding_window": c.max_len,  # of no layer, but transformers needs a number
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "num_shared_experts": 0,
        "pad_token_id": None,
    }


def _to_theirs(c: ModelConfig, weights: dict) -> dict:
    """Fold the scales of the norms into the kernels that follow; see `_permuted`."""
    folded = dict(weights)
    for norm, followers in _AFTER_NORM.items():
        scale_LD = weights[norm]["scale"]
        folded[norm] = {"scale": np.ones_like(scale_LD)}
        for name in followers:
            kernel = weights[name]["kernel"]
            axes = (*scale_LD.shape, *[1] * (kernel.ndim - 2))
            scaled = kernel * scale_LD.reshape(axes)
            folded[name] = weights[name] | {"kernel": scaled}
    neighbours_H = np.arange(c.head_size).reshape(2, -1).T.ravel()
    return _permuted(folded, neighbours_H)


def _to_ours(c: ModelConfig, weights: dict) -> dict:
    halves_H = np.arange(c.head_size).reshape(-1, 2).T.ravel()
    return _permuted(weights, halves_H)


def _permuted(weights: dict, order_H: np.ndarray) -> dict:
    """Permute the entries of each query and key."""
    permuted = {
        name: {key: x[..., order_H] for key, x in weights[name].items()}
        for name in ("query", "key")
    }
    return weights | permuted


COHERE2_MOE = family(
    "Cohere2Moe",
    "cohere2_moe",
    _read,
    _write,
    head_dim=128,
    modules=MODULES | dict.fromkeys(_AFTER_NORM, "input_layernorm"),
    to_theirs=_to_theirs,
    to_ours=_to_ours,
)
