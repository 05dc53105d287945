"""Kills runs of training at random moments and compares what they end with."""

import json
import random
import signal
import time
from pathlib import Path

import jax
import numpy as np
from loops import last_state
from runs import Command

from diffeq_former.training.checkpoint import saved_steps


def lines(workdir: Path) -> list[dict]:
    """The whole lines of the metrics."""
    path = workdir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [
        json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"
    ]


def last_step(workdir: Path) -> int:
    return max((line["step"] for line in lines(workdir)), default=0)


def run_and_kill(command: Command, workdir: Path, *flags: str, early: bool) -> bool:
    """Kills a run anywhere in its first seconds, or some steps on with a checkpoint.

    Returns:
      Whether it was killed before its end.
    """
    target = last_step(workdir) + random.randint(1, 5)
    seconds = random.uniform(0, 6) if early else 120
    with command.start(workdir, *flags) as process:
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            if last_step(workdir) >= target and saved_steps(workdir / "checkpoints"):
                break
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.1))
        process.kill()
        _, err = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), err
    assert early or saved_steps(workdir / "checkpoints")
    return process.returncode != 0


def differences(workdir: Path, expected: Path, config) -> list[str]:
    """What differs between two runs' last states, and between their metrics."""
    states = [last_state(path, config)[0] for path in (workdir, expected)]
    found = [
        jax.tree_util.keystr(path)
        for (path, x), y in zip(
            jax.tree_util.tree_leaves_with_path(states[0]),
            jax.tree.leaves(states[1]),
            strict=True,
        )
        if np.asarray(x).tobytes() != np.asarray(y).tobytes()
    ]
    losses = [
        [(x["step"], x.get("loss"), x.get("validation/loss")) for x in lines(path)]
        for path in (workdir, expected)
    ]
    missing, added = (
        [line for line in a if line not in b] for a, b in (losses[::-1], losses)
    )
    if losses[0] != losses[1]:
        found.append(f"metrics.jsonl: without {missing}, with {added}")
    return found
