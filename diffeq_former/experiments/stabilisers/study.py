"""The study of stabilisers as a kind of tools/analyze.py: parses its options."""

from pathlib import Path


def stabilisers(
    output: Path,
    *,
    data: str,
    residuals: list[str] | None = None,
    norms: list[str] | None = None,
    steps: list[str] | None = None,
    depths: list[str] | None = None,
    learning_rates: list[str] | None = None,
    num_seeds: int | None = None,
    num_steps: int | None = None,
) -> list[dict]:
    """Train all runs that have no runs/NAME.json yet, and write report/.

    Returns:
      A row for each claim.

    Raises:
      UserError: If an option is invalid, or if `output` is no study, a study with other
        settings, or already has a report.
    """
    from diffeq_former.experiments.stabilisers import grid as grids
    from diffeq_former.experiments.stabilisers.grid import Grid, Training
    from diffeq_former.experiments.stabilisers.run_study import complete

    lists = {
        "residuals": (grids.numbers, residuals, float),
        "norms": (grids.members, norms, Grid.norms),
        "steps": (grids.members, steps, Grid.steps),
        "depths": (grids.numbers, depths, int),
        "learning_rates": (grids.numbers, learning_rates, float),
    }
    given = {
        name: check(name, values, kind)
        for name, (check, values, kind) in lists.items()
        if values is not None
    }
    grid = Grid(**given | ({"num_seeds": num_seeds} if num_seeds else {}))
    training = Training(**({"num_steps": num_steps} if num_steps else {}))
    return complete(output, data, grid, training)
