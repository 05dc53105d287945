"""The queue: what goes together, what waits, and what happens at the end."""

import queue
import threading

import pytest

from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.inference import engine as engines
from diffeq_former.inference.engine import MOST_WAITING, Engine
from diffeq_former.inference.protocol import Completion, RequestError


def completion(n=1, temperature=1.0, max_tokens=4, prompt="a"):
    fields = {"n": n, "temperature": temperature, "max_tokens": max_tokens, "seed": 1}
    context = {"tokenizer": ByteTokenizer(), "max_len": 2048}
    return Completion.model_validate({"prompt": prompt} | fields, context=context)


class Paused:
    """A generator that waits before each batch until it is released."""

    def __init__(self, generator):
        self._generator, self.sizes, self.abandoned = generator, [], False
        self.started = threading.Semaphore(0)
        self.release_next = threading.Semaphore(0)
        self.tabulate, self.check = generator.tabulate, generator.check

    def run(self, weights, sequences, ends, watch):
        self.sizes.append(len(sequences))
        self.started.release()
        assert self.release_next.acquire(timeout=600)
        if not self.abandoned:
            self._generator.run(weights, sequences, ends, watch)


@pytest.fixture
def paused(served):
    return Paused(served.generator)


@pytest.fixture
def engine(paused, served):
    engine = Engine(paused, served.params, ByteTokenizer())
    yield engine
    paused.abandoned = True
    paused.release_next.release(1000)
    engine.close()


class Submitted:
    """A job and its results."""

    def __init__(self, engine, completion):
        self._results = queue.SimpleQueue()
        self.job = engine.submit(completion, self._results.put)

    def finish(self):
        """Return the number of choices when all are complete."""
        reasons = []
        while len(reasons) < len(self.job.sequences):
            result = self._results.get(timeout=600)
            if isinstance(result, RequestError):
                raise result
            reasons += [result.finish_reason] if result.finish_reason else []
        return len(reasons)


def test_requests_of_one_kind_go_together(engine, paused, monkeypatch):
    monkeypatch.setattr(engines, "MOST_CHOICES", 5)
    first = Submitted(engine, completion())
    assert paused.started.acquire(timeout=600)
    # The second takes the most likely token; the last has no room beside the others.
    asked = [completion(2, 0.5), completion(3, 0.0), completion(2, 0.7), completion(3)]
    jobs = [Submitted(engine, c) for c in asked]
    paused.release_next.release(10)
    assert [job.finish() for job in (first, *jobs)] == [1, 2, 3, 2, 3]
    assert paused.sizes == [1, 4, 3, 3]


def test_more_than_so_many_do_not_wait(engine, paused):
    Submitted(engine, completion())
    assert paused.started.acquire(timeout=600)
    for _ in range(MOST_WAITING):
        Submitted(engine, completion())
    assert engine.num_waiting == MOST_WAITING
    with pytest.raises(RequestError, match="too many requests are waiting") as raised:
        Submitted(engine, completion())
    assert raised.value.status == 429


def test_what_is_given_up_is_not_continued(engine, paused, served):
    before = served.generator.num_new
    with Submitted(engine, completion(max_tokens=200)).job:
        assert paused.started.acquire(timeout=600)
    paused.release_next.release(10)
    assert Submitted(engine, completion()).finish() == 1
    assert served.generator.num_new - before <= 4


def test_what_is_given_up_while_it_waits_is_not_run(engine, paused):
    running = Submitted(engine, completion())
    assert paused.started.acquire(timeout=600)
    for _ in range(MOST_WAITING):
        with Submitted(engine, completion(3, 0.0)).job:
            pass
    waiting = Submitted(engine, completion(2))  # the queue is not full
    paused.release_next.release(10)
    assert (running.finish(), waiting.finish()) == (1, 2)
    assert paused.sizes == [1, 2]


def test_a_prompt_that_is_given_up_does_not_hold_up_others(
    engine, paused, served, monkeypatch
):
    """They are in one batch; the long prompt is given up after its first chunk."""
    programs, calls = served.generator._programs, []

    def read(*arguments):
        calls.append("read")
        if len(calls) == 2:  # the first is of the batch before
            given_up.job.__exit__()
        return programs.read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(served.generator, "_programs", programs._replace(read=read))
        first = Submitted(engine, completion(2, 0.0))
        assert paused.started.acquire(timeout=600)
        given_up = Submitted(engine, completion(prompt="a" * 1500))
        other = Submitted(engine, completion())
        paused.release_next.release(10)
        assert (first.finish(), other.finish()) == (2, 1)
    assert paused.sizes == [2, 2] and calls == ["read", "read"]
    assert (len(given_up.job.sequences[0].new), len(other.job.sequences[0].new)) == (
        0,
        4,
    )


def test_at_the_end_what_is_under_way_is_finished(engine, paused):
    running = Submitted(engine, completion(3))
    assert paused.started.acquire(timeout=600)
    waiting = Submitted(engine, completion())
    closing = threading.Thread(target=engine.close)
    closing.start()
    with pytest.raises(RequestError, match="shutting down") as raised:
        waiting.finish()
    assert raised.value.status == 503
    paused.release_next.release()
    assert running.finish() == 3
    closing.join()
    with pytest.raises(RequestError, match="shutting down"):
        Submitted(engine, completion())
