"""Against real models of transformers (the extra hf): random sizes, both ways."""

import jax
import numpy as np
import pytest
from cases import OPTIONS, mesh_of, tokens_of
from hf_fixtures import run_of

from diffeq_former.conversion import hf_folder, hf_tokenizer
from diffeq_former.conversion.architecture import to_tensors
from diffeq_former.conversion.architectures import of_model
from diffeq_former.conversion.diffeq_former_hf import CODE
from diffeq_former.conversion.export_run import export_run
from diffeq_former.conversion.hf_folder import HFFolder
from diffeq_former.conversion.import_run import model_of
from diffeq_former.conversion.import_run import params_of as read_params
from diffeq_former.conversion.parallel_llama import COHERE2_MOE
from diffeq_former.data.sentencepiece_training import train
from diffeq_former.data.tokenizers import ByteTokenizer, SentencePieceTokenizer
from diffeq_former.inference.generate import Generator
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import run_directory

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EOT = 256
LLAMA3 = {"rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_len": 16}
LLAMA = {"block": "llama", "rope_base": 300.0}
PARALLEL = {**LLAMA, "solver": "euler"}
ROTARY = {"positions": "rotary", "rope_base": 300.0, "rope_fraction": 0.5}
CUT = {"weights": "hypernetwork"}
TWINS = {
    "gpt2": {},
    "gpt2-short-steps": {"parametrization": "mup"},
    "gpt2-relu2": {"activation": "relu_squared"},
    "gpt2-cut": {**CUT, "horizon": 1.0},
    "gpt2-gelu": {"activation": "exact_gelu"},
    "neox": {**ROTARY, "solver": "euler", "activation": "exact_gelu", "horizon": 1.0},
    "neox-cut": {**ROTARY, **CUT, "solver": "euler", "tied_head": True},
    "neox-serial": {**ROTARY, **LLAMA3, "rope_fraction": 1.0, "norm_eps": 1e-3},
    "llama": {**LLAMA, "num_kv_heads": 2, "norm_eps": 1e-3},
    "llama-tied": {**LLAMA, "tied_head": True, "horizon": 2.0},
    "llama3": {**LLAMA, **LLAMA3, "num_kv_heads": 1},
    "llama-linear": {**LLAMA, "rope_scaling": "linear", "rope_factor": 3.0},
    "llama-shared": {**LLAMA, "weights": "shared", "activation": "relu_squared"},
    "llama-biases": {**LLAMA, "attention_bias": "all", "head_dim": 6},
    "qwen2": {**LLAMA, "attention_bias": "qkv", "num_kv_heads": 2},
    "qwen3": {**LLAMA, "qk_norm": True, "head_dim": 8, "num_kv_heads": 2},
    "qwen3-biases": {**LLAMA, "qk_norm": True, "attention_bias": "all"},
    "cohere2": {**PARALLEL, "num_kv_heads": 2, "horizon": 1.0},
    "cohere2-cut": {**PARALLEL, **CUT, "tied_head": True, "head_dim": 6},
    "cohere2-biases": {**PARALLEL, "attention_bias": "all"},
}
OWN = {
    "gpt-euler": {"solver": "euler"},
    "gpt-euler-cut": {**CUT, "solver": "euler"},
    "gpt-strang": {"solver": "strang", "horizon": 2.0},
    "gpt-rotary": {**ROTARY, "solver": "strang", "activation": "exact_gelu"},
    "llama-released": {**LLAMA, "chain_norms": True},
    "gpt-reversible": {"solver": "strang", "backward": "reversible"},
    "llama-reversible": {**LLAMA, "backward": "reversible", "num_kv_heads": 2},
    "gpt-options": OPTIONS,
    "llama-options": {**LLAMA, **OPTIONS, "num_kv_heads": 2, "head_dim": 6},
    "llama-euler": {**PARALLEL, **LLAMA3, "num_kv_heads": 2},
    "llama-partial": {**LLAMA, "rope_fraction": 0.5, "activation": "exact_gelu"},
    "llama-euler-options": {**LLAMA, **OPTIONS, "solver": "euler"},
    "llama-qkv-norm": {**LLAMA, "attention_bias": "qkv", "qk_norm": True},
    "gpt-head-dim": {"head_dim": 6},
}


