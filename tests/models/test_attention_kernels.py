"""Which kernel is chosen, what it computes, and that the lowered program calls it."""

import dataclasses
import functools
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of
from jax._src.cudnn import fused_attention_stablehlo

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.distributed.mesh import batch_sharding, layout
from diffeq_former.errors import UserError
from diffeq_former.hardware import CPU, Hardware, hardware_of
from diffeq_former.models.attention import Attend
from diffeq_former.models.attention_kernels import (
    KERNELS,
    choose,
    cudnn,
    describe,
    splash,
)
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step

TPU, ROCM = Hardware("tpu"), Hardware("rocm")
AMPERE, HOPPER = Hardware("cuda", (8, 0)), Hardware("cuda", (9, 0))
L = 384
BASE = dataclasses.replace(
    TINY,
    block="llama",
    d_model=256,
    num_heads=4,
    num_kv_heads=2,
    max_len=L,
    dtype="bfloat16",
)
OF_PLATFORM = {"cpu": "blockwise", "cuda": "cudnn", "tpu": "splash"}
WIDE_HEADS = {"d_model": 1024, "num_heads": 4}

CHOICES = [
    (CPU, {}, 1, "blockwise"),
    (CPU, {"document_masking": True}, 1, "blockwise"),
    (CPU, {"attention_dropout": 0.1}, 1, "xla"),
    (CPU, {}, 2, "xla"),
    (ROCM, {}, 1, "xla"),
    (HOPPER, {}, 1, "cudnn"),
    (AMPERE, {}, 1, "cudnn"),
    (Hardware("cuda", (7, 5)), {}, 1, "xla"),
    (HOPPER, WIDE_HEADS, 1, "cudnn"),
    (AMPERE, WIDE_HEADS, 1, "xla"),
    (HOPPER, {"num_heads": 64, "num_kv_heads": 64}, 1, "xla"),
    (HOPPER, {"dtype": "float32"}, 1, "xla"),
    (HOPPER, {"document_masking": True}, 1, "cudnn"),
    (HOPPER, {"attention_dropout": 0.1}, 1, "xla"),
    (HOPPER, {}, 2, "cudnn"),
    (TPU, {}, 1, "splash"),
    (TPU, {"dtype": "float32"}, 1, "splash"),
    (TPU, {"document_masking": True}, 1, "splash"),
    (TPU, {"num_heads": 8}, 1, "xla"),
    (TPU, {"attention_dropout": 0.1}, 1, "xla"),
    (TPU, {}, 3, "splash"),
    (TPU, {}, 2, "xla"),
]


@pytest.mark.parametrize("hardware, changes, shares, expected", CHOICES, ids=str)
def test_the_choice(hardware, changes, shares, expected):
    """And what another kernel is refused for is why it was not chosen."""
    c = dataclasses.replace(BASE, **changes)
    assert choose(c, hardware, L, shares) == expected
    told = describe(c, hardware, L, shares)
    for wanted in KERNELS:
        asked = dataclasses.replace(c, attention_implementation=wanted)
        everywhere = wanted == "blockwise" and shares == 1 and not c.attention_dropout
        if wanted in (expected, "xla") or everywhere:
            assert choose(asked, hardware, L, shares) == wanted
            assert describe(asked, hardware, L, shares) == f"attention: {wanted}"
            continue
        with pytest.raises(UserError) as refusal:
            choose(asked, hardware, L, shares)
        message = str(refusal.value)
        start = "config.model.attention_implementation: expected auto or xla here, got "
        assert message.startswith(f"{start}'{wanted}', which needs ")
        assert "\n" not in message
        assert (f"({wanted} needs {message.split(' needs ')[1]})" in told) == (
            OF_PLATFORM.get(hardware.platform) == wanted
        )


def test_splash_takes_whole_blocks_of_tokens():
    assert choose(BASE, TPU, 192, 1) == "xla"
    assert choose(BASE, TPU, L, 2) == "xla"
    message = "needs a multiple of 128 tokens per device, not 192"
    assert all(message in describe(BASE, TPU, *x) for x in [(192, 1), (L, 2)])


