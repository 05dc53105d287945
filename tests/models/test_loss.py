import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.models.loss import cross_entropy_objective, cross_entropy_sums


@pytest.fixture
def case():
    random = np.random.default_rng(0)
    x_BLD = jnp.asarray(random.normal(size=(2, 7, 4)), jnp.float32)
    head_DV = jnp.asarray(random.normal(size=(4, 11)), jnp.float32)
    targets_BL = random.integers(0, 11, (2, 7))
    targets_BL[1, 5:] = -1
    return x_BLD, head_DV, targets_BL


def by_hand(x_BLD, head_DV, targets_BL, softcap):
    logits = np.asarray(x_BLD, np.float64) @ np.asarray(head_DV, np.float64)
    if softcap:
        logits = softcap * np.tanh(logits / softcap)
    loss = log_z_squared = 0.0
    for place in np.argwhere(targets_BL >= 0):
        b, l = place
        log_z = np.log(np.exp(logits[b, l]).sum())
        loss += log_z - logits[b, l, targets_BL[b, l]]
        log_z_squared += log_z**2
    return {"loss": loss, "log_z_squared": log_z_squared, "tokens": 12}


@pytest.mark.parametrize("chunk, softcap", [(1, 0), (3, 2.0), (7, 0), (100, 0)])
def test_sums_equal_those_by_hand(case, chunk, softcap):
    sums = jax.jit(cross_entropy_sums, static_argnums=(3, 4))(*case, chunk, softcap)
    for name, expected in by_hand(*case, softcap).items():
        np.testing.assert_allclose(sums[name], expected, rtol=1e-6)


def objective(x_BLD, head_DV, targets_BL, z_loss: float, softcap=0.0) -> jax.Array:
    """The objective by autodiff's means, from all logits at once."""
    logits_BLV = x_BLD @ head_DV
    if softcap:
        logits_BLV = softcap * jnp.tanh(logits_BLV / softcap)
    log_z_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
    picked_BL1 = jnp.take_along_axis(logits_BLV, targets_BL[..., None], axis=-1)
    terms_BL = log_z_BL - picked_BL1[..., 0] + z_loss * log_z_BL**2
    return jnp.where(targets_BL >= 0, terms_BL, 0.0).sum()


@pytest.mark.parametrize("z_loss, softcap", [(0.0, 0.0), (0.1, 0.0), (0.1, 2.0)])
@pytest.mark.parametrize("chunk", [2, 7])
def test_gradients_are_those_of_autodiff(case, chunk, z_loss, softcap):
    x_BLD, head_DV, targets_BL = case
    weights = (z_loss, softcap)

    def chunked(x_BLD, head_DV):
        return (
            3 * cross_entropy_objective(x_BLD, head_DV, targets_BL, chunk, *weights)[0]
        )

    def plainly(x_BLD, head_DV):
        return 3 * objective(x_BLD, head_DV, targets_BL, *weights)

    found, expected = (
        jax.jit(jax.value_and_grad(f, (0, 1)))(x_BLD, head_DV)
        for f in (chunked, plainly)
    )
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(near, found, expected)
    assert (found[1][0][1, 5:] == 0).all()


def test_the_gradient_of_the_matrix_is_summed_in_float32(x64):
    """Compare the sum over many chunks of bfloat16 states with one in float64."""
    random = np.random.default_rng(0)
    x_BLD = jnp.asarray(random.normal(size=(2, 256, 4)), jnp.bfloat16)
    head_DV = jnp.asarray(random.normal(size=(4, 11)), jnp.bfloat16)
    targets_BL = random.integers(0, 11, (2, 256))

    def gradient(function, *arguments):
        return jax.jit(jax.grad(lambda *a: function(*a)[0], 1))(*arguments)

    chunked = gradient(
        lambda x, head: cross_entropy_objective(x, head, targets_BL, 1, 0.0),
        x_BLD,
        head_DV.astype(jnp.float32),
    )
    exact = gradient(
        lambda x, head: (objective(x, head, targets_BL, 0.0), None),
        x_BLD.astype(jnp.float64),
        head_DV.astype(jnp.float64),
    )
    error = np.linalg.norm(chunked - exact) / np.linalg.norm(exact)
    assert chunked.dtype == jnp.float32 and error < 1e-3  # in bfloat16: above 4e-3


def test_no_array_of_all_logits_exists(case):
    x_BLD, head_DV, targets_BL = case
    program = str(
        jax.make_jaxpr(
            jax.grad(
                lambda x: cross_entropy_objective(x, head_DV, targets_BL, 1, 0.0)[0]
            )
        )(x_BLD)
    )
    assert "f32[2,1,11]" in program
    assert not any(s in program for s in ("2,7,11]", "7,2,11]", "[7,2,1,11]"))


@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_a_vocabulary_that_is_filled_up(softcap):
    """12,799 tokens: the column that is added has logit 0, all others are negative."""
    random = np.random.default_rng(0)
    x_BLD = jnp.asarray(random.uniform(1, 2, size=(2, 7, 4)), jnp.float32)
    head_DV = jnp.asarray(random.uniform(-2, -1, size=(4, 12799)), jnp.float32)
    targets_BL = random.integers(0, 12799, (2, 7))
    targets_BL[1, 5:] = -1

    def loss(x_BLD, head_DV):
        return cross_entropy_objective(x_BLD, head_DV, targets_BL, 3, 0.0, softcap)[0]

    def plainly(x_BLD, head_DV):
        return objective(x_BLD, head_DV, targets_BL, 0.0, softcap)

    assert "12800]" in str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(x_BLD, head_DV))
    found, expected = (jax.jit(jax.value_and_grad(f, (0, 1))) for f in (loss, plainly))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        found(x_BLD, head_DV),
        expected(x_BLD, head_DV),
    )
