"""Which models the study of stabilisers trains, and how."""

import dataclasses
import itertools

from diffeq_former.config import (
    Config,
    ModelConfig,
    OptimizerConfig,
    Stabilisers,
    TrainingConfig,
    resolve,
)
from diffeq_former.data.dataset import Dataset
from diffeq_former.errors import UserError

RESIDUALS = (1.0, 0.0, 0.5)
NORMS = ("pre", "post", "none")
UNIT, SCALED = STEPS = ("1", "1/L")


@dataclasses.dataclass(frozen=True)
class Grid:
    """All cells are trained, but depth-scaled steps only with whole residuals."""

    residuals: tuple[float, ...] = RESIDUALS
    norms: tuple[str, ...] = NORMS
    steps: tuple[str, ...] = STEPS  # lengths of the steps in depth
    depths: tuple[int, ...] = (4, 12)
    learning_rates: tuple[float, ...] = (1e-3, 1e-2)
    num_seeds: int = 2

    @property
    def cells(self) -> "list[Cell]":
        """Those of one program stand together."""
        axes = (self.residuals, self.norms, self.steps, self.depths)
        axes = (*axes, self.learning_rates, range(self.num_seeds))
        cells = itertools.starmap(Cell, itertools.product(*axes))
        return [c for c in cells if c.step == UNIT or c.residual == 1]


@dataclasses.dataclass(frozen=True)
class Cell:
    residual: float
    norm: str
    step: str
    depth: int
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        step = "unit" if self.step == UNIT else "scaled"
        return (
            f"residual={self.residual:g},norm={self.norm},step={step},"
            f"depth={self.depth},learning_rate={self.learning_rate:g},seed={self.seed}"
        )


@dataclasses.dataclass(frozen=True)
class Training:
    """Of every cell. Neither clips gradients, nor decays rates: nothing else helps."""

    num_steps: int = 150
    batch_size: int = 8
    length: int = 64  # of what is read of each row
    d_model: int = 64
    num_heads: int = 4
    warmup_fraction: float = 0.1


def config_of(cell: Cell, training: Training, dataset: Dataset) -> Config:
    """A plain transformer, in float32."""
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
    """What a flag lists: numbers above 0, or 0 for residuals, each once.

    Raises:
      UserError: for anything else.
    """
    try:
        found = tuple(map(kind, given))
    except ValueError:
        found = ()
    least_fits = all(x >= 0 if flag == "residuals" else x > 0 for x in found)
    if not found or not least_fits or len(set(found)) < len(found):
        raise UserError(
            f"--{flag}={','.join(given)}: expected different numbers, separated by"
            " commas"
        )
    return found


def members(flag: str, given: list[str], known: tuple[str, ...]) -> tuple:
    """The same of names. Raises UserError for one that is not known, or comes twice."""
    if not given or set(given) - set(known) or len(set(given)) < len(given):
        raise UserError(
            f"--{flag}={','.join(given)}: expected some of {', '.join(known)},"
            " separated by commas"
        )
    return tuple(given)
