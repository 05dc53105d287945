"""The Hugging Face equivalents of our plain transformers, in PyTorch."""

import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from diffeq_former.config import ModelConfig
from diffeq_former.errors import require

# PyTorch's scaled_dot_product_attention, under a name for which transformers creates no
# mask. For "sdpa" it creates one under torch.compile before PyTorch 2.14, which rules
# out the fastest kernels: they support causal attention, but no mask.
_ATTENTION = "sdpa_without_mask"


def make_model(c: ModelConfig, vocab_size: int) -> transformers.PreTrainedModel:
    """Return GPT-2 or Llama with random float32 parameters on torch's default device.

    Raises:
      UserError: For settings that the model in transformers does not support.
    """
    _require_known(c)
    transformers.AttentionInterface.register(_ATTENTION, sdpa_attention_forward)
    model_class, config = {"gpt": _gpt2, "llama": _llama}[c.block](c)
    config.update({"vocab_size": vocab_size, "use_cache": False})
    config.update({"bos_token_id": None, "eos_token_id": None})
    made = model_class.config_class(**config, attn_implementation=_ATTENTION)
    return model_class(made).train()


def _gpt2(c: ModelConfig) -> tuple[type, dict]:
    return transformers.GPT2LMHeadModel, {
        "n_positions": c.max_len,
        "n_embd": c.d_model,
        "n_layer": c.num_layers,
        "n_head": c.num_heads,
        "n_inner": c.ff_dim,
        "layer_norm_epsilon": c.norm_eps,
        "embd_pdrop": c.dropout,
        "resid_pdrop": c.dropout,
        "attn_pdrop": c.attention_dropout,
        "tie_word_embeddings": True,
    }


def _llama(c: ModelConfig) -> tuple[type, dict]:
    return transformers.LlamaForCausalLM, {
        "max_position_embeddings": c.max_len,
        "hidden_size": c.d_model,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.kv_heads,
        "intermediate_size": c.ff_dim,
        "rms_norm_eps": c.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_base},
        "attention_dropout": c.attention_dropout,
        "tie_word_embeddings": False,
    }


def _require_known(c: ModelConfig) -> None:
    theirs = ModelConfig()
    for field in (
        *("chain_norms", "document_masking", "tied_head", "stabilisers"),
        *("qk_norm", "activation", "logit_softcap", "head_dim", "attention_bias"),
    ):
        value, expected = getattr(c, field), getattr(theirs, field)
        wanted = f"{expected}, as in transformers"
        require(value == expected, f"model.{field}", wanted, value)
    expected = "none, as this benchmark knows no other"
    require(c.rope_scaling == "none", "model.rope_scaling", expected, c.rope_scaling)
    if c.block == "llama":
        expected = "0, as the Llama of transformers has none"
        require(c.dropout == 0, "model.dropout", expected, c.dropout)
