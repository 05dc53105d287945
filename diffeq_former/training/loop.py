"""The training loop: when to step, report, evaluate, save and stop."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
from jax.sharding import Mesh

from diffeq_former.config import Config
from diffeq_former.data.mixture import Data
from diffeq_former.data.pipeline import Batches, train_batches
from diffeq_former.distributed.mesh import local_sequences, shard_batch
from diffeq_former.distributed.multihost import AnyProcess, is_primary, run_on_all
from diffeq_former.errors import Interrupted
from diffeq_former.process_exit import OK, STOPPED
from diffeq_former.training import checkpoint, divergence, run_directory, state
from diffeq_former.training.checkpoint.integrity import Damaged, set_aside
from diffeq_former.training.divergence import Diverged
from diffeq_former.training.error_translation import translate_errors
from diffeq_former.training.evaluation_hooks import EvaluationHooks, HookRunner, is_due
from diffeq_former.training.metrics import Meter
from diffeq_former.training.preemption import StopRequest
from diffeq_former.training.profiling import Profile
from diffeq_former.training.progress import Progress
from diffeq_former.training.provenance import record_start
from diffeq_former.training.run_lock import locked
from diffeq_former.training.run_summary import summarize_run
from diffeq_former.training.state import TrainState
from diffeq_former.training.step import is_logged, make_train_steps, sample_depth
from diffeq_former.training.tracking import open_trackers
from diffeq_former.training.writers import MetricsWriter


def train(
    config: Config,
    workdir: Path,
    dataset: Data,
    mesh: Mesh,
    hooks: EvaluationHooks,
    stop: StopRequest,
    *,
    first_state: Callable[[Config, Mesh], TrainState] = state.create,
    allow_config_change: bool = False,
) -> int:
    """Train up to `config.training.num_steps`, resuming from the last checkpoint.

    The metrics of the last evaluation are printed to stdout.

    Args:
      config: The config that `run_directory.fit` returned.
      workdir: The run directory.
      dataset: A prepared dataset or a mixture.
      mesh: A mesh of all devices, which `check_fits` has accepted for this config.
      hooks: The evaluations to run during training.
      stop: Returns whether a stop is requested; polled after every step, during
        evaluations, and while waiting for data.
      first_state: Creates the initial state of a run that has no checkpoint yet.
      allow_config_change: Whether a resumed run may have another config.

    Returns:
      The exit code: 0, or 75 if the run was stopped with everything saved.

    Raises:
      UserError: If the input is invalid, the disk is full, or training diverged and no
        rollback is left. The last good checkpoint is retained.
      TransientError: If data do not arrive. The last good checkpoint is retained.
    """
    run_directory.check_same_everywhere(workdir, config, dataset)
    run_on_all(
        lambda: run_directory.check(
            workdir, config, dataset, allow_config_change=allow_config_change
        )
    )
    summary = summarize_run(config, dataset.seq_len, mesh)
    translated = translate_errors(workdir, config.optimizer.learning_rate)
    with translated, locked(workdir), contextlib.ExitStack() as stack:
        args = (config, workdir, dataset, mesh, hooks, stop, first_state)
        return _Loop(*args, stack, summary).run()


class _Loop:
    """The state of a run between two steps: device arrays, input and outputs."""

    def __init__(
        self, config, workdir, dataset, mesh, hooks, stop, first_state, stack, summary
    ):
        def closing(resource):
            return stack.enter_context(contextlib.closing(resource))

        self._config, self._c, self._workdir = config, config.training, workdir
        self._stop, self._mesh, self._first_state = stop, mesh, first_state
        self._dataset, self._should_stop = dataset, AnyProcess(mesh, stop)
        primary = is_primary()
        self._steps = make_train_steps(config, mesh)
        self._directory = workdir / run_directory.CHECKPOINTS
        damaged = self._restore()
        self._batches = self._open_batches()
        stack.callback(lambda: self._batches.close())
        # All input has been checked; only now does the run directory change.
        if primary:
            run_directory.write(workdir, config, dataset)
            record_start(workdir, self._step, dataset)
        run_directory.check_same_everywhere(workdir, config, dataset)
        trackers = stack.enter_context(open_trackers(config, workdir, self._step))
        resumed = (self._step, self._rollbacks, self._evaluated)
        self._writer = closing(MetricsWriter(workdir, *resumed, trackers, primary))
        self._progress = closing(Progress(self._c.num_steps, self._step, shown=primary))
        outputs = (self._writer, self._progress)
        self._hooks = HookRunner(
            config, workdir, hooks, *outputs, self._should_stop, primary
        )
        self._set_aside(damaged)
        self._checkpoints = closing(
            checkpoint.Checkpoints(
                self._directory, self._c.keep_latest, self._c.keep_best
            )
        )
        self._meter = Meter(config, dataset, mesh)
        self._report_start(summary)
        profile_args = (config.profile, workdir, self._step, self._meter.pause)
        self._profile = closing(Profile(*profile_args, self._progress.say))

    def run(self) -> int:
        """Train to the end, rolling back when training diverges; return exit code."""
        while True:
            try:
                return self._run()
            except Diverged as diverged:
                if self._rollbacks >= self._c.rollbacks:
                    self._writer.diverged(self._step, str(diverged))
                    raise
                self._roll_back(diverged)

    def _run(self) -> int:
        if not self._evaluated:
            self._run_hooks()
        while self._step < self._c.num_steps and not self._should_stop():
            try:
                with self._profile.of_step(self._step + 1, lambda: self._state):
                    self._take_step()
            except Interrupted:
                if jax.process_count() > 1:  # the other processes began this step
                    raise
                break
            if self._is_due(
                self._c.eval_every,
                self._c.sample_every,
                self._c.checkpoint_every,
                self._config.analysis_every,
                self._config.harness.every,
            ):
                with self._meter.pause():
                    self._run_due_callbacks()
        finished = self._evaluated and self._step == self._c.num_steps
        return self._end() if finished else self._save_and_stop()

    def _restore(self, before: int | None = None) -> list[Damaged]:
        """Set the state from the latest checkpoint, or create it if there is none.

        Args:
          before: If given, restore the latest checkpoint before this step.

        Returns:
          The damaged checkpoints that were skipped.
        """
        self._state = None  # frees its memory for the restored state
        abstract = state.abstract(self._config, self._mesh)
        restored = checkpoint.restore_latest(self._directory, abstract, before)
        first = None if restored else self._first_state(self._config, self._mesh)
        self._state, loss, damaged = restored or (first, None, [])
        self._step, self._rollbacks = int(self._state.step), int(self._state.rollbacks)
        self._saved = self._step if restored else None
        self._metrics, self._bad_steps = None, 0
        # A checkpoint without its due validation loss was written when an evaluation
        # was stopped; the resumed run evaluates first.
        every = (self._c.eval_every, self._config.harness.every)
        due = self._step > 0 and self._is_due(*every)
        self._evaluated = loss is not None or not due
        return damaged

    def _open_batches(self) -> Batches:
        return train_batches(
            self._dataset,
            batch_size=self._c.batch_size,
            seed=self._config.seed,
            number=self._rollbacks,
            start_step=self._step,
            timeout=self._config.data.timeout,
            positions=local_sequences(self._mesh, self._c.batch_size),
            should_stop=self._stop,
        )

    def _roll_back(self, diverged: Diverged) -> None:
        """Restore an earlier checkpoint and continue with batches in another order.

        A checkpoint counts as good only if the step after it was good as well.
        """
        rollbacks = self._rollbacks + 1
        self._checkpoints.wait()
        self._batches.close()
        self._set_aside(self._restore(before=diverged.first_step - 1))
        self._checkpoints.remove_after(self._step)
        self._rollbacks = rollbacks
        self._state = state.with_rollbacks(self._state, rollbacks)
        self._batches = self._open_batches()
        self._writer.roll_back(self._step, rollbacks, self._evaluated, str(diverged))
        self._progress.go_back(self._step)
        self._progress.say(
            f"{diverged}: going back to step {self._step} and continuing with the data"
            f" in another order (rollback {rollbacks} of {self._c.rollbacks})"
        )
        self._meter.restart()

    def _take_step(self) -> None:
        """Dispatch a step, then report the previous one while the device is busy."""
        with self._meter.data_wait():
            batch = shard_batch(next(self._batches), self._mesh)
        depth = sample_depth(self._config, self._step)
        with jax.transfer_guard("disallow"):
            self._state, metrics = self._steps[depth](self._state, batch)
        self._meter.count_step(depth)
        self._report()
        self._metrics = metrics
        self._step += 1

    def _report(self) -> None:
        """Check and log the metrics of the last dispatched step, if still pending."""
        if self._metrics is None:
            return
        self._bad_steps = divergence.check(self._c, self._step, self._metrics)
        if is_logged(self._c, self._step):
            values = self._meter.report(self._metrics, self._step)
            self._writer.scalars(self._step, values)
            self._progress.update(
                self._step, values["loss"], values["tokens_per_second"]
            )
        self._metrics = None

    def _run_due_callbacks(self) -> None:
        """Run the hooks that are due, and save a checkpoint if one is."""
        self._report()
        loss = self._run_hooks()
        may_be_best = loss is not None and self._c.keep_best > 0
        if may_be_best or self._is_due(self._c.checkpoint_every):
            # During a series of bad steps, retain the checkpoints from before it.
            if self._bad_steps == 0 or self._step == self._c.num_steps:
                self._save(loss)

    def _run_hooks(self) -> float | None:
        """Return the validation loss if an evaluation was due and was not stopped.

        Raises:
          Diverged: If this is the last step, and the state or the loss is not finite.
        """
        self._evaluated, loss = self._hooks(self._step, self._state.params)
        if self._step == self._c.num_steps:
            state = (self._state.params, self._state.opt_state)
            divergence.check_last(self._step, state, self._bad_steps, loss)
        return loss

    def _save(self, validation_loss: float | None = None) -> None:
        self._writer.flush()
        self._checkpoints.save(self._step, self._state, validation_loss)
        self._saved = self._step

    def _save_and_stop(self) -> int:
        self._report()
        if self._saved != self._step and self._bad_steps == 0:
            self._save()
        self._checkpoints.wait()
        self._progress.say(
            f"stopped by {self._stop.signal or 'another process'}: {self._workdir}"
            f" is saved up to step {self._saved or 0}; the same command continues"
        )
        return STOPPED

    def _end(self) -> int:
        self._checkpoints.wait()
        self._progress.say(f"{self._workdir}: finished at step {self._step}")
        self._hooks.print_last()
        return OK

    def _is_due(self, *intervals: int) -> bool:
        return is_due(self._c, self._step, *intervals)

    def _set_aside(self, damaged: list[Damaged]) -> None:
        for one in damaged:
            target = set_aside(one)
            self._progress.say(f"{one}: moved to {target}, using step {self._step}")

    def _report_start(self, summary: str) -> None:
        self._progress.say(
            f"{self._workdir}: from step {self._step} to {self._c.num_steps}; {summary}"
        )
        if self._step == 0:
            self._writer.start(dataclasses.asdict(self._config), self._state.params)
