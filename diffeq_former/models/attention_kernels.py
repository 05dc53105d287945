"""Choice of the attention kernel for whole sequences, and calls of each kernel.

B batch, L length, N heads, K key-value heads, H head size.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.hardware import Hardware
from diffeq_former.models.blockwise_attention import blockwise
from diffeq_former.models.partition import (
    KEYS,
    QUERIES,
    SEGMENTS,
    num_shards,
    shard_index,
    shard_map_kernel,
    sharding_of,
)
from diffeq_former.models.remat import ATTENTION_OUTPUT, named, recomputed


def choose(
    c: ModelConfig, hardware: Hardware, seq_len: int, sequence_shards: int = 1
) -> str:
    """Choose the kernel for attention over whole sequences.

    Args:
      c: The model's configuration, with the requested kernel.
      hardware: The platform for which the model is compiled.
      seq_len: Tokens per sequence.
      sequence_shards: Number of shards of a sequence on the mesh.

    Returns:
      A key of `KERNELS`.

    Raises:
      UserError: If a kernel other than `auto` is requested but cannot be used.
    """
    case = (c, hardware, seq_len, sequence_shards)
    wanted = c.attention_implementation
    if wanted == "auto":
        fused = _FUSED.get(hardware.platform, "xla")
        return "xla" if _unmet_requirement(fused, *case) else fused
    if unmet := _unmet_requirement(wanted, *case):
        raise UserError(
            "config.model.attention_implementation: expected auto or xla here, got"
            f" {wanted!r}, which {unmet}"
        )
    return wanted


def describe(
    c: ModelConfig, hardware: Hardware, seq_len: int, sequence_shards: int
) -> str:
    """Return a message that names the kernel, and why it is not the fused one."""
    case = (c, hardware, seq_len, sequence_shards)
    kernel, fused = choose(*case), _FUSED.get(hardware.platform, "xla")
    if kernel == fused or c.attention_implementation != "auto":
        return f"attention: {kernel}"
    return f"attention: {kernel} ({fused} {_unmet_requirement(fused, *case)})"


def _unmet_requirement(
    kernel: str, c: ModelConfig, hardware: Hardware, seq_len: int, sequence_shards: int
) -> str:
    """Return a message on the first unmet requirement of a kernel, or ""."""
    if kernel == "xla":
        return ""
    dropout = c.attention_dropout
    common = (not dropout, "model.attention_dropout=0", dropout)
    own = _REQUIREMENTS[kernel](c, hardware, seq_len, sequence_shards)
    for is_met, needed, found in [*own, common]:
        if not is_met:
            return f"needs {needed}, not {found}"
    return ""


def _blockwise_requirements(_, __, ___, sequence_shards: int) -> Iterator[tuple]:
    yield sequence_shards == 1, "mesh.sequence=1", sequence_shards


def _cudnn_requirements(c: ModelConfig, hardware: Hardware, *_) -> Iterator[tuple]:
    """The requirements that XLA checks before it calls cuDNN for causal attention."""
    widest = 256 if hardware.capability >= (9, 0) else 128
    version = "{}.{}".format(*hardware.capability)
    fits = c.head_size % 8 == 0 and c.head_size <= widest
    heads = f"heads of a size that is a multiple of 8 up to {widest}"
    yield hardware.platform == "cuda", "an NVIDIA GPU", hardware.platform
    yield hardware.capability >= (8, 0), "compute capability 8.0", version
    yield c.dtype == "bfloat16", "model.dtype=bfloat16", c.dtype
    yield fits, heads, c.head_size


def _splash_requirements(
    c: ModelConfig, hardware: Hardware, L: int, sequence_shards: int
) -> Iterator[tuple]:
    queries = L / sequence_shards
    heads = f"heads of a size that is a multiple of {LANES // 2}"
    yield hardware.platform == "tpu", "a TPU", hardware.platform
    yield queries % LANES == 0, f"a multiple of {LANES} tokens per device", queries
    yield c.head_size % (LANES // 2) == 0, heads, c.head_size


LANES = 128  # lanes of a TPU's vector registers
_FUSED = {"cpu": "blockwise", "cuda": "cudnn", "tpu": "splash"}
_REQUIREMENTS = {
    "blockwise": _blockwise_requirements,
    "cudnn": _cudnn_requirements,
    "splash": _splash_requirements,
}


def same_document(segments_BL: jax.Array, segments_BS: jax.Array) -> jax.Array:
    """Return a mask [B, L, S] of the pairs of positions in the same document."""
    return segments_BL[:, :, None] == segments_BS[:, None, :]


def _xla(q_BLNH, k_BLKH, v_BLKH, segments_BL) -> jax.Array:
    mask_B1LL = None
    if segments_BL is not None:
        mask_B1LL = same_document(segments_BL, segments_BL)[:, None]
    o_BLNH = jax.nn.dot_product_attention(
        *(q_BLNH, k_BLKH, v_BLKH),
        mask=mask_B1LL,
        is_causal=True,
        implementation="xla",
    )
    return named(ATTENTION_OUTPUT, o_BLNH)


def cudnn(
    q_BLNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    segments_BS: jax.Array | None,
    implementation: str = "cudnn",
) -> jax.Array:
    """Call cuDNN, or another implementation in JAX, for each device's own queries.

    Causality is a part of the mask only if these begin elsewhere than the keys.
    """

    def attend(q_BLNH, k_BSKH, v_BSKH, segments_BL, segments_BS):
        (B, L, N, _), S = q_BLNH.shape, k_BSKH.shape[1]
        masks = []
        if L < S:
            queries_L = L * shard_index("length") + jnp.arange(L)
            before_LS = queries_L[:, None] >= jnp.arange(S)[None]
            masks.append(before_LS[None, None])
        if segments_BS is not None:
            same_BLS = same_document(segments_BL, segments_BS)
            # The call of cuDNN can be mapped only with a mask for each head.
            masks.append(jnp.broadcast_to(same_BLS[:, None], (B, N, L, S)))
        return jax.nn.dot_product_attention(
            *(q_BLNH, k_BSKH, v_BSKH),
            mask=functools.reduce(jnp.logical_and, masks) if masks else None,
            is_causal=L == S,
            implementation=implementation,
        )

    axes = (QUERIES, KEYS, KEYS, ("batch", "length"), SEGMENTS)
    attend = shard_map_kernel(attend, axes, QUERIES)
    o_BLNH = attend(q_BLNH, k_BSKH, v_BSKH, segments_BS, segments_BS)
    return named(ATTENTION_OUTPUT, o_BLNH)


def splash(
    q_BLNH: jax.Array,
    k_BLKH: jax.Array,
    v_BLKH: jax.Array,
    segments_BL: jax.Array | None,
    interpret: bool = False,
) -> jax.Array:
    """Call JAX's splash attention for TPUs; `interpret` emulates it on any device."""
    kernel, spec = _splash_kernel(q_BLNH.shape, interpret)
    heads = [x.shape[2:] for x in (q_BLNH, k_BLKH, v_BLKH)]

    def of_device(kernel, q_BLNH, k_BSKH, v_BSKH, segments_BL, segments_BS):
        segments = None
        if segments_BL is not None:
            from jax.experimental.pallas.ops.tpu import splash_attention

            segments = splash_attention.SegmentIds(segments_BL, segments_BS)
        scale = jnp.float32(q_BLNH.shape[-1] ** -0.5)
        scaled_BLNH = (q_BLNH * scale).astype(q_BLNH.dtype)
        inputs = (jnp.swapaxes(x, 1, 2) for x in (scaled_BLNH, k_BSKH, v_BSKH))
        return jnp.swapaxes(jax.vmap(kernel)(*inputs, segments), 1, 2)

    axes = (spec, QUERIES, KEYS, KEYS, ("batch", "length"), SEGMENTS)
    sharded = shard_map_kernel(of_device, axes, QUERIES)

    @functools.partial(recomputed, policy="save_attention")
    def attend(*flat):
        split = (
            x.reshape(*x.shape[:2], *shape)
            for x, shape in zip(flat, heads, strict=True)
        )
        return sharded(kernel, *split, segments_BL, segments_BL)

    # Save heads side by side for the backward pass: a TPU pads the last axis of arrays
    # to a multiple of its lanes, which would double heads of 64.
    return attend(*(x.reshape(*x.shape[:2], -1) for x in (q_BLNH, k_BLKH, v_BLKH)))


