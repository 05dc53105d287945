"""Validation of the model's settings."""

from diffeq_former.config.dataclass_config import check_values
from diffeq_former.config.model_schema import SAVE_WEIGHTS, ModelConfig
from diffeq_former.errors import UserError, require
from diffeq_former.ode.solvers import get_solver

FASTEST = 200  # rate of an ode for u(t)


def validate_model(c: ModelConfig) -> None:
    """Raise UserError if model settings are out of range or do not fit together."""
    check_values(c, "model.")
    _validate_coefficients(c)
    _validate_heads(c)
    _validate_rotations(c)
    check_solver(c)
    _validate_stabilisers(c)
    _validate_backward(c)
    _validate_combination(c)


def _validate_coefficients(c: ModelConfig) -> None:
    wanted = f"0 (see `segments`) or model.num_layers ({c.num_layers})"
    fits = c.time_segments in (0, c.num_layers)
    require(fits, "model.time_segments", wanted, c.time_segments)
    if c.time_mlp == "table" and not c.segments:
        raise UserError(
            "config.model.time_mlp: a table has coefficients at the layers, but"
            f" {c.solver} has several times in each; use per_weight, or model.solver"
            " euler or lie_trotter"
        )
    if c.time_mlp == "ode" and c.time_scale > FASTEST:
        raise UserError(
            f"config.model.time_scale: an ode with this rate takes too many steps, got"
            f" {c.time_scale:g}; use about 4 * num_layers, at most {FASTEST}, or"
            " another model.time_mlp"
        )


def _validate_heads(c: ModelConfig) -> None:
    divisor = f"a divisor of model.d_model ({c.d_model}), or model.head_dim"
    fits = c.head_dim or c.d_model % c.num_heads == 0
    require(fits, "model.num_heads", divisor, c.num_heads)
    divisor = f"a divisor of model.num_heads ({c.num_heads})"
    require(c.num_heads % c.kv_heads == 0, "model.num_kv_heads", divisor, c.kv_heads)
    if c.block == "gpt" and c.attention_bias != "none":
        raise UserError(
            "config.model.attention_bias: the gpt block always has biases; leave it"
            " none, or set block to llama"
        )
    if c.block == "gpt" and c.kv_heads != c.num_heads:
        raise UserError(
            "config.model.num_kv_heads: the gpt block has one fused query-key-value "
            "map with equal heads; set it to 0, or block to llama"
        )


def _validate_rotations(c: ModelConfig) -> None:
    if c.learned_positions:
        for field, unused in (("rope_scaling", "none"), ("rope_fraction", 1.0)):
            if getattr(c, field) != unused:
                raise UserError(
                    f"config.model.{field}: the positions of this model are a learned"
                    f" table; leave it {unused}, or set positions to rotary"
                )
    elif c.rotary_size < 2 or c.rotary_size % 2:
        raise UserError(
            f"config.model.num_heads: rotary positions rotate pairs of entries, but"
            f" model.rope_fraction={c.rope_fraction:g} of a head of {c.head_size} is"
            f" {c.rotary_size}; choose another num_heads, head_dim or rope_fraction"
        )
    low, high = c.rope_low_turns, c.rope_high_turns
    above = f"above model.rope_low_turns ({low})"
    require(high > low, "model.rope_high_turns", above, high)


def check_solver(c: ModelConfig) -> None:
    """Raise UserError if the solver does not exist or cannot integrate the model."""
    get_solver(c.solver)
    residual, norm = c.stabilisers.residual, c.stabilisers.norm
    if residual != 1 and c.solver not in ("euler", "lie_trotter"):
        raise UserError(
            f"config.model.stabilisers.residual: {c.solver} evaluates a term more than"
            " once per step, which requires a residual coefficient of 1; use 1, or"
            " model.solver euler or lie_trotter"
        )
    if norm == "post" and c.solver != "lie_trotter":
        raise UserError(
            f"config.model.stabilisers.norm: {norm} normalises the state after each"
            f" term, but {c.solver} does not apply each term in one substep of its own;"
            " use pre or none, or model.solver lie_trotter"
        )


def _validate_stabilisers(c: ModelConfig) -> None:
    norm = c.stabilisers.norm
    if c.chain_norms and norm != "pre":
        raise UserError(
            "config.model.chain_norms: True requires norms of the terms' inputs, but"
            f" model.stabilisers.norm is {norm}; use pre, or set chain_norms to False"
        )


def _validate_backward(c: ModelConfig) -> None:
    if c.backward == "stored":
        return
    if c.generate_weights == "per_step":
        raise UserError(
            f"config.model.generate_weights: with model.backward={c.backward}, steps"
            " are differentiated with respect to tabulated weights; use tabulated"
        )
    if c.backward == "reversible" and c.depth_noise:
        raise UserError(
            "config.model.depth_noise: the two states of reversible steps would get"
            " different noise; use 0, or model.backward stored or binomial"
        )
    is_flow = c.stabilisers.residual == 1 and c.stabilisers.norm != "post"
    if c.backward == "reversible" and not is_flow:
        raise UserError(
            "config.model.backward: reversible steps need model.stabilisers.residual=1"
            " and no post-norms, whose effect a step in reverse does not undo; set"
            " these, or use stored or binomial"
        )
    if c.backward == "binomial":
        fewer = f"fewer than model.num_layers ({c.num_layers})"
        fits = c.num_checkpoints < c.num_layers
        require(fits, "model.num_checkpoints", fewer, c.num_checkpoints)


def _validate_combination(c: ModelConfig) -> None:
    if c.weights == "layer_table":
        if c.generate_weights == "per_step":
            raise UserError(
                "config.model.generate_weights: a layer_table stores its weights, so "
                "there is nothing to generate per_step; use tabulated"
            )
    if c.chain_norms and c.block != "llama":
        raise UserError(
            "config.model.chain_norms: only the llama block can chain its norms; set "
            "it to False, or block to llama"
        )
    if c.parametrization == "mup" and c.initialization == "authors":
        raise UserError(
            "config.model.parametrization: mup needs u(t) of length 1, which"
            " model.initialization=authors does not normalise; use standard, or"
            " initialization=unit"
        )
    if c.tied_head and c.learned_positions:
        raise UserError(
            "config.model.tied_head: with learned positions, the gpt block always ties"
            " its head; leave it False"
        )
    if c.remat in SAVE_WEIGHTS and c.generate_weights != "per_step":
        raise UserError(
            f"config.model.remat: {c.remat} saves weights that a step generates; set "
            "model.generate_weights to per_step, or another remat"
        )
