"""Exponents of known systems, and derivatives of the model's own steps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, model, params_of, tokens_of

from diffeq_former.analysis import depth, lyapunov
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.ode.solvers import SOLVERS

RANDOM = np.random.default_rng(0)
TIME = 2.5


@functools.partial(jax.jit, static_argnums=(1, 2))
def pushed(matrices_TMM, num_exponents, measure=lyapunov.finite_time_exponents):
    M = matrices_TMM.shape[-1]
    start_MK = np.random.default_rng(1).normal(size=(M, num_exponents))
    push = lambda a_MM, y_M: a_MM @ y_M  # noqa: E731
    return measure(push, matrices_TMM, jnp.asarray(start_MK), TIME)


def test_a_symmetric_field_has_its_eigenvalues(x64):
    """exp(t A) by 40 steps."""
    rates = np.array([3.0, 1.0, 0.0, -2.0, -6.0])
    basis = np.linalg.qr(RANDOM.normal(size=(5, 5)))[0]
    one = basis @ np.diag(np.exp(rates * TIME / 40)) @ basis.T
    steps = np.broadcast_to(one, (40, 5, 5))
    np.testing.assert_allclose(pushed(steps, 5), rates, atol=1e-9)
    np.testing.assert_allclose(pushed(steps, 2), rates[:2], atol=1e-9)


def test_a_spiral_has_its_real_parts(x64):
    turn = np.exp(0.3 * TIME / 10) * np.linalg.qr(RANDOM.normal(size=(4, 4)))[0]
    found = pushed(turn[None].repeat(10, 0), 3, lyapunov.exponents)
    np.testing.assert_allclose(found, 0.3, rtol=1e-9)


def test_a_chain_that_is_not_normal_has_its_singular_values(x64):
    chain = RANDOM.normal(size=(6, 5, 5)) + 2 * np.diag([4, 2, 1, 0.5, 0.2])
    expected = np.linalg.svd(np.linalg.multi_dot(chain[::-1]), compute_uv=False)
    found = pushed(chain, 5)
    np.testing.assert_allclose(found, np.log(expected) / TIME, rtol=1e-6)
    np.testing.assert_allclose(pushed(chain, 1), found[:1], rtol=1e-6)


def lorenz(x):
    x, y, z = x
    return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def test_lorenz_has_its_published_spectrum(x64):
    """0.906, 0, -14.57 (Sprott 2003), by rk4 over a thousand units of time."""
    h, num_steps = 0.01, 100_000

    def step(x):
        return SOLVERS["rk4"].step([lambda node, x: lorenz(x)], x, h)

    @jax.jit
    def spectrum(x):
        x, _ = jax.lax.scan(lambda x, _: (step(x), None), x, length=2000)
        _, x_T3 = jax.lax.scan(lambda x, _: (step(x), x), x, length=num_steps)
        push = lambda x, y: jax.jvp(step, (x,), (y,))[1]  # noqa: E731
        return lyapunov.exponents(push, x_T3, jnp.eye(3), h * num_steps)

    found = np.asarray(spectrum(jnp.array([1.0, 1.0, 20.0])))
    np.testing.assert_allclose(found, [0.906, 0, -14.572], atol=0.01)
    # The divergence of the flow, but for what rk4 errs.
    assert found.sum() == pytest.approx(-41 / 3, abs=5e-4)


@dataclasses.dataclass
class Case:
    config: object
    table: dict
    states_TLD: jax.Array

    @property
    def along(self):
        return self.config, self.table, self.states_TLD


@functools.cache
def case_of(changed_tokens=(), **changes):
    config = dataclasses.replace(TINY, **{"dtype": "float64"} | changes)
    trained = LoadedModel("run", config, params_of(config), None, mesh_of())
    # Analyses take float32; float64 tells derivatives apart.
    config = config.for_inference()
    table = jax.tree.map(lambda w: np.asarray(w, config.dtype), trained.table)
    ids_L = tokens_of(TINY, batch=1)[0, :5]
    for place in changed_tokens:
        ids_L[place] += 1
    x_LD = depth.embed(config, trained.outer, ids_L)
    return Case(config, table, depth.states(config, table, x_LD))


def random_step(config):
    """What belongs to one step, and its state: [5, D]."""
    num_nodes = len(SOLVERS[config.solver].nodes)
    layers = params_of(model(config.block, "layer_table", "euler"))["weights"]
    weights_S = jax.tree.map(lambda w: np.asarray(w[:num_nodes], float), layers)
    return np.random.default_rng(2).normal(size=(5, config.d_model)), weights_S


def dense(case, k, field="whole"):
    """The derivative of step k by all of the state: [L, D, L, D]."""
    weights_S = jax.tree.map(lambda w: w[k], case.table)
    return np.asarray(_jacobian(case.config, field, weights_S, case.states_TLD[k]))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _jacobian(config, field, weights_S, x_LD):
    return jax.jacrev(lambda x: depth.step(config, weights_S, x, field))(x_LD)


@pytest.mark.parametrize("block", ["gpt", "llama"])
def test_tangents_are_finite_differences(x64, block):
    """Of the whole step, and of the part of it that attention changes."""
    c = model(block, "hypernetwork", "euler", dtype="float64")
    x_LD, weights_S = random_step(c)
    units = ("ff_in", "ff_out") if block == "gpt" else ("down",)
    silent = {unit: jax.tree.map(np.zeros_like, weights_S[unit]) for unit in units}
    y_LD = RANDOM.normal(size=x_LD.shape)
    step = jax.jit(lambda weights_S, x_LD: depth.step(c, weights_S, x_LD))
    tangent = jax.jit(lyapunov.tangent, static_argnums=(0, 3))
    for field, used in (("whole", weights_S), ("attention", weights_S | silent)):
        found = tangent(c, (x_LD, weights_S), y_LD, field)
        ahead, behind = (step(used, x_LD + sign * 1e-5 * y_LD) for sign in (1, -1))
        expected = (ahead - behind) / 2e-5
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_the_attention_field_has_the_jacobian_of_appendix_b2(x64):
    """d f_out / d y_in = a_oi O V [I + (y_i - mean) y_o^T S], and more on itself.

    y is the normed state; the norm's own derivative is written out as well.
    """
    case = case_of()
    c, x = case.config, np.asarray(case.states_TLD[0])
    w = {
        n: {k: np.asarray(v[0, 0], float) for k, v in u.items()}
        for n, u in case.table.items()
    }
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(-1) + c.norm_eps)
    unit = centred / deviation[:, None]
    scale, D, H = w["norm_1"]["scale"], c.d_model, c.head_size
    y = unit * scale + w["norm_1"]["shift"]
    found = dense(case, 0, "attention")
    for out in (1, 4):
        for into in range(5):
            expected = np.zeros((D, D))
            for n in range(c.num_heads):
                wq, wk, wv = (w["qkv"]["kernel"][:, i, n].T for i in range(3))
                bq, bk = (w["qkv"]["bias"][i, n] for i in range(2))
                o = w["attention_out"]["kernel"][n].T
                q, k = y @ wq.T + bq, y[: out + 1] @ wk.T + bk
                a = np.exp(k @ q[out] / np.sqrt(H))
                a /= a.sum()
                mean = a @ y[: out + 1]
                if into <= out:
                    score = q[out] @ wk / np.sqrt(H)  # y_o^T S
                    expected += (
                        a[into] * o @ wv @ (np.eye(D) + np.outer(y[into] - mean, score))
                    )
                if into == out:
                    spread = (a[:, None] * (y[: out + 1] - mean)).T @ (k @ wq)
                    expected += o @ wv @ spread / np.sqrt(H)
            u = unit[into]
            of_norm = np.eye(D) - 1 / D - np.outer(u, u) / D
            of_norm = scale[:, None] * of_norm / deviation[into]
            step = c.step_size * expected @ of_norm + (into == out) * np.eye(D)
            np.testing.assert_allclose(found[out, :, into], step, rtol=1e-9, atol=1e-12)


def chains(case, last, field):
    """Of the blocks of token j in the derivative of each step at token `last`."""
    blocks = [dense(case, k, field)[last] for k in range(case.config.num_layers)]
    for j in range(5):
        # Beside its block, only what is a token's own stays as it is.
        steps = [block[:, j] + (j != last) * np.eye(TINY.d_model) for block in blocks]
        yield np.linalg.multi_dot(steps[::-1])


def exponents_of(chain, case):
    return np.log(np.linalg.svd(chain, compute_uv=False)) / case.config.interval


@pytest.mark.parametrize(
    "solver, field", [("euler", "attention"), ("lie_trotter", "whole")]
)
def test_token_to_token_is_the_chain_of_blocks(x64, solver, field):
    """Of the dense Jacobian of each step; all exponents together are log |det|."""
    case, last = case_of(solver=solver), 3
    found = lyapunov.token_to_token(*case.along, last, field, TINY.d_model)
    for j, chain in enumerate(chains(case, last, field)):
        expected = exponents_of(chain, case)
        np.testing.assert_allclose(found[j], expected, rtol=1e-4, atol=1e-6)
        assert found[j].sum() == pytest.approx(expected.sum(), abs=1e-9)
    np.testing.assert_allclose(found[4], 0, atol=1e-12)  # a later token


def test_the_leading_exponents_of_token_to_token_are_the_largest(x64):
    case, last = case_of(), 3
    leading = lyapunov.token_to_token(*case.along, last, "whole", 2)
    for j, chain in enumerate(chains(case, last, "whole")):
        expected = exponents_of(chain, case)[:2]
        np.testing.assert_allclose(leading[j], expected, rtol=1e-4, atol=1e-9)


# Of one attention a step, and of several.
@pytest.mark.parametrize(
    "block, solver",
    [
        ("gpt", "lie_trotter"),
        ("llama", "strang"),
        ("gpt", "heun"),
    ],
)
def test_a_token_moves_another_by_the_block_of_the_jacobian(x64, block, solver):
    c, i = model(block, "hypernetwork", solver, dtype="float64"), 3
    step, y_D = random_step(c), RANDOM.normal(size=TINY.d_model)

    @functools.partial(jax.jit, static_argnums=0)
    def moved_and_expected(field, step, y_D):
        x_LD, weights_S = step
        moved = lambda j: lyapunov._moved(c, step, y_D, j, i, field)  # noqa: E731
        moves = jax.jacrev(lambda x: depth.step(c, weights_S, x, field)[i])(x_LD)
        return jax.vmap(moved)(jnp.arange(5)), moves.swapaxes(0, 1) @ y_D

    for field in depth.FIELDS:
        found_LD, expected_LD = moved_and_expected(field, step, y_D)
        np.testing.assert_allclose(found_LD, expected_LD, rtol=1e-9, atol=1e-12)


def test_the_coupled_system_and_influence_are_the_whole_chain(x64):
    """The exponents also of a sentence that is filled up: of its own tokens."""
    case, last = case_of(), 3
    c, D = case.config, TINY.d_model
    chain = np.eye(5 * D)
    for k in range(c.num_layers):
        chain = dense(case, k).reshape(5 * D, 5 * D) @ chain
    for length in (3, 5):
        found = lyapunov.coupled(*case.along, length, "whole", 2)
        expected = exponents_of(chain[: length * D, : length * D], case)[:2]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    every = lyapunov.coupled(*case.along, 5, "whole", 5 * D)
    log_det = np.linalg.slogdet(chain)[1] / c.interval
    assert every.sum() == pytest.approx(log_det, abs=1e-9)
    influence = lyapunov.influence(*case.along, last, "whole", D)
    blocks = chain.reshape(5, D, 5, D)[last]
    expected = np.sqrt(np.square(blocks).sum((0, 2)) / D)
    np.testing.assert_allclose(influence, expected, rtol=1e-9, atol=1e-12)


def test_later_tokens_change_nothing(x64):
    """So sentences may be filled up with any."""
    case, other = case_of(), case_of(changed_tokens=(3, 4))
    assert (case.states_TLD[:, 3:] != other.states_TLD[:, 3:]).all()
    for measure, arguments in (
        (lyapunov.token_to_token, (2, "whole", 2)),
        (lyapunov.coupled, (3, "whole", 2)),
        (lyapunov.influence, (2, "whole", TINY.d_model)),
    ):
        found, expected = (measure(*x.along, *arguments) for x in (case, other))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def smooth(solver, num_steps):
    config = dataclasses.replace(TINY, time_scale=2.0).at_depth(num_steps)
    changes = {"num_layers": num_steps, "horizon": config.horizon}
    return case_of(solver=solver, time_scale=2.0, dtype="float32", **changes)


@pytest.mark.slow  # that they are those of the chain of blocks is tested above
def test_exponents_of_token_to_token_do_not_depend_on_the_grid():
    fine, coarse = (
        lyapunov.token_to_token(*smooth("euler", n).along, 4, "whole", 1)
        for n in (64, 32)
    )
    np.testing.assert_allclose(fine, coarse, rtol=0.05)


def test_exponents_of_the_coupled_system_do_not_depend_on_the_grid():
    """Half as far with each halving of Euler's steps; at once by midpoint's."""
    coarse, fine, exact = (
        float(lyapunov.coupled(*smooth(solver, n).along, 5, "whole", 1)[0])
        for solver, n in (("euler", 32), ("euler", 64), ("midpoint", 32))
    )
    errors = [abs(found - exact) for found in (coarse, fine)]
    assert 0.4 < errors[1] / errors[0] < 0.6 and errors[0] < 0.1 * abs(exact)
