"""The grid of models that the study of stabilisers trains, and their configs."""

import dataclasses
import itertools
import typing

from diffeq_former.config import (
    Config,
    ModelConfig,
    OptimizerConfig,
    Stabilisers,
    TrainingConfig,
    resolve,
)
from diffeq_former.config.schema import NormPlacement
from diffeq_former.data.dataset import Dataset
from diffeq_former.errors import UserError

RESIDUALS = (1.0, 0.0, 0.5)
NORMS = typing.get_args(NormPlacement)
UNIT, SCALED = STEPS = ("1", "1/L")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Values of each axis. Depth-scaled steps are only combined with residual 1."""

    residuals: tuple[float, ...] = RESIDUALS
    norms: tuple[str, ...] = NORMS
    steps: tuple[str, ...] = STEPS  # step sizes over depth
    depths: tuple[int, ...] = (4, 12)
    learning_rates: tuple[float, ...] = (1e-3, 1e-2)
    num_seeds: int = 2

    @property
    def cells(self) -> "list[Cell]":
        """All cells; those that share a compiled program are adjacent."""
        axes = (self.residuals, self.norms, self.steps, self.depths)
        axes = (*axes, self.learning_rates, range(self.num_seeds))
        cells = itertools.starmap(Cell, itertools.product(*axes))
        return [c for c in cells if c.step == UNIT or c.residual == 1]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    residual: float
    norm: str
    step: str
    depth: int
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """The stem of the run's file name."""
        step = "unit" if self.step == UNIT else "scaled"
        return (
            f"residual={self.residual:g},norm={self.norm},step={step},"
            f"depth={self.depth},learning_rate={self.learning_rate:g},seed={self.seed}"
        )


@dataclasses.dataclass(frozen=True)
class Training:
    """Training settings of all cells.

    There is no gradient clipping and no learning-rate decay, which might stabilise too.
    """

    num_steps: int = 150
    batch_size: int = 8
    length: int = 64  # sequence length; rows of the dataset are truncated to it
    d_model: int = 64
    num_heads: int = 4
    warmup_fraction: float = 0.1


def config_of(cell: Cell, training: Training, dataset: Dataset) -> Config:
    """Return the config of a cell: a plain transformer in float32."""
    t = training
    length = min(t.length, dataset.seq_len)
    model = ModelConfig(
        weights="layer_table",
        solver="lie_trotter",
        num_layers=cell.depth,
        d_model=t.d_model,
        num_heads=t.num_heads,
        vocab_size=dataset.vocab_size,
        max_len=length,
        horizon=1.0 if cell.step == SCALED else 0.0,
        stabilisers=Stabilisers(cell.residual, cell.norm),
        dtype="float32",
        attention_implementation="xla",
    )
    optimizer = OptimizerConfig(
        learning_rate=cell.learning_rate,
        schedule="constant",
        warmup_fraction=t.warmup_fraction,
        clip_norm=0.0,
    )
    config = Config(
        seed=cell.seed,
        model=model,
        optimizer=optimizer,
        training=TrainingConfig(t.num_steps, t.batch_size, loss_chunk=length),
    )
    return resolve(dataclasses.asdict(config))


def numbers(flag: str, given: list[str], kind: type) -> tuple:
    """Parse a flag that lists distinct positive numbers; residuals may be 0.

    Raises:
      UserError: If the values are anything else.
    """
    try:
        found = tuple(map(kind, given))
    except ValueError:
        found = ()
    in_range = all(x >= 0 if flag == "residuals" else x > 0 for x in found)
    if not found or not in_range or len(set(found)) < len(found):
        raise UserError(
            f"--{flag}={','.join(given)}: expected different numbers, separated by"
            " commas"
        )
    return found


def members(flag: str, given: list[str], known: tuple[str, ...]) -> tuple:
    """Parse a flag that lists distinct names; raise UserError for unknown ones."""
    if not given or set(given) - set(known) or len(set(given)) < len(given):
        raise UserError(
            f"--{flag}={','.join(given)}: expected some of {', '.join(known)},"
            " separated by commas"
        )
    return tuple(given)
