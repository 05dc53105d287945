"""The training loop: when to step, report, evaluate, save and stop."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
from jax.sharding import Mesh

from diffeq_former.config import Config
from diffeq_former.data.dataset import Dataset
from diffeq_former.data.pipeline import train_batches
from diffeq_former.data.read_ahead import ReadAhead
from diffeq_former.distributed.mesh import rows_of_process, shard_batch
from diffeq_former.distributed.multihost import AnyProcess, is_primary, together
from diffeq_former.errors import Interrupted
from diffeq_former.process_exit import OK, STOPPED
from diffeq_former.training import checkpoint, divergence, run_directory, state
from diffeq_former.training.checkpoint.integrity import Damaged, set_aside
from diffeq_former.training.divergence import Diverged
from diffeq_former.training.error_translation import told
from diffeq_former.training.evaluation_hooks import EvaluationHooks, HookRunner, is_due
from diffeq_former.training.metrics import Meter
from diffeq_former.training.preemption import StopRequest
from diffeq_former.training.profiling import Profile
from diffeq_former.training.progress import Progress
from diffeq_former.training.run_directory import locked
from diffeq_former.training.run_summary import described
from diffeq_former.training.state import TrainState
from diffeq_former.training.step import depth_of_step, make_train_steps
from diffeq_former.training.writers import MetricsWriter


def train(
    config: Config,
    workdir: Path,
    dataset: Dataset,
    mesh: Mesh,
    hooks: EvaluationHooks,
    stop: StopRequest,
    *,
    first_state: Callable[[Config, Mesh], TrainState] = state.create,
    allow_config_change: bool = False,
) -> int:
    """Trains up to `config.training.num_steps`, from where the folder's run stands.

    Args:
      config: What `run_directory.fit` made of the user's.
      workdir: The run's folder.
      dataset: Prepared data.
      mesh: Of all devices; what the config asks for and fits it.
      hooks: What evaluates the model while it trains.
      stop: Asked after every step, and while evaluating.
      first_state: Makes what a run starts with that has no checkpoint yet.
      allow_config_change: Whether a run may go on with another config.

    Returns:
      The exit code: 0, or 75 if it was stopped with everything saved. The figures of
      the last evaluation go to stdout.

    Raises:
      UserError: for input that does not fit, a full disk, or training that diverged
        and has no rollback left. The last good checkpoint stands.
      FaultError: if data do not come. The last good checkpoint stands.
    """
    run_directory.check_same_everywhere(workdir, config, dataset)
    together(
        lambda: run_directory.check(
            workdir, config, dataset, allow_config_change=allow_config_change
        )
    )
    words = described(config, dataset.seq_len, mesh)
    ends = told(workdir, config.optimizer.learning_rate)
    with ends, locked(workdir), contextlib.ExitStack() as stack:
        given = (config, workdir, dataset, mesh, hooks, stop, first_state)
        return _Loop(*given, stack, words).run()


class _Loop:
    """A run, between any two of its steps."""

    def __init__(
        self, config, workdir, dataset, mesh, hooks, stop, first_state, stack, words
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
        # The input is checked: from here on the folder changes.
        if primary:
            run_directory.write(workdir, config, dataset)
        run_directory.check_same_everywhere(workdir, config, dataset)
        self._writer = closing(
            MetricsWriter(workdir, self._step, self._rollbacks, to_disk=primary)
        )
        self._progress = closing(Progress(self._c.num_steps, self._step, shown=primary))
        answers = (self._writer, self._progress)
        self._hooks = HookRunner(
            config, workdir, hooks, *answers, self._should_stop, primary
        )
        self._set_aside(damaged)
        self._checkpoints = closing(
            checkpoint.Checkpoints(
                self._directory, self._c.keep_latest, self._c.keep_best
            )
        )
        self._meter = Meter(config, dataset.seq_len, mesh)
        self._introduce(words)
        recorded = (config.profile, workdir, self._step, self._meter.pause)
        self._profile = closing(Profile(*recorded, self._progress.say))

    def run(self) -> int:
        while True:
            try:
                return self._run()
            except Diverged as diverged:
                if self._rollbacks >= self._c.rollbacks:
                    raise
                self._roll_back(diverged)

    def _run(self) -> int:
        if not self._complete:
            self._run_hooks()
        while self._step < self._c.num_steps and not self._should_stop():
            try:
                with self._profile.of_step(self._step + 1, lambda: self._state):
                    self._take_step()
            except Interrupted:
                if jax.process_count() > 1:  # the others have begun this step
                    raise
                break
            if self._is_due(
                self._c.eval_every,
                self._c.sample_every,
                self._c.checkpoint_every,
                self._config.analysis_every,
            ):
                with self._meter.pause():
                    self._stand_still()
        finished = self._complete and self._step == self._c.num_steps
        return self._end() if finished else self._save_and_stop()

    def _restore(self, before: int | None = None) -> list[Damaged]:
        """Takes up the run at its last checkpoint, as `checkpoint.restore_latest`."""
        self._state = None  # its memory is needed
        abstract = state.abstract(self._config, self._mesh)
        restored = checkpoint.restore_latest(self._directory, abstract, before)
        self._state, loss, damaged = restored or (
            self._first_state(self._config, self._mesh),
            None,
            [],
        )
        self._step, self._rollbacks = int(self._state.step), int(self._state.rollbacks)
        self._saved = self._step if restored else None
        self._metrics, self._bad_steps = None, 0
        # Else it was stopped while evaluating, and evaluates first.
        due = self._step > 0 and self._is_due(self._c.eval_every)
        self._complete = loss is not None or not due
        return damaged

    def _open_batches(self) -> ReadAhead:
        data, batch_size = self._config.data, self._c.batch_size
        return train_batches(
            self._dataset,
            batch_size=batch_size,
            seed=self._config.seed,
            number=self._rollbacks,
            start_step=self._step,
            num_workers=data.num_workers,
            timeout=data.timeout,
            places=rows_of_process(self._mesh, batch_size),
            should_stop=self._stop,
        )

    def _roll_back(self, diverged: Diverged) -> None:
        """Goes back to a checkpoint, and on from there with batches in another order.

        A checkpoint is good if the step after it was.
        """
        rollbacks = self._rollbacks + 1
        self._checkpoints.wait()
        self._batches.close()
        self._set_aside(self._restore(before=diverged.first_step - 1))
        self._checkpoints.remove_after(self._step)
        self._rollbacks = rollbacks
        self._state = state.with_rollbacks(self._state, rollbacks)
        self._batches = self._open_batches()
        self._writer.roll_back(self._step, rollbacks, str(diverged))
        self._progress.go_back(self._step)
        self._progress.say(
            f"{diverged}: back at step {self._step}, goes on with the data in another"
            f" order (rollback {rollbacks} of {self._c.rollbacks})"
        )
        self._meter.restart()

    def _take_step(self) -> None:
        """Starts a step; then looks at the one before, while the device works."""
        with self._meter.data_wait():
            batch = shard_batch(next(self._batches), self._mesh)
        depth = depth_of_step(self._config, self._step)
        with jax.transfer_guard("disallow"):
            self._state, metrics = self._steps[depth](self._state, batch)
        self._meter.count_step(depth)
        self._report()
        self._metrics = metrics
        self._step += 1

    def _report(self) -> None:
        """Looks at the metrics of the step before the one that is being started."""
        if self._metrics is None:
            return
        self._bad_steps = divergence.check(self._c, self._step, self._metrics)
        if self._step == 1 or self._is_due(self._c.log_every):
            values = self._meter.report(self._metrics)
            self._writer.scalars(self._step, values)
            self._progress.update(
                self._step, values["loss"], values["tokens_per_second"]
            )
        self._metrics = None

    def _stand_still(self) -> None:
        """Run the hooks that are due, and save a checkpoint if one is."""
        self._report()
        loss = self._run_hooks()
        may_be_best = loss is not None and self._c.keep_best > 0
        if may_be_best or self._is_due(self._c.checkpoint_every):
            # In a row of bad steps the checkpoints before it stay.
            if self._bad_steps == 0 or self._step == self._c.num_steps:
                self._save(loss)

    def _run_hooks(self) -> float | None:
        """Return the validation loss if an evaluation was due and was not stopped."""
        self._complete, loss = self._hooks(self._step, self._state.params)
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
            f" holds all up to step {self._saved or 0}; the same command continues"
        )
        return STOPPED

    def _end(self) -> int:
        self._checkpoints.wait()
        self._progress.say(f"{self._workdir}: step {self._step}, the last, is done")
        self._hooks.print_last()
        return OK

    def _is_due(self, *intervals: int) -> bool:
        return is_due(self._c, self._step, *intervals)

    def _set_aside(self, damaged: list[Damaged]) -> None:
        for one in damaged:
            place = set_aside(one)
            self._progress.say(f"{one}: moved to {place}, step {self._step} is used")

    def _introduce(self, introduction: str) -> None:
        self._progress.say(
            f"{self._workdir}: from step {self._step} to {self._c.num_steps};"
            f" {introduction}"
        )
        if self._step == 0:
            settings = dataclasses.asdict(self._config)
            self._writer.hyper_parameters(settings, "validation/loss")
            self._writer.parameter_overview(self._state.params)
