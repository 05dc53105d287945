"""Claims that one model has less of something than another, tested over seeds."""

import dataclasses
import statistics

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
RULE = (
    "A claim compares two models that were trained with the same seeds. It is supported"
    " if it holds for every seed, contradicted if the reverse does, and undecided"
    " otherwise. The difference is relative to the second model: the median over seeds,"
    " in brackets the lowest and the highest."
)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper: `less` has a lower `metric` than `more`."""

    text: str
    metric: str  # a key of the rows
    less: dict  # keys and values of the rows of one model
    more: dict


def verdict(claim: Claim, rows: list[dict]) -> dict:
    """Compare the two models of a claim by `RULE`.

    Args:
      claim: The claim.
      rows: Dictionaries that identify models, with a seed and the metric.

    Returns:
      A row of a table: claim, verdict, seeds, difference.
    """
    less, more = (
        {row["seed"]: row[claim.metric] for row in rows if model.items() <= row.items()}
        for model in (claim.less, claim.more)
    )
    pairs = [(less[seed], more[seed]) for seed in less if seed in more]
    found = UNDECIDED
    if all(a < b for a, b in pairs):
        found = SUPPORTED
    elif all(a > b for a, b in pairs):
        found = CONTRADICTED
    differences = [a / b - 1 for a, b in pairs]
    median, low, high = (f(differences) for f in (statistics.median, min, max))
    return {
        "claim": claim.text,
        "verdict": found,
        "seeds": len(pairs),
        "difference": f"{median:+.1%} [{low:+.1%}, {high:+.1%}]",
    }
