"""The jitted functions of generation, which read and write slots of a cache.

N slots of the cache, S positions of each, B sequences in a call, L or C tokens of each,
T solver steps, K key-value heads, H head, R decoding rounds per call, W maximum number
of tokens per round.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from diffeq_former.distributed.mesh import on_mesh, replicated
from diffeq_former.distributed.sharding_rules import ROWS, TENSOR
from diffeq_former.inference.cached_model import Cache, CachedModel
from diffeq_former.inference.decode import DecodingState, decode, plain_round
from diffeq_former.inference.scores import score
from diffeq_former.inference.speculative import speculative_round

STRIDE = 8  # tokens per sequence that are decoded before the host looks at them


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["slots_B"],
    meta_fields=["length"],
)
@dataclasses.dataclass(frozen=True)
class View:
    """The part of a cache that a call reads."""

    slots_B: jax.Array | None  # the slot of each sequence, N for none; None: all slots
    length: int  # only positions below this

    def get(self, x_TNKSH: jax.Array) -> jax.Array:
        """Return this part of an array of the cache, [T, B, K, length, H]."""
        slots = slice(None) if self.slots_B is None else self.slots_B
        part = x_TNKSH.at[:, slots, :, : self.length]
        return part.get(mode="fill", fill_value=0)

    def add(self, start_B, x_TNKSH: jax.Array, new_TBKLH: jax.Array) -> jax.Array:
        """Return the array with entries for the positions from `start_B` on."""
        N, L = x_TNKSH.shape[1], new_TBKLH.shape[3]
        slots_B = jnp.arange(N) if self.slots_B is None else self.slots_B
        positions_BL = start_B[:, None] + jnp.arange(L)[None]
        places = x_TNKSH.at[:, slots_B[:, None], :, positions_BL]
        return places.set(new_TBKLH.transpose(1, 3, 0, 2, 4), mode="drop")


class Programs(NamedTuple):
    """The jitted functions of generation; weights and caches are one for each model."""

    tabulate: Callable  # params -> weights
    empty: Callable  # (N, S) -> caches
    # (weights, caches, view, tokens, positions, next tokens [B, C], whether to score)
    # -> caches, scores
    read: Callable
    # (weights, caches, view, *decoding_state, ends, rule, whether to score) -> caches,
    # tokens: see `decode`
    decode: Callable


def make_programs(
    models: tuple[CachedModel, ...], mesh: Mesh, num_drafted: int, vocab_size: int
) -> Programs:
    """Return the programs of one model, or of a model and the one that drafts for it.

    Args:
      models: The models.
      mesh: Mesh of the parameters.
      num_drafted: Tokens that are drafted in each round.
      vocab_size: Ids from this one on are never sampled.
    """
    caches = NamedSharding(mesh, PartitionSpec(None, ROWS, TENSOR))
    results = (caches, replicated(mesh))

    def program(function, *arguments, **options):
        bound = functools.partial(function, models, *arguments)
        return on_mesh(mesh, jax.jit(bound, **options))

    return Programs(
        tabulate=program(_tabulate),
        empty=program(_empty, static_argnums=(0, 1), out_shardings=caches),
        read=program(_read, vocab_size, donate_argnums=1, out_shardings=results),
        decode=program(
            _decode, num_drafted, vocab_size, donate_argnums=1, out_shardings=results
        ),
    )


def num_rounds(num_drafted: int) -> int:
    """Return the decoding rounds of a call."""
    return max(1, STRIDE // (num_drafted + 1))


def _tabulate(models, params):
    return tuple(model.weights(params) for model in models)


def _empty(models, N, S):
    return tuple(model.empty_cache(N, S) for model in models)


def _read(
    models, V, weights, caches, view, tokens_BC, positions_BC, next_BC, is_scored
):
    def read(parts):
        results = [
            model.read(w, part, tokens_BC, positions_BC)
            for model, w, part in zip(models, weights, parts, strict=True)
        ]
        (states_BCD, *_), parts = zip(*results, strict=True)

        def logits():
            return models[0].project(weights[0], states_BCD)

        return parts, score(logits, next_BC, V, is_scored)

    starts, C = [positions_BC[:, 0]] * len(models), tokens_BC.shape[1]
    return _on_view(read, caches, view, starts, C)


def _decode(
    models,
    K,
    V,
    weights,
    caches,
    view,
    last_B2,
    position_B,
    left_B,
    seeds_B,
    new_BS,
    ends_E,
    rule,
    is_scored,
):
    keys_B = jax.vmap(jax.random.key)(seeds_B)
    state = DecodingState(last_B2, position_B, left_B, keys_B, new_BS)
    if K:
        one_round = speculative_round(models, weights, rule, V, K, is_scored)
    else:
        one_round = plain_round(models[0], weights[0], rule, V, is_scored)

    def run(parts):
        return decode(one_round, parts, state, ends_E, num_rounds(K))

    # The draft model reads the last two tokens.
    starts = (position_B, jnp.maximum(position_B - 1, 0))[: len(models)]
    return _on_view(run, caches, view, starts, num_rounds(K) * (K + 1) + 1)


def _on_view(function: Callable, caches: tuple, view: View, starts, room: int):
    """Apply a function (caches -> caches, results) to a part of the caches.

    Args:
      function: The function, of a tuple of `Cache`.
      caches: The keys and values of each model, [T, N, K, S, H].
      view: The part.
      starts: For each model, the first position that may be written, [B].
      room: How many positions may be written.
    """

    def new(x_TBKSH):
        T, B, K, _, H = x_TBKSH.shape
        return jnp.zeros((T, B, K, room, H), x_TBKSH.dtype)

    past = jax.tree.map(view.get, caches)
    parts = map(Cache, past, starts, jax.tree.map(new, past))
    parts, results = function(tuple(parts))
    caches = tuple(
        jax.tree.map(functools.partial(view.add, start_B), cache, part.new)
        for start_B, cache, part in zip(starts, caches, parts, strict=True)
    )
    return caches, results
