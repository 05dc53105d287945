"""What tests of several processes share."""

import socket

# What a run does with processes and devices, and nothing else.
SCRIPT = """
import time
from absl import flags
from diffeq_former import cli, distributed
from diffeq_former.errors import UserError
from diffeq_former.training.preemption import StopRequest

THEN = ["end", "wait", "sum", "fail", "refuse"]
_THEN = flags.DEFINE_enum("then", "end", THEN, "What next.")
stop = StopRequest()

def main():
    distributed.start_from_flags()
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
    return cli.STOPPED if stop() else cli.OK

stop.install()
cli.run(main)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def place(port, num_processes, process_id):
    return (
        f"--coordinator=127.0.0.1:{port}",
        f"--num_processes={num_processes}",
        f"--process_id={process_id}",
    )