@pytest.mark.parametrize(
    "hardware, head_dim, kernel",
    [
        (AMPERE, 128, "cudnn"),
        (AMPERE, 136, "xla"),
        (HOPPER, 256, "cudnn"),
        (HOPPER, 264, "xla"),
        (TPU, 64, "splash"),
        (TPU, 96, "xla"),
    ],
    ids=str,
)
def test_the_sizes_of_heads(hardware, head_dim, kernel):
    c = dataclasses.replace(BASE, d_model=4 * head_dim)
    assert choose(c, hardware, L, 1) == kernel
    if hardware == TPU and kernel == "xla":
        assert "a multiple of 64, not 96" in describe(c, hardware, L, 1)


def test_the_machine_of_the_tests():
    assert hardware_of(jax.devices()[0]) == CPU


@pytest.mark.parametrize(
    "version, expected",
    [
        ("9.0", HOPPER),
        ("12.1", Hardware("cuda", (12, 1))),
        ("gfx942", ROCM),
    ],
)
def test_a_gpu_is_known_by_its_compute_capability(version, expected):
    device = types.SimpleNamespace(platform="gpu", compute_capability=version)
    assert hardware_of(device) == expected


MESH = {"data": 2, "fsdp": 2, "tensor": 2}
SEQUENCE_MESH = {"fsdp": 2, "sequence": 3}


def on_a_mesh(*values):
    return pytest.param(*values, marks=pytest.mark.mesh)


def slow(case):
    return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow])


def arguments(documents):
    """q_BLNH, k_BLKH, v_BLKH of grouped heads, and segments_BL."""
    random = np.random.default_rng(0)
    shapes = [(4, L, heads, 64) for heads in (4, 2, 2)]
    arrays = [jnp.asarray(random.normal(size=s), jnp.float32) for s in shapes]
    ends_BL = random.random((4, L)) < 0.02
    return *arrays, jnp.asarray(ends_BL.cumsum(1)) if documents else None


def value_and_gradients(attend, documents, **mesh):
    q, k, v, segments = arguments(documents)
    weights = jnp.cos(jnp.arange(q.size, dtype=jnp.float32)).reshape(q.shape)

    def objective(q, k, v):
        o = attend(q, k, v, segments)
        return (o * weights).sum(), o

    # What is in JAX's kernel is not ours to be strict about.
    with jax.numpy_rank_promotion("allow"):
        gradient = jax.grad(objective, argnums=(0, 1, 2), has_aux=True)
        if not mesh:
            return jax.jit(gradient)(q, k, v)
        with layout(mesh_of(math.prod(mesh.values()), **mesh)):
            return jax.jit(gradient)(q, k, v)


@pytest.mark.parametrize(
    "documents, mesh",
    [
        (False, {}),
        on_a_mesh(True, MESH),
        on_a_mesh(True, SEQUENCE_MESH),
        slow(pytest.param(True, {})),
        slow(on_a_mesh(False, MESH)),
    ],
)
def test_splash_is_attention(documents, mesh):
    """Interpreted; grouped heads; on a mesh by each device for its part."""
    interpreted = functools.partial(splash, interpret=True)
    gradients, o = value_and_gradients(interpreted, documents, **mesh)
    expected_gradients, expected = value_and_gradients(KERNELS["xla"], documents)
    np.testing.assert_allclose(o, expected, rtol=0, atol=1e-5)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.mesh
@pytest.mark.parametrize("documents", [False, True])
def test_devices_attend_from_their_part_of_a_sequence(documents):
    """Pass the arguments of the cuDNN kernel to another implementation."""
    attend = functools.partial(cudnn, implementation="xla")
    found = value_and_gradients(attend, documents, sequence=4, tensor=2)
    wanted = value_and_gradients(KERNELS["xla"], documents)
    near = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
    jax.tree.map(near, found, wanted)


