"""Experiment trackers: Weights & Biases and MLflow, beside metrics.jsonl.

A tracker's run is continued when the run is resumed: its identifier is stored in the
run directory. An error of a tracker never ends training: the tracker is left out from
then on, and a line on stderr says so.
"""

import contextlib
import dataclasses
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from diffeq_former.atomic_io import atomic_file
from diffeq_former.config import Config, TrackingConfig
from diffeq_former.config.dataclass_config import flatten
from diffeq_former.distributed.multihost import is_primary, run_on_all
from diffeq_former.errors import UserError, require_extra
from diffeq_former.json_io import read_object

NAME = "tracking.json"  # identifiers by backend
_MAX_PARAMS = 100  # in one request to MLflow


class Tracker(Protocol):
    """A run of an experiment tracker."""

    def scalars(self, step: int, values: dict[str, float]) -> None: ...

    def text(self, step: int, name: str, text: str) -> None: ...

    def close(self, status: str) -> None:
        """End it with a status of MLflow: FINISHED, KILLED or FAILED."""


def check_installed(c: TrackingConfig) -> None:
    """Raise UserError if the library of a backend is missing in process 0."""
    for backend in c.backends if is_primary() else ():
        require_extra(backend, backend, prefix="config.tracking.backends: ")


class Trackers:
    """The open trackers of a run; without any, all methods do nothing.

    Args:
      trackers: The trackers by backend.
      step: The step at which the run starts.
      num_steps: The step at which it is finished.
    """

    def __init__(self, trackers: dict[str, Tracker], step: int = 0, num_steps: int = 0):
        self._trackers, self._step, self._num_steps = trackers, step, num_steps

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._step = step
        self._each("scalars", step, values)

    def text(self, step: int, name: str, text: str) -> None:
        self._each("text", step, name, text)

    def close(self, failed: bool) -> None:
        """End the runs, as failed, as stopped, or as finished at the last step."""
        ended = "FINISHED" if self._step == self._num_steps else "KILLED"
        self._each("close", "FAILED" if failed else ended)

    def _each(self, method: str, *args) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, method)(*args)
            except Exception as error:  # of a library, or of the network
                del self._trackers[name]
                _warn(f"{name}: {_line(error)}; the run continues without it")


@contextlib.contextmanager
def open_trackers(config: Config, workdir: Path, step: int) -> Iterator[Trackers]:
    """Open the configured trackers, in process 0 on behalf of all.

    Args:
      config: The run's config.
      workdir: The run directory, which exists.
      step: The step at which the run starts.

    Raises:
      UserError: If a tracker cannot be opened, in all processes.
    """
    opened: dict[str, Tracker] = {}

    def open_all() -> None:
        for backend in config.tracking.backends:
            try:
                opened[backend] = _BACKENDS[backend](config, workdir)
            except Exception as error:
                raise UserError(
                    f"config.tracking.backends: {backend}: {_line(error)}"
                    f" ({_ADVICE[backend]})"
                ) from error

    trackers = Trackers(opened, step, config.training.num_steps)
    try:
        run_on_all(open_all if is_primary() else lambda: None)
        yield trackers
    except BaseException:
        trackers.close(failed=True)
        raise
    trackers.close(failed=False)


class _Wandb:
    """A run of Weights & Biases, online or offline as its environment says."""

    def __init__(self, config: Config, workdir: Path):
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=config.tracking.project,
            name=workdir.absolute().name,
            id=_stored_id(workdir, "wandb", lambda: secrets.token_hex(8)),
            resume="allow",
            dir=workdir,
            config=dataclasses.asdict(config),
            settings=wandb.Settings(console="off"),
        )
        # Not W&B's own step, which cannot return to an earlier one.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self._run.log({"step": step} | values)

    def text(self, step: int, name: str, text: str) -> None:
        table = self._wandb.Table(columns=["step", "text"], data=[[step, text]])
        self._run.log({"step": step, name: table})

    def close(self, status: str) -> None:
        self._run.finish(exit_code=int(status == "FAILED"))


class _Mlflow:
    """A run of MLflow, on the server or in the folder of MLFLOW_TRACKING_URI."""

    def __init__(self, config: Config, workdir: Path):
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient()

        def create() -> str:
            project = config.tracking.project
            found = client.get_experiment_by_name(project)
            experiment = found.experiment_id if found else None
            run = client.create_run(
                experiment or client.create_experiment(project),
                run_name=workdir.absolute().name,
            )
            self._write_settings(run.info.run_id, config)
            return run.info.run_id

        self._id = _stored_id(workdir, "mlflow", create)
        client.update_run(self._id, "RUNNING")

    def _write_settings(self, run_id: str, config: Config) -> None:
        from mlflow.entities import Param

        settings = flatten(dataclasses.asdict(config))
        params = [Param(name, str(value)) for name, value in settings.items()]
        for start in range(0, len(params), _MAX_PARAMS):
            chosen = params[start : start + _MAX_PARAMS]
            self._client.log_batch(run_id, params=chosen)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_mlflow_name(name), float(value), now, step)
            for name, value in values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def text(self, step: int, name: str, text: str) -> None:
        path = f"{_mlflow_name(name)}/step-{step:09}.txt"
        self._client.log_text(self._id, text, path)

    def close(self, status: str) -> None:
        self._client.set_terminated(self._id, status)


_BACKENDS = {"wandb": _Wandb, "mlflow": _Mlflow}
_ADVICE = {
    "wandb": "WANDB_MODE=offline needs no login",
    "mlflow": f"MLFLOW_TRACKING_URI names the server, and {NAME} in the folder a run",
}


def _stored_id(workdir: Path, backend: str, create: Callable[[], str]) -> str:
    """Return the identifier in the run directory; create and store it if needed."""
    path = workdir / NAME
    known = read_object(path) if path.exists() else {}
    if backend not in known:
        known[backend] = create()
        with atomic_file(path) as partial:
            partial.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known[backend]


def _mlflow_name(name: str) -> str:
    """Return a name that MLflow allows; one may not be the folder of another."""
    return re.sub(r"[^\w\-. :]", "_", name.replace("/", "."), flags=re.ASCII)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _warn(message: str) -> None:
    from tqdm import tqdm

    tqdm.write(message, file=sys.stderr)  # does not break a progress bar
