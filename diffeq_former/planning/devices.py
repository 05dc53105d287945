"""Peak rates and memory of accelerators, from the vendors' data sheets."""

import dataclasses

from diffeq_former.models.attention_kernels import Hardware
from diffeq_former.training.flops import PEAKS


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator. Link rates are in one direction, summed over all links."""

    peak_flops: float  # dense bfloat16, FLOP/s
    memory: float  # bytes
    bandwidth: float  # of the device memory, bytes/s
    link: float  # within the node or slice (NVLink, ICI), bytes/s
    node: int  # number of devices that these links connect
    network: float  # between nodes or slices, bytes/s per device
    hardware: Hardware


_AMPERE, _HOPPER = Hardware("cuda", (8, 0)), Hardware("cuda", (9, 0))
_TPU = Hardware("tpu")


def _gpu(name: str, memory: float, bandwidth: float, link: float, network: float):
    hardware = _AMPERE if name.startswith("a100") else _HOPPER
    return Device(PEAKS[name][1], memory, bandwidth, link, 8, network, hardware)


def _tpu(name: str, memory: float, bandwidth: float, link: float, node: int) -> Device:
    return Device(PEAKS[name][1], memory, bandwidth, link, node, _TPU_NETWORK, _TPU)


# Between slices; assumed: 200 Gbit/s per host of four chips.
_TPU_NETWORK = 6.25e9

# NVIDIA: half of the NVLink rates in the data sheets, which add both directions (600
# and 900 GB/s). Networks as in DGX systems: a 200 (A100) or 400 Gbit/s adapter per GPU.
# Google: interconnect (ICI) bandwidth per chip, and the largest slice.
DEVICES = {
    # NVIDIA A100 Tensor Core GPU data sheet, SXM.
    "a100-40": _gpu("a100-40", 40e9, 1.555e12, 300e9, 25e9),
    "a100-80": _gpu("a100-80", 80e9, 2.039e12, 300e9, 25e9),
    # NVIDIA H100 and H200 Tensor Core GPU data sheets, SXM.
    "h100": _gpu("h100", 80e9, 3.35e12, 450e9, 50e9),
    "h200": _gpu("h200", 141e9, 4.8e12, 450e9, 50e9),
    # Google Cloud TPU system architecture: v4, v5e, v5p, v6e.
    "tpu-v4": _tpu("tpu-v4", 32e9, 1.228e12, 300e9, 4096),
    "tpu-v5e": _tpu("tpu-v5e", 16e9, 0.819e12, 200e9, 256),
    "tpu-v5p": _tpu("tpu-v5p", 95e9, 2.765e12, 600e9, 8960),
    "tpu-v6e": _tpu("tpu-v6e", 32e9, 1.64e12, 448e9, 256),
}
