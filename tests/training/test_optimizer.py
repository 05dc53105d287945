import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, shapes_of

from diffeq_former.config import Config, ModelConfig, OptimizerConfig
from diffeq_former.hardware import CPU
from diffeq_former.training.optimizer import decays, group_of, make_optimizer
from diffeq_former.training.parts import partition
from diffeq_former.training.update import UPDATE, Update

# For each path of the parameters of every model: its group, and whether the mask
# `matrices` lets it decay.
LINEAR = {
    "bank": ("bank", True),
    "base": ("base", True),
    "bias_bank": ("bank", False),
    "kernel": ("base", True),
    "bias": ("base", False),
    "lora_a": ("lora", True),
    "lora_b": ("lora", True),
}
NORM = {
    name: ("norm", False) for name in ("scale", "shift", "scale_bank", "shift_bank")
}
TIME_MLP = {
    "kernel_1": ("time_mlp", True),
    "kernel_2": ("time_mlp", True),
    "bias_1": ("time_mlp", False),
    "bias_2": ("time_mlp", False),
    "coefficients": ("time_mlp", True),
    "initial": ("time_mlp", False),
}
UNITS = {
    "gpt": ("qkv", "attention_out", "ff_in", "ff_out"),
    "llama": ("query", "key", "value", "attention_out", "gate", "up", "down"),
}


def expected(block: str) -> dict:
    units = {name: LINEAR for name in UNITS[block]}
    return {
        "weights": units | {"norm_1": NORM, "norm_2": NORM, "time_mlp": TIME_MLP},
        "embedding": {"token": ("embedding", True), "position": ("embedding", True)},
        "final_norm": NORM,
        "head": {"kernel": ("head", True)},
    }


@pytest.mark.parametrize("block", ["gpt", "llama"])
@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"weights": weights}
            for weights in ("hypernetwork", "layer_table", "shared")
        ),
        *({"time_mlp": time_mlp} for time_mlp in ("table", "ode")),
    ],
    ids=str,
)
def test_groups_and_decay_masks(block, changes):
    params = params_like(dataclasses.replace(TINY, block=block, **changes))
    for path, (group, matrix, embedding, everything) in leaves(
        group_of(params),
        decays(params, "matrices"),
        decays(params, "embeddings"),
        decays(params, "all"),
    ):
        wanted = expected(block)
        for key in path:
            wanted = wanted[key.key]
        assert (group, matrix) == wanted, path
        assert embedding == (path[0].key == "embedding")
        assert everything is True


def params_like(config):
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    return jax.tree.map(lambda x: np.zeros(x), shapes_of(config), **is_shape)


def leaves(*trees):
    zipped = jax.tree.map(lambda *xs: list(xs), *trees)
    is_list = {"is_leaf": lambda x: isinstance(x, list)}
    return jax.tree_util.tree_leaves_with_path(zipped, **is_list)


@pytest.mark.parametrize(
    "path", ["adapter/kernel", "weights/qkv/rank", "head/bias", "weights/kernel"]
)
def test_a_parameter_that_no_pattern_covers_is_refused(path):
    params = np.zeros(1)
    for key in reversed(path.split("/")):
        params = {key: params}
    with pytest.raises(ValueError, match=f"parameter {path}: no pattern"):
        make_optimizer(OptimizerConfig(), 10, ModelConfig()).init(params)


TREE = {
    "embedding": {"token": np.array([[3.0, -4.0]])},
    "head": {"kernel": np.array([[1.0]])},
    "final_norm": {"scale": np.array([2.0])},
    "weights": {
        "qkv": {"bank": np.array([[0.5]]), "base": np.array([[0.7]])},
        "time_mlp": {"bias_1": np.array([0.3])},
    },
}
CONSTANT = OptimizerConfig(
    learning_rate=0.1, schedule="constant", warmup_fraction=0.0, clip_norm=0.0
)


def updates(c: OptimizerConfig, gradients, num_updates=1):
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), TREE)
    optimizer = make_optimizer(c, 100, ModelConfig())
    state = optimizer.init(params)
    for _ in range(num_updates):
        update, state = optimizer.update(gradients, state, params)
    return update


def gradients_of(scale: float):
    return jax.tree.map(lambda x: jnp.asarray(scale * np.cos(x), jnp.float32), TREE)


def test_first_update_is_adamw_with_group_rates_by_hand():
    multipliers = {"bank": 0.3, "base": 0.5, "time_mlp": 0.7, "norm": 1.1}
    multipliers |= {"embedding": 1.3, "head": 1.7}
    fields = {f"{group}_multiplier": x for group, x in multipliers.items()}
    c = dataclasses.replace(CONSTANT, weight_decay=0.2, eps=0.01, **fields)
    all_found = updates(c, gradients_of(1.0))
    for path, (p, found, group, decay) in leaves(
        TREE, all_found, group_of(TREE), decays(TREE, "matrices")
    ):
        g = np.cos(p)
        direction = g / (np.abs(g) + 0.01) + 0.2 * decay * p
        by_hand = -0.1 * multipliers[group] * direction
        np.testing.assert_allclose(found, by_hand, rtol=1e-5, err_msg=str(path))


