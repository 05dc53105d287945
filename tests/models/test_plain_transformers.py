"""layer_table + lie_trotter against GPT-2 and Llama written out in float64 numpy.

As they are, with options of the architecture, and with other norms and residual
connections.
"""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from cases import OPTIONS, TINY, params_of, tokens_of

from diffeq_former.config import ModelConfig, Stabilisers
from diffeq_former.models.init_scale import kernel_stddev
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.weight_specs import LinearSpec


def normalise(x, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def layer_norm(w, x, eps):
    return normalise(x - x.mean(-1, keepdims=True), eps) * w["scale"] + w["shift"]


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def causal_attention(q, k, v):
    """One sequence: q [L, N, H]; k, v [L, K, H], each serving N / K heads."""
    L, N, H = q.shape
    out = np.zeros_like(q)
    for n in range(N):
        kv = n // (N // k.shape[1])
        scores = q[:, n] @ k[:, kv].T / np.sqrt(H)
        scores = np.where(np.tril(np.ones((L, L))) > 0, scores, -np.inf)
        out[:, n] = softmax(scores) @ v[:, kv]
    return out


def qk_normalised(config, w, q, k):
    if not config.qk_norm:
        return q, k
    return [
        normalise(x, config.norm_eps) * w[name]["scale"]
        for name, x in (("query_norm", q), ("key_norm", k))
    ]


def activated(config, h, default):
    if config.activation == "exact_gelu":
        return h * (1 + np.vectorize(math.erf)(h / np.sqrt(2))) / 2
    return np.maximum(h, 0) ** 2 if config.activation == "relu_squared" else default(h)


def gelu(h):
    return 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))


def silu(h):
    return h / (1 + np.exp(-h))


def capped(config, logits):
    cap = config.logit_softcap
    return cap * np.tanh(logits / cap) if cap else logits


def gpt2(config, p, tokens, norms="pre", keep=1.0):
    x = p["embedding"]["token"][tokens]
    if config.positions == "default":
        x = x + p["embedding"]["position"][: len(tokens)]
    for layer in range(config.num_layers):
        w = jax.tree.map(lambda a, i=layer: a[i], p["weights"])
        y = x
        if norms == "pre":
            y = layer_norm(w["norm_1"], x, config.norm_eps)
        qkv = np.einsum("ld,dcnh->lcnh", y, w["qkv"]["kernel"]) + w["qkv"]["bias"]
        q, k = qk_normalised(config, w, qkv[:, 0], qkv[:, 1])
        if config.positions == "rotary":
            q, k = rotary(config, q), rotary(config, k)
        o = causal_attention(q, k, qkv[:, 2])
        out = w["attention_out"]
        x = keep * x + np.einsum("lnh,nhd->ld", o, out["kernel"]) + out["bias"]
        if norms == "post":
            x = layer_norm(w["norm_1"], x, config.norm_eps)
        y = x
        if norms == "pre":
            y = layer_norm(w["norm_2"], x, config.norm_eps)
        h = y @ w["ff_in"]["kernel"] + w["ff_in"]["bias"]
        h = activated(config, h, gelu)
        x = keep * x + h @ w["ff_out"]["kernel"] + w["ff_out"]["bias"]
        if norms == "post":
            x = layer_norm(w["norm_2"], x, config.norm_eps)
    x = layer_norm(p["final_norm"], x, config.norm_eps)
    head = p["head"]["kernel"] if "head" in p else p["embedding"]["token"].T
    return capped(config, x @ head)


def rotary(config, x):
    """Pairs (i, i + R/2) as complex numbers, turned by position * base^(-2i/R)."""
    half = int(x.shape[-1] * config.rope_fraction) // 2
    z = x[..., :half] + 1j * x[..., half : 2 * half]
    exponents = -2 * np.arange(half) / (2 * half)
    angles = np.arange(len(x))[:, None] * config.rope_base**exponents
    z = z * np.exp(1j * angles)[:, None]
    return np.concatenate([z.real, z.imag, x[..., 2 * half :]], -1)


