"""PEFT loads our adapters onto Hugging Face models, which then compute what ours do."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import TINY, params_of, tokens_of

from diffeq_former.config import Config, FinetuneConfig, ModelConfig
from diffeq_former.finetuning import adapters
from diffeq_former.models.transformer import Transformer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


def model_of(block: str) -> ModelConfig:
    plain = {"weights": "layer_table", "solver": "lie_trotter"}
    lora = {"lora_rank": 3, "lora_alpha": 6.0}
    heads = {"num_kv_heads": 1} if block == "llama" else {}
    return dataclasses.replace(TINY, block=block, **plain, **lora, **heads)


def matrix(x, num_inputs: int = 1):
    """As [inputs, outputs]."""
    return x.reshape(int(np.prod(x.shape[:num_inputs])), -1)


def gpt2(c: ModelConfig, params: dict):
    settings = transformers.GPT2Config(
        vocab_size=c.vocab_size,
        n_positions=c.max_len,
        n_embd=c.d_model,
        n_layer=c.num_layers,
        n_head=c.num_heads,
        n_inner=c.ff_dim,
        layer_norm_epsilon=c.norm_eps,
    )
    p, state = params["weights"], {}
    state["transformer.wte.weight"] = params["embedding"]["token"]
    state["transformer.wpe.weight"] = params["embedding"]["position"]
    state["lm_head.weight"] = params["embedding"]["token"]
    norms = {"transformer.ln_f": params["final_norm"]}
    for n in range(c.num_layers):
        w = jax.tree.map(lambda x, n=n: x[n], p)
        layer = f"transformer.h.{n}"
        norms |= {f"{layer}.ln_1": w["norm_1"], f"{layer}.ln_2": w["norm_2"]}
        for name, module, num_inputs in (
            ("qkv", "attn.c_attn", 1),
            ("attention_out", "attn.c_proj", 2),
            ("ff_in", "mlp.c_fc", 1),
            ("ff_out", "mlp.c_proj", 1),
        ):
            state[f"{layer}.{module}.weight"] = matrix(w[name]["kernel"], num_inputs)
            state[f"{layer}.{module}.bias"] = w[name]["bias"].reshape(-1)
    for module, norm in norms.items():
        state[f"{module}.weight"] = norm["scale"]
        state[f"{module}.bias"] = norm["shift"]
    return loaded(transformers.GPT2LMHeadModel(settings), state)


def llama(c: ModelConfig, params: dict):
    settings = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.ff_dim,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.kv_heads,
        max_position_embeddings=c.max_len,
        rms_norm_eps=c.norm_eps,
        rope_theta=c.rope_base,
        tie_word_embeddings=False,
    )
    state = {
        "model.embed_tokens.weight": params["embedding"]["token"],
        "model.norm.weight": params["final_norm"]["scale"],
        "lm_head.weight": params["head"]["kernel"].T,
    }
    for n in range(c.num_layers):
        w = jax.tree.map(lambda x, n=n: x[n], params["weights"])
        layer = f"model.layers.{n}"
        state[f"{layer}.input_layernorm.weight"] = w["norm_1"]["scale"]
        state[f"{layer}.post_attention_layernorm.weight"] = w["norm_2"]["scale"]
        for name, module, num_inputs in (
            ("query", "self_attn.q_proj", 1),
            ("key", "self_attn.k_proj", 1),
            ("value", "self_attn.v_proj", 1),
            ("attention_out", "self_attn.o_proj", 2),
            ("gate", "mlp.gate_proj", 1),
            ("up", "mlp.up_proj", 1),
            ("down", "mlp.down_proj", 1),
        ):
            state[f"{layer}.{module}.weight"] = matrix(w[name]["kernel"], num_inputs).T
    return loaded(transformers.LlamaForCausalLM(settings), state)


def loaded(model, state: dict):
    tensors = {name: torch.tensor(np.asarray(x)) for name, x in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and not [name for name in missing if "weight" in name]
    return model.eval()


# PEFT 0.21 asks transformers 5 by a name that it will drop.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("twin", [gpt2, llama])
def test_logits_are_those_of_ours(twin, tmp_path):
    model = model_of("gpt" if twin is gpt2 else "llama")
    config = Config(model=model, finetune=FinetuneConfig(base="base"))
    params, tokens_BL = params_of(model), tokens_of(model)
    adapters.save(tmp_path, config, params)
    expected = jax.jit(Transformer(model).apply)({"params": params}, tokens_BL)
    hugging_face = twin(model, params)
    with torch.no_grad():
        plain = hugging_face(torch.tensor(tokens_BL)).logits.numpy()
        tuned = peft.PeftModel.from_pretrained(hugging_face, tmp_path).eval()
        logits = tuned(torch.tensor(tokens_BL)).logits.numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert np.abs(plain - expected).max() > 0.1
