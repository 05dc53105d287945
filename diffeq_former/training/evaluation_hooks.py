"""Evaluations, samples and analyses during training, and the output of their results.

A hook that is due runs between two training steps.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.errors import UserError
from diffeq_former.json_io import print_line
from diffeq_former.training import metrics_file, run_directory
from diffeq_former.training.metrics_file import ANALYSIS, HARNESS, VALIDATION
from diffeq_former.training.progress import Progress
from diffeq_former.training.writers import MetricsWriter


@dataclasses.dataclass(frozen=True)
class EvaluationHooks:
    """Functions of the parameters that are called while a model trains."""

    # (params, should_stop=...) -> metrics with a "loss"; None if a stop is requested
    evaluate: Callable[..., dict[str, float] | None]
    # params -> generated text; None: no samples
    sample: Callable[[dict], str] | None
    # params -> metrics, empty where they do not exist; None: no analyses
    analyse: Callable[[dict], dict[str, float]] | None = None
    # (params, should_stop=...) -> metrics of the harness's tasks, None if a stop is
    # requested; None: no tasks
    harness: Callable[..., dict[str, float] | None] | None = None


def is_due(c: TrainingConfig, step: int, *intervals: int) -> bool:
    """Return whether an interval (0: never) ends here, or this is the last step."""
    return any(n and (step == c.num_steps or step % n == 0) for n in intervals)


class HookRunner:
    """Calls the hooks that are due, and writes their results.

    Args:
      config: The run's config.
      workdir: The run directory.
      hooks: The functions to call.
      writer: Writes metrics and samples.
      progress: Prints the validation loss.
      should_stop: Returns whether a stop is requested; polled during an evaluation.
      primary: Whether this process writes samples and the last metrics.
    """

    def __init__(
        self,
        config: Config,
        workdir: Path,
        hooks: EvaluationHooks,
        writer: MetricsWriter,
        progress: Progress,
        should_stop: Callable[[], bool],
        primary: bool,
    ):
        self._c, self._workdir, self._hooks = config.training, workdir, hooks
        self._analysis_every = config.analysis_every
        self._harness_every = config.harness.every
        self._writer, self._progress = writer, progress
        self._should_stop, self._primary = should_stop, primary

    def __call__(self, step: int, params: dict) -> tuple[bool, float | None]:
        """Run the hooks that are due at this step.

        Returns:
          Whether they completed, and the validation loss if an evaluation was due. If
          the evaluation was stopped, they did not, and nothing was written.
        """
        metrics, of_tasks = None, {}
        if is_due(self._c, step, self._c.eval_every):
            metrics = self._hooks.evaluate(params, should_stop=self._should_stop)
            if metrics is None:
                return False, None
        if is_due(self._c, step, self._harness_every):
            of_tasks = self._run_tasks(step, params)
            if of_tasks is None:
                return False, None
        self._write(HARNESS, step, of_tasks)
        if is_due(self._c, step, self._c.sample_every):
            self._sample(step, params)
        if is_due(self._c, step, self._analysis_every):
            self._write(ANALYSIS, step, self._hooks.analyse(params))
        if metrics is None:
            return True, None
        self._write(VALIDATION, step, metrics)
        self._progress.say(f"step {step}: validation loss {metrics['loss']:.4f}")
        return True, metrics["loss"]

    def print_last(self) -> None:
        """Print the metrics of the run's last evaluation to stdout."""
        if not self._primary:
            return
        for record in reversed(metrics_file.read(self._workdir)):
            if f"{VALIDATION}loss" in record:
                line = {"split": VALIDATION[:-1], "step": record.pop("step")}
                metrics = {k.removeprefix(VALIDATION): x for k, x in record.items()}
                print_line(line | metrics)
                return

    def _run_tasks(self, step: int, params: dict) -> dict[str, float] | None:
        """Return the metrics of the harness; an error is reported, and there are none.

        Not every mistake shows before the first evaluation, and none ends the run.
        """
        try:
            return self._hooks.harness(params, should_stop=self._should_stop)
        except UserError as error:
            self._progress.say(f"step {step}: no metrics of the harness: {error}")
            return {}

    def _write(self, prefix: str, step: int, metrics: dict[str, float]) -> None:
        if metrics:
            values = {prefix + name: x for name, x in metrics.items()}
            self._writer.scalars(step, values)

    def _sample(self, step: int, params: dict) -> None:
        text = self._hooks.sample(params)
        self._writer.text(step, "sample", text)
        if self._primary:
            run_directory.write_sample(self._workdir, step, text)
