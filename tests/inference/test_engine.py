"""The queue: what goes together, what waits, and what happens at the end."""

import threading

import pytest

from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.inference import engine as engines
from diffeq_former.inference.engine import MOST_WAITING, Engine
from diffeq_former.inference.protocol import Completion, RequestError
from diffeq_former.inference.sampling import Sampling


def completion(n=1, temperature=1.0, max_tokens=4):
    sampling = Sampling(temperature)
    return Completion(
        [[97]], n, max_tokens, sampling, 1, [], echo=False, stream=False,
        include_usage=False,
    )  # fmt: skip


class Paused:
    """A generator that waits before each batch until it is released."""

    def __init__(self, generator):
        self._generator, self.sizes, self.abandoned = generator, [], False
        self.started = threading.Semaphore(0)
        self.release_next = threading.Semaphore(0)
        self.tabulate, self.check = generator.tabulate, generator.check

    def run(self, weights, rows, eot, watch):
        self.sizes.append(len(rows))
        self.started.release()
        assert self.release_next.acquire(timeout=600)
        if not self.abandoned:
            self._generator.run(weights, rows, eot, watch)


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


def finished(job):
    return sum(piece.finish_reason is not None for piece in job.pieces())


def test_requests_of_one_kind_go_together(engine, paused, monkeypatch):
    monkeypatch.setattr(engines, "MOST_CHOICES", 5)
    first = engine.submit(completion())
    assert paused.started.acquire(timeout=600)
    # The second takes the most likely token; the last has no room beside the others.
    asked = [completion(2, 0.5), completion(3, 0.0), completion(2, 0.7), completion(3)]
    jobs = [engine.submit(c) for c in asked]
    paused.release_next.release(10)
    assert [finished(job) for job in (first, *jobs)] == [1, 2, 3, 2, 3]
    assert paused.sizes == [1, 4, 3, 3]


def test_more_than_so_many_do_not_wait(engine, paused):
    engine.submit(completion())
    assert paused.started.acquire(timeout=600)
    for _ in range(MOST_WAITING):
        engine.submit(completion())
    with pytest.raises(RequestError, match="too many requests are waiting") as raised:
        engine.submit(completion())
    assert raised.value.status == 429


def test_what_is_given_up_is_not_continued(engine, paused, served):
    before = served.generator.num_new
    with engine.submit(completion(max_tokens=200)):
        assert paused.started.acquire(timeout=600)
    paused.release_next.release(10)
    assert finished(engine.submit(completion())) == 1
    assert served.generator.num_new - before < 100


def test_at_the_end_what_is_under_way_is_finished(engine, paused):
    running = engine.submit(completion(3))
    assert paused.started.acquire(timeout=600)
    waiting = engine.submit(completion())
    closing = threading.Thread(target=engine.close)
    closing.start()
    with pytest.raises(RequestError, match="shutting down") as raised:
        finished(waiting)
    assert raised.value.status == 503
    paused.release_next.release()
    assert finished(running) == 3
    closing.join()
    with pytest.raises(RequestError, match="shutting down"):
        engine.submit(completion())
