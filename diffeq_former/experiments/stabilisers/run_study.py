"""Trains the missing runs of a grid, then writes the report."""

import dataclasses
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

from diffeq_former.atomic_io import atomic_directory, atomic_file, make_directory
from diffeq_former.config import MeshConfig
from diffeq_former.data import dataset as datasets
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.errors import UserError
from diffeq_former.experiments.stabilisers import grid as grids
from diffeq_former.experiments.stabilisers import report, run
from diffeq_former.experiments.stabilisers.grid import Grid, Training
from diffeq_former.json_io import read_object

SETTINGS, RUNS, REPORT = "study.json", "runs", "report"


def complete(output: Path, data: str, grid: Grid, training: Training) -> list[dict]:
    """Run the study; see `study.study`."""
    dataset = datasets.load(data)
    if (output / REPORT).exists():
        raise UserError(f"{output / REPORT} exists: remove it or name another --output")
    models = {c: grids.model_of(c, training, dataset) for c in grid.cells}
    _begin(output, dataset, training, grid.kind)
    runs = _train(output / RUNS, models, dataset)
    with atomic_directory(output / REPORT) as folder:
        rows = report.verdicts(runs)
        report.write(folder, grid.kind, runs, rows)
    return rows


def _begin(output: Path, dataset, training: Training, kind: str) -> None:
    """Write the settings shared by all runs, or check that they are unchanged."""
    settings = {"kind": kind} | dataclasses.asdict(training)
    settings |= {
        "seq_len": dataset.seq_len,
        "source": dataset.source,
        "tokenizer": dataset.tokenizer_fingerprint,
    }
    path = output / SETTINGS
    if path.is_file():
        found = read_object(path)
        if changed := [k for k in settings if found.get(k) != settings[k]]:
            name = changed[0]
            raise UserError(
                f"{output} is a study with another {name}: {found.get(name)!r} ->"
                f" {settings[name]!r}; name another --output"
            )
        return
    if output.exists() and any(output.iterdir()):
        raise UserError(f"{output} is no study of this kind: name another --output")
    make_directory(output / RUNS)
    _write(path, settings)


def _train(folder: Path, models: dict, dataset) -> list[dict]:
    """Return the records of all cells, and train those without a file."""
    mesh = make_mesh(MeshConfig(), jax.local_devices()[:1])
    paths = {cell: folder / f"{cell.name}.json" for cell in models}
    missing, begin = [c for c in models if not paths[c].is_file()], time.monotonic()
    runs = []
    for number, (cell, model) in enumerate(models.items(), 1):
        done, start = "already done", time.monotonic()
        if cell in missing:
            record = dataclasses.asdict(cell) | run.run(model, dataset, mesh)
            _write(paths[cell], record)
            end, trained = time.monotonic(), missing.index(cell) + 1
            left = (end - begin) / trained * (len(missing) - trained)
            done = f"{end - start:.1f} s, about {left / 60:.0f} min left"
        runs.append(read_object(paths[cell]))
        _log(f"{number}/{len(models)} {cell.name}: {_outcome(runs[-1])}, {done}")
    return runs


def _outcome(run: dict) -> str:
    at = run["diverged_at"]
    return f"loss {run['final_loss']:.3f}" + (f", diverged at step {at}" if at else "")


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(path: Path, values: dict) -> None:
    """Write JSON atomically; non-finite floats are kept."""
    text = json.dumps(values, default=lambda array: np.asarray(array).tolist())
    with atomic_file(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")
