"""Time from the start of Python to the end of the first training step."""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.benchmarks.data import random_dataset
from diffeq_former.benchmarks.timing import spread
from diffeq_former.config import Config, DataConfig

MAIN = [sys.executable, "-m", "diffeq_former.main"]


def benchmark(configs: dict[str, Config], rounds: int, steps: int) -> Iterator[dict]:
    """Yield three records per config: `help`, `cold` and `warm`.

    `help` is the time of --help; `cold` compiles everything, `warm` uses the
    compilation cache. These two end when the metrics of the first step are written.
    """
    del steps
    for name, config in configs.items():
        with tempfile.TemporaryDirectory() as folder:
            file = _write_config(Path(folder), config)
            seconds = {"help": [], "cold": [], "warm": []}
            for number in range(rounds):
                seconds["help"].append(_help())
                for kind in ("cold", "warm"):
                    cache = Path(folder) / f"cache-{number}"
                    workdir = Path(folder) / f"{kind}-{number}"
                    seconds[kind].append(_until_first_step(file, workdir, cache))
            for kind, values in seconds.items():
                yield {"variant": name, "start": kind, "seconds": spread(values)}


def _write_config(folder: Path, config: Config) -> Path:
    dataset = random_dataset(folder, config)
    config = dataclasses.replace(config, data=DataConfig(path=str(dataset.path)))
    file = folder / "config.py"
    file.write_text(
        "from diffeq_former.config import default_config\n\n\n"
        "def get_config():\n"
        "    config = default_config()\n"
        f"    config.update({dataclasses.asdict(config)!r})\n"
        "    return config\n"
    )
    return file


def _help() -> float:
    start = time.perf_counter()
    subprocess.run([*MAIN, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _until_first_step(file: Path, workdir: Path, cache: Path) -> float:
    metrics = workdir / "metrics.jsonl"
    start = time.perf_counter()
    process = subprocess.Popen(
        [*MAIN, f"--config={file}", f"--workdir={workdir}"],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None:
            raise RuntimeError(f"training failed with exit code {process.returncode}")
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    process.kill()
    process.wait()
    return seconds
