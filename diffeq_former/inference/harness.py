"""A run as a model of EleutherAI's lm-evaluation-harness (package lm_eval).

As the harness treats its own models: before a text stands only what its tokenizer puts
there, for most nothing, and the end-of-text token stands in for an empty context.
"""

import itertools

from jax.sharding import Mesh
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.inference.batch import Row
from diffeq_former.inference.continuation import Continuation
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.likelihood import make_score
from diffeq_former.inference.sampling import Sampling

MAX_NEW_TOKENS = 256  # of a task that does not say how many it wants


class HarnessModel(TemplateLM):
    """Scores and continues texts with one model.

    Args:
      c: of the model, at the depth that is wanted.
      params: of the model.
      tokenizer: one of `data.tokenizers`, the model's.
      mesh: of the parameters' devices.
      batch_size: texts at a time.
    """

    def __init__(
        self, c: ModelConfig, params: dict, tokenizer, mesh: Mesh, batch_size: int
    ):
        super().__init__()
        self._own, self._params, self._batch_size = tokenizer, params, batch_size
        self._score = make_score(c, mesh, batch_size)
        self._generator = Generator(c, mesh, tokenizer.vocab_size)
        self._max_len = c.max_len

    @property
    def eot_token_id(self) -> int:
        return self._own.eot

    @property
    def prefix_token_id(self) -> int:
        return self._own.before[-1]

    @property
    def tokenizer_name(self) -> str:
        return self._own.fingerprint

    def tok_encode(self, string: str, add_special_tokens=None, **_) -> list[int]:
        opening = () if add_special_tokens is False else self._own.opening
        return [*opening, *self._own.encode(string)]

    def _loglikelihood_tokens(self, requests, **_) -> list[tuple[float, bool]]:
        # A context of spaces alone is empty: they are taken for the continuation's.
        pairs = [(c or [self.prefix_token_id], more) for _, c, more in requests]
        return self._score(self._params, pairs)

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False):
        """Log p of whole texts, in windows as long as the model, each token once."""
        windows = [self._windows(request.args[0]) for request in requests]
        scores = iter(self._score(self._params, list(itertools.chain(*windows))))
        return [sum(next(scores)[0] for _ in own) for own in windows]

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        rows = [self._row(i, *request.args) for i, request in enumerate(requests)]
        weights, texts = self._generator.tabulate(self._params), [""] * len(rows)
        for kind in dict.fromkeys(row.sampling.kind for row, _ in rows):
            alike = [i for i, (row, _) in enumerate(rows) if row.sampling.kind == kind]
            for start in range(0, len(alike), self._batch_size):
                chosen = alike[start : start + self._batch_size]
                found = self._continued([rows[i] for i in chosen], weights)
                for i, text in zip(chosen, found, strict=True):
                    texts[i] = text
        return texts

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, self._max_len, context_len=1
        )
        return list(map(make_disjoint_window, windows))

    def _row(self, seed: int, text: str, options: dict) -> tuple[Row, list[str]]:
        """What is asked for, and where the text ends."""
        asked = normalize_gen_kwargs(options, MAX_NEW_TOKENS)
        new = asked["max_gen_toks"]
        if new >= self._max_len:
            raise UserError(
                f"max_gen_toks: {new} new tokens are wanted, and the model's max_len is"
                f" {self._max_len}: give --max_new_tokens=N with fewer"
            )
        context = self.tok_encode(text)[new - self._max_len :]
        sampling = Sampling(
            float(asked.get("temperature", asked["do_sample"])),
            int(asked.get("top_k") or 0),
            float(asked.get("top_p") or 1.0),
        )
        row = Row(context or [self.prefix_token_id], new, seed, sampling)
        return row, [stop for stop in asked["until"] if stop]

    def _continued(self, asked: list[tuple[Row, list[str]]], weights) -> list[str]:
        rows = [row for row, _ in asked]
        texts = [Continuation(self._own, row.context, stop) for row, stop in asked]

        def watch(i: int, tokens: list[int], ended: bool) -> bool:
            texts[i].update(tokens, ended)
            return texts[i].stopped

        self._generator.run(weights, rows, self.eot_token_id, watch)
        return [text.text for text in texts]
