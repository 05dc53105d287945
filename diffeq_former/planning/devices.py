"""Peak rates and memory of accelerators, from the vendors' data sheets."""

import dataclasses

from diffeq_former.hardware import Hardware
from diffeq_former.training.flops import PEAKS


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator. Link rates are in one direction, summed over all links."""

    name: str
    peak_flops: float  # dense bfloat16, FLOP/s
    memory: float  # bytes
    bandwidth: float  # of the device memory, bytes/s
    link: float  # within the node or slice (NVLink, ICI), bytes/s
    node: int  # number of devices that these links connect
    network: float  # between nodes or slices, bytes/s per device
    hardware: Hardware


def _gpu(
    name: str,
    capability: tuple[int, int],
    memory: float,
    bandwidth: float,
    link: float,
    network: float,
) -> Device:
    hardware = Hardware("cuda", capability)
    return Device(name, PEAKS[name][1], memory, bandwidth, link, 8, network, hardware)


def _tpu(name: str, memory: float, bandwidth: float, link: float, node: int) -> Device:
    peak, hardware = PEAKS[name][1], Hardware("tpu")
    return Device(name, peak, memory, bandwidth, link, node, _TPU_NETWORK, hardware)


# Between slices; assumed: 200 Gbit/s per host of four chips.
_TPU_NETWORK = 6.25e9

# NVIDIA: half of the NVLink rates in the data sheets, which add both directions (600,
# 900 and 1,800 GB/s). Networks as in DGX systems: a 200 (A100) or 400 Gbit/s adapter
# per GPU. Google: interconnect (ICI) bandwidth per chip, and the largest slice.
DEVICES = {
    device.name: device
    for device in (
        # NVIDIA A100, H100 and H200 Tensor Core GPU data sheets, SXM; DGX B200.
        _gpu("a100-40", (8, 0), 40e9, 1.555e12, 300e9, 25e9),
        _gpu("a100", (8, 0), 80e9, 2.039e12, 300e9, 25e9),
        _gpu("h100", (9, 0), 80e9, 3.35e12, 450e9, 50e9),
        _gpu("h200", (9, 0), 141e9, 4.8e12, 450e9, 50e9),
        _gpu("b200", (10, 0), 180e9, 8e12, 900e9, 50e9),
        # Google Cloud TPU system architecture.
        _tpu("v4", 32e9, 1.228e12, 300e9, 4096),
        _tpu("v5e", 16e9, 0.819e12, 200e9, 256),
        _tpu("v5p", 95e9, 2.765e12, 600e9, 8960),
        _tpu("v6e", 32e9, 1.64e12, 448e9, 256),
    )
}
