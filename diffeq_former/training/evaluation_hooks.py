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
class Judges:
    """Called when an evaluation, a sample or an analysis is due."""

    # (params, should_stop=...) -> figures, among them "loss"; None: it was to stop
    evaluate: Callable[..., dict[str, float] | None]
    # params -> generated text; None: no samples
    sample: Callable[[dict], str] | None
    # params -> figures, none if they cannot be had; None: no analyses
    analyse: Callable[[dict], dict[str, float]] | None = None


def is_due(c: TrainingConfig, step: int, *intervals: int) -> bool:
    """Whether one of them (0: never) ends at this step. All end with the run."""
    return any(n and (step == c.num_steps or step % n == 0) for n in intervals)


class Judging:
    """Asks the judges that are due.

    Args:
      config: the run's.
      workdir: its folder.
      judges: of the model.
      writer: of what they say.
      progress: where people see it.
      should_stop: asked while evaluating.
      primary: whether this process is the one that writes.
    """

    def __init__(
        self,
        config: Config,
        workdir: Path,
        judges: Judges,
        writer: MetricsWriter,
        progress: Progress,
        should_stop: Callable[[], bool],
        primary: bool,
    ):
        self._c, self._workdir, self._judges = config.training, workdir, judges
        self._analysis_every = config.analysis_every
        self._writer, self._progress = writer, progress
        self._should_stop, self._primary = should_stop, primary
        self._figures = None

    def __call__(self, step: int, params: dict) -> tuple[bool, float | None]:
        """Whether all was answered, and the validation loss, if that was due.

        Not all is answered if the evaluation was stopped; then nothing was written.
        """
        figures = None
        if is_due(self._c, step, self._c.eval_every):
            figures = self._judges.evaluate(params, should_stop=self._should_stop)
            if figures is None:
                return False, None
        if is_due(self._c, step, self._c.sample_every):
            self._sample(step, params)
        if is_due(self._c, step, self._analysis_every):
            self._write("analysis", step, self._judges.analyse(params))
        if figures is None:
            return True, None
        self._write("validation", step, figures)
        self._progress.say(f"step {step}: validation loss {figures['loss']:.4f}")
        self._figures = {"split": "validation", "step": step, **figures}
        return True, figures["loss"]

    def print_last(self) -> None:
        """The figures of the last evaluation, if there was one, go to stdout."""
        if self._figures and self._primary:
            print(json.dumps(self._figures), flush=True)

    def _write(self, prefix: str, step: int, figures: dict[str, float]) -> None:
        if figures:
            values = {f"{prefix}/{name}": x for name, x in figures.items()}
            self._writer.scalars(step, values)

    def _sample(self, step: int, params: dict) -> None:
        text = self._judges.sample(params)
        self._writer.text(step, "sample", text)
        if self._primary:
            run_directory.write_sample(self._workdir, step, text)
