"""Profiler traces of some steps, for TensorBoard's profile plugin and Perfetto."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from diffeq_former.config import ProfileConfig

FOLDER = "profile"


class Profile:
    """Traces the configured steps; each process traces its own devices.

    Args:
      c: The steps to trace.
      workdir: The run directory; traces are written to its subfolder `profile`.
      done: The number of steps done so far.
      pause: Returns a context whose time is excluded from the step time.
      say: Prints a line.
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
        self._root, self._pause, self._say = workdir / FOLDER, pause, say
        self._folder = self._root
        # Hosts may share a name, which would mix their traces in one folder, and
        # Perfetto opens a single trace.
        if jax.process_count() > 1:
            self._folder /= f"process_{jax.process_index()}"
        self._recorded: list[int] = []  # steps of the open trace
        if self._steps and done >= self._steps[-1]:
            steps = self._named(self._steps)
            say(f"no profile: {steps} are already done, the run is at step {done}")

    @contextlib.contextmanager
    def of_step(self, step: int, state: Callable[[], object]) -> Iterator[None]:
        """Context in which a training step is dispatched; traced if configured.

        The trace starts before the first step's work on the device and ends after the
        last step's, so both wait until the arrays of `state()` are ready.

        Args:
          step: The number of the step, from 1.
          state: Returns the current training state.
        """
        if step not in self._steps:
            self.close()  # after a rollback to a step before the traced ones
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
        options.python_tracer_level = 0  # tracing Python calls would slow the steps
        with self._pause():
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=options
            )

    def close(self) -> None:
        """Write the open trace, if there is one."""
        if not self._recorded:
            return
        with self._pause():
            jax.profiler.stop_trace()
        self._say(
            f"profile of {self._named(self._recorded)}: run tensorboard"
            f" --logdir={self._root} (needs the plugin xprof), or open in"
            f" ui.perfetto.dev {self._folder}/plugins/profile/*/perfetto_trace.json.gz"
        )
        self._recorded = []

    @staticmethod
    def _named(steps) -> str:
        return f"steps {steps[0]} to {steps[-1]}"
