"""Everything that a step of training changes."""

import dataclasses
import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import parameter_shardings, replicated
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import trainable
from diffeq_former.training.divergence import NO_STEP_YET
from diffeq_former.training.update import OptState, Update

# Parameters are drawn once; on a CPU it would compile for longer than all else.
QUICK_COMPILATION = {"xla_backend_optimization_level": 1}


@flax.struct.dataclass
class TrainState:
    """All arrays; what comes next is a function of `step` and `rollbacks`."""

    step: jax.Array  # batches consumed
    params: dict
    opt_state: OptState
    bad_steps: jax.Array  # not finite, or spikes, in a row until now
    skipped_steps: jax.Array  # skipped as not finite, in all
    usual_loss: jax.Array  # see divergence.py
    rollbacks: jax.Array  # how often it diverged and went back


def create(config: Config, mesh: Mesh) -> TrainState:
    """The state before the first step: parameters drawn from the seed.

    Each device makes what it holds; what is drawn does not depend on the mesh.
    """
    init = jax.jit(
        lambda: _first(config, first_params(config)),
        out_shardings=shardings(config, mesh),
        compiler_options=QUICK_COMPILATION,
    )
    return jax.block_until_ready(init())  # where memory ends, that is said here


def first_params(config: Config) -> dict:
    """Parameters drawn from the seed, within a jit."""
    return nn.unbox(_init_boxed(config.model, config.seed))


def with_params(config: Config, mesh: Mesh, params: dict) -> TrainState:
    """The state before the first step of a run that starts with these parameters."""
    places = shardings(config, mesh)
    return jax.jit(lambda params: _first(config, params), out_shardings=places)(params)


def abstract(config: Config, mesh: Mesh) -> TrainState:
    """Shapes, types and shardings of the state, without its memory."""
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        _shapes(config),
        shardings(config, mesh),
    )


def with_rollbacks(state: TrainState, rollbacks: int) -> TrainState:
    """The state with another count of them."""
    where = state.rollbacks.sharding
    count = jax.make_array_from_callback((), where, lambda _: np.int32(rollbacks))
    return state.replace(rollbacks=count)


def shardings(config: Config, mesh: Mesh) -> TrainState:
    """Where each array of the state lies: Adam's moments with their parameters.

    Factored moments are small, and everywhere.
    """
    params = parameter_shardings(_boxed_shapes(config.model), mesh)
    shapes, everywhere = _shapes(config), replicated(mesh)
    like = {
        _names(path): (x.shape, where)
        for (path, x), where in zip(
            jax.tree.leaves_with_path(shapes.params),
            jax.tree.leaves(params),
            strict=True,
        )
    }

    def place(path, x):
        names = _names(path)
        ends = (names[k:] for k in range(len(names)))
        places = (like[end] for end in ends if end in like)
        shape, where = next(places, (None, everywhere))
        return where if shape == x.shape else everywhere

    opt_state = jax.tree_util.tree_map_with_path(place, shapes.opt_state)
    counters = {f.name: everywhere for f in dataclasses.fields(TrainState)}
    return TrainState(**counters | {"params": params, "opt_state": opt_state})


def _names(path) -> tuple[str, ...]:
    """The names in a path; in the optimizer's state the last are a parameter's."""
    keys = (getattr(entry, "key", None) for entry in path)
    return tuple(key for key in keys if isinstance(key, str))


def parameter_shapes(c: ModelConfig) -> dict:
    """Shapes and types of a model's parameters."""
    return nn.unbox(_boxed_shapes(c))


def update_of(config: Config) -> Update:
    return Update(config.optimizer, config.training.num_steps)


def _shapes(config: Config) -> TrainState:
    """Of all arrays of the state."""
    boxed = _boxed_shapes(config.model)
    return jax.eval_shape(lambda boxed: _first(config, nn.unbox(boxed)), boxed)


def _first(config: Config, params: dict) -> TrainState:
    """The state before the first step, with these parameters."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=update_of(config).init(trainable.split(config, params)[0]),
        bad_steps=jnp.zeros((), jnp.int32),
        skipped_steps=jnp.zeros((), jnp.int32),
        usual_loss=jnp.float32(NO_STEP_YET),
        rollbacks=jnp.zeros((), jnp.int32),
    )


@functools.cache
def _boxed_shapes(c: ModelConfig) -> dict:
    """Of `_init_boxed`, which traces the whole model."""
    return jax.eval_shape(lambda: _init_boxed(c, 0))


def _init_boxed(c: ModelConfig, seed: int) -> dict:
    """Parameters in boxes that name their axes; no kernel changes them."""
    c = dataclasses.replace(c, attention_implementation="xla")
    tokens_BL = jnp.zeros((1, c.max_len), jnp.int32)
    return Transformer(c).init(jax.random.key(seed), tokens_BL)["params"]