def load(folder, **options):
    auto, told = transformers.AutoModelForCausalLM, {"output_loading_info": True}
    model, info = auto.from_pretrained(folder, **told, **options)
    assert not any(info.values()), info
    return model.eval()


def their_logits(model, tokens_BL):
    with torch.no_grad():
        return model(torch.tensor(tokens_BL)).logits.numpy()


def their_new_tokens(model, prompts, num_new):
    """Greedily, in one batch, after the end of text as ours; padded on the left."""
    L = max(map(len, prompts))
    given_BL = [[EOT] * (L - len(p)) + [EOT, *p] for p in prompts]
    mask_BL = [[0] * (L - len(p)) + [1] * (len(p) + 1) for p in prompts]
    options = {"max_new_tokens": num_new, "do_sample": False, "eos_token_id": EOT}
    new_BL = model.generate(
        torch.tensor(given_BL),
        attention_mask=torch.tensor(mask_BL),
        pad_token_id=EOT,
        **options,
    )[:, L + 1 :]
    return [row[: row.index(EOT)] if EOT in row else row for row in new_BL.tolist()]


@pytest.mark.parametrize("name", [*TWINS, *OWN])
def test_an_export_is_loaded_and_computes_what_the_run_does(name, tmp_path):
    config, params = run_of(tmp_path / "run", {**TWINS, **OWN}[name])
    done = export_run(
        run_directory.load(tmp_path / "run", mesh_of()), tmp_path / "out", "float32"
    )
    assert done.difference < 1e-5
    assert (tmp_path / "out" / CODE.name).exists() == (name in OWN)
    model = load(tmp_path / "out", trust_remote_code=name in OWN)
    tokens_BL = tokens_of(config)
    expected = jax.jit(Transformer(config).apply)({"params": params}, tokens_BL)
    found, most = their_logits(model, tokens_BL), 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=most)
    prompts = [[5, 17, 29, 40], [7], [200, 3]]
    new = Generator(config, mesh_of(1)).generate(
        params, prompts, max_new_tokens=8, temperature=0.0, before=[EOT], ends=[EOT]
    )
    assert their_new_tokens(model, prompts, 8) == new


def test_the_byte_tokenizer_goes_along(tmp_path):
    run_of(tmp_path / "run", {})
    export_run(
        run_directory.load(tmp_path / "run", mesh_of()), tmp_path / "out", "bfloat16"
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours, text = ByteTokenizer(), "naïve\t日本語  \r\n<|endoftext|> \x00 été "
    assert theirs(text.replace("<|endoftext|>", "")).input_ids == ours.encode(
        text.replace("<|endoftext|>", "")
    )
    assert theirs.decode(ours.encode(text)) == text
    assert (theirs.eos_token_id, theirs.bos_token_id) == (EOT, EOT)
    assert load(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_a_sentencepiece_model_goes_along(tmp_path):
    documents = ["the cat sat on a mat; naïve été 日本語\n  x = y[0]"] * 9
    tokenizer = SentencePieceTokenizer(train(documents, 300))
    (tmp_path / "kept").mkdir()
    (tmp_path / "out").mkdir()
    hf_tokenizer.write(tokenizer, tmp_path / "kept", 24, tmp_path / "out")
    config = {"model_type": "llama", "vocab_size": tokenizer.vocab_size}
    hf_folder.write_json(tmp_path / "out" / "config.json", config)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "  the mat sat\ton x;  日本 ελ "
    assert theirs(text).input_ids == tokenizer.encode(text)
    assert theirs.eos_token_id == theirs.bos_token_id == tokenizer.eot


ROPE = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 30,
    },
]
# Families of models, with settings that are theirs alone.
FAMILIES = {
    "GPT2": [{}],
    "Llama": [{}, {"attention_bias": True, "head_dim": 6}],
    "Mistral": [{"sliding_window": None, "head_dim": 10}, {"sliding_window": 24}],
    "Qwen2": [{}, {"use_sliding_window": True, "sliding_window": 24}],
    "Qwen3": [{"head_dim": 8}, {"head_dim": 4, "attention_bias": True}],
    "GPTNeoX": [{}, {"use_parallel_residual": False, "hidden_act": "gelu_new"}],
}
MODELS = [(name, own) for name, settings in FAMILIES.items() for own in settings]


