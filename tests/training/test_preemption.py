import os
import signal

import pytest

from diffeq_former.training.preemption import SIGNALS, StopRequest


@pytest.fixture(autouse=True)
def put_handlers_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_signal_is_remembered(name):
    stop = StopRequest()
    stop.install()
    assert not stop() and stop.signal is None
    os.kill(os.getpid(), getattr(signal, name))
    assert stop() and stop.signal == name


def test_what_a_process_was_started_to_ignore_it_ignores():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = StopRequest()
    stop.install()
    os.kill(os.getpid(), signal.SIGINT)
    assert not stop()
