"""Every file in configs/, and the sizes of the models they describe."""

import dataclasses
import functools
import importlib.util
import math
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from diffeq_former.config import ModelConfig, resolve
from diffeq_former.config.dataclass_config import differences
from diffeq_former.models.transformer import Transformer

FOLDER = Path(__file__).parents[2] / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
PAPER = sorted(f"paper/{path.stem}" for path in FOLDER.glob("paper/*.py"))


@functools.cache
def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def shapes(model):
    """Logits and parameters as shapes: nothing is computed, nothing takes memory."""
    tokens_BL = jax.ShapeDtypeStruct((2, model.max_len), jnp.int32)
    logits_BLV, variables = jax.eval_shape(
        Transformer(model).init_with_output, jax.random.key(0), tokens_BL
    )
    return logits_BLV, nn.unbox(variables)["params"]


@pytest.mark.parametrize("name", ["finetune/full", "finetune/lora"])
def test_those_of_fine_tuning_lack_nothing_but_a_base(name):
    module = load(name)
    for part in (f"--config=configs/{name}.py", "Hardware:", "Time:", "Result:"):
        assert part in module.__doc__
    config = module.get_config()
    config.finetune.base = "runs/small"
    resolved = resolve(config)
    assert (resolved.model.lora_rank > 0) == (name == "finetune/lora")
    free = ("dtype", "remat", "lora_rank", "lora_alpha", "lora_dropout")
    plain = {field: getattr(ModelConfig(), field) for field in free}
    assert dataclasses.replace(resolved.model, **plain) == ModelConfig()


def count(model):
    _, params = shapes(model)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def baseline(config):
    config.model.weights = "layer_table"
    config.model.solver = "lie_trotter"
    return resolve(config).model


@pytest.mark.parametrize("name", NAMES)
def test_resolves_and_evaluates(name):
    model = resolve(load(name).get_config()).model
    logits_BLV, _ = shapes(model)
    assert logits_BLV.shape == (2, model.max_len, model.vocab_size)
    assert logits_BLV.dtype == jnp.float32


@pytest.mark.parametrize("name", NAMES)
def test_baseline_is_two_overrides(name):
    config = load(name).get_config()
    continuous, plain = resolve(config).model, baseline(config)
    mup = plain.parametrization == "mup"  # whose depth interval has length 1
    assert plain.step_size == (1 / plain.num_layers if mup else 1)
    assert count(plain) < count(continuous)


@pytest.mark.parametrize("name", NAMES + PAPER)
def test_opens_with_command_hardware_time_and_result(name):
    text = load(name).__doc__
    for part in (f"--config=configs/{name}.py", "Hardware:", "Time:", "Result:"):
        assert part in text


# Of the released code's models; its tied GPT-2 without rounding of the vocabulary.
COUNTS = {
    "gpt_small": (188_254_152, 124_439_808),
    "gpt_medium": (1_274_538_688, 354_823_168),
    "gpt_large": (1_974_541_760, 774_030_080),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_of_the_paper(name):
    config = load(name).get_config()
    assert (count(resolve(config).model), count(baseline(config))) == COUNTS[name]


def test_parameter_count_of_llama1b():
    """By hand: nine time-dependent weights of which two are norms, no biases."""
    D, F, E, S, V = 2048, 8192, 96, 256, 32000
    matrices = 4 * D * D + 3 * D * F
    time_mlp = (2 * S + 2) * E + (E + 1) * E
    by_hand = (E + 1) * matrices + 2 * E * D + 9 * time_mlp + D + 2 * V * D
    config = load("llama1b").get_config()
    assert count(resolve(config).model) == by_hand
    assert count(baseline(config)) == 16 * (matrices + 2 * D) + D + 2 * V * D


# With the hypernetwork's, the authors' counts; their RMSNorms also have biases, of
# 2 x 96 x 2048 parameters in all. `shared` is the baseline with a single layer.
PAPER_COUNTS = {
    "paper/finetuning_base": {"ours": 1_325_088_104, "baseline": 354_823_168},
    "paper/llama1b": {
        "ours": 6_641_948_192 - 2 * 96 * 2048,
        "baseline": 1_204_881_408,
    },
    "paper/openwebtext_large": {"ours": 1_974_541_760, "baseline": 774_030_080},
    "paper/openwebtext_medium": {"ours": 1_274_538_688, "baseline": 354_823_168},
    "paper/openwebtext_small": {"ours": 188_254_152, "baseline": 124_439_808},
    "paper/wikitext_medium": {
        "ours": 669_803_872,
        "baseline": 354_823_168,
        "shared": 354_823_168 - 23 * (12 * 1024**2 + 13 * 1024),
    },
    "paper/wikitext_small": {
        "ours": 188_254_152,
        "baseline": 124_439_808,
        "shared": 124_439_808 - 11 * (12 * 768**2 + 13 * 768),
    },
}


def variants(name):
    """The configs of the variants of a file in configs/paper, resolved."""
    module = load(name)
    assert module.get_config() == module.get_config("ours")
    return {variant: resolve(module.get_config(variant)) for variant in module.VARIANTS}


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_of_the_papers_models(name):
    counts = {variant: count(c.model) for variant, c in variants(name).items()}
    assert counts == PAPER_COUNTS[name]
    for variant, number in counts.items():
        assert f"{number:,}" in load(name).__doc__, variant


@pytest.mark.parametrize("name", PAPER)
def test_a_baseline_differs_only_in_what_makes_it_one(name):
    own = {
        "paper/openwebtext_large": {"optimizer.b2"},  # the best of each (C.5)
        "paper/finetuning_base": {"model.num_layers"},  # 18 steps, 24 layers (6.2)
    }
    expected = {"model.weights", "model.solver"} | own.get(name, set())
    ours, *others = variants(name).values()
    for other in others:
        assert {x.partition(":")[0] for x in differences(ours, other)} == expected
        assert other.model.step_size == 1


@pytest.mark.parametrize("name", PAPER)
def test_settings_that_the_papers_text_gives(name):
    """Appendix C.4; the numbers of tokens are those of the released YAML."""
    lower_b2 = {("paper/openwebtext_large", "ours")}
    lower_b2 |= {("paper/llama1b", variant) for variant in ("ours", "baseline")}
    billions = {"paper/wikitext_small": 2.62, "paper/wikitext_medium": 2.62}
    billions |= {"paper/finetuning_base": 2.62, "paper/llama1b": 20.97}
    for variant, c in variants(name).items():
        assert c.optimizer.weight_decay == c.model.dropout == 0.1
        assert (c.optimizer.b1, c.optimizer.warmup_fraction) == (0.9, 0.01)
        assert (c.optimizer.schedule, c.optimizer.final_fraction) == ("cosine", 0.1)
        assert c.optimizer.b2 == (0.95 if (name, variant) in lower_b2 else 0.999)
        tokens = c.training.num_steps * c.training.batch_size * c.model.max_len
        assert round(tokens / 1e9, 2) == billions.get(name, 10.49)
