"""Writers of a run's metrics and texts: metrics.jsonl, TensorBoard and trackers."""

import logging
import os
import sys
from pathlib import Path

import numpy as np
from clu import parameter_overview
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import hparams

from diffeq_former.config.dataclass_config import flatten
from diffeq_former.json_io import dumps
from diffeq_former.training import metrics_file
from diffeq_former.training.tracking import Trackers

ROLLBACKS = "rollbacks"

# It would warn of every metric of a run that diverges.
logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)


class MetricsWriter:
    """Writes metrics to the run directory, appending to those of a resumed run.

    Args:
      workdir: The run directory; it must exist.
      step: The step at which the run starts. Records of later steps, written by a run
        that was killed after its last checkpoint, are dropped: they will be written
        again.
      rollbacks: The number of rollbacks so far. Records of later rollbacks are dropped.
      evaluated: Whether the hooks that are due at `step` have run; otherwise they will
        run again, and what they have written is dropped.
      trackers: Experiment trackers, which get the same metrics and texts.
      to_disk: Whether this process writes; otherwise all methods do nothing.
    """

    def __init__(
        self,
        workdir: Path,
        step: int = 0,
        rollbacks: int = 0,
        evaluated: bool = True,
        trackers: Trackers | None = None,
        to_disk: bool = True,
    ):
        self._trackers = trackers or Trackers({})
        self._workdir, self._to_disk = Path(workdir), to_disk
        self._open(step, rollbacks, evaluated)
        self._events = SummaryWriter(
            str(workdir), purge_step=step + 1, write_to_disk=to_disk
        )

    def roll_back(self, step: int, rollbacks: int, evaluated: bool, why: str) -> None:
        """Drop the records of later steps, and record the rollback and its reason."""
        self._lines.close()
        self._open(step, rollbacks, evaluated)
        record = {"step": step, ROLLBACKS: rollbacks, "why": why}
        self._lines.write(dumps(record) + "\n")
        self._lines.flush()
        restart = SessionLog(status=SessionLog.START)
        event = Event(step=step + 1, session_log=restart)
        self._events.file_writer.add_event(event, step + 1)
        self._events.add_scalar(ROLLBACKS, rollbacks, step)
        self._trackers.scalars(step, {ROLLBACKS: rollbacks})
        self.text(step, "rollback", why)

    def diverged(self, step: int, why: str) -> None:
        """Record that training diverged, with no rollback left, and the reason."""
        record = {"step": step, metrics_file.DIVERGED: why}
        self._lines.write(dumps(record) + "\n")
        self._lines.flush()
        self.text(step, metrics_file.DIVERGED, why)

    def _open(self, step: int, rollbacks: int, evaluated: bool) -> None:
        """Open metrics.jsonl for appending, without later records."""
        path = Path(os.devnull)
        if self._to_disk:
            path = self._workdir / metrics_file.NAME
            num_damaged = metrics_file.retain(
                self._workdir,
                lambda record: _is_retained(record, step, rollbacks, evaluated),
            )
            if num_damaged:
                print(
                    f"{path}: damaged lines, moved to {metrics_file.DAMAGED}:"
                    f" {num_damaged}",
                    file=sys.stderr,
                    flush=True,
                )
        self._lines = path.open("a", encoding="utf-8")

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write a line of metrics.jsonl (null: not finite) and an event per value."""
        self._lines.write(dumps({"step": step} | values) + "\n")
        self._lines.flush()
        for name, value in values.items():
            self._events.add_scalar(name, np.float32(value), step)
        self._trackers.scalars(step, values)

    def text(self, step: int, name: str, text: str) -> None:
        """Write a text, for TensorBoard indented so that it is not read as Markdown."""
        self._trackers.text(step, name, text)
        indented = "\n".join("    " + line for line in text.splitlines())
        self._events.add_text(name, indented, step)

    def start(self, settings: dict, params) -> None:
        """Record the settings, nested by section, and an overview of the parameters."""
        self.hyper_parameters(settings, f"{metrics_file.VALIDATION}loss")
        self.parameter_overview(params)

    def hyper_parameters(self, settings: dict, metric: str) -> None:
        """Record the settings, nested by section, and the metric that compares runs."""
        flat = flatten(settings).items()
        values = {k: str(v) if isinstance(v, tuple) else v for k, v in flat}
        for summary in hparams(values, {metric: 0.0}):
            self._events.file_writer.add_summary(summary)

    def parameter_overview(self, params) -> None:
        """Write a table of names, shapes and sizes of the parameters as text."""
        overview = parameter_overview.get_parameter_overview(
            params, include_stats=False
        )
        self.text(0, "parameters", overview)

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._lines.close()
        self._events.close()


def _is_retained(record: dict, step: int, rollbacks: int, evaluated: bool) -> bool:
    if ROLLBACKS in record:
        return record[ROLLBACKS] <= rollbacks
    is_of_hooks = any(key.startswith(metrics_file.OF_HOOKS) for key in record)
    return record["step"] <= step - (is_of_hooks and not evaluated)
