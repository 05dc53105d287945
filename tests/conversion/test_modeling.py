"""Exports with code of their own, used as transformers and PEFT use any model."""

import jax
import numpy as np
import pytest
from cases import OPTIONS, mesh_of, tokens_of
from hf_fixtures import run_of

from diffeq_former.conversion import import_run
from diffeq_former.conversion.export_run import export_run
from diffeq_former.conversion.hf_folder import HFFolder
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.inference.generate import Generator
from diffeq_former.models.loss import cross_entropy_sums
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import run_directory

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Transformers 5.23 renames gradient checkpointing, and PEFT uses the older name.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated")

EOT = 256
LLAMA = {"block": "llama", "num_kv_heads": 2, "rope_base": 300.0}
MODELS = {
    "gpt-euler": {"solver": "euler"},
    "gpt-strang": {"solver": "strang", "horizon": 2.0, "positions": "rotary"},
    "gpt-reversible": {"solver": "strang", "backward": "reversible"},
    "llama-tied": {**LLAMA, **OPTIONS, "tied_head": True},
    "llama-reversible": {**LLAMA, "backward": "reversible"},
}


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    """The model, our parameters and the exported folder."""
    folder = tmp_path_factory.mktemp(request.param)
    config, params = run_of(folder / "run", MODELS[request.param])
    export_run(run_directory.load(folder / "run", mesh_of()), folder / "out", "float32")
    return config, params, folder / "out"


def load(folder, **options):
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, trust_remote_code=True, **options)


def gradients(model, tokens_BL):
    model.zero_grad()
    loss = model(tokens_BL, labels=tokens_BL).loss
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters()}


