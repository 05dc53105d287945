"""Training throughput, by the same definition for JAX and PyTorch."""

from diffeq_former.config import Config
from diffeq_former.training.flops import flops_per_token, peak_flops


def rates(
    config: Config, seconds: float, device_kind: str, num_devices: int
) -> dict[str, float]:
    """Return the throughput of training on sequences of length `max_len`.

    Args:
      config: Config of the training.
      seconds: Time of one optimizer step.
      device_kind: Name of the device; `mfu` is omitted if its peak is unknown.
      num_devices: Number of devices.
    """
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
