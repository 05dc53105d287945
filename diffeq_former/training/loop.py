"""The loop: when to step, report, evaluate, sample, save and stop."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.sharding import Mesh

from diffeq_former.cli import OK, STOPPED
from diffeq_former.config import Config
from diffeq_former.data.dataset import Dataset
from diffeq_former.data.pipeline import train_batches
from diffeq_former.errors import DiskFullError, UserError, is_disk_full
from diffeq_former.sharding.agreement import (
    AnyProcess,
    check_same,
    is_primary,
    together,
)
from diffeq_former.sharding.mesh import rows_of_process, shard_batch
from diffeq_former.training import checkpoint, flops, run_directory, state
from diffeq_former.training.damage import Damaged, set_aside
from diffeq_former.training.metrics import Meter
from diffeq_former.training.preemption import StopRequest
from diffeq_former.training.progress import Progress
from diffeq_former.training.step import make_train_step
from diffeq_former.training.writers import MetricsWriter


@dataclasses.dataclass(frozen=True)
class Judges:
    """What looks at the model on the way."""

    # (params, should_stop=...) -> figures, among them "loss"; None: it was to stop
    evaluate: Callable[..., dict[str, float] | None]
    # params -> generated text; None: no samples
    sample: Callable[[dict], str] | None


def train(
    config: Config,
    workdir: Path,
    dataset: Dataset,
    mesh: Mesh,
    judges: Judges,
    stop: StopRequest,
    *,
    allow_config_change: bool = False,
) -> int:
    """Trains up to `config.training.num_steps`, from where the folder's run stands.

    Args:
      config: What `run_directory.fit` made of the user's.
      workdir: The run's folder.
      dataset: Prepared data.
      mesh: Of all devices; what the config asks for and fits it.
      judges: Called when an evaluation or a sample is due.
      stop: Asked after every step, and while evaluating.
      allow_config_change: Whether a run may go on with another config.

    Returns:
      The exit code: 0, or 75 if it was stopped with everything saved. The figures of
      the last evaluation go to stdout.

    Raises:
      UserError: for input that does not fit, a full disk, or too many steps in a row
        that were not finite. The last good checkpoint stands.
    """
    _check_same_everywhere(config, workdir, dataset)
    together(
        lambda: run_directory.check(
            workdir, config, dataset, allow_config_change=allow_config_change
        )
    )
    with _room_on_disk(workdir), contextlib.ExitStack() as stack:
        return _Loop(config, workdir, dataset, mesh, judges, stop, stack).run()


class _Loop:
    """A run, between any two of its steps."""

    def __init__(self, config, workdir, dataset, mesh, judges, stop, stack):
        def closing(resource):
            return stack.enter_context(contextlib.closing(resource))

        self._config, self._c, self._workdir = config, config.training, workdir
        self._judges, self._stop, self._mesh = judges, stop, mesh
        self._should_stop = AnyProcess(mesh, stop)
        self._primary = is_primary()
        self._train_step = make_train_step(config, self._mesh)
        directory = workdir / run_directory.CHECKPOINTS
        abstract = state.abstract(config, self._mesh)
        restored = checkpoint.restore_latest(directory, abstract)
        self._state, loss, damaged = restored or (
            state.create(config, self._mesh),
            None,
            [],
        )
        self._step = int(self._state.step)
        self._saved = self._step if restored else None
        self._metrics, self._bad_steps, self._figures = None, 0, None
        # Else it was stopped while evaluating, and evaluates first.
        due = self._step > 0 and self._is_due(self._c.eval_every)
        self._complete = loss is not None or not due
        self._batches = closing(
            train_batches(
                dataset,
                batch_size=self._c.batch_size,
                seed=config.seed,
                start_step=self._step,
                num_workers=config.data.num_workers,
                places=rows_of_process(mesh, self._c.batch_size),
            )
        )
        # The input is checked: from here on the folder changes.
        if self._primary:
            run_directory.write(workdir, config, dataset)
        _check_same_everywhere(config, workdir, dataset)
        self._writer = closing(
            MetricsWriter(workdir, self._step, to_disk=self._primary)
        )
        self._progress = closing(
            Progress(self._c.num_steps, self._step, shown=self._primary)
        )
        self._set_aside(damaged)
        self._checkpoints = closing(
            checkpoint.Checkpoints(directory, self._c.keep_latest, self._c.keep_best)
        )
        self._meter = Meter(config, dataset.seq_len, self._mesh)
        self._introduce(flops.describe(config.model, dataset.seq_len, jax.devices()))

    def run(self) -> int:
        if not self._complete:
            self._judge()
        while self._step < self._c.num_steps and not self._should_stop():
            self._take_step()
            if self._is_due(
                self._c.eval_every, self._c.sample_every, self._c.checkpoint_every
            ):
                with self._meter.pause():
                    self._stand_still()
        finished = self._complete and self._step == self._c.num_steps
        return self._end() if finished else self._save_and_stop()

    def _take_step(self) -> None:
        """Starts a step; then looks at the one before, while the device works."""
        with self._meter.data_wait():
            batch = shard_batch(next(self._batches), self._mesh)
        with jax.transfer_guard("disallow"):
            self._state, metrics = self._train_step(self._state, batch)
        self._meter.count_step()
        self._report()
        self._metrics = metrics
        self._step += 1

    def _report(self) -> None:
        """Looks at the metrics of the step before the one that is being started."""
        if self._metrics is None:
            return
        bad_steps = int(jax.device_get(self._metrics["bad_steps"]))
        if bad_steps >= self._c.max_bad_steps:
            raise self._not_finite(bad_steps)
        if self._step == 1 or self._is_due(self._c.log_every):
            values = self._meter.report(self._metrics)
            self._writer.scalars(self._step, values)
            self._progress.update(
                self._step, values["loss"], values["tokens_per_second"]
            )
        self._metrics, self._bad_steps = None, bad_steps

    def _stand_still(self) -> None:
        """What needs the state as it is: evaluation, a sample, a checkpoint."""
        self._report()
        loss = self._judge()
        judged = loss is not None and self._c.keep_best > 0
        if judged or self._is_due(self._c.checkpoint_every):
            # In a row of bad steps the checkpoints before it stay.
            if self._bad_steps == 0 or self._step == self._c.num_steps:
                self._save(loss)

    def _judge(self) -> float | None:
        """The validation loss, if it is due and nothing stopped the evaluation."""
        params, figures = self._state.params, None
        if self._is_due(self._c.eval_every):
            figures = self._judges.evaluate(params, should_stop=self._should_stop)
            self._complete = figures is not None
        if (
            self._complete
            and self._c.sample_every
            and self._is_due(self._c.sample_every)
        ):
            text = self._judges.sample(params)
            self._writer.text(self._step, "sample", text)
            if self._primary:
                run_directory.write_sample(self._workdir, self._step, text)
        if figures is None:
            return None
        self._writer.scalars(
            self._step, {f"validation/{name}": x for name, x in figures.items()}
        )
        self._progress.say(f"step {self._step}: validation loss {figures['loss']:.4f}")
        self._figures = figures
        return figures["loss"]

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
        if self._figures and self._primary:
            figures = {"split": "validation", "step": self._step, **self._figures}
            print(json.dumps(figures), flush=True)
        return OK

    def _is_due(self, *intervals: int) -> bool:
        """Whether one of them (0: never) ends at this step. All end with the run."""
        last = self._step == self._c.num_steps
        return any(n and (last or self._step % n == 0) for n in intervals)

    def _not_finite(self, bad_steps: int) -> UserError:
        self._checkpoints.wait()
        return UserError(
            f"the loss or a gradient was not finite in {bad_steps} steps in a row, to"
            f" step {self._step}: {_last_good(self._workdir)}; lower"
            " config.optimizer.learning_rate"
            f" ({self._config.optimizer.learning_rate:g}) in another --workdir, or with"
            " --allow_config_change"
        )

    def _set_aside(self, damaged: list[Damaged]) -> None:
        for one in damaged:
            place = set_aside(one)
            self._progress.say(f"{one}: moved to {place}, step {self._step} is used")

    def _introduce(self, flops_formula: str) -> None:
        self._progress.say(
            f"{self._workdir}: from step {self._step} to {self._c.num_steps};"
            f" {flops_formula}"
        )
        if self._step == 0:
            settings = dataclasses.asdict(self._config)
            self._writer.hyper_parameters(settings, "validation/loss")
            self._writer.parameter_overview(self._state.params)


def _check_same_everywhere(config: Config, workdir: Path, dataset: Dataset) -> None:
    """Whether all processes were started alike and see the same files."""
    check_same("the config", str(config), "start all with the same flags")
    check_same(
        f"the dataset {dataset.path}",
        (dataset.path / run_directory.MANIFEST).read_text(encoding="utf-8"),
        "all hosts need the same",
    )
    check_same(
        f"the folder {workdir}",
        run_directory.described(workdir),
        "use one that all hosts share",
    )


@contextlib.contextmanager
def _room_on_disk(workdir: Path) -> Iterator[None]:
    """Says a full disk in a line."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        if is_disk_full(error):
            raise DiskFullError(
                f"no room on the disk for {workdir}: {_last_good(workdir)}; free some"
                " and run the same command again"
            ) from error
        raise


def _last_good(workdir: Path) -> str:
    steps = checkpoint.saved_steps(workdir / run_directory.CHECKPOINTS)
    if not steps:
        return "no checkpoint was saved yet"
    return f"the last good checkpoint, of step {steps[-1]}, stands"
