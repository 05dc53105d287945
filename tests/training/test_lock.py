"""No two runs train into one folder at a time."""

import errno
import fcntl
import os
import signal
import time

import pytest
from prepared import prepare_words
from runs import Command, tiny_config

from diffeq_former.errors import UserError
from diffeq_former.training import lock

LONG = 100_000


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Of a run that does not end by itself."""
    folder = tmp_path_factory.mktemp("run")
    dataset = prepare_words(folder, seq_len=16)
    settings = {"num_steps": LONG, "eval_every": LONG, "checkpoint_every": LONG}
    return Command(folder, tiny_config(dataset, **settings))


def wait_for_steps(workdir, process, more=0) -> None:
    """Until it has trained, and some lines more were written than there are."""
    path = workdir / "metrics.jsonl"
    while not path.exists() or path.read_text().count("\n") <= more:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.slow
def test_a_second_run_is_refused_until_the_first_is_dead(command, tmp_path):
    """Killed, it leaves nothing behind; nor does its restart wait for it to die."""
    workdir = tmp_path / "run"
    with command.start(workdir) as first:
        wait_for_steps(workdir, first)
        refused = command.run(workdir)
        assert refused.returncode == 2
        [line] = refused.stderr.splitlines()
        holder = f"process {first.pid} on {os.uname().nodename}"
        assert line == (
            f"error: another run trains into {workdir} ({holder}): wait for its end or"
            " use another --workdir; if there is no such process, remove"
            f" {workdir}/lock"
        )
        with command.start(workdir) as second:
            waiting = f"/proc/{second.pid}/fd"
            while not is_open(workdir / "lock", waiting):
                assert second.poll() is None, second.stderr.read()
                time.sleep(0.01)
            first.kill()
            first.communicate()
            (workdir / "metrics.jsonl").unlink()
            wait_for_steps(workdir, second)
            second.send_signal(signal.SIGTERM)
            _, err = second.communicate()
    assert second.returncode == 75, err


def is_open(path, descriptors: str) -> bool:
    links = (os.path.join(descriptors, name) for name in os.listdir(descriptors))
    return any(os.path.exists(x) and os.path.samefile(x, path) for x in links)


def test_held_and_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_SECONDS_TO_DIE", 0.5)
    with lock.locked(tmp_path):
        with pytest.raises(UserError, match="another run trains into"):
            with lock.locked(tmp_path):
                pass
    with lock.locked(tmp_path):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    """None is at hand."""

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock.locked(tmp_path):
        assert capsys.readouterr().err == (
            f"{tmp_path}/lock cannot be locked (No locks available): see to it that no"
            " other run trains into this folder\n"
        )
