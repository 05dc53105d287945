"""Batching engine of the server: one thread owns the device and runs all requests."""

import collections
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from diffeq_former.errors import UserError
from diffeq_former.inference.batch import Sequence
from diffeq_former.inference.continuation import Continuation
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.prompts import without_before
from diffeq_former.inference.protocol import MOST_CHOICES, Completion, RequestError

MOST_WAITING = 64  # length of the request queue


class Piece(NamedTuple):
    """New text of one choice of a completion."""

    index: int
    text: str
    finish_reason: str | None  # "stop" or "length" in the last piece of a choice
    num_tokens: int  # number of tokens of the choice so far


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
        prompts = [prompt for prompt in c.prompt for _ in range(c.n)]
        self.sequences = [
            Sequence(prompt, c.max_tokens, (c.seed + i) % 2**32, c.sampling)
            for i, prompt in enumerate(prompts)
        ]
        self.send, self.cancelled = send, False
        self._stop_ids = set(c.stop_token_ids)
        texts = [without_before(prompt, tokenizer.before) for prompt in prompts]
        self._texts = [Continuation(tokenizer, text, c.stop) for text in texts]
        self._unsent = {i: t.prompt_text for i, t in enumerate(self._texts) if c.echo}

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_) -> None:
        self.cancelled = True

    def update(self, i: int, tokens: list[int], ended: bool) -> bool:
        """Pass on the tokens of choice i so far; return whether it should end now."""
        if self.cancelled:
            return True
        sequence, text = self.sequences[i], self._texts[i]
        stops = (k for k, token in enumerate(tokens) if token in self._stop_ids)
        if (end := next(stops, None)) is not None:
            tokens, ended = tokens[:end], True
        new = self._unsent.pop(i, "") + text.update(tokens, ended)
        reason = None
        if text.stopped or ended:
            at_limit = not text.stopped and len(tokens) == sequence.max_new_tokens
            reason = "length" if at_limit else "stop"
        if new or reason:
            self.send(Piece(i, new, reason, text.num_tokens))
        return text.stopped or ended


class Engine:
    """Runs requests in order of arrival and batches waiting requests.

    Requests can share a batch if their sampling is of one kind (`Sampling.kind`).

    Args:
      generator: Generator of the model.
      params: Parameters of the model.
      tokenizer: Tokenizer of the model.
    """

    def __init__(self, generator: Generator, params: dict, tokenizer):
        self._generator, self._tokenizer = generator, tokenizer
        self._weights = generator.tabulate(params)
        self._waiting: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

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
            for job in self._waiting:
                job.send(_closing())
            self._waiting.clear()
            self._changed.notify()
        self._worker.join()

    def _work(self) -> None:
        """Run requests until the engine is closed."""
        while jobs := self._next_jobs():
            try:
                self._run(jobs)
            except Exception as error:
                message = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"a request failed: {message}", file=sys.stderr, flush=True)
                for job in jobs:
                    job.send(RequestError("generation failed", None, 500))

    def _next_jobs(self) -> list[Job]:
        """Return the first waiting job and all jobs that can share its batch.

        Blocks until there is a job; the list is empty if the engine was closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._drop_cancelled() or self._closed)
            jobs, room = [], MOST_CHOICES
            for job in list(self._waiting):
                same_kind = not jobs or _kind(job) == _kind(jobs[0])
                if same_kind and len(job.sequences) <= room:
                    jobs.append(job)
                    room -= len(job.sequences)
                    self._waiting.remove(job)
            return jobs

    def _drop_cancelled(self) -> bool:
        """Drop the waiting jobs that are cancelled; return whether others wait."""
        for job in [job for job in self._waiting if job.cancelled]:
            self._waiting.remove(job)
        return bool(self._waiting)

    def _run(self, jobs: list[Job]) -> None:
        owners = [(job, i) for job in jobs for i in range(len(job.sequences))]

        def watch(index: int, tokens: list[int], ended: bool) -> bool:
            job, i = owners[index]
            return job.update(i, tokens, ended)

        sequences = [sequence for job in jobs for sequence in job.sequences]
        self._generator.run(self._weights, sequences, self._tokenizer.ends, watch)


def _kind(job: Job) -> tuple:
    return job.sequences[0].sampling.kind


def _closing() -> RequestError:
    return RequestError("the server is shutting down", None, 503)
