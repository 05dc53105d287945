"""Kills a run many times, and compares it with a run that was left alone.

    python tests/soak.py --kills=50

On one CPU device, in a temporary folder. It prints a line after each kill; the last
one says whether the parameters, the rest of the state and the losses are bit-identical.
Exits with 1 if they are not.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # read by the imports

from absl import app, flags  # noqa: E402
from kills import differences, last_step, run_and_kill  # noqa: E402
from prepared import prepare_words  # noqa: E402
from runs import Command, tiny_config  # noqa: E402

from diffeq_former.training import run_directory  # noqa: E402

_KILLS = flags.DEFINE_integer("kills", 10, "How often.", lower_bound=1)

STEPS_A_KILL = 40  # more than a run takes before it is killed


def soak(kills: int, folder: Path) -> int:
    dataset = prepare_words(folder, seq_len=16)
    config = tiny_config(dataset, num_steps=STEPS_A_KILL * (kills + 1))
    command = Command(folder, run_directory.fit(config, dataset))
    alone, killed = folder / "alone", folder / "killed"
    finish(command, alone)
    for number in range(1, kills + 1):
        was_killed = run_and_kill(command, killed, early=random.random() < 0.3)
        words = "killed" if was_killed else "ended"
        print(f"{number}/{kills}: {words} at step {last_step(killed)}", flush=True)
    finish(command, killed)
    if found := differences(killed, alone, config):
        print(f"NOT bit-identical after {kills} kills: {len(found)}, first {found[0]}")
        return 1
    print(f"bit-identical after {kills} kills and {config.training.num_steps} steps")
    return 0


def finish(command: Command, workdir: Path) -> None:
    result = command.run_process(workdir)
    if result.returncode:
        sys.exit(result.stderr)


def main(_) -> int:
    with tempfile.TemporaryDirectory() as place:
        return soak(_KILLS.value, Path(place))


if __name__ == "__main__":
    app.run(main)
