"""Foreign and damaged folders: one line each, and nothing is written."""

import json

import numpy as np
import pytest
from cases import mesh_of
from hf_fixtures import copied, edit
from safetensors.numpy import load_file, save_file

from diffeq_former.config import MeshConfig
from diffeq_former.conversion import hf_folder
from diffeq_former.conversion.import_run import import_run
from diffeq_former.errors import UserError

COHERE = {"model_type": "cohere2_moe", "architectures": None}
NEOX = {"model_type": "gpt_neox", "architectures": None, "rope_parameters": None}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4}


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("gpt2", {"model_type": "bert"}, "model_type: expected that of GPT2LMHead"),
        ("gpt2", {"model_type": None}, "model_type: expected that of GPT2LMHeadModel"),
        ("gpt2", {"architectures": ["GPT2Model"]}, "architectures: expected one of"),
        ("gpt2", {"activation_function": "relu"}, "activation_function: only 'gelu_"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "only False is supported"),
        ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings: only True is"),
        (
            "gpt2",
            {"n_layer": None},
            "n_layer: expected a number of 1 or more, got None",
        ),
        ("gpt2", {"n_embd": "16"}, "n_embd: expected a number of 1 or more, got '16'"),
        (
            "gpt2",
            {"layer_norm_epsilon": "x"},
            "model.norm_eps: expected float, got 'x'",
        ),
        ("llama", {"hidden_act": "relu"}, "hidden_act: only 'silu' or 'swish' or"),
        ("llama", NEOX | {"attention_bias": False}, "attention_bias: only True is"),
        (
            "llama",
            NEOX | {"rotary_pct": 0.3, "attention_bias": True, "hidden_act": "gelu"},
            "model.rope_fraction=0.3 of a head of 4",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor: only 1 is supported, got 0.5",
        ),
        (
            "llama",
            {"model_type": "mistral", "architectures": None, "sliding_window": 7},
            "sliding_window: expected none, or at least max_position_embeddings (24), "
            "got 7; lower max_position_embeddings to it",
        ),
        ("llama", COHERE, "logit_scale: only 1.0 is supported, got 0.0625"),
        ("llama", COHERE | {"logit_scale": 1}, "mlp_layer_types: only 'dense' is supp"),
        (
            "llama",
            COHERE
            | {"logit_scale": 1, "mlp_layer_types": ["dense"], "sliding_window": 7},
            "sliding_window: expected none, or at least max_position_embeddings (24), "
            "got 7; lower max_position_embeddings to it",
        ),
        ("llama", {"mlp_bias": True}, "mlp_bias: only False is supported, got True"),
        ("llama", {"rope_parameters": LINEAR}, "rope_scaling: linear needs factor"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn"}},
            "rope_scaling: expected one of none, linear, llama3, got 'yarn'",
        ),
        ("llama", {"num_key_value_heads": 3}, "num_kv_heads: expected a divisor of"),
    ],
    ids=str,
)
def test_models_that_ours_is_not(name, changes, message, tmp_path):
    folder = copied(name, tmp_path)
    edit(folder / "config.json", **changes)
    refuses(folder, tmp_path, f"{folder / 'config.json'}: ", message)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attention_bias": True}, "o_proj.bias of a llama is missing"),
        ({"head_dim": 8}, "[16, 16], but config.json requires [16, 32]"),
    ],
    ids=str,
)
def test_settings_that_the_tensors_contradict(changes, message, tmp_path):
    folder = copied("llama", tmp_path)
    edit(folder / "config.json", **changes)
    refuses(folder, tmp_path, f"{folder}: the tensor ", message)


def drop(key):
    def change(folder):
        tensors = load_file(folder / hf_folder.WEIGHTS)
        del tensors[key]
        save_file(tensors, folder / hf_folder.WEIGHTS)

    return change


def put(key, array):
    def change(folder):
        tensors = load_file(folder / hf_folder.WEIGHTS)
        save_file(tensors | {key: array}, folder / hf_folder.WEIGHTS)

    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def overwrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def pickled(folder):
    (folder / hf_folder.WEIGHTS).rename(folder / "pytorch_model.bin")


def of_other_shards(folder):
    index = json.loads((folder / hf_folder.INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "model-00002-of-00004.safetensors"
    (folder / hf_folder.INDEX).write_text(json.dumps(index))


SHARD = "model-00003-of-00004.safetensors"


@pytest.mark.parametrize(
    "name, damage, message",
    [
        ("gpt2", remove("config.json"), "is not a Hugging Face model: it has no conf"),
        ("gpt2", overwrite("config.json", b"{"), "config.json is missing or damaged:"),
        ("gpt2", overwrite("config.json", b"[]"), "damaged: expected a JSON object"),
        ("gpt2", remove(hf_folder.WEIGHTS), "has neither model.safetensors nor model."),
        ("gpt2", pickled, "(pytorch_model.bin is a pickle, which is not read): save"),
        ("gpt2", overwrite(hf_folder.WEIGHTS, b"x" * 99), "safetensors is damaged: "),
        (
            "sharded",
            remove(SHARD),
            f"{SHARD} is missing, but model.safetensors.index.json refers to it",
        ),
        ("sharded", overwrite(hf_folder.INDEX, b"{}"), "damaged: it has no weight_map"),
        ("sharded", of_other_shards, "lm_head.weight is not in model-00002-of-00004"),
        ("gpt2", drop("transformer.h.1.ln_1.bias"), "transformer.h.1.ln_1.bias of a"),
        ("llama", drop("lm_head.weight"), "the tensor lm_head.weight of a llama is mi"),
        (
            "llama",
            put("model.layers.3.x", np.zeros(1)),
            "layers.3.x does not belong to a llama",
        ),
        (
            "llama",
            put("lm_head.weight", np.zeros((60, 16), np.float32)),
            "has the shape [60, 16], but config.json requires [61, 16]",
        ),
        (
            "llama3",
            put("lm_head.weight", np.zeros((61, 16), np.float32)),
            "the tensors lm_head.weight and model.embed_tokens.weight differ",
        ),
        (
            "llama",
            put("lm_head.weight", np.zeros((61, 16), np.int8)),
            "lm_head.weight is I8; only float32, float16 and bfloat16 are read",
        ),
        (
            "llama",
            put("lm_head.weight", np.full((61, 16), np.nan, np.float32)),
            "lm_head.weight has values that are not finite; use weights that are",
        ),
        (
            "llama",
            remove("tokenizer.json"),
            "has neither tokenizer.json nor tokenizer.",
        ),
        (
            "llama",
            overwrite("tokenizer.json", b"{}"),
            "tokenizer.json: not a tokenizer",
        ),
    ],
)
def test_damaged_folders(name, damage, message, tmp_path):
    folder = copied(name, tmp_path)
    damage(folder)
    refuses(folder, tmp_path, str(folder), message)


def test_another_models_tokenizer(tmp_path):
    folder = copied("llama", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"w59": 59, "w60": 60, "w61": 61}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = "is not this model's tokenizer: it has 62 tokens, the model 61"
    refuses(folder, tmp_path, str(folder / "tokenizer.json"), message)


def refuses(folder, tmp_path, beginning, message):
    with pytest.raises(UserError) as refusal:
        import_run(folder, tmp_path / "run", MeshConfig(), mesh_of(1))
    told = str(refusal.value)
    assert told.startswith(beginning) and message in told and "\n" not in told
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
