"""Against numbers that the authors' code produced (tests/data/*.npz)."""

import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.conversion import qkvflow
from diffeq_former.errors import UserError
from diffeq_former.models.grid import default_grid
from diffeq_former.models.loss import cross_entropy_sums
from diffeq_former.models.time_embedding import features
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.grid import uniform

DATA = Path(__file__).parent.parent / "data"
KINDS = ("gpt", "llama")


@pytest.fixture(scope="module", params=KINDS)
def reference(request):
    path = DATA / f"{request.param}.npz"
    config, params = qkvflow.load(path)
    with np.load(path) as file:
        return config, params, dict(file.items())


def loss_fn(config, params, tokens):
    model = Transformer(config)
    x = model.apply({"params": params}, tokens, method="hidden")
    head = model.apply({"params": params}, method="unembedding")
    targets = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    sums = cross_entropy_sums(x, head, targets, chunk=8)
    return sums["loss"] / sums["tokens"]


def test_logits(reference):
    config, params, file = reference
    logits = jax.jit(Transformer(config).apply)({"params": params}, file["tokens"])
    np.testing.assert_allclose(logits, file["logits"], atol=1e-5)


def test_loss_and_gradients_of_every_parameter(reference):
    config, params, file = reference
    loss, grads = jax.jit(jax.value_and_grad(loss_fn, 1), static_argnums=0)(
        config, params, file["tokens"]
    )
    np.testing.assert_allclose(loss, file["loss"], atol=1e-5)
    theirs = {k[5:]: v for k, v in file.items() if k.startswith("grad/")}
    expected = qkvflow.convert(config.block, theirs)
    jax.tree.map(_assert_relative, grads, expected)


def _assert_relative(ours, theirs):
    assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs)


def test_every_parameter_is_converted(reference):
    config, params, _ = reference
    made = jax.eval_shape(
        lambda: nn.unbox(
            Transformer(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
        )
    )
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, made["params"])


def test_time_grid(reference):
    """Theirs is k times a rounded step: within one unit in the last place of ours."""
    config, _, file = reference
    times_TS = default_grid(config).times_TS
    np.testing.assert_array_max_ulp(np.asarray(times_TS[:, 0]), file["time_grid"], 1)


def test_time_embedding(reference):
    config, _, file = reference
    phi = features(file["time_grid"], config.num_frequencies, config.time_scale)
    np.testing.assert_allclose(phi, file["time_embedding"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_layers", [3, 9])
def test_logits_at_another_number_of_steps(num_layers):
    """Theirs takes the weights of the end of its own step, not of a trained one."""
    config, params = qkvflow.load(DATA / "gpt.npz")
    with np.load(DATA / "gpt.npz") as file:
        tokens, expected = file["tokens"], file[f"logits_steps_{num_layers}"]
    model, grid = Transformer(config.at_depth(num_layers)), uniform(num_layers, (1.0,))
    logits = jax.jit(model.apply)({"params": params}, tokens, grid=grid)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_trajectory():
    config, params = qkvflow.load(DATA / "gpt.npz")
    with np.load(DATA / "gpt.npz") as file:
        tokens, expected = file["tokens"], file["trajectory"]
    apply = jax.jit(Transformer(config).apply, static_argnames="mutable")
    _, sown = apply({"params": params}, tokens, mutable=("intermediates",))
    (states_TBLD,) = sown["intermediates"]["depth"]["state"]
    np.testing.assert_allclose(states_TBLD, expected, atol=1e-5)


def test_missing_parameter_is_named(tmp_path):
    with np.load(DATA / "gpt.npz") as file:
        arrays = dict(file.items())
    del arrays["param/transformer/block/mlp/c_fc/f_W/bias"]
    np.savez(tmp_path / "gpt.npz", **arrays)
    with pytest.raises(UserError, match="mlp/c_fc/f_W/bias: .* missing"):
        qkvflow.load(tmp_path / "gpt.npz")


def test_foreign_parameter_is_named(tmp_path):
    with np.load(DATA / "gpt.npz") as file:
        arrays = dict(file.items())
    np.savez(tmp_path / "gpt.npz", **arrays, **{"param/lm_head/weight": np.zeros(1)})
    with pytest.raises(UserError, match="lm_head/weight: gpt has no such"):
        qkvflow.load(tmp_path / "gpt.npz")


@pytest.mark.parametrize("content", [b"", b"PK nonsense", json.dumps({}).encode()])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "gpt.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"gpt\.npz: not an npz"):
        qkvflow.load(tmp_path / "gpt.npz")