@pytest.mark.parametrize("length", [L, 50, 3])
@pytest.mark.parametrize("documents", [False, True])
def test_attention_in_blocks_is_attention(documents, length, x64):
    """Also where the last block is shorter, and where there are fewer tokens."""
    q, k, v, segments = (
        x if x is None else x[:, :length] for x in arguments(documents)
    )
    q, k, v = (x.astype(jnp.float64) for x in (q, k, v))

    def dense(q, k, v, segments):
        k, v = (jnp.repeat(x, 2, axis=2) for x in (k, v))
        mask = jnp.tril(jnp.ones((length, length), bool))[None, None]
        if segments is not None:
            mask = mask & (segments[:, None, :, None] == segments[:, None, None, :])
        scores = jnp.einsum("blnh,bsnh->bnls", q, k) / np.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        return jnp.einsum("bnls,bsnh->blnh", weights, v)

    def results(attend):
        o, pull_back = jax.vjp(lambda *x: attend(*x, segments), q, k, v)
        return o, *pull_back(jnp.cos(jnp.arange(q.size)).reshape(q.shape))

    for found, wanted in zip(
        results(KERNELS["blockwise"]), results(dense), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


SCORES = r"dot_general [^\n]*-> tensor<[\dx]*384x384x(?:f32|bf16)>"
DOCUMENTS = {"document_masking": True, "end_of_text": 0}
PROGRAMS = [
    slow(on_a_mesh(CPU, {}, MESH, 1, "blockwise")),
    (HOPPER, {}, {}, 1, "cudnn"),
    on_a_mesh(HOPPER, {}, MESH, 2, "cudnn"),
    (HOPPER, DOCUMENTS, {}, 1, "cudnn with a mask"),
    on_a_mesh(HOPPER, {}, SEQUENCE_MESH, 2, "cudnn with a mask"),
    on_a_mesh(HOPPER, DOCUMENTS, SEQUENCE_MESH, 2, "cudnn with a mask"),
    (HOPPER, {"dtype": "float32"}, {}, 1, "xla"),
    slow(pytest.param(TPU, {}, {}, 1, "splash")),
    on_a_mesh(TPU, DOCUMENTS, MESH, 2, "splash"),
    on_a_mesh(TPU, {}, SEQUENCE_MESH, 1, "splash"),
]
CALL = {
    "cudnn": "__cudnn$fmhaSoftmax",
    "cudnn with a mask": "__cudnn$fmhaScaleBiasSoftmax",
    "splash": "tpu_custom_call",
}


@pytest.mark.parametrize("hardware, changes, axes, M, kernel", PROGRAMS, ids=str)
def test_the_lowered_step_calls_the_kernel(
    hardware, changes, axes, M, kernel, monkeypatch
):
    """For another machine than this; with accumulation, on a mesh by each device."""
    monkeypatch.setattr("diffeq_former.training.step.mesh_hardware", lambda _: hardware)
    cudnn_version = lambda: 91000  # noqa: E731 - it is not installed here
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", cudnn_version)
    mesh, rows = mesh_of(math.prod(axes.values()), **axes), 16
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    queries = L // mesh.shape["sequence"]
    config = Config(
        model=dataclasses.replace(BASE, num_layers=2, remat="full", **changes),
        training=TrainingConfig(
            batch_size=rows,
            per_device_batch_size=rows // shares // M,
            loss_chunk=128,
        ),
    )
    tokens_BL = jax.ShapeDtypeStruct((rows, L), np.int32, sharding=batch_sharding(mesh))
    step = make_train_step(config, mesh).__wrapped__
    with layout(mesh), jax.numpy_rank_promotion("allow"):
        batch = {"inputs": tokens_BL, "targets": tokens_BL}
        traced = step.trace(state.abstract(config, mesh), batch)
        program = traced.lower(lowering_platforms=(hardware.platform,)).as_text()
    calls = set(re.findall(r"custom_call @([\w$]+)", program)) & set(CALL.values())
    assert calls == ({CALL[kernel]} if kernel in CALL else set())
    assert bool(re.search(SCORES, program)) == (kernel == "xla")
    if kernel in CALL:
        of_device = (
            f"{rows // shares // M}x{4 // mesh.shape['tensor']}x{queries}x64xbf16"
        )
        lines = [line for line in program.splitlines() if f"@{CALL[kernel]}(" in line]
        assert lines and all(f"tensor<{of_device}>" in line for line in lines)
    if kernel == "cudnn":
        assert all(r"mask_type\22: \22CAUSAL\22" in line for line in lines)


def test_a_kernel_that_cannot_be_had_is_refused_when_the_model_is_traced():
    c = dataclasses.replace(BASE, attention_implementation="cudnn")
    x = jnp.zeros((1, L, 4, 64), jnp.bfloat16)
    attend = Attend(c, train=True, cached=False, hardware=CPU)
    with pytest.raises(UserError, match="'cudnn', which needs an NVIDIA GPU, not cpu"):
        attend.apply({}, x, x, x, None, None, None)
