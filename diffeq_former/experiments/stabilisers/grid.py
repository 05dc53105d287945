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
from diffeq_former.config.model_schema import NormPlacement
from diffeq_former.data.dataset import Dataset
from diffeq_former.errors import UserError
from diffeq_former.experiments.stabilisers.models import Model, PlainTransformer
from diffeq_former.experiments.stabilisers.simulator import Simulator

RESIDUALS = (1.0, 0.0, 0.5)
NORMS = typing.get_args(NormPlacement)
HEAD = "head"  # a norm of simulators only: it normalises the states before the head
UNIT, SCALED = STEPS = ("1", "1/L")
TRANSFORMER, SIMULATOR = "transformer", "simulator"


@dataclasses.dataclass(frozen=True)
class Grid:
    """The Transformers of the study, by the values of each axis.

    Depth-scaled steps are only combined with residual 1.
    """

    kind: typing.ClassVar = "stabilisers"
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
        cells = (Cell(TRANSFORMER, *values) for values in itertools.product(*axes))
        return [c for c in cells if c.step == UNIT or c.residual == 1]


@dataclasses.dataclass(frozen=True)
class SimulatorGrid(Grid):
    """Simulators by the values of each axis, and three Transformers with unit steps.

    These are the standard Transformer, the same without residual connections, and the
    same without the norms of its terms.
    """

    kind: typing.ClassVar = "simulator"
    residuals: tuple[float, ...] = (1.0, 0.0)
    norms: tuple[str, ...] = ("none", HEAD, "pre", "post")
    depths: tuple[int, ...] = (4,)
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    num_seeds: int = 3

    @property
    def cells(self) -> "list[Cell]":
        """All cells; those that share a compiled program are adjacent."""
        simulators = [dataclasses.replace(c, model=SIMULATOR) for c in super().cells]
        axes = {"residuals": (1.0, 0.0), "norms": ("pre", "none"), "steps": (UNIT,)}
        cells = Grid(**dataclasses.asdict(self) | axes).cells
        return simulators + [c for c in cells if c.residual == 1 or c.norm == "pre"]


GRIDS = {grid.kind: grid for grid in (Grid, SimulatorGrid)}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    model: str
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
            f"{self.model},residual={self.residual:g},norm={self.norm},step={step},"
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


def model_of(cell: Cell, training: Training, dataset: Dataset) -> Model:
    """Return the model of a cell: a plain Transformer or a simulator, in float32."""
    if cell.model == TRANSFORMER:
        return PlainTransformer(_config_of(cell, training, dataset))
    norm = "none" if cell.norm == HEAD else cell.norm
    config = _config_of(dataclasses.replace(cell, norm=norm), training, dataset)
    # Of the solvers of the config, only splitting methods have post-norms.
    model = dataclasses.replace(config.model, solver="euler")
    return Simulator(dataclasses.replace(config, model=model), cell.norm == HEAD)


def _config_of(cell: Cell, training: Training, dataset: Dataset) -> Config:
    """Return the config of a plain Transformer."""
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
