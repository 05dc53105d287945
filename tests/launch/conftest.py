"""The launchers, as processes, with stand-ins for what they start."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from runs import ROOT
from several import SCRIPT as SUM

# Stands in for diffeq_former.main. Writes down how it was started, and ends as --ends
# says of this attempt: with 0 or 75; "wait": with 75 once it is asked to; "deaf":
# never; any other code: the last process with that code, while the others wait for it
# for ever, as in a collective operation.
MAIN = """
import json, os, signal, sys, time
from pathlib import Path

asked = []

def ask(number, _):
    asked.append(number)
    line = f"asked by {signal.Signals(number).name}\\n"
    os.write(1, line.encode())  # whole, where several write to one pipe

for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, ask)
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
this = int(flags.get("process_id") or os.environ.get("SLURM_PROCID", 0))
count = int(flags.get("num_processes") or os.environ.get("SLURM_NTASKS", 1))
workdir = Path(flags["workdir"])
attempt = len(list(workdir.glob(f"{this}.*")))
end = flags["ends"].split(",")[attempt]
seen = {"pid": os.getpid(), "flags": flags, "environment": dict(os.environ)}
draft = workdir / f"draft-{this}"
draft.write_text(json.dumps(seen))
print(f"process {this} of {count}, attempt {attempt}: {end}", flush=True)
draft.rename(workdir / f"{this}.{attempt}")
while end == "wait" and not asked:
    time.sleep(0.02)
while end == "deaf" or end not in ("0", "75", "wait") and this < count - 1:
    time.sleep(0.02)
sys.exit(75 if end == "wait" else int(end))
"""


class Launcher:
    """One script of launch/, in a folder where Python finds the stand-in."""

    def __init__(self, script: str, folder: Path):
        self.script, self.folder = ROOT / "launch" / script, folder
        self.workdir = folder / "a run"
        self._processes = []
        self.workdir.mkdir()
        package = folder / "diffeq_former"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "main.py").write_text(MAIN)

    def start(self, *arguments, ends: str, **environment) -> subprocess.Popen:
        """The launcher, on stand-ins whose attempts end as in "1,wait,0"."""
        flags = (f"--workdir={self.workdir}", f"--ends={ends}")
        python = {"PYTHON": sys.executable, "PYTHONPATH": str(self.folder)}
        return self._start(*arguments, *flags, **python | environment)

    def start_sums(self, *arguments, **environment) -> subprocess.Popen:
        """The launcher, on processes that find each other with JAX and add a sum."""
        shutil.rmtree(self.folder / "diffeq_former")  # they need the real one
        (self.folder / "sum.py").write_text(SUM)
        python = self.folder / "python"
        python.write_text(
            '#!/bin/sh\n[ "$1" = -m ] && shift 2 && set -- sum.py "$@"\n'
            f'exec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        return self._start(*arguments, PYTHON=str(python), **environment)

    def _start(self, *arguments, **environment) -> subprocess.Popen:
        process = subprocess.Popen(
            ["bash", self.script, *arguments],
            cwd=self.folder,
            env=os.environ | {"RESTART_PAUSE": "0"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def run(self, *arguments, **options) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        return self.end(self.start(*arguments, **options))

    def end(self, process: subprocess.Popen) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def seen(self, process_id: int, attempt: int = 0) -> dict:
        """How a stand-in was started, as soon as it was."""
        path = self.workdir / f"{process_id}.{attempt}"
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, path
            time.sleep(0.02)
        return json.loads(path.read_text())

    def attempts(self) -> int:
        return len(list(self.workdir.glob("0.*")))

    def close(self):
        for process in self._processes:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.communicate()


@pytest.fixture
def launcher(request, tmp_path):
    launcher = Launcher(request.module.SCRIPT, tmp_path)
    yield launcher
    launcher.close()
