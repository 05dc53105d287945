"""Targets: devices to plan and compile for, which this machine need not have.

JAX compiles for a description of devices, a topology, with the compilers that their own
hosts use: those in libtpu for TPUs, those in its CUDA plugin for NVIDIA GPUs.
"""

import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from diffeq_former.errors import UserError
from diffeq_former.planning.devices import DEVICES, Device

_FORM = re.compile(r"(tpu|gpu):([\w-]+):(\d+(?:x\d+)*)")
_EXPECTED = "expected tpu:KIND:TOPOLOGY or gpu:KIND:HOSTSxGPUS"
_EXAMPLES = "such as tpu:v5e:4x4 or gpu:h100:2x8"

_CHIPS_PER_HOST = 4
# For libtpu, what it would ask a TPU's own host for. JAX's CUDA plugin would refuse a
# machine without CUDA's libraries.
_ENVIRONMENT = {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Those that launch/tpu_pod.sh and launch/gke_jobset.yaml set: gathers of weights run
# beside products, instead of cutting these into pieces (docs/performance.md).
LIBTPU_INIT_ARGS = (
    "--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",
    "--xla_enable_async_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "--xla_tpu_overlap_compute_collective_tc=true",
)


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind, by how they are arranged."""

    device: Device
    shape: tuple[int, ...]  # chips of a slice along each axis; or hosts, GPUs of a host
    num_slices: int = 1  # TPUs; between slices lies the network

    @property
    def num_devices(self) -> int:
        return self.num_slices * math.prod(self.shape)

    @property
    def is_tpu(self) -> bool:
        return self.device.hardware.platform == "tpu"

    def __str__(self) -> str:
        platform = "tpu" if self.is_tpu else "gpu"
        target = f"{platform}:{self.device.name}:{'x'.join(map(str, self.shape))}"
        return target + (f", {self.num_slices} slices" if self.num_slices > 1 else "")


def parse_target(text: str, num_slices: int = 1) -> Target:
    """Return the target of a flag such as tpu:v5e:4x4 or gpu:h100:2x8.

    Raises:
      UserError: If there is no such kind of device, or arrangement of them.
    """
    if not (found := _FORM.fullmatch(text)):
        raise UserError(f"--target: {_EXPECTED}, {_EXAMPLES}, got {text!r}")
    platform, name, numbers = found.groups()
    shape = tuple(int(n) for n in numbers.split("x"))
    wanted = "tpu" if platform == "tpu" else "cuda"
    names = [n for n, d in DEVICES.items() if d.hardware.platform == wanted]
    if name not in names:
        known = ", ".join(names)
        raise UserError(f"--target={text}: expected one of {known}, got {name!r}")
    axes = len(shape)
    if not math.prod(shape) or (platform == "gpu" and axes != 2) or axes > 3:
        raise UserError(f"--target={text}: {_EXPECTED}, {_EXAMPLES}")
    if num_slices < 1 or (num_slices > 1 and platform == "gpu"):
        raise UserError(
            f"--num_slices: expected 1 or more slices of TPUs, got {num_slices} with"
            f" --target={text}"
        )
    return Target(DEVICES[name], shape, num_slices)


def topology_devices(target: Target) -> list[jax.Device]:
    """Return devices for which programs can be compiled, but not executed.

    Programs for TPUs are compiled with the flags in the environment's LIBTPU_INIT_ARGS,
    by default those of the launchers.

    Raises:
      UserError: If the compiler's package is missing, or knows no such topology.
    """
    if extra := missing_extra(target):
        raise UserError(
            f"--target={target}: its compiler is missing: pip install"
            f" -c constraints.txt -e '.[{extra}]', best in an environment of its own,"
            " or do without it: --nocompile"
        )
    os.environ.update(_ENVIRONMENT)
    os.environ.setdefault("LIBTPU_INIT_ARGS", " ".join(LIBTPU_INIT_ARGS))
    try:
        described = _tpu_topology(target) if target.is_tpu else _gpu_topology(target)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"--target={target}: {_first_line(error)}") from None
    return list(described.devices)


def _tpu_topology(target: Target):
    options = {}
    if target.num_slices > 1:
        options = {"num_slices": target.num_slices, "chip_config_name": "default"}
        options |= {"chips_per_host_bounds": (2, 2, 1), "wrap": (False,) * 3}
    if math.prod(target.shape) < _CHIPS_PER_HOST:
        options["chips_per_host_bounds"] = (*target.shape, 1, 1)[:3]
    name = f"{target.device.name}:{'x'.join(map(str, target.shape))}"
    return topologies.get_topology_desc(name, "tpu", **options)


def _gpu_topology(target: Target):
    return topologies.get_topology_desc(
        target.device.name,
        "cuda",
        topology="1x{}x{}".format(*target.shape),
        target_config=gpu_description(target.device.name),
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def missing_extra(target: Target) -> str:
    """Return the extra of setup.py with the target's compiler; "": it is installed."""
    if target.is_tpu:
        return "" if importlib.util.find_spec("libtpu") else "plan-tpu"
    plugins = importlib.util.find_spec("jax_plugins") and (
        importlib.util.find_spec("jax_plugins.xla_cuda13")
        or importlib.util.find_spec("jax_plugins.xla_cuda12")
    )
    return "" if plugins else "plan-gpu"


# What XLA's compiler asks of a GPU: the values in which the GPUs below differ, in the
# order of `_GPU`. From XLA's descriptions of the SXM modules.
_GPUS = {
    "a100-40": (8, 108, 64, 167936, 166912, 1555, 41943040, 1.41, 42298834944),
    "a100": (8, 108, 64, 167936, 166912, 2039, 41943040, 1.41, 85100068864),
    "h100": (9, 132, 128, 233472, 232448, 3352, 52428800, 1.98, 84942979072),
    "h200": (9, 132, 128, 233472, 232448, 4800, 52428800, 1.98, 151397597184),
    "b200": (10, 148, 128, 233472, 232448, 7672, 132644864, 1.965, 191514411008),
}
_GPU = """
gpu_device_info {{
  cuda_compute_capability {{ major: {} minor: 0 }}
  core_count: {}
  fpus_per_core: {}
  shared_memory_per_core: {}
  shared_memory_per_block_optin: {}
  memory_bandwidth: {}000000000
  l2_cache_size: {}
  clock_rate_ghz: {}
  device_memory_size: {}
  shared_memory_per_block: 49152
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "NVIDIA {}"
"""


def gpu_description(name: str) -> str:
    """Return XLA's description of a GPU, a GpuTargetConfigProto as text."""
    return _GPU.format(*_GPUS[name], name.upper())
