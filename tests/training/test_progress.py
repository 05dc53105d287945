"""The real thing on a real terminal and into a real pipe, in processes of its own."""

import os
import re
import subprocess
import sys

SCRIPT = """
import time
from diffeq_former.training.progress import Progress
progress = Progress(40, step=10)
for step in range(11, 41):
    time.sleep(0.02)
    progress.update(step, 5.0 - step / 100, 1234567.0)
    if step == 25:
        progress.say("a word")
progress.close()
"""


def test_a_log_gets_the_first_and_the_last_line():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert run.stdout == ""
    first, word, last = run.stderr.splitlines()
    assert re.fullmatch(
        r"step 11/40: loss 4\.8900, 1,234,567 tokens/s, 0:00:0[0-9] left", first
    )
    assert word == "a word"
    assert last == "step 40/40: loss 4.6000, 1,234,567 tokens/s, 0:00:00 left"


def test_a_terminal_gets_a_bar():
    ours, its = os.openpty()
    environment = os.environ | {"COLUMNS": "120"}
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stderr=its, stdout=its, env=environment
    )
    os.close(its)
    shown = read_all(ours)
    assert run.wait() == 0
    assert "a word" in shown
    last = shown.strip().split("\r")[-1]
    assert "40/40 [00:0" in last and "<00:00" in last
    assert "loss 4.6000, 1,234,567 tokens/s" in last


def read_all(terminal: int) -> str:
    data = b""
    try:
        while chunk := os.read(terminal, 4096):
            data += chunk
    except OSError:  # how Linux says that the other side was closed
        pass
    os.close(terminal)
    return data.decode()
