"""A transformer in steps over depth that are not GPT-2's or Llama's, for transformers.

Needs PyTorch and transformers, not JAX, and no other file of code. Load the folder it
lies in with `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

With `euler` a step adds both terms of the field at once, x + h (attention(x) +
feed_forward(x)) (Tong et al. 2025, arXiv 2503.01329); `strang` takes half of the
feed-forward before and half after the attention.

B batch, L length, D model, N heads, K key-value heads, H head, h half of it.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

_RELEASED_EPS = 1e-6  # of the norms of a llama with `chain_norms`


class DiffEqFormerConfig(PretrainedConfig):
    model_type = "diffeq_former"
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_len",
    }

    def __init__(
        self,
        block="gpt",
        solver="euler",
        horizon=1.0,
        num_layers=12,
        d_model=768,
        num_heads=12,
        num_kv_heads=12,
        d_ff=3072,
        vocab_size=50257,
        max_len=1024,
        tied_head=False,
        norm_eps=1e-5,
        chain_norms=False,
        rope_base=10000.0,
        rope_scaling="none",
        rope_factor=1.0,
        rope_original_len=8192,
        rope_low_turns=1.0,
        rope_high_turns=4.0,
        **kwargs,
    ):
        given = {k: v for k, v in locals().items() if k not in ("self", "kwargs")}
        for name, value in given.items():
            if not name.startswith("__"):
                setattr(self, name, value)
        super().__init__(tie_word_embeddings=False, **kwargs)


class DiffEqFormerForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = DiffEqFormerConfig
