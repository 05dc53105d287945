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
from diffeq_former.conversion.architecture import Path
from diffeq_former.conversion.hf_settings import expect
from diffeq_former.conversion.llama import MODULES, check_windows, family, read_bias
from diffeq_former.errors import UserError

_ROTATED = ("query", "key")
_AFTER_NORM = {"norm_1": ("query", "key", "value"), "norm_2": ("gate", "up")}


def _read(given: Mapping) -> dict:
    expect({"logit_scale": 0.0625} | dict(given), "logit_scale", 1.0)
    expect(given, "prefix_dense_sliding_window_pattern", 1)
    if set(given.get("mlp_layer_types") or [None]) != {"dense"}:
        raise UserError("mlp_layer_types: only 'dense' is supported, for all layers")
    check_windows({"sliding_window": 4096} | dict(given), in_use=True)
    if given.get("rms_norm_eps") is None:
        raise UserError("rms_norm_eps: expected a number, as our norm is RMSNorm")
    return {"solver": "euler", **read_bias(given)}


def _write(c: ModelConfig) -> dict:
    return {
        "logit_scale": 1.0,
        # In windows as long as a sequence, which is all that llama.cpp reads.
        "layer_types": ["sliding_attention"] * c.num_layers,
        "sliding_window": c.max_len,
        "mlp_layer_types": ["dense"] * c.num_layers,
        "prefix_dense_intermediate_size": c.ff_dim,
        "prefix_dense_sliding_window_pattern": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "num_shared_experts": 0,
        "pad_token_id": None,
    }


def _to_theirs(c: ModelConfig, weights: dict) -> dict:
    """Fold the scales of the norms into the kernels; permute queries and keys."""
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
    permuted = {
        name: {key: x[..., neighbours_H] for key, x in folded[name].items()}
        for name in _ROTATED
    }
    return folded | permuted


def _to_ours(c: ModelConfig, path: Path, array: np.ndarray) -> np.ndarray:
    if path[0] != "weights" or path[1] not in _ROTATED:
        return array
    halves_H = np.arange(c.head_size).reshape(-1, 2).T.ravel()
    return array[..., halves_H]


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
