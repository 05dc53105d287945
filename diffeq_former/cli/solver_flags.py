"""Flags for other solver steps over depth than those in which a run was trained."""

import dataclasses
from pathlib import Path

from absl import flags

from diffeq_former.cli import mesh_flags
from diffeq_former.config import ModelConfig

flags.disclaim_key_flags()  # they are those of the tool that defines them


@dataclasses.dataclass(frozen=True)
class SolverFlags:
    """The flags --num_steps and --solver."""

    num_steps: flags.FlagHolder
    solver: flags.FlagHolder

    def given(self) -> dict:
        """Return the values of the flags that are set, by name."""
        both = {"num_steps": self.num_steps.value, "solver": self.solver.value}
        return {name: value for name, value in both.items() if value is not None}

    def load_run(self, workdir: str | Path, step: int | None = None):
        """Load a checkpoint of a run, a `diffeq_former.Run`.

        Args:
          workdir: The run's folder.
          step: The checkpoint's step; None: the latest.

        Raises:
          UserError: See `diffeq_former.load`.
        """
        return mesh_flags.load_run(workdir, step=step, **self.given())

    def read_model(self, workdir: str | Path) -> ModelConfig:
        """Return the config of the model that `load_run` returns.

        Raises:
          UserError: See `diffeq_former.load`.
        """
        from diffeq_former.inference.solver_steps import at_depth
        from diffeq_former.training import run_directory

        model = run_directory.read_config(Path(workdir)).model
        return at_depth(model, **self.given())


def define() -> SolverFlags:
    """Define the flags of the calling module."""
    return SolverFlags(
        flags.DEFINE_integer(
            "num_steps", None, "Number of solver steps; default: that of the run."
        ),
        flags.DEFINE_string(
            "solver",
            None,
            "The solver, such as heun or diffrax:Tsit5; default: that of the run.",
        ),
    )
