"""Flags of tiny studies."""

MODEL = {
    "block": "gpt",
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 16,
    "vocab_size": 257,
    "time_embed_dim": 4,
    "remat": "none",
}
TRAINING = {"num_steps": 2, "batch_size": 8, "eval_every": 1, "sample_every": 0}


def settings(prefix: str, section: str, values: dict) -> list[str]:
    """SECTION.NAME=VALUE after a prefix, such as --config."""
    return [f"{prefix}{section}.{name}={value}" for name, value in values.items()]
