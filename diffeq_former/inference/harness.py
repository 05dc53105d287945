"""A run as a model of EleutherAI's lm-evaluation-harness (package lm_eval).

Texts are tokenised as by the harness's own models: only what the tokenizer itself adds
precedes a text (usually nothing), and an empty context becomes a prefix token.
"""

import functools
import itertools

from jax.sharding import Mesh
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.inference.continuation import Continuation
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.likelihood import make_score
from diffeq_former.inference.sampling import Sampling
from diffeq_former.inference.sequence import Sequence

MAX_NEW_TOKENS = 256  # for tasks that do not set their own limit


class HarnessModel(TemplateLM):
    """Scores and continues texts with one model.

    Args:
      c: Config of the model, with the number of solver steps to evaluate.
      params: Parameters of the model.
      tokenizer: Tokenizer of the model, one of `data.tokenizers`.
      mesh: Mesh of the parameters.
      batch_size: Number of texts per batch.
    """

    def __init__(
        self, c: ModelConfig, params: dict, tokenizer, mesh: Mesh, batch_size: int
    ):
        super().__init__()
        self._tokenizer, self._params = tokenizer, params
        self._batch_size = batch_size
        self._score = make_score(c, mesh, batch_size)
        self._generator = Generator(c, mesh, tokenizer.vocab_size)
        self._max_len = c.max_len

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eot

    @property
    def prefix_token_id(self) -> int:
        return self._tokenizer.before[-1]

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer.fingerprint

    def tok_encode(self, string: str, add_special_tokens=None, **_) -> list[int]:
        opening = () if add_special_tokens is False else self._tokenizer.opening
        return [*opening, *self._tokenizer.encode(string)]

    def _loglikelihood_tokens(self, requests, **_) -> list[tuple[float, bool]]:
        # A context of spaces only arrives empty: the harness moves trailing spaces of
        # the context to the continuation.
        pairs = [(c or [self.prefix_token_id], more) for _, c, more in requests]
        return self._score(self._params, pairs)

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False):
        """Return log p of whole texts, scored in windows of at most max_len tokens.

        Each token is scored once.
        """
        windows = [self._windows(request.args[0]) for request in requests]
        scores = iter(self._score(self._params, list(itertools.chain(*windows))))
        return [sum(next(scores)[0] for _ in of_text) for of_text in windows]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        """Continue the texts, `batch_size` of them at a time."""
        pairs = [self._sequence(i, *request.args) for i, request in enumerate(requests)]
        texts = [Continuation(self._tokenizer, x.context, stop) for x, stop in pairs]
        sequences = [x for x, _ in pairs]
        for x, text in zip(sequences, texts, strict=True):
            x.watch = functools.partial(_update, text)
        weights = self._generator.tabulate(self._params)
        self._generator.run(
            weights, sequences, self._tokenizer.ends, most_at_once=self._batch_size
        )
        return [text.text for text in texts]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, self._max_len, context_len=1
        )
        return list(map(make_disjoint_window, windows))

    def _sequence(
        self, seed: int, text: str, options: dict
    ) -> tuple[Sequence, list[str]]:
        """Return the sequence to continue and its stop strings."""
        gen_kwargs = normalize_gen_kwargs(options, MAX_NEW_TOKENS)
        new = gen_kwargs["max_gen_toks"]
        if new >= self._max_len:
            raise UserError(
                f"max_gen_toks: {new} new tokens are requested, but the model's max_len"
                f" is {self._max_len}; set a lower max_new_tokens"
            )
        context = self.tok_encode(text)[new - self._max_len :]
        sampling = Sampling(
            float(gen_kwargs.get("temperature", gen_kwargs["do_sample"])),
            int(gen_kwargs.get("top_k") or 0),
            float(gen_kwargs.get("top_p") or 1.0),
        )
        sequence = Sequence(context or [self.prefix_token_id], new, seed, sampling)
        return sequence, [stop for stop in gen_kwargs["until"] if stop]


def _update(text: Continuation, x: Sequence) -> bool:
    """Add the new tokens to the text; return whether it has a stop string."""
    text.update(x.new, x.ended)
    return text.stopped
