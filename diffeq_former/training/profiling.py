"""A trace of some steps, for TensorBoard's profile plugin and for Perfetto."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from diffeq_former.config import ProfileConfig

FOLDER = "profile"


class Profile:
    """Records the steps that the config names; each process its own devices.

    Args:
      c: which steps.
      workdir: the run's folder; the trace goes to its folder `profile`.
      done: the steps that the run has behind it.
      pause: a context in which the time is not that of training.
      say: prints a line.
    """

    def __init__(
        self,
        c: ProfileConfig,
        workdir: Path,
        done: int,
        pause: Callable[[], contextlib.AbstractContextManager],
        say: Callable[[str], None],
    ):
        self._steps = range(c.start_step, c.start_step + c.num_steps)
        self._all, self._pause, self._say = workdir / FOLDER, pause, say
        self._folder = self._all
        if jax.process_count() > 1:  # hosts may have one name, and Perfetto takes one
            self._folder /= f"process_{jax.process_index()}"
        self._recorded: list[int] = []  # steps of the trace that is open
        if self._steps and done >= self._steps[-1]:
            say(f"no profile: {self._named(self._steps)} were before step {done}")

    @contextlib.contextmanager
    def of_step(self, step: int, state: Callable[[], object]) -> Iterator[None]:
        """In here the step of that number, from 1, is started.

        What is recorded is what the device does from its first step's start to its last
        step's end, so at both it waits until the arrays of `state()` are there.
        """
        if step not in self._steps:
            self.close()  # the run went back to an earlier step
            yield
            return
        if not self._recorded:
            self._open(state)
        self._recorded.append(step)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield
        if step == self._steps[-1]:
            jax.block_until_ready(state())
            self.close()

    def _open(self, state: Callable[[], object]) -> None:
        jax.block_until_ready(state())
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call of Python: it slows the steps
        with self._pause():
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=options
            )

    def close(self) -> None:
        """Writes what was recorded, if anything was."""
        if not self._recorded:
            return
        with self._pause():
            jax.profiler.stop_trace()
        self._say(
            f"profile of {self._named(self._recorded)}: tensorboard"
            f" --logdir={self._all} (with the plugin xprof), or in ui.perfetto.dev"
            f" {self._folder}/plugins/profile/*/perfetto_trace.json.gz"
        )
        self._recorded = []

    @staticmethod
    def _named(steps) -> str:
        return f"steps {steps[0]} to {steps[-1]}"
