"""No two runs train into one folder at a time."""

import errno
import fcntl
import os
import signal
import stat
import time

import pytest
from runs import Command, signal_when, tiny_config

from diffeq_former.errors import UserError
from diffeq_former.locks import try_lock
from diffeq_former.training import run_lock

LONG = 100_000


def num_lines(workdir) -> int:
    path = workdir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.slow
def test_a_second_run_is_refused_until_the_first_is_dead(
    dataset, tmp_path, monkeypatch
):
    """Killed, it leaves nothing behind; nor does its restart wait for it to die."""
    settings = {"num_steps": LONG, "eval_every": LONG, "checkpoint_every": LONG}
    command = Command(tmp_path, tiny_config(dataset, **settings))
    workdir = tmp_path / "run"
    with command.start(workdir) as first:
        while not num_lines(workdir):
            assert first.poll() is None, first.stderr.read()
            time.sleep(0.02)
        with monkeypatch.context() as patched:
            patched.setattr(run_lock, "_SECONDS_TO_DIE", 0.5)
            refused = command.run(workdir)
        assert refused.returncode == 2
        [line] = refused.stderr.splitlines()
        holder = f"process {first.pid} on {os.uname().nodename}"
        assert line == (
            f"error: another run is training in {workdir} ({holder}): wait until it"
            " ends, or use another --workdir"
        )
        tries = []

        def flock(file, how):
            if len(tries) == 1:
                assert first.poll() is None
                first.kill()
                first.communicate()
                (workdir / "metrics.jsonl").unlink()
            tries.append(how)
            return flock_of_system(file, how)

        flock_of_system = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", flock)

        def trained() -> bool:
            return len(tries) > 1 and num_lines(workdir) > 0

        with signal_when(trained, signal.SIGTERM):
            second = command.run(workdir)
    assert second.returncode == 75, second.stderr


def test_held_and_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_SECONDS_TO_DIE", 0.5)
    with run_lock.locked(tmp_path):
        with pytest.raises(UserError, match="another run is training in"):
            with run_lock.locked(tmp_path):
                pass
    with run_lock.locked(tmp_path):
        pass


@pytest.mark.parametrize("removed", [True, False])
def test_held_although_its_file_was_removed(tmp_path, monkeypatch, removed):
    monkeypatch.setattr(run_lock, "_SECONDS_TO_DIE", 0.1)
    with run_lock.locked(tmp_path):
        (tmp_path / "lock").unlink()
        if not removed:
            (tmp_path / "lock").touch()
        with pytest.raises(UserError, match="another run is training in"):
            with run_lock.locked(tmp_path):
                pass


def test_held_by_its_file_where_folders_have_no_locks(tmp_path, monkeypatch):
    """As on NFS."""

    def flock(descriptor, how):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return flock_of_system(descriptor, how)

    flock_of_system = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(run_lock, "_SECONDS_TO_DIE", 0.1)
    with run_lock.locked(tmp_path):
        with pytest.raises(UserError, match="another run is training in"):
            with run_lock.locked(tmp_path):
                pass


def test_a_path_that_was_replaced_while_it_was_opened(tmp_path, monkeypatch):
    """The file that now has the name is locked."""
    path, opened = tmp_path / "file", []
    path.touch()

    def flock(descriptor, how):
        if not opened:
            path.unlink()
            path.touch()
        opened.append(descriptor)
        return flock_of_system(descriptor, how)

    flock_of_system = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    lock = try_lock(path)
    assert len(opened) == 2 and os.path.samestat(os.fstat(lock), path.stat())
    assert try_lock(path) is None
    os.close(lock)


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    """None is at hand."""

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with run_lock.locked(tmp_path):
        assert capsys.readouterr().err == (
            f"{tmp_path}/lock cannot be locked (No locks available): make sure that"
            " no other run is training in this folder\n"
        )