def test_third_update_has_both_moments_without_bias():
    c = dataclasses.replace(CONSTANT, b1=0.6, b2=0.8, eps=0.0, weight_decay=0.0)
    found = updates(c, gradients_of(1.0), num_updates=3)
    # Equal gradients: bias-corrected moments are g and g^2.
    by_hand = jax.tree.map(lambda p: -0.1 * np.sign(np.cos(p)), TREE)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, by_hand
    )


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_clipping_bounds_the_norm_of_the_gradient(scale):
    # With a huge eps, Adam is g / eps: the update shows the clipped gradient.
    c = dataclasses.replace(CONSTANT, weight_decay=0.0, eps=1e6, clip_norm=0.5)
    gradients = partition(Config(), gradients_of(scale))
    norm = norm_of(gradients)
    params = jax.tree.map(jnp.zeros_like, gradients)
    update = Update(c, 100, TINY)
    state = update.init(params)
    done = update.apply(gradients, norm, state, params, jnp.int32(UPDATE), CPU)
    clipped = jax.tree.map(lambda u: -u * 1e6 / 0.1, done.params)
    wanted = jax.tree.map(lambda g: g * min(1.0, 0.5 / norm), gradients)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), clipped, wanted
    )
    assert norm_of(clipped) == pytest.approx(min(norm, 0.5), rel=1e-4)


def norm_of(tree) -> float:
    return float(np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(tree))))


def test_the_schedule_counts_updates():
    c = dataclasses.replace(CONSTANT, warmup_fraction=0.04, weight_decay=0.0)
    for number, fraction in ((1, 0.0), (3, 0.5), (5, 1.0), (7, 1.0)):
        update = updates(c, gradients_of(1.0), number)["head"]["kernel"]
        np.testing.assert_allclose(update, -0.1 * fraction, rtol=1e-5, atol=1e-9)


def test_state_is_a_tree_of_arrays():
    params = jax.tree.map(jnp.asarray, TREE)
    state = make_optimizer(OptimizerConfig(), 10, ModelConfig()).init(params)
    assert jax.tree.leaves(state)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))


def products(seed: int, stddev: float = 1.0) -> dict:
    """A bank [E, D, F] whose entries are products of one number for each index."""
    random = np.random.default_rng(seed)
    factors = (random.normal(0, stddev, n) for n in (2, 5, 7))
    bank = np.einsum("e,d,f->edf", *factors)
    tree = {"weights": {"up": {"bank": bank, "base": bank[0]}}}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def moved(c: OptimizerConfig, gradients: list[dict]) -> tuple[dict, dict]:
    """The sum of the updates, and the state after them."""
    params = jax.tree.map(jnp.zeros_like, gradients[0])
    optimizer = make_optimizer(c, 100, ModelConfig())
    state = optimizer.init(params)
    for gradient in gradients:
        update, state = optimizer.update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, update)
    return params, state


def test_factored_squares_of_products_are_adams():
    """Squares of products have rank 1: rows and columns say all. So with equal ones."""
    c = dataclasses.replace(CONSTANT, weight_decay=0.0, eps=1e-30, b1=0.6, b2=0.8)
    gradients = [jax.tree.map(lambda g, k=k: g * k, products(0)) for k in (1, 1, 1)]
    full, full_state = moved(c, gradients)
    factored, state = moved(dataclasses.replace(c, factored_bank=True), gradients)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), factored, full
    )
    sizes = [sum(x.size for x in jax.tree.leaves(s)) for s in (full_state, state)]
    assert sizes[0] - sizes[1] > 2 * 5 * 7 - 2 * (5 + 7) - 10


def test_factored_squares_average_with_b2():
    """Second of two gradients g and 2 g: squares (b2 + 4) / (1 + b2) g^2."""
    c = dataclasses.replace(CONSTANT, weight_decay=0.0, b1=0.0, b2=0.8)
    c = dataclasses.replace(c, factored_bank=True)
    one, two = products(0), jax.tree.map(lambda g: 2 * g, products(0))
    first, both = moved(c, [one])[0], moved(c, [one, two])[0]
    found = (both["weights"]["up"]["bank"] - first["weights"]["up"]["bank"]) / -0.1
    expected = np.sign(one["weights"]["up"]["bank"]) * 2 / np.sqrt((0.8 + 4) / 1.8)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("factored", [False, True])
def test_moments_in_bfloat16(factored):
    gradients = [products(seed) for seed in range(5)]
    c = dataclasses.replace(CONSTANT, factored_bank=factored)
    short = dataclasses.replace(c, mu_dtype="bfloat16", nu_dtype="bfloat16")
    expected, found = moved(c, gradients)[0], moved(short, gradients)
    kept = {x.dtype for x in jax.tree.leaves(found[1]) if x.ndim > 1}
    assert jnp.dtype("bfloat16") in kept
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.float32
        assert 0 < np.abs(a - b).max() < 0.02 * np.abs(b).max()
