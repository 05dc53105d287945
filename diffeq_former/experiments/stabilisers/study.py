"""The studies as kinds of tools/analyze.py: parses their options."""

import functools
from pathlib import Path


def study(
    kind: str,
    output: Path,
    *,
    data: str,
    residuals: list[str] | None = None,
    norms: list[str] | None = None,
    steps: list[str] | None = None,
    depths: list[str] | None = None,
    learning_rates: list[str] | None = None,
    num_seeds: int | None = None,
    training_steps: int | None = None,
) -> list[dict]:
    """Train all runs that have no runs/NAME.json yet, and write report/.

    Args:
      kind: `stabilisers`, a study of Transformers, or `simulator`, one of a PDE
        simulator and Transformers.
      output: The folder of the study.
      data: The folder of a prepared dataset.
      residuals: These and the next ones are axes of the grid, see grid.py.
      norms: As above.
      steps: As above.
      depths: As above.
      learning_rates: As above.
      num_seeds: The number of seeds.
      training_steps: The number of optimizer steps of each run.

    Returns:
      A row for each claim.

    Raises:
      UserError: If an option is invalid, or if `output` is no study, a study with other
        settings, or already has a report.
    """
    from diffeq_former.experiments.stabilisers import grid as grids
    from diffeq_former.experiments.stabilisers.grid import GRIDS, Training
    from diffeq_former.experiments.stabilisers.run_study import complete

    grid_type = GRIDS[kind]
    lists = {
        "residuals": (grids.numbers, residuals, float),
        "norms": (grids.members, norms, grid_type.norms),
        "steps": (grids.members, steps, grid_type.steps),
        "depths": (grids.numbers, depths, int),
        "learning_rates": (grids.numbers, learning_rates, float),
    }
    given = {
        name: check(name, values, kind)
        for name, (check, values, kind) in lists.items()
        if values is not None
    }
    grid = grid_type(**given | ({"num_seeds": num_seeds} if num_seeds else {}))
    training = Training(**({"num_steps": training_steps} if training_steps else {}))
    return complete(output, data, grid, training)


stabilisers = functools.partial(study, "stabilisers")
simulator = functools.partial(study, "simulator")
