"""Text generation from token ids, with weights tabulated once and a key-value cache.

B sequences in a (padded) batch, C context tokens per prefill call, S slots of the
cache, R decoding rounds per call, W maximum number of tokens per round.
"""

import functools
from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from diffeq_former.config import ModelConfig
from diffeq_former.distributed.mesh import num_batch_shards, on_mesh, replicated
from diffeq_former.distributed.sharding_rules import ROWS, TENSOR
from diffeq_former.errors import UserError
from diffeq_former.inference import batch, buckets
from diffeq_former.inference.batch import Sequence, Watch
from diffeq_former.inference.cached_model import CachedModel, Weights
from diffeq_former.inference.decode import DecodingState, decode, plain_round
from diffeq_former.inference.sampling import Rule, Sampling
from diffeq_former.inference.speculative import Draft, speculative_round
from diffeq_former.ode.grid import Grid

STRIDE = 8  # tokens per sequence that are decoded before the host looks at them


class Programs(NamedTuple):
    """The jitted functions of generation; weights and caches are one for each model."""

    tabulate: Callable  # params -> weights
    empty: Callable  # (B, S) -> caches
    read: Callable  # (weights, caches, tokens [B, C], positions [B, C]) -> caches
    decode: Callable  # (weights, caches, *decoding_state, ends, rule): see `decode`


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
    caches = NamedSharding(mesh, PartitionSpec(None, ROWS, None, TENSOR))
    whole = replicated(mesh)

    def program(function, *arguments, **options):
        bound = functools.partial(function, models, *arguments)
        return on_mesh(mesh, jax.jit(bound, **options))

    return Programs(
        tabulate=program(_tabulate),
        empty=program(_empty, static_argnums=(0, 1), out_shardings=caches),
        read=program(_read, donate_argnums=1, out_shardings=caches),
        decode=program(
            _decode,
            num_drafted,
            vocab_size,
            donate_argnums=1,
            out_shardings=(caches, whole, whole),
        ),
    )