def llama(config, p, tokens, norms="pre", keep=1.0):
    def norm(w, x):
        return normalise(x, config.norm_eps) * w["scale"]

    x = p["embedding"]["token"][tokens]
    for layer in range(config.num_layers):
        w = jax.tree.map(lambda a, i=layer: a[i], p["weights"])
        y = norm(w["norm_1"], x) if norms == "pre" else x
        q, k, v = (
            np.einsum("ld,dnh->lnh", y, w[name]["kernel"])
            for name in ("query", "key", "value")
        )
        q, k = qk_normalised(config, w, q, k)
        q, k = rotary(config, q), rotary(config, k)
        o = causal_attention(q, k, v)
        x = keep * x + np.einsum("lnh,nhd->ld", o, w["attention_out"]["kernel"])
        x = norm(w["norm_1"], x) if norms == "post" else x
        y = norm(w["norm_2"], x) if norms == "pre" else x
        gate = y @ w["gate"]["kernel"]
        h = activated(config, gate, silu) * (y @ w["up"]["kernel"])
        x = keep * x + h @ w["down"]["kernel"]
        x = norm(w["norm_2"], x) if norms == "post" else x
    return capped(config, norm(p["final_norm"], x) @ p["head"]["kernel"])


PARTIAL = {"positions": "rotary", "rope_fraction": 0.5, "activation": "exact_gelu"}
PLAIN = {"gpt": (gpt2, 0), "llama": (llama, 0), "llama-grouped": (llama, 1)}


@pytest.mark.parametrize(
    "name, options",
    [
        ("gpt", {}),
        ("gpt", OPTIONS),
        ("gpt", PARTIAL),
        ("gpt", {**OPTIONS, "positions": "rotary", "tied_head": True}),
        ("llama", {}),
        ("llama-grouped", {}),
        ("llama-grouped", {**OPTIONS, "rope_fraction": 0.25}),
    ],
    ids=str,
)
def test_equals_the_plain_transformer(name, options):
    written_out, num_kv_heads = PLAIN[name]
    config = dataclasses.replace(
        TINY,
        block=name.split("-")[0],
        weights="layer_table",
        solver="lie_trotter",
        num_kv_heads=num_kv_heads,
        **options,
    )
    assert config.step_size == 1.0
    compare(config, written_out)


def compare(config, written_out):
    params, tokens_BL = params_of(config), tokens_of(config)
    logits = jax.jit(Transformer(config).apply)({"params": params}, tokens_BL)
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, tokens_L in enumerate(tokens_BL):
        expected = written_out(config, exact, tokens_L)
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=2e-5)


# Every two of them meet; the usual ones are above.
@pytest.mark.parametrize(
    "name, norms, keep",
    [
        ("gpt", "pre", 0.5),
        ("llama", "pre", 0.0),
        ("gpt", "post", 1.0),
        ("llama", "post", 0.5),
        ("gpt", "post", 0.0),
        ("llama", "none", 1.0),
        ("gpt", "none", 0.5),
        ("llama", "none", 0.0),
    ],
)
def test_equals_it_with_other_stabilisers(name, norms, keep):
    config = dataclasses.replace(
        TINY,
        block=name,
        weights="layer_table",
        solver="lie_trotter",
        stabilisers=Stabilisers(keep, norms),
    )
    written_out = functools.partial(PLAIN[name][0], norms=norms, keep=keep)
    compare(config, written_out)
    has_norms = {"norm_1", "norm_2"} <= params_of(config)["weights"].keys()
    assert has_norms == (norms != "none")


def test_eulers_step_keeps_a_part_of_the_state():
    """x <- keep x + h (attention + feed-forward), with h = 1 and both of the same x."""
    usual = dataclasses.replace(TINY, weights="layer_table", num_layers=1)
    scaled = dataclasses.replace(usual, stabilisers=Stabilisers(0.25))
    params, tokens_BL = params_of(usual), tokens_of(usual)

    def end_of_depth(config):
        apply = jax.jit(Transformer(config).apply, static_argnames="mutable")
        _, sown = apply({"params": params}, tokens_BL, mutable=("intermediates",))
        return sown["intermediates"]["depth"]["state"][0][0]

    ends = params["embedding"]
    first_BLD = ends["token"][tokens_BL] + ends["position"][None]
    expected = end_of_depth(usual) - 0.75 * first_BLD
    np.testing.assert_allclose(end_of_depth(scaled), expected, rtol=0, atol=1e-5)


def test_what_writes_to_the_residual_stream_starts_as_small_as_its_sum_needs():
    """The variance of a sum of 2 L terms, of which the last k have shrunk by r^(2k)."""
    writes = LinearSpec((2, 2), ("embed", "embed"), False, writes_residual=True)

    def started(residual):
        c = ModelConfig(weights="layer_table", stabilisers=Stabilisers(residual))
        return kernel_stddev(c, writes) / 0.02

    assert started(1.0) == pytest.approx(24**-0.5)
    assert started(0.0) == 1.0
    assert started(0.5) == pytest.approx(0.75**0.5)
