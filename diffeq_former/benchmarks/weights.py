"""Time of the hypernetwork alone, relative to the memory bandwidth of the device.

Every record counts the bytes that must at least be read or written: parameters, Adam's
moments and the weight table. `copy` reads one array and writes another.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from diffeq_former.benchmarks.timing import alternate, spread
from diffeq_former.config import Config
from diffeq_former.distributed.mesh import Mesh, make_mesh, mesh_hardware, on_mesh
from diffeq_former.errors import UserError
from diffeq_former.models.grid import default_grid
from diffeq_former.training import state
from diffeq_former.training.gradients import prepare
from diffeq_former.training.parts import Parts, partition
from diffeq_former.training.update import SKIP, UPDATE

COPIED = 2**26  # entries


def benchmark(configs: dict[str, Config], rounds: int, steps: int) -> Iterator[dict]:
    """Yield four records per config: copy, generate, pull_back and update."""
    del steps
    for name, config in configs.items():
        if config.model.weights != "hypernetwork":
            raise UserError(
                "config.model.weights: the mode weights needs a hypernetwork, got"
                f" {config.model.weights!r}"
            )
        works, num_bytes = _works(config, make_mesh(config.mesh))
        for work, seconds in alternate(works, rounds).items():
            middle = spread(seconds)
            yield {
                "variant": name,
                "work": work,
                "seconds": middle,
                "bytes": num_bytes[work],
                "bytes_per_second": num_bytes[work] / middle["median"],
            }


def _works(config: Config, mesh: Mesh):
    """Return the functions to time, and the bytes that each moves."""
    grid, hardware = default_grid(config.model), mesh_hardware(mesh)

    @jax.jit
    def generate(params):
        return prepare(config, params, grid).variables["table"]

    @jax.jit
    def pull_back(params, table):
        """Return parameter gradients, with the table itself as the table gradient."""
        gradients = {"params": {}, "table": table}
        return prepare(config, params, grid).pull_back(gradients)

    def update(gradients, norm, params, opt_state):
        action = jnp.where(jnp.isfinite(norm), UPDATE, SKIP)
        done = state.make_update(config).apply(
            gradients, norm, opt_state, params, action, hardware
        )
        return done.params, done.opt_state

    generate, pull_back = on_mesh(mesh, generate), on_mesh(mesh, pull_back)
    update = on_mesh(mesh, jax.jit(update, donate_argnums=(2, 3)))
    created = state.create(config, mesh)
    params = partition(config, {"weights": created.params["weights"]})
    table = generate(params)
    gradients = pull_back(params, table)
    norm = jnp.float32(1.0)
    held = [params, _opt_state_of(config, mesh, params)]

    def advance():
        held[:] = update(gradients, norm, *held)
        return held

    copy = jax.jit(lambda x: x + 1.0)
    source = jnp.ones(COPIED)
    works = {
        "copy": lambda: copy(source),
        "generate": lambda: generate(held[0]),
        "pull_back": lambda: pull_back(held[0], table),
        "update": advance,
    }
    stored, generated = _size(params), _size(table)
    num_bytes = {
        "copy": 2 * source.nbytes,
        "generate": stored + generated,
        "pull_back": stored + generated,
        "update": 2 * (stored + _size(held[1])) + _size(gradients),
    }
    return works, num_bytes


def _opt_state_of(config: Config, mesh: Mesh, params: Parts):
    return on_mesh(mesh, jax.jit(state.make_update(config).init))(params)


def _size(tree) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))
