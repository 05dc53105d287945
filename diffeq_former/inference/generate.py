"""Text generation from token ids, with weights tabulated once and a key-value cache."""

import collections
from collections.abc import Callable, Collection

from jax.sharding import Mesh

from diffeq_former.config import ModelConfig
from diffeq_former.distributed.mesh import num_batch_shards
from diffeq_former.errors import UserError
from diffeq_former.inference import buckets
from diffeq_former.inference.batch import Batch, Counts
from diffeq_former.inference.cached_model import CachedModel, Weights
from diffeq_former.inference.programs import make_programs
from diffeq_former.inference.sampling import Sampling
from diffeq_former.inference.sequence import Sequence
from diffeq_former.inference.speculative import Draft
from diffeq_former.ode.grid import Grid

# Callback (index, new tokens so far, whether it has ended) -> whether to end it now.
Watch = Callable[[int, list[int], bool], bool]


class Generator:
    """Continues prompts with one model and caches its compiled programs.

    One program reads prompts (prefill) and another one decodes. Each is compiled once
    per bucket of sizes (see `buckets`).

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
        self.counts = Counts()
        models = (CachedModel(config, grid),)
        if draft:
            models += (CachedModel(draft.config(config)),)
        self._num_drafted = draft.num_tokens if draft else 0
        self._programs = make_programs(
            models, mesh, self._num_drafted, vocab_size or config.vocab_size
        )

    def generate(
        self,
        params: dict,
        prompts: list[list[int]],
        *,
        max_new_tokens: int,
        seed: int = 0,
        before: list[int],
        ends: Collection[int],
        watch: Watch | None = None,
        **sampling: float,
    ) -> list[list[int]]:
        """Return the tokens that follow each prompt, up to the end of the text.

        Args:
          params: Parameters of the model.
          prompts: Token ids, of any lengths.
          max_new_tokens: Maximum number of tokens that follow a prompt.
          seed: Prompt i is continued with seed + i, independently of the other prompts
            in the batch. Less than 2**32.
          before: Tokens to prepend to each prompt (`Tokenizer.before`), such as the
            end-of-text token, which precedes each document in training; so an empty
            prompt starts a new text.
          ends: Tokens that end a text (`Tokenizer.ends`) and are not in the result.
          watch: Called after each chunk of a prompt that is read, and every few new
            tokens, with the index of the prompt, its new tokens so far, and whether it
            has ended; its text ends if it returns True.
          **sampling: Fields of `sampling.Sampling`, such as `temperature`.

        Raises:
          UserError: If a value is out of range, or prompt and new tokens exceed the
            model's `max_len`.
        """
        settings = Sampling(**sampling)
        sequences = [
            Sequence(
                [*before, *prompt],
                max_new_tokens,
                (seed + i) % 2**32,
                settings,
                watch and (lambda x, i=i: watch(i, x.new, x.ended)),
            )
            for i, prompt in enumerate(prompts)
        ]
        for sequence in sorted(sequences, key=lambda x: -len(x.context)):
            self.check(sequence)
        if sequences and max_new_tokens:
            self.run(self.tabulate(params), sequences, ends)
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
        most_at_once: int | None = None,
    ) -> None:
        """Continue sequences that passed `check`, until all have ended.

        Args:
          weights: The result of `tabulate`.
          sequences: The sequences; their `new` is filled in.
          ends: The tokens that end a sequence.
          most_at_once: The most sequences in the batch at a time; None: all.
        """
        needed = max(len(x.context) - 1 + x.max_new_tokens for x in sequences)
        batch = self.batch(
            weights,
            ends,
            num_slots=min(most_at_once or len(sequences), len(sequences)),
            length=buckets.cache(needed, self.max_len),
        )
        waiting = collections.deque(sequences)
        while waiting or batch.sequences:
            while waiting and batch.has_room:
                batch.join(waiting.popleft())
            batch.step()

    def batch(
        self,
        weights: tuple[Weights, ...],
        ends: Collection[int],
        *,
        num_slots: int,
        length: int,
        most_read: int | None = None,
    ) -> Batch:
        """Return a batch that sequences that passed `check` can join.

        Args:
          weights: The result of `tabulate`.
          ends: The tokens that end a sequence.
          num_slots: The most sequences at a time.
          length: The most tokens of a sequence without its last.
          most_read: See `Batch`.
        """
        return Batch(
            self._programs,
            weights,
            ends,
            self.counts,
            num_slots=num_slots,
            length=length,
            shards=self._shards,
            num_drafted=self._num_drafted,
            most_read=most_read,
        )