class Generator:
    """Continues prompts with one model and caches its compiled programs.

    One program reads prompts (prefill) and another one decodes. Each is compiled once
    per bucket of sizes (see `buckets`), the second also once per kind of sampling.

    Args:
      config: Config of the model.
      mesh: Mesh of the parameters. Every process passes the same prompts and gets the
        same results.
      vocab_size: Vocabulary size of the tokenizer, if that of the model is padded; ids
        starting at this value are never sampled.
      draft: Settings for speculative decoding, which samples from the same
        distribution; None disables it.
      grid: The steps of the model over depth; None: its own.

    Raises:
      UserError: If the model cannot draft with these settings.
    """

    def __init__(
        self,
        config: ModelConfig,
        mesh: Mesh,
        vocab_size: int | None = None,
        draft: Draft | None = None,
        grid: Grid | None = None,
    ):
        self.max_len, self._shards = config.max_len, num_batch_shards(mesh)
        # Numbers of tokens, summed over all calls.
        self.num_new = self.num_drafted = self.num_accepted = 0
        models = (CachedModel(config, grid),)
        if draft:
            models += (CachedModel(draft.config(config)),)
        self._programs = make_programs(
            models,
            mesh,
            draft.num_tokens if draft else 0,
            vocab_size or config.vocab_size,
        )

    def generate(
        self,
        params: dict,
        prompts: list[list[int]],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        before: list[int],
        ends: Collection[int],
        watch: Watch | None = None,
    ) -> list[list[int]]:
        """Return the tokens that follow each prompt, up to the end of the text.

        Args:
          params: Parameters of the model.
          prompts: Token ids, of any lengths.
          max_new_tokens: Maximum number of tokens that follow a prompt.
          temperature: See `sampling.Sampling`, as for the next three.
          top_k: See there.
          top_p: See there.
          min_p: See there.
          seed: Prompt i is continued with seed + i, independently of the other prompts
            in the batch. Less than 2**32.
          before: Tokens to prepend to each prompt (`Tokenizer.before`), such as the
            end-of-text token, which precedes each document in training; so an empty
            prompt starts a new text.
          ends: Tokens that end a text (`Tokenizer.ends`) and are not in the result.
          watch: See `run`.

        Raises:
          UserError: If a value is out of range, or prompt and new tokens exceed the
            model's `max_len`.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p)
        sequences = [
            Sequence(
                [*before, *prompt],
                max_new_tokens,
                (seed + i) % 2**32,
                sampling,
            )
            for i, prompt in enumerate(prompts)
        ]
        for sequence in sorted(sequences, key=lambda x: -len(x.context)):
            self.check(sequence)
        if sequences and max_new_tokens:
            self.run(self.tabulate(params), sequences, ends, watch)
        return [x.new for x in sequences]

    def tabulate(self, params: dict) -> tuple[Weights, ...]:
        """Generate the weights that `run` needs; once for given parameters."""
        return self._programs.tabulate(params)

    def check(self, sequence: Sequence) -> None:
        """Raise UserError if context and new tokens exceed the model's `max_len`."""
        new, length = sequence.max_new_tokens, len(sequence.context)
        room = max(0, self.max_len + 1 - length)  # the last token is not read
        if new < 0:
            raise UserError(f"max_new_tokens: expected 0 or more, got {new}")
        if new > room:
            raise UserError(
                f"max_new_tokens: {new} new tokens after {length} are more than the "
                f"model's max_len of {self.max_len} has room for; shorten the prompt "
                f"or ask for at most {room} new tokens"
            )

    def run(
        self,
        weights: tuple[Weights, ...],
        sequences: list[Sequence],
        ends: Collection[int],
        watch: Watch | None = None,
    ) -> None:
        """Continue sequences that passed `check`, until all have ended.

        Args:
          weights: The result of `tabulate`.
          sequences: Sequences of one kind of sampling; their `new` is filled in.
          ends: The tokens that end a sequence.
          watch: Called every few tokens for each sequence that has not ended, and after
            each prefill chunk, with the index of the sequence, its new tokens so far,
            and whether it has ended; the sequence ends if it returns True.
        """
        B = buckets.batch_size(len(sequences), self._shards)
        needed = max(len(x.context) - 1 + x.max_new_tokens for x in sequences)
        caches = self._programs.empty(B, buckets.cache(needed, self.max_len))
        for tokens_BC, positions_BC in batch.prefill_inputs(sequences, B, self.max_len):
            caches = self._programs.read(weights, caches, tokens_BC, positions_BC)
            if watch is not None:
                jax.block_until_ready(caches)  # do not read ahead of `watch`
                batch.update_ended(sequences, watch)
        rule = Rule.of([x.sampling for x in batch.pad_batch(sequences, B)])
        while not all(x.ended for x in sequences):
            caches, new_RBW, counts_RB = self._programs.decode(
                weights,
                caches,
                *batch.decoding_state(sequences, B),
                np.array(list(ends), np.int32),
                rule,
            )
            self._count(np.asarray(counts_RB), new_RBW.shape[-1])
            batch.append_tokens(
                sequences, np.asarray(new_RBW), np.asarray(counts_RB), ends, watch
            )
        self.num_new += sum(len(x.new) for x in sequences)

    def _count(self, counts_RB: np.ndarray, W: int) -> None:
        """Add to the numbers of drafted and accepted tokens.

        Each round of a sequence drafts W - 1 tokens and adds one of the full model.
        """
        rounds = np.count_nonzero(counts_RB)
        self.num_drafted += int(rounds * (W - 1))
        self.num_accepted += int(counts_RB.sum() - rounds)


def _tabulate(models, params):
    return tuple(model.weights(params) for model in models)


def _empty(models, B, S):
    return tuple(model.empty_cache(B, S) for model in models)


def _read(models, weights, caches, tokens_BC, positions_BC):
    return tuple(
        model.read(w, cache, tokens_BC, positions_BC)
        for model, w, cache in zip(models, weights, caches, strict=True)
    )


def _decode(
    models, K, V, weights, caches, last_B2, position_B, left_B, seeds_B, ends_E, rule
):
    state = DecodingState(
        last_B2, position_B, left_B, jax.vmap(jax.random.key)(seeds_B)
    )
    if K:
        one_round = speculative_round(models, weights, rule, V, K)
    else:
        one_round = plain_round(models[0], weights[0], rule, V)
    return decode(one_round, caches, state, ends_E, max(1, STRIDE // (K + 1)), K + 1)
