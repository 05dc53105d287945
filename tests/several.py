"""What tests of several processes share."""

import socket
import subprocess

# What a run does with processes and devices, and nothing else.
SCRIPT = """
import time
from absl import flags
from diffeq_former import cli, process_exit
from diffeq_former.cli import process_flags
from diffeq_former.errors import UserError
from diffeq_former.training.preemption import StopRequest

THEN = ["end", "wait", "sum", "fail", "refuse"]
_THEN = flags.DEFINE_enum("then", "end", THEN, "What next.")
stop = StopRequest()

def main():
    process_flags.start_from_flags(stop)
    import jax
    import jax.numpy as jnp

    count = jax.device_count()
    mesh = jax.make_mesh((count,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    ones = jax.device_put(jnp.ones(count), jax.NamedSharding(mesh, jax.P("x")))
    add = jax.jit(jnp.sum)
    print(float(add(ones)), flush=True)
    while _THEN.value == "sum":
        float(add(ones))
    if jax.process_index() == 1:
        if _THEN.value == "fail":
            raise KeyError("not the user's fault")
        if _THEN.value == "refuse":
            raise UserError("--then: expected another")
    while _THEN.value != "end" and not stop():
        time.sleep(0.05)
    print(stop.signal)
    return process_exit.STOPPED if stop() else process_exit.OK

stop.install()
cli.run(main)
"""

HEARTBEAT = 10  # seconds


def devices(count: int) -> dict[str, str]:
    """The environment of a process with virtual devices.

    Programs for several of them that were read from a cache wait for each other for
    ever (JAX 0.10).
    """
    return {"JAX_NUM_CPU_DEVICES": str(count), "JAX_ENABLE_COMPILATION_CACHE": "0"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def place(port, num_processes, process_id):
    return (
        f"--coordinator=127.0.0.1:{port}",
        f"--num_processes={num_processes}",
        f"--process_id={process_id}",
    )


def start(
    command,
    workdirs,
    num_processes,
    *,
    num_devices=4,
    flags=(),
    scripts=None,
    **axes,
) -> list:
    """The processes of a run, with `num_devices` virtual devices together."""
    scripts = scripts or [None] * num_processes
    if not isinstance(workdirs, list):
        workdirs = [workdirs] * num_processes
    port = free_port()
    mesh = [f"--config.mesh.{axis}={size}" for axis, size in axes.items()]
    environment = devices(num_devices // num_processes)
    return [
        command.start(
            workdir,
            *(place(port, num_processes, k) if num_processes > 1 else ()),
            f"--heartbeat_timeout={HEARTBEAT}",
            *mesh,
            *flags,
            environment=environment,
            script=scripts[k],
        )
        for k, workdir in enumerate(workdirs)
    ]


def ends(processes: list) -> list[subprocess.CompletedProcess]:
    results = []
    for process in processes:
        with process:
            out, err = process.communicate()
        results.append(
            subprocess.CompletedProcess(process.args, process.returncode, out, err)
        )
    return results


def run(*args, **options) -> subprocess.CompletedProcess:
    """The first process of a run that ends well."""
    results = ends(start(*args, **options))
    assert [r.returncode for r in results] == [0] * len(results), results[0].stderr
    return results[0]
