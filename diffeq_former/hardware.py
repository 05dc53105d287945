"""The hardware that a program is compiled for, on which choices within it depend.

It follows from the devices of the mesh and is passed to whatever chooses: a program can
be compiled for devices that this machine does not have.
"""

import dataclasses
import re

import jax


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A kind of device."""

    platform: str  # cpu | cuda | rocm | tpu
    capability: tuple[int, int] = (0, 0)  # compute capability of an NVIDIA GPU


CPU = Hardware("cpu")


def hardware_of(device: jax.Device) -> Hardware:
    """Return the hardware of a device, which need not be present."""
    if device.platform != "gpu":
        return Hardware(device.platform)
    numbers = re.fullmatch(r"(\d+)\.(\d+)", device.compute_capability)
    if numbers is None:  # AMD: such as gfx942
        return Hardware("rocm")
    return Hardware("cuda", (int(numbers[1]), int(numbers[2])))
