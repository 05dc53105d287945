"""Rotary positions in a Hugging Face model's config.json."""

from collections.abc import Mapping

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError

# For each kind of scaling: our fields -> their settings.
_SCALINGS = {
    "none": {},
    "linear": {"rope_factor": "factor"},
    "llama3": {
        "rope_factor": "factor",
        "rope_low_turns": "low_freq_factor",
        "rope_high_turns": "high_freq_factor",
        "rope_original_len": "original_max_position_embeddings",
    },
}


def read_rope(given: Mapping) -> dict:
    """Return our fields from `rope_parameters`, or from older settings.

    These are `rope_theta`, `partial_rotary_factor` and `rope_scaling`.
    """
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = "none" if kind == "default" else kind
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise UserError(f"rope_scaling: expected one of {known}, got {kind!r}")
    rope = {**given, **rope}
    fields = {
        "rope_base": rope.get("rope_theta", 10000.0),
        "rope_fraction": rope.get("partial_rotary_factor") or 1.0,
        "rope_scaling": kind,
    }
    for ours, theirs in _SCALINGS[kind].items():
        if theirs not in rope:
            raise UserError(f"rope_scaling: {kind} needs {theirs}")
        fields[ours] = rope[theirs]
    return fields


def write_rope_scaling(c: ModelConfig) -> dict | None:
    """Return the setting `rope_scaling`."""
    scaling = {
        theirs: getattr(c, ours) for ours, theirs in _SCALINGS[c.rope_scaling].items()
    }
    return {"rope_type": c.rope_scaling, **scaling} if scaling else None
