"""Rates of steps of training, by one definition for every library."""

from diffeq_former.config import Config
from diffeq_former.training.flops import flops_per_token, peak_flops


def rates(
    config: Config, seconds: float, device_kind: str, num_devices: int
) -> dict[str, float]:
    """Of steps on rows as long as the model allows, which take so many seconds each."""
    seq_len = config.model.max_len
    tokens = config.training.batch_size * seq_len
    flops = tokens * flops_per_token(config.model, seq_len) / seconds
    found = {
        "steps_per_second": 1 / seconds,
        "tokens_per_second": tokens / seconds,
        "model_flops_per_second": flops,
    }
    if peak := peak_flops(device_kind):
        found["mfu"] = flops / (peak * num_devices)
    return found
