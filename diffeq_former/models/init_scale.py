"""How large a stored kernel starts."""

from diffeq_former.config import ModelConfig
from diffeq_former.models.units import Linear

STDDEV = 0.02


def base_stddev(c: ModelConfig, unit: Linear) -> float:
    """0.02; for what writes to the residual stream in steps of length 1, GPT-2's rule.

    GPT-2 (Radford et al. 2019) divides by sqrt(2L) there, so that the sum of L layers
    of two terms keeps its size. In shorter steps the step does that; a residual
    connection r below 1 leaves r^(2k) of the variance of the k-th last term, so that
    there is less to divide by, and without one nothing. In the authors' initialisation
    the base of the hypernetwork is zero.
    """
    if c.weights == "hypernetwork" and c.initialization == "authors":
        return 0.0
    if unit.writes_residual and c.step_size == 1.0:
        kept = c.stabilisers.residual**2
        return STDDEV / sum(kept**k for k in range(2 * c.num_layers)) ** 0.5
    return STDDEV
