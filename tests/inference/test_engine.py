"""The queue: what shares the batch, what waits, and what happens at the end."""

import queue
import threading

import pytest

from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.inference.engine import MOST_WAITING, Engine
from diffeq_former.inference.protocol import Completion, RequestError

NUM_SLOTS = 4


def completion(n=1, temperature=1.0, max_tokens=4, prompt="a"):
    fields = {"n": n, "temperature": temperature, "max_tokens": max_tokens, "seed": 1}
    context = (ByteTokenizer(), 2048, None)
    return Completion.model_validate({"prompt": prompt} | fields, context=context)


class Paused:
    """Makes a batch wait before each step until it is released."""

    def __init__(self, batch):
        self._batch, self._step, self.sizes = batch, batch.step, []
        self.started = threading.Semaphore(0)
        self.release_next = threading.Semaphore(0)
        batch.step = self.step

    def step(self):
        self.sizes.append(len(self._batch.sequences))
        self.started.release()
        assert self.release_next.acquire(timeout=600)
        self._step()


@pytest.fixture
def engine(served):
    engine = Engine(served.generator, served.params, ByteTokenizer(), NUM_SLOTS)
    engine.start()
    yield engine
    for job in [*engine._running, *engine._waiting]:
        job.cancelled = True
    engine.paused.release_next.release(1000)
    engine.close()


@pytest.fixture
def paused(engine):
    engine.paused = Paused(engine._batch)
    return engine.paused


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


def test_choices_join_in_order_as_slots_become_free(engine, paused):
    """Greedy and sampled ones, although others of their request have no slot yet."""
    first = Submitted(engine, completion(max_tokens=9))
    assert paused.started.acquire(timeout=600)
    jobs = [Submitted(engine, completion(*c)) for c in ((2, 0.0), (6, 0.7), (1,))]
    paused.release_next.release(100)
    assert [job.finish() for job in (first, *jobs)] == [1, 2, 6, 1]
    # The first ends in the second step, and all others in their first one.
    assert paused.sizes == [1, 4, 4, 2]


def test_more_than_so_many_do_not_wait(engine, paused):
    Submitted(engine, completion(NUM_SLOTS))
    assert paused.started.acquire(timeout=600)
    for _ in range(MOST_WAITING):
        Submitted(engine, completion())
    assert engine.num_waiting == MOST_WAITING
    with pytest.raises(RequestError, match="too many requests are waiting") as raised:
        Submitted(engine, completion())
    assert raised.value.status == 429


def test_what_is_given_up_is_not_continued(engine, paused, served):
    before = served.generator.counts.new
    with Submitted(engine, completion(max_tokens=200)).job:
        assert paused.started.acquire(timeout=600)
    paused.release_next.release(10)
    assert Submitted(engine, completion()).finish() == 1
    assert served.generator.counts.new - before <= 4


def test_what_is_given_up_while_it_waits_is_not_run(engine, paused):
    running = Submitted(engine, completion(NUM_SLOTS))
    assert paused.started.acquire(timeout=600)
    for _ in range(MOST_WAITING):
        with Submitted(engine, completion(3, 0.0)).job:
            pass
    waiting = Submitted(engine, completion(2))  # the queue is not full
    paused.release_next.release(10)
    assert (running.finish(), waiting.finish()) == (NUM_SLOTS, 2)
    assert paused.sizes == [NUM_SLOTS, 2]


def test_a_request_that_is_given_up_leaves_its_slots_to_others(engine, paused):
    """Also those of its choices that have no slot yet."""
    given_up = Submitted(engine, completion(NUM_SLOTS + 3, max_tokens=2000))
    assert paused.started.acquire(timeout=600)
    other = Submitted(engine, completion())
    with given_up.job:
        pass
    paused.release_next.release(10)
    assert other.finish() == 1
    assert paused.sizes == [NUM_SLOTS, 1]


def test_at_the_end_what_is_under_way_is_finished(engine, paused):
    running = Submitted(engine, completion(NUM_SLOTS + 2))
    assert paused.started.acquire(timeout=600)
    waiting = Submitted(engine, completion())
    closing = threading.Thread(target=engine.close)
    closing.start()
    with pytest.raises(RequestError, match="shutting down") as raised:
        waiting.finish()
    assert raised.value.status == 503
    paused.release_next.release(10)
    assert running.finish() == NUM_SLOTS + 2
    closing.join()
    with pytest.raises(RequestError, match="shutting down"):
        Submitted(engine, completion())
