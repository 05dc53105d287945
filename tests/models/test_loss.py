import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.models.loss import cross_entropy_sums


@pytest.fixture
def case():
    random = np.random.default_rng(0)
    x_BLD = jnp.asarray(random.normal(size=(2, 7, 4)), jnp.float32)
    head_DV = jnp.asarray(random.normal(size=(4, 11)), jnp.float32)
    targets_BL = random.integers(0, 11, (2, 7))
    targets_BL[1, 5:] = -1
    return x_BLD, head_DV, targets_BL


def by_hand(x_BLD, head_DV, targets_BL):
    logits = np.asarray(x_BLD, np.float64) @ np.asarray(head_DV, np.float64)
    loss = log_z_squared = 0.0
    for place in np.argwhere(targets_BL >= 0):
        b, l = place
        log_z = np.log(np.exp(logits[b, l]).sum())
        loss += log_z - logits[b, l, targets_BL[b, l]]
        log_z_squared += log_z**2
    return {"loss": loss, "log_z_squared": log_z_squared, "tokens": 12}


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_sums_equal_those_by_hand(case, chunk):
    sums = jax.jit(cross_entropy_sums, static_argnums=3)(*case, chunk)
    for name, expected in by_hand(*case).items():
        np.testing.assert_allclose(sums[name], expected, rtol=1e-6)


def test_gradients_do_not_depend_on_the_chunk(case):
    x_BLD, head_DV, targets_BL = case

    def loss(x_BLD, head_DV, chunk):
        sums = cross_entropy_sums(x_BLD, head_DV, targets_BL, chunk)
        return sums["loss"] + 0.1 * sums["log_z_squared"]

    gradient = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
    whole, parts = (gradient(x_BLD, head_DV, chunk) for chunk in (7, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole, parts)
    assert (whole[0][1, 5:] == 0).all()


def test_no_array_of_all_logits_exists(case):
    x_BLD, head_DV, targets_BL = case
    program = str(
        jax.make_jaxpr(
            jax.grad(lambda x: cross_entropy_sums(x, head_DV, targets_BL, 1)["loss"])
        )(x_BLD)
    )
    assert "f32[2,1,11]" in program
    assert not any(s in program for s in ("2,7,11]", "7,2,11]", "[7,1,2,1,11]"))


def test_a_vocabulary_that_is_filled_up():
    """12,799 tokens: the column that is added has logit 0, all others are negative."""
    random = np.random.default_rng(0)
    x_BLD = jnp.asarray(random.uniform(1, 2, size=(2, 7, 4)), jnp.float32)
    head_DV = jnp.asarray(random.uniform(-2, -1, size=(4, 12799)), jnp.float32)
    targets_BL = random.integers(0, 12799, (2, 7))
    targets_BL[1, 5:] = -1

    def loss(x_BLD, head_DV):
        return cross_entropy_sums(x_BLD, head_DV, targets_BL, 3)["loss"]

    def plainly(x_BLD, head_DV):
        log_p_BLV = jax.nn.log_softmax(x_BLD @ head_DV)
        picked = jnp.take_along_axis(log_p_BLV, targets_BL[..., None], axis=-1)[..., 0]
        return -jnp.where(targets_BL >= 0, picked, 0.0).sum()

    assert "12800]" in str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(x_BLD, head_DV))
    found, expected = (jax.jit(jax.value_and_grad(f, (0, 1))) for f in (loss, plainly))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        found(x_BLD, head_DV),
        expected(x_BLD, head_DV),
    )
