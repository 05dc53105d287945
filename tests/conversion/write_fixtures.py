"""Writes tests/conversion/fixtures: tiny models of transformers with what they compute.

python tests/conversion/write_fixtures.py    (with the extra hf)

Each folder is as `save_pretrained` leaves it, with a tokenizer and computed.npz:
tokens [2, 24], their float32 logits, a prompt, and the tokens that greedily follow it.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

FIXTURES = Path(__file__).with_name("fixtures")
VOCAB_SIZE, MAX_LEN, NUM_NEW = 61, 24, 8
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def gpt2(**changes) -> GPT2LMHeadModel:
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_inner": 40}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = {"vocab_size": VOCAB_SIZE, "n_positions": MAX_LEN, **sizes, **ends}
    return filled(GPT2LMHeadModel(GPT2Config(**config | changes)))


def llama(**changes) -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2}
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_LEN}
    config |= {"rms_norm_eps": 1e-4, **sizes, **heads, **ends}
    return filled(LlamaForCausalLM(LlamaConfig(**config | changes)))


def filled(model):
    """With random parameters, none of which is zero or one."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        is_scale = ("norm" in name or "ln_" in name) and name.endswith("weight")
        torch.nn.init.normal_(parameter, 1.0 if is_scale else 0.0, 0.3)
    return model.eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """Words; two tokens fewer than the models have."""
    words = ["</s>", "<s>", "<pad>", *(f"w{i}" for i in range(3, VOCAB_SIZE - 2))]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"eos_token": "</s>", "bos_token": "<s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def write(name: str, model, dtype=torch.float32, **options) -> None:
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, **options)
    tokenizer().save_pretrained(folder)
    # Read again: `to` has rounded the rotary frequencies as well.
    exact = type(model).from_pretrained(folder, dtype=torch.float32)
    np.savez(folder / "computed.npz", **computed(exact.eval()))


def computed(model) -> dict[str, np.ndarray]:
    tokens_BL = np.random.default_rng(0).integers(0, VOCAB_SIZE, (2, MAX_LEN))
    prompt_L = np.array([5, 17, 29, 40])
    given = torch.tensor([[0, *prompt_L]])
    with torch.no_grad():
        logits_BLV = model(torch.tensor(tokens_BL)).logits
        told = {"max_new_tokens": NUM_NEW, "do_sample": False, "pad_token_id": 2}
        new = model.generate(given, attention_mask=torch.ones_like(given), **told)
    return {
        "tokens": tokens_BL,
        "logits": logits_BLV.numpy(),
        "prompt": prompt_L,
        "new": new[0, given.shape[1] :].numpy(),
    }


if __name__ == "__main__":
    write("gpt2", gpt2())
    write("llama", llama())
    write("llama3", llama(rope_parameters=LLAMA3, tie_word_embeddings=True))
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    in_parts = {"max_shard_size": "6KB", "dtype": torch.bfloat16}
    write("sharded", llama(rope_parameters=linear), **in_parts)
