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
from diffeq_former.models.partition import KEYS, QUERIES, SEGMENTS, shard_map_kernel
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
    common = [
        (not c.attention_dropout, "model.attention_dropout=0", c.attention_dropout),
        (sequence_shards == 1, "mesh.sequence=1", sequence_shards),
    ]
    own = _REQUIREMENTS[kernel](c, hardware, seq_len)
    for is_met, needed, found in [*own, *common]:
        if not is_met:
            return f"needs {needed}, not {found}"
    return ""


def _cudnn_requirements(c: ModelConfig, hardware: Hardware, _) -> Iterator[tuple]:
    """The requirements that XLA checks before it calls cuDNN for causal attention."""
    widest = 256 if hardware.capability >= (9, 0) else 128
    version = "{}.{}".format(*hardware.capability)
    fits = c.head_dim % 8 == 0 and c.head_dim <= widest
    heads = f"d_model / num_heads a multiple of 8 up to {widest}"
    yield hardware.platform == "cuda", "an NVIDIA GPU", hardware.platform
    yield hardware.capability >= (8, 0), "compute capability 8.0", version
    yield c.dtype == "bfloat16", "model.dtype=bfloat16", c.dtype
    yield fits, heads, c.head_dim
    # Its masks are dense and get gradients, which costs more than the kernel saves.
    yield not c.document_masking, "model.document_masking=False", c.document_masking


def _splash_requirements(c: ModelConfig, hardware: Hardware, L: int) -> Iterator[tuple]:
    heads = f"d_model / num_heads a multiple of {_LANES // 2}"
    yield hardware.platform == "tpu", "a TPU", hardware.platform
    yield L % _LANES == 0, f"sequences of a multiple of {_LANES} tokens", L
    yield c.head_dim % (_LANES // 2) == 0, heads, c.head_dim


_LANES = 128  # lanes of a TPU's vector registers
_FUSED = {"cpu": "blockwise", "cuda": "cudnn", "tpu": "splash"}
_REQUIREMENTS = {
    "blockwise": lambda *_: (),
    "cudnn": _cudnn_requirements,
    "splash": _splash_requirements,
}


def same_document(segments_BL: jax.Array) -> jax.Array:
    """Return a mask [B, L, L] of the pairs of positions in the same document."""
    return segments_BL[:, :, None] == segments_BL[:, None, :]


def _xla(q_BLNH, k_BLKH, v_BLKH, segments_BL) -> jax.Array:
    mask_B1LL = None if segments_BL is None else same_document(segments_BL)[:, None]
    o_BLNH = jax.nn.dot_product_attention(
        *(q_BLNH, k_BLKH, v_BLKH),
        mask=mask_B1LL,
        is_causal=True,
        implementation="xla",
    )
    return named(ATTENTION_OUTPUT, o_BLNH)


def _cudnn(q_BLNH, k_BLKH, v_BLKH, _) -> jax.Array:
    def attend(q_BLNH, k_BLKH, v_BLKH):
        return jax.nn.dot_product_attention(
            q_BLNH, k_BLKH, v_BLKH, is_causal=True, implementation="cudnn"
        )

    attend = shard_map_kernel(attend, (QUERIES, KEYS, KEYS), QUERIES)
    return named(ATTENTION_OUTPUT, attend(q_BLNH, k_BLKH, v_BLKH))


def _splash(q_BLNH, k_BLKH, v_BLKH, segments_BL) -> jax.Array:
    sharded = shard_map_kernel(splash, (QUERIES, KEYS, KEYS, SEGMENTS), QUERIES)
    heads = [x.shape[2:] for x in (q_BLNH, k_BLKH, v_BLKH)]

    @functools.partial(recomputed, policy="save_attention")
    def attend(segments_BL, *flat):
        split = (
            x.reshape(*x.shape[:2], *shape)
            for x, shape in zip(flat, heads, strict=True)
        )
        return sharded(*split, segments_BL)

    # The backward pass finds heads side by side: of a saved array, a TPU pads the last
    # axis to a multiple of its lanes, which would double heads of 64.
    flat = (x.reshape(*x.shape[:2], -1) for x in (q_BLNH, k_BLKH, v_BLKH))
    return attend(segments_BL, *flat)


# Functions (q_BLNH, k_BLKH, v_BLKH, segments_BL or None) -> o_BLNH of causal attention
# within documents. Each names ATTENTION_OUTPUT what its backward pass needs beside its
# arguments, as far as it can; all but xla never hold the whole score matrix.
KERNELS = {"xla": _xla, "blockwise": blockwise, "cudnn": _cudnn, "splash": _splash}


def splash(
    q_BLNH: jax.Array,
    k_BLKH: jax.Array,
    v_BLKH: jax.Array,
    segments_BL: jax.Array | None,
    interpret: bool = False,
) -> jax.Array:
    """Call JAX's splash attention for TPUs; `interpret` emulates it on any device."""
    # Import here, because importing Pallas is slow.
    from jax.experimental.pallas.ops.tpu import splash_attention
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
    )

    _, L, N, H = q_BLNH.shape
    block = next(size for size in (4 * _LANES, 2 * _LANES, _LANES) if L % size == 0)
    forward = ("block_q", "block_kv", "block_kv_compute")
    back = ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    names = (*forward, *back, "block_q_dq", "block_kv_dq")
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([splash_attention.CausalMask((L, L))] * N),
        block_sizes=splash_attention_kernel.BlockSizes(**dict.fromkeys(names, block)),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
        residual_checkpoint_name=ATTENTION_OUTPUT,
    )
    segments = None
    if segments_BL is not None:
        segments = splash_attention.SegmentIds(segments_BL, segments_BL)
    scaled_BLNH = (q_BLNH * jnp.float32(H**-0.5)).astype(q_BLNH.dtype)
    q_BNLH, k_BKLH, v_BKLH = (
        jnp.swapaxes(x, 1, 2) for x in (scaled_BLNH, k_BLKH, v_BLKH)
    )
    return jnp.swapaxes(jax.vmap(kernel)(q_BNLH, k_BKLH, v_BKLH, segments), 1, 2)