def test_parallel_layers_come_in_and_go_out(tmp_path):
    """With scales of the norms, which an export folds into other tensors."""
    L = 3
    config = transformers.Cohere2MoeConfig(
        vocab_size=40,
        hidden_size=12,
        intermediate_size=7,
        prefix_dense_intermediate_size=7,
        num_hidden_layers=L,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=24,
        logit_scale=1.0,
        rms_norm_eps=1e-3,
        layer_types=["full_attention"] * L,
        mlp_layer_types=["dense"] * L,
        eos_token_id=0,
    )
    theirs = randomised(transformers.Cohere2MoeForCausalLM(config), 0)
    theirs.save_pretrained(tmp_path / "in")
    folder = HFFolder(tmp_path / "in")
    model = model_of(folder)
    params, tokens_BL = read_params(folder, model), tokens_of(model)
    ours = jax.jit(Transformer(model).apply)({"params": params}, tokens_BL)
    expected = their_logits(theirs, tokens_BL)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
    (tmp_path / "out").mkdir()
    made = {"model_type": COHERE2_MOE.model_type, **COHERE2_MOE.write_config(model)}
    tensors = to_tensors(COHERE2_MOE, model, params)
    hf_folder.write(tmp_path / "out", made, tensors, "float32")
    found = their_logits(load(tmp_path / "out"), tokens_BL)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def randomised(model, seed):
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


def random_model(seed, name, own):
    """A model of random sizes, with random parameters."""
    random = np.random.default_rng(seed)
    heads, groups = int(random.integers(1, 4)), int(random.integers(1, 4))
    size = 2 * int(random.integers(1, 5)) * heads * groups
    inner, layers = int(random.integers(5, 50)), int(random.integers(1, 5))
    eps = float(10 ** random.uniform(-6, -2))
    ids = {"vocab_size": int(random.integers(20, 90)), "eos_token_id": 0}
    if name == "GPT2":
        sizes = {"n_embd": size, "n_layer": layers, "n_head": heads * groups}
        more = {"n_inner": inner, "n_positions": 24, "layer_norm_epsilon": eps}
        config = transformers.GPT2Config(bos_token_id=0, **ids, **sizes, **more)
    else:
        rope = {"rope_theta": float(random.integers(100, 10000))} | ROPE[seed % 3]
        more = {"num_key_value_heads": heads, "rms_norm_eps": eps}
        if name == "GPTNeoX":
            rope["partial_rotary_factor"] = 2 * heads * groups / size
            more = {"layer_norm_eps": eps}
        config = getattr(transformers, f"{name}Config")(
            hidden_size=size,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads * groups,
            max_position_embeddings=24,
            tie_word_embeddings=seed % 4 == 0,
            rope_parameters=rope,
            **ids,
            **more,
            **own,
        )
    kind = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    return randomised(getattr(transformers, kind)(config), seed)


@pytest.mark.parametrize("seed", range(12))
def test_models_of_random_sizes_come_in_and_go_out(seed, tmp_path):
    """Also in many files; what goes out has the keys and numbers that came in."""
    theirs = random_model(seed, *MODELS[seed % len(MODELS)])
    shards = {"max_shard_size": "4KB"} if seed in (1, 2) else {}
    theirs.save_pretrained(tmp_path / "in", **shards)
    folder = HFFolder(tmp_path / "in")
    model = model_of(folder)
    params = read_params(folder, model)
    tokens_BL = tokens_of(model)
    ours = jax.jit(Transformer(model).apply)({"params": params}, tokens_BL)
    expected = their_logits(theirs, tokens_BL)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
    architecture = of_model(model)
    config = architecture.write_config(model)
    config |= {"model_type": architecture.model_type}
    (tmp_path / "out").mkdir()
    tensors = to_tensors(architecture, model, params)
    hf_folder.write(tmp_path / "out", config, tensors, "float32", 10**4)
    again = load(tmp_path / "out")
    np.testing.assert_array_equal(their_logits(again, tokens_BL), expected)
    before, after = theirs.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
