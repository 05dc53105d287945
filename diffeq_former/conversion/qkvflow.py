"""Import of parameters of the paper's released code (qkvflow).

The file is an npz without pickles: `meta`, a JSON string, and one array `param/PATH`
for each parameter, in the axis order of that code. Linear weights are [inputs,
outputs]; norm banks are [D, E], while ours have E first.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flax.traverse_util import unflatten_dict

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError, require_finite

_BLOCK = "transformer/block/"
_MATRIX = {"bank": "f_W/weight", "base": "f_W/bias"}
_LINEAR = {"gpt": _MATRIX | {"bias_bank": "f_b"}, "llama": _MATRIX}
_NORM = {"scale_bank": "f_weight", "shift_bank": "f_bias"}
_TIME_MLP = {
    "kernel_1": "lin1/weight",
    "bias_1": "lin1/bias",
    "kernel_2": "lin2/weight",
    "bias_2": "lin2/bias",
}
# Our names of linear layers and norms -> their modules, in the order of our block.
_MODULES = {
    "gpt": {
        "norm_1": "attn_ln",
        "qkv": "attn/c_attn",
        "attention_out": "attn/c_proj",
        "norm_2": "mlp_ln",
        "ff_in": "mlp/c_fc",
        "ff_out": "mlp/c_proj",
    },
    "llama": {
        "norm_1": "input_layernorm",
        "query": "self_attn/q_proj",
        "key": "self_attn/k_proj",
        "value": "self_attn/v_proj",
        "attention_out": "self_attn/o_proj",
        "norm_2": "post_attention_layernorm",
        "gate": "mlp/gate_proj",
        "up": "mlp/up_proj",
        "down": "mlp/down_proj",
    },
}
_ENDS = {
    "gpt": {
        ("final_norm", "scale"): "transformer/ln_f/weight",
        ("final_norm", "shift"): "transformer/ln_f/bias",
        ("embedding", "token"): "embeddings/token_embeddings",
        ("embedding", "position"): "embeddings/position_embeddings",
    },
    "llama": {
        ("final_norm", "scale"): "transformer/norm/weight",
        ("embedding", "token"): "embeddings/token_embeddings",
        ("head", "kernel"): "lm_head/weight",
    },
}


def load(path: str | Path) -> tuple[ModelConfig, dict]:
    """Read a file of the released code's parameters.

    Returns:
      The config with which the model computes what the released code does, in float32,
      and the parameters for `Transformer(config).apply({"params": params}, tokens)`.

    Raises:
      UserError: If the file does not have this format, or a parameter is missing or
        unknown.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            arrays = {k[6:]: file[k] for k in file.files if k.startswith("param/")}
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: not an npz of the released code's parameters ({error})"
        ) from error
    for name, array in arrays.items():
        require_finite(path, name, array)
    return _config(meta), convert(meta["kind"], arrays)


def convert(kind: str, arrays: Mapping[str, np.ndarray]) -> dict:
    """Convert arrays, named by the released code's paths, to our parameter tree.

    The arrays are only renamed, stacked and transposed, so gradients can be converted
    as well.

    Args:
      kind: The block, gpt or llama.
      arrays: The arrays by path.

    Raises:
      UserError: If a parameter is missing or unknown.
    """
    unread = dict(arrays)

    def take(path: str) -> np.ndarray:
        try:
            return unread.pop(path)
        except KeyError:
            raise UserError(f"{path}: this parameter of {kind} is missing") from None

    params = {key: take(path) for key, path in _ENDS[kind].items()}
    for unit, module in _MODULES[kind].items():
        module = _BLOCK + module
        if unit.startswith("norm"):
            for name, path in _NORM.items():
                params["weights", unit, name] = take(f"{module}/{path}").T
        else:
            for name, path in _LINEAR[kind].items():
                params["weights", unit, name] = take(f"{module}/{path}")
    for name, path in _TIME_MLP.items():
        mlps = [take(f"{_BLOCK}{module}/{path}") for module in _MODULES[kind].values()]
        params["weights", "time_mlp", name] = np.stack(mlps)
    if unread:
        raise UserError(f"{min(unread)}: {kind} has no such parameter")
    return unflatten_dict(params)


def _config(meta: dict) -> ModelConfig:
    return ModelConfig(
        block=meta["kind"],
        num_layers=meta["num_layers"],
        d_model=meta["hidden"],
        num_heads=meta["heads"],
        d_ff=meta["intermediate"] or 0,
        vocab_size=meta["vocab"],
        max_len=meta["seq"],
        time_embed_dim=meta["time_embed_dim"],
        num_frequencies=meta["sinusoidal_dim"],
        initialization="authors",
        dtype="float32",
        norm_eps=meta["eps"],
        chain_norms=meta["kind"] == "llama",
    )