def test_hidden_states_and_loss_are_ours(exported):
    config, params, folder = exported
    tokens_BL, model = tokens_of(config), Transformer(config)
    normalised_BLD, sown = model.apply(
        {"params": params}, tokens_BL, method="hidden", mutable=["intermediates"]
    )
    embedded_BLD = model.apply({"params": params}, tokens_BL, method="embed")
    states_TBLD = sown["intermediates"]["depth"]["state"][0]
    expected = [embedded_BLD, *states_TBLD[:-1], normalised_BLD]
    head_DV = model.apply({"params": params}, method="unembedding")
    targets_BL = np.pad(tokens_BL[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    sums = cross_entropy_sums(
        normalised_BLD, head_DV, targets_BL, 8, config.logit_softcap
    )
    given = torch.tensor(tokens_BL)
    with torch.no_grad():
        found = load(folder)(given, labels=given, output_hidden_states=True)
    for ours, theirs in zip(expected, found.hidden_states, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4)
    assert found.loss.item() == pytest.approx(
        float(sums["loss"] / sums["tokens"]), abs=1e-4
    )


def test_implementations_of_attention_agree(exported):
    """With padding on the left, and without a mask."""
    config, _, folder = exported
    tokens_BL = torch.tensor(tokens_of(config))
    mask_BL = torch.ones_like(tokens_BL)
    mask_BL[0, :5] = 0
    models = {
        name: load(folder, attn_implementation=name) for name in ("eager", "sdpa")
    }
    for mask in (None, mask_BL):
        eager, sdpa = (
            model(tokens_BL, attention_mask=mask).logits.detach()
            for model in models.values()
        )
        real = mask_BL.bool() if mask is not None else slice(None)
        np.testing.assert_allclose(eager[real], sdpa[real], rtol=0, atol=1e-4)
    attended = models["eager"](tokens_BL, output_attentions=True).attentions
    assert len(attended) == models["eager"].config.num_hidden_layers
    np.testing.assert_allclose(attended[0].detach().sum(-1), 1, rtol=1e-5)


def test_gradient_checkpointing_does_not_change_gradients(exported):
    config, _, folder = exported
    tokens_BL, model = torch.tensor(tokens_of(config)), load(folder).train()
    expected_loss, expected = gradients(model, tokens_BL)
    model.gradient_checkpointing_enable()
    calls = []
    model.model.layers[0].input_layernorm.register_forward_hook(
        lambda *_: calls.append(1)
    )
    loss, found = gradients(model, tokens_BL)
    assert loss == expected_loss
    evaluations = len(calls)
    model.gradient_checkpointing_disable()
    gradients(model, tokens_BL)
    assert evaluations == 2 * (len(calls) - evaluations)  # again in the backward pass
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


def test_vocabularies_are_resized(exported):
    config, _, folder = exported
    model, tokens_BL = load(folder), torch.tensor(tokens_of(config))
    before = model(tokens_BL).logits
    model.resize_token_embeddings(config.vocab_size + 3, mean_resizing=False)
    after = model(tokens_BL, labels=tokens_BL)
    assert after.logits.shape[-1] == config.vocab_size + 3
    torch.testing.assert_close(after.logits[..., : config.vocab_size], before)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == (config.learned_positions or config.tied_head)


def test_trainer_lowers_the_loss_and_its_folder_is_read(exported, tmp_path):
    """By transformers and by our own import."""
    config, _, folder = exported
    model, tokens_BL = load(folder), tokens_of(config)
    sequences = [{"input_ids": x, "labels": x} for x in tokens_BL.tolist()]
    arguments = transformers.TrainingArguments(
        tmp_path / "trainer",
        max_steps=3,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=sequences)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3 and losses[2] < losses[1] < losses[0]
    trainer.save_model(tmp_path / "saved")
    expected = model.eval()(torch.tensor(tokens_BL)).logits.detach()
    found = load(tmp_path / "saved")(torch.tensor(tokens_BL)).logits.detach()
    torch.testing.assert_close(found, expected)
    saved = HFFolder(tmp_path / "saved")
    ours = import_run.model_of(saved)
    params = import_run.params_of(saved, ours)
    logits = jax.jit(Transformer(ours).apply)({"params": params}, tokens_BL)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_pipelines_write_what_the_generator_writes(exported):
    config, params, folder = exported
    text = "naïve cat"
    [new] = Generator(config, mesh_of(1)).generate(
        params,
        [ByteTokenizer().encode(text)],
        max_new_tokens=8,
        temperature=0.0,
        before=[EOT],
        ends=[],
    )
    write = transformers.pipeline(
        "text-generation", str(folder), trust_remote_code=True, device="cpu"
    )
    [written] = write(
        "<|endoftext|>" + text,
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
        return_tensors=True,
    )
    assert written["generated_token_ids"][-8:] == new


def test_a_lora_of_all_linear_layers_trains(exported):
    peft = pytest.importorskip("peft")
    config, _, folder = exported
    settings = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(load(folder), settings)
    adapted = {n.split(".")[-4] for n, _ in model.named_parameters() if "lora_A" in n}
    attention = (
        {"qkv_proj"} if config.block == "gpt" else {"q_proj", "k_proj", "v_proj"}
    )
    gate = set() if config.block == "gpt" else {"gate_proj"}
    assert adapted == attention | gate | {"o_proj", "up_proj", "down_proj"}
    tokens_BL = torch.tensor(tokens_of(config))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=1e-2), []
    for _ in range(2):
        losses.append(model(tokens_BL, labels=tokens_BL).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[1] < losses[0]


@pytest.mark.parametrize("name", ["dynamic", "static"])
def test_generation_with_either_cache(exported, name):
    """Beam search too, which reorders the cache."""
    config, _, folder = exported
    model = load(folder)
    model.generation_config.eos_token_id = None
    prompts_BL = torch.tensor(tokens_of(config)[:, :6])
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 2}
    expected = model.generate(prompts_BL, use_cache=False, **options)
    found = model.generate(prompts_BL, cache_implementation=name, **options)
    assert torch.equal(found, expected)


def test_the_base_model_is_loaded_without_its_head(exported):
    config, _, folder = exported
    auto = transformers.AutoModel
    base = auto.from_pretrained(folder, trust_remote_code=True)
    tokens_BL = torch.tensor(tokens_of(config))
    expected = load(folder)(tokens_BL, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(base(tokens_BL).last_hidden_state, expected)
    fresh = transformers.AutoModelForCausalLM.from_config(
        base.config, trust_remote_code=True
    )
    assert fresh(tokens_BL, labels=tokens_BL).loss.item() == pytest.approx(
        np.log(config.vocab_size), abs=0.3
    )
