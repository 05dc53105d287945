"""The maximal update parametrisation: learning rates that transfer between sizes.

muP (Yang et al. 2022, arXiv 2203.03466) keeps activations, and their changes in an
optimizer step, independent of width. A linear map from n_in to n_out does so if the
spectral norms of its kernel and of the kernel's update are proportional to
sqrt(n_out / n_in) (Yang, Simon and Bernstein 2023, arXiv 2310.17813). With
model.parametrization="mup":

kernels, bases and banks of kernels start with the standard deviation
0.16 / sqrt(n_in), and the final norm with the scale 64 / D. The direction that the
optimizer gives is multiplied by

| parameters | factor |
|---|---|
| kernels, bases | 8 / n_in (AdamW) or sqrt(n_out / n_in) (Muon) |
| banks of kernels | the same / sqrt(E) |
| banks of biases and norms | 1 / sqrt(E) |
| time MLPs: kernels | 8 / (n_in sqrt(E)) |
| time MLPs: biases; tables and first values of coefficients | 1 / sqrt(E) |
| final norm | 64 / D |
| all other | 1 |

The constants are such that about the same learning rate suits all rows.

- The final norm contains the factor 1 / D by which muP multiplies logits.
- As u(t) has length 1, aligned updates of all F_e, dF_e ~ sign(u_e) dW, change W(t) by
  |u|_1 dW, and |u|_1 grows as sqrt(E). The same holds for aligned updates of all u_e.
- `weight_space_muon` moves W(t_k) by the direction of Muon, whatever E is: banks then
  have the factor of kernels.
- The depth interval has length 1, so that terms are multiplied by 1 / L. Learning rates
  then transfer between numbers of layers, too (CompleteP with alpha = 1; Dey et al.
  2025, arXiv 2505.01618).
- Weight decay is that of the learning rate, without these factors.
"""

from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import linear_specs
from diffeq_former.models.weight_specs import LinearSpec

KERNEL_SCALE = 0.16
ADAM_SCALE = 8.0
FINAL_WIDTH = 64
_BANKS = ("bank", "bias_bank", "scale_bank", "shift_bank")


def mup_stddev(spec: LinearSpec) -> float:
    """Return the standard deviation of an initial kernel, base or bank."""
    return KERNEL_SCALE * spec.matrix_shape[0] ** -0.5


def final_norm_scale(c: ModelConfig) -> float:
    """Return the initial scale of the final norm."""
    return FINAL_WIDTH / c.d_model if c.parametrization == "mup" else 1.0


def update_factor(c: ModelConfig, path: str, optimizer: str) -> float:
    """Return the factor of the optimizer's direction for a parameter, with muP.

    Args:
      c: The model's settings.
      path: The path of the parameter, as weights/qkv/kernel.
      optimizer: The optimizer's name.
    """
    *_, module, name = path.split("/")
    if module == "final_norm":
        return final_norm_scale(c)
    E = c.time_embed_dim
    factor = E**-0.5 if module == "time_mlp" or name in _BANKS else 1.0
    if name in ("kernel_1", "kernel_2"):
        inputs = E + 1 if c.time_mlp == "ode" else 2 * c.num_frequencies + 1
        factor *= ADAM_SCALE / (E if name == "kernel_2" else inputs)
    if name in ("kernel", "base", "bank") and module in (specs := linear_specs(c)):
        if optimizer == "weight_space_muon":
            factor = 1.0
        factor *= _kernel_factor(specs[module], optimizer)
    return factor


def _kernel_factor(spec: LinearSpec, optimizer: str) -> float:
    n_in, n_out = spec.matrix_shape
    return ADAM_SCALE / n_in if optimizer == "adamw" else (n_out / n_in) ** 0.5