def _splash_kernel(shape_BLNH: tuple[int, ...], interpret: bool):
    """Return the kernel of one device's heads and all its shards of a sequence.

    Its arrays say which blocks of queries see which blocks of keys; the second result
    is their sharding.
    """
    # Import here, because importing Pallas is slow.
    from jax.experimental.pallas.ops.tpu import splash_attention
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
    )

    _, L, N, _ = shape_BLNH
    shards, heads = num_shards("length"), N // num_shards("heads")
    sizes = (4 * LANES, 2 * LANES, LANES)
    block = next(size for size in sizes if L // shards % size == 0)
    forward = ("block_q", "block_kv", "block_kv_compute")
    back = ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    names = (*forward, *back, "block_q_dq", "block_kv_dq")
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([splash_attention.CausalMask((L, L))] * heads),
        block_sizes=splash_attention_kernel.BlockSizes(**dict.fromkeys(names, block)),
        head_shards=1,
        q_seq_shards=shards,
        interpret=interpret,
        residual_checkpoint_name=ATTENTION_OUTPUT,
    )
    return kernel, kernel.manual_sharding_spec(sharding_of(None, "length"))


# Functions (q_BLNH, k_BLKH, v_BLKH, segments_BL or None) -> o_BLNH of causal attention
# within documents. Each names ATTENTION_OUTPUT what its backward pass needs beside its
# arguments, as far as it can; all but xla never hold the whole score matrix.
KERNELS = {
    "xla": _xla,
    "blockwise": blockwise,
    "cudnn": cudnn,
    "splash": splash,
}
