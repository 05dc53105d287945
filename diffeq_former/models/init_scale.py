"""Standard deviations of initial kernels."""

from diffeq_former.config import ModelConfig
from diffeq_former.models.mup import mup_stddev
from diffeq_former.models.weight_specs import LinearSpec

STDDEV = 0.02


def kernel_stddev(c: ModelConfig, spec: LinearSpec) -> float:
    """Return the standard deviation of a stored kernel, or of a hypernetwork's base.

    It is 0.02, except for kernels that write to the residual stream in steps of length
    1. There GPT-2 (Radford et al. 2019) divides by sqrt(2L), so that the scale of the
    sum over L layers of two terms does not grow with L. Shorter steps need no such
    factor. A residual coefficient r below 1 leaves r^(2k) of the variance of a term
    that k others follow, so 2L becomes the sum of r^(2k); for r = 0 this is 1. In the
    authors' initialisation, the base of the hypernetwork is 0.

    With `zero_init_output`, kernels that write to the residual stream are 0.
    """
    if c.zero_init_output and spec.writes_residual:
        return 0.0
    if c.weights == "hypernetwork" and c.initialization == "authors":
        return 0.0
    if c.parametrization == "mup":
        return mup_stddev(spec)
    if spec.writes_residual and c.step_size == 1.0:
        kept = c.stabilisers.residual**2
        return STDDEV / sum(kept**k for k in range(2 * c.num_layers)) ** 0.5
    return STDDEV


def bank_stddev(c: ModelConfig, spec: LinearSpec) -> float:
    """Return the standard deviation of the bank of a kernel.

    With `zero_init_output`, banks of kernels that write to the residual stream are 0,
    as their bases are. They receive gradients nevertheless, as u(t) is not 0.
    """
    if c.zero_init_output and spec.writes_residual:
        return 0.0
    return mup_stddev(spec) if c.parametrization == "mup" else STDDEV
