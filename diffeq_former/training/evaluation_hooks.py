"""Evaluations, samples and analyses while training, and where their results go."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.training import run_directory
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


def is_due(c: TrainingConfig, step: int, *intervals: int) -> bool:
    """Return whether one of the intervals (0: never) ends at this step or the last."""
    return any(n and (step == c.num_steps or step % n == 0) for n in intervals)


class HookRunner:
    """Calls the hooks that are due, and writes their results.

    Args:
      config: The run's config.
      workdir: The run's folder.
      hooks: What to call.
      writer: Takes metrics and samples.
      progress: Shows the validation loss.
      should_stop: Whether a stop is requested; asked during an evaluation.
      primary: Whether this process writes.
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
        self._writer, self._progress = writer, progress
        self._should_stop, self._primary = should_stop, primary
        self._last_metrics = None

    def __call__(self, step: int, params: dict) -> tuple[bool, float | None]:
        """Whether all was answered, and the validation loss, if that was due.

        Not all is answered if the evaluation was stopped; then nothing was written.
        """
        metrics = None
        if is_due(self._c, step, self._c.eval_every):
            metrics = self._hooks.evaluate(params, should_stop=self._should_stop)
            if metrics is None:
                return False, None
        if is_due(self._c, step, self._c.sample_every):
            self._sample(step, params)
        if is_due(self._c, step, self._analysis_every):
            self._write("analysis", step, self._hooks.analyse(params))
        if metrics is None:
            return True, None
        self._write("validation", step, metrics)
        self._progress.say(f"step {step}: validation loss {metrics['loss']:.4f}")
        self._last_metrics = {"split": "validation", "step": step, **metrics}
        return True, metrics["loss"]

    def print_last(self) -> None:
        """The metrics of the last evaluation, if there was one, go to stdout."""
        if self._last_metrics and self._primary:
            print(json.dumps(self._last_metrics), flush=True)

    def _write(self, prefix: str, step: int, metrics: dict[str, float]) -> None:
        if metrics:
            values = {f"{prefix}/{name}": x for name, x in metrics.items()}
            self._writer.scalars(step, values)

    def _sample(self, step: int, params: dict) -> None:
        text = self._hooks.sample(params)
        self._writer.text(step, "sample", text)
        if self._primary:
            run_directory.write_sample(self._workdir, step, text)
