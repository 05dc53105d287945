"""Continues prompts: the weights tabulated once, keys and values cached.

B batch, L padded length of the prompts, M longest sequence, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.generation.sampling import Sampling, sample
from diffeq_former.models.transformer import Transformer
from diffeq_former.sharding.mesh import on_mesh, replicated

SHORTEST_BUCKET = 16  # prompts are padded to this times a power of two, tokens


class Generator:
    """Continues prompts with one model; its compiled programs are kept.

    There is a program for each number of prompts, power of two of their length, and
    choice of sampling.

    Args:
      config: of the model.
      mesh: of the parameters' devices. Every process gives the same prompts and gets
        the same answers.
      vocab_size: of the tokenizer, where the model's is padded: the ids from there on
        are never drawn.
    """

    def __init__(self, config: ModelConfig, mesh: Mesh, vocab_size: int | None = None):
        self._config = config.for_inference()
        compiled = jax.jit(
            functools.partial(_continue, self._config, vocab_size),
            static_argnames="sampling",
            out_shardings=replicated(mesh),
        )
        self._continue = on_mesh(mesh, compiled)

    def generate(
        self,
        params: dict,
        prompts: list[list[int]],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        eot: int,
    ) -> list[list[int]]:
        """The tokens that follow each prompt, up to the end of its text.

        The end-of-text token is put before each prompt, as it stands before each
        document in training; so an empty prompt starts a new text.

        Args:
          params: of the model.
          prompts: token ids, of any lengths.
          max_new_tokens: how many may follow.
          temperature: see `sampling.Sampling`, as for `top_k` and `top_p`.
          top_k: see there.
          top_p: see there.
          seed: row i draws with seed + i, and what it draws depends on nothing else
            of the batch. Below 2**32.
          eot: the end-of-text token, which ends a row and is not in the result.

        Raises:
          UserError: for a wrong value, or more tokens than the model's `max_len`.
        """
        sampling = Sampling(temperature, top_k, top_p)
        self._check_lengths(prompts, max_new_tokens)
        if not prompts or max_new_tokens == 0:
            return [[] for _ in prompts]
        prompt_BL, lengths_B = self._pad(prompts, eot)
        seeds_B = np.arange(seed, seed + len(prompts)).astype(np.uint32)
        new_BM = self._continue(
            params,
            prompt_BL,
            lengths_B,
            seeds_B,
            max_new_tokens,
            eot,
            sampling=sampling,
        )
        return [
            _until(eot, row[:max_new_tokens]) for row in np.asarray(new_BM).tolist()
        ]

    def _check_lengths(self, prompts: list[list[int]], max_new_tokens: int) -> None:
        if max_new_tokens < 0:
            raise UserError(f"max_new_tokens: expected 0 or more, got {max_new_tokens}")
        longest, max_len = max(map(len, prompts), default=0), self._config.max_len
        if longest + max_new_tokens > max_len:
            raise UserError(
                f"max_new_tokens: a prompt of {longest} tokens and {max_new_tokens} "
                f"new ones are more than the model's max_len of {max_len}; shorten the "
                f"prompt or ask for at most {max(0, max_len - longest)} new tokens"
            )

    def _pad(self, prompts: list[list[int]], eot: int):
        """Ids [B, L] that begin with `eot`, and how many of them count [B]."""
        lengths_B = np.array([1 + len(prompt) for prompt in prompts], np.int32)
        L = SHORTEST_BUCKET
        while L < lengths_B.max():
            L *= 2
        prompt_BL = np.full((len(prompts), min(L, self._config.max_len)), eot, np.int32)
        for row_L, prompt in zip(prompt_BL, prompts, strict=True):
            row_L[1 : 1 + len(prompt)] = prompt
        return prompt_BL, lengths_B


def _continue(
    c: ModelConfig,
    vocab_size: int | None,
    params: dict,
    prompt_BL: jax.Array,
    lengths_B: jax.Array,
    seeds_B: jax.Array,
    num_new: jax.Array,
    eot: jax.Array,
    *,
    sampling: Sampling,
) -> jax.Array:
    """New tokens [B, M], `eot` where a row has ended.

    What the prompts' padding leaves in the cache is overwritten, slot by slot, before
    a query can see it.
    """
    model = Transformer(c, cached=True)
    table = model.apply({"params": params}, method="tabulate")
    keys_B = jax.vmap(jax.random.key)(seeds_B)

    def draw(cache, tokens_BL, positions_BL, last_B):
        logits_BV, cache = model.apply(
            {"params": params, **cache},
            tokens_BL,
            positions_BL,
            last_B,
            table,
            mutable=["cache"],
            method=_logits_at,
        )
        position_B = jnp.take_along_axis(positions_BL, last_B[:, None], axis=1)[:, 0]
        keys_of_place_B = jax.vmap(jax.random.fold_in)(keys_B, position_B)
        return sample(keys_of_place_B, logits_BV[:, :vocab_size], sampling), cache

    def unfinished(state):
        n, _, tokens_B, done_B, _ = state
        return (n < num_new) & ~done_B.all()

    def append(state):
        n, cache, tokens_B, done_B, new_BM = state
        positions_B1 = (lengths_B + n - 1)[:, None]
        first_B = jnp.zeros_like(lengths_B)
        tokens_B, cache = draw(cache, tokens_B[:, None], positions_B1, first_B)
        tokens_B = jnp.where(done_B, eot, tokens_B)
        return n + 1, cache, tokens_B, tokens_B == eot, new_BM.at[:, n].set(tokens_B)

    B, L = prompt_BL.shape
    positions_BL = jnp.broadcast_to(jnp.arange(L)[None], (B, L))
    tokens_B, cache = draw({}, prompt_BL, positions_BL, lengths_B - 1)
    new_BM = jnp.full((B, c.max_len), eot, jnp.int32).at[:, 0].set(tokens_B)
    state = (jnp.int32(1), cache, tokens_B, tokens_B == eot, new_BM)
    return jax.lax.while_loop(unfinished, append, state)[-1]


def _logits_at(model: Transformer, tokens_BL, positions_BL, index_B, table):
    """Logits [B, V] at one place of each row."""
    x_BLD = model.hidden(tokens_BL, positions_BL=positions_BL, table=table)
    x_B1D = jnp.take_along_axis(x_BLD, index_B[:, None, None], axis=1)
    return model.logits(x_B1D)[:, 0]


def _until(end: int, tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(end)] if end in tokens else tokens
