"""Engine of the server: one thread owns the device and runs one batch of requests."""

import collections
import functools
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from diffeq_former.errors import UserError
from diffeq_former.inference import buckets
from diffeq_former.inference.continuation import Continuation
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.logprobs import ScoredText, ScoredTexts
from diffeq_former.inference.prompts import without_before
from diffeq_former.inference.protocol import Completion, RequestError
from diffeq_former.inference.sequence import Sequence

MOST_WAITING = 64  # length of the request queue


class Piece(NamedTuple):
    """New text of one choice of a completion."""

    index: int
    text: str
    finish_reason: str | None  # "stop" or "length" in the last piece of a choice
    num_tokens: int  # number of tokens of the choice so far
    scored: list[ScoredText]  # the new tokens with log-probabilities, if requested


class Job:
    """A submitted request; use as a context manager, which cancels it on exit.

    Args:
      completion: The request.
      tokenizer: The model's tokenizer.
      send: Called in the engine's thread with each piece of text, until all choices are
        complete, or with the error that ends the request.
    """

    def __init__(
        self,
        completion: Completion,
        tokenizer,
        send: Callable[[Piece | RequestError], None],
    ):
        c = completion
        given = [prompt for prompt in c.prompt for _ in range(c.n)]
        prompts = [prompt.ids for prompt in given]
        self.sequences = [
            Sequence(
                prompt,
                c.max_tokens,
                (c.seed + i) % 2**32,
                c.sampling,
                functools.partial(self._update, i),
                c.logprobs,
            )
            for i, prompt in enumerate(prompts)
        ]
        self.waiting = collections.deque(self.sequences)  # those without a slot
        self.send, self.cancelled = send, False
        self._stop_ids = set(c.stop_token_ids)
        texts = [without_before(prompt, tokenizer.before) for prompt in prompts]
        self._texts = [Continuation(tokenizer, text, c.stop) for text in texts]
        wanted = given if c.logprobs is not None else []
        self._scored = [ScoredTexts(tokenizer, *x, c.echo) for x in wanted]
        self._unsent = {i: t.prompt_text for i, t in enumerate(self._texts) if c.echo}

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_) -> None:
        self.cancelled = True

    @property
    def has_begun(self) -> bool:
        """Whether a choice has got a slot."""
        return len(self.waiting) < len(self.sequences)

    @property
    def is_running(self) -> bool:
        """Whether a choice has not ended; never again for a cancelled request."""
        return not self.cancelled and not all(x.ended for x in self.sequences)

    def _update(self, i: int, sequence: Sequence) -> bool:
        """Pass on the tokens of choice i so far; return whether it should end now."""
        if self.cancelled:
            return True
        tokens, ended, text = sequence.new, sequence.ended, self._texts[i]
        stops = (k for k, token in enumerate(tokens) if token in self._stop_ids)
        num_scored = len(sequence.scores)
        if (end := next(stops, None)) is not None:
            tokens, ended = tokens[:end], True
            num_scored = len(sequence.context) + end
        new = self._unsent.pop(i, "") + text.update(tokens, ended)
        reason = None
        if text.stopped or ended:
            at_limit = not text.stopped and len(tokens) == sequence.max_new_tokens
            reason = "length" if at_limit else "stop"
        if text.stopped:
            num_scored = len(sequence.context) - 1 + text.num_tokens
        if new or reason:
            scores = sequence.scores[:num_scored]
            scored = self._scored[i].update(scores) if self._scored else []
            self.send(Piece(i, new, reason, text.num_tokens, scored))
        return text.stopped or ended


class Engine:
    """Runs requests in one batch, which each choice joins as soon as a slot is free.

    Args:
      generator: Generator of the model.
      params: Parameters of the model.
      tokenizer: Tokenizer of the model.
      num_slots: The most choices of requests that are generated at a time. Each has
        room for `max_len` tokens in the cache.
    """

    def __init__(
        self,
        generator: Generator,
        params: dict,
        tokenizer,
        num_slots: int,
    ):
        self._generator, self._tokenizer = generator, tokenizer
        self._batch = generator.batch(
            generator.tabulate(params),
            tokenizer.ends,
            num_slots=num_slots,
            length=generator.max_len,
            most_read=buckets.CHUNK,
        )
        self._running: list[Job] = []  # those with a choice in the batch
        self._waiting: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, daemon=True)

    @property
    def max_len(self) -> int:
        """The most tokens of a prompt and its continuation."""
        return self._generator.max_len

    @property
    def num_waiting(self) -> int:
        """The number of requests in the queue."""
        with self._changed:
            self._drop_cancelled()
            return len(self._waiting)

    def warm_up(self) -> None:
        """Compile all programs, so that none is compiled during a request."""
        self._batch.warm_up()

    def start(self) -> None:
        """Start to run requests."""
        self._worker.start()

    def submit(
        self, completion: Completion, send: Callable[[Piece | RequestError], None]
    ) -> Job:
        """Queue a request.

        Args:
          completion: The request.
          send: Gets the results; see `Job`.

        Raises:
          RequestError: If the request is too long for the model, the queue is full, or
            the engine is closed.
        """
        job = Job(completion, self._tokenizer, send)
        for sequence in job.sequences:
            try:
                self._generator.check(sequence)
            except UserError as error:
                message = str(error).replace("max_new_tokens", "max_tokens")
                raise RequestError(message, "max_tokens") from error
        with self._changed:
            if self._closed:
                raise _closing()
            self._drop_cancelled()
            if len(self._waiting) >= MOST_WAITING:
                raise RequestError(
                    "too many requests are waiting; try again later", None, 429
                )
            self._waiting.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Fail the waiting requests and wait for the running ones to complete."""
        with self._changed:
            self._closed = True
            for job in [job for job in self._waiting if not job.has_begun]:
                self._waiting.remove(job)
                job.send(_closing())
            self._changed.notify()
        self._worker.join()

    def _work(self) -> None:
        """Run requests until the engine is closed."""
        while self._fill_slots():
            try:
                self._batch.step()
            except Exception as error:
                message = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"generation failed: {message}", file=sys.stderr, flush=True)
                for job in self._running:
                    job.send(RequestError("generation failed", None, 500))
                    job.cancelled = True
                self._batch.reset()

    def _fill_slots(self) -> bool:
        """Let waiting choices join the batch, in order of arrival.

        Blocks until there is one. Returns False if the engine was closed.
        """
        with self._changed:
            if not self._batch.sequences:
                self._changed.wait_for(lambda: self._drop_cancelled() or self._closed)
            self._drop_cancelled()
            while self._waiting and self._batch.has_room:
                job = self._waiting[0]
                if not job.has_begun:
                    self._running.append(job)
                self._batch.join(job.waiting.popleft())
                if not job.waiting:
                    self._waiting.popleft()
            self._running = [job for job in self._running if job.is_running]
            return bool(self._batch.sequences)

    def _drop_cancelled(self) -> bool:
        """Drop the waiting jobs that are cancelled; return whether others wait."""
        for job in [job for job in self._waiting if job.cancelled]:
            self._waiting.remove(job)
        return bool(self._waiting)


def _closing() -> RequestError:
    return RequestError("the server is shutting down", None, 503)
