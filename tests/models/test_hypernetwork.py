import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.models.hypernetwork import _combine


@pytest.mark.parametrize("num_times", [1, 5])
@pytest.mark.parametrize("shape", [(7,), (3, 4, 2)])
def test_combining_a_bank_has_the_gradients_of_autodiff(num_times, shape):
    """They are written out in the package."""
    random = np.random.default_rng(0)
    u_TE, bank, gradient = (
        random.normal(size=size).astype("float32")
        for size in ((num_times, 6), (6, *shape), (num_times, *shape))
    )

    @jax.jit
    def pulled_back(u_TE, bank, gradient):
        plain = lambda u_TE, bank: jnp.tensordot(u_TE, bank, 1)  # noqa: E731
        return [jax.vjp(f, u_TE, bank)[1](gradient) for f in (_combine, plain)]

    found, expected = pulled_back(u_TE, bank, gradient)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
