"""The training state: everything that a training step changes."""

import dataclasses
import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import parameter_shardings, replicated
from diffeq_former.models.transformer import Transformer
from diffeq_former.training.divergence import NO_STEP_YET
from diffeq_former.training.parts import partition
from diffeq_former.training.update import OptState, Update

# Initialisation runs once; on a CPU its full optimisation would dominate compile time.
QUICK_COMPILATION = {"xla_backend_optimization_level": 1}


@flax.struct.dataclass
class TrainState:
    """All arrays of a run; batches and random keys follow from step and rollbacks."""

    step: jax.Array  # batches consumed
    params: dict  # evaluated and exported: with ema_decay, the running mean
    unaveraged: dict  # with ema_decay, the parameters that steps update; else empty
    opt_state: OptState
    bad_steps: jax.Array  # current number of consecutive bad steps, see divergence.py
    skipped_steps: jax.Array  # total number of steps skipped as not finite
    loss_ema: jax.Array  # running mean of the loss, see divergence.py
    rollbacks: jax.Array  # how often the run diverged and was rolled back


def create(config: Config, mesh: Mesh) -> TrainState:
    """Return the state before the first step, with parameters sampled from the seed.

    Each device initialises its own shards; the values do not depend on the mesh.
    """
    init = jax.jit(
        lambda: _first(config, first_params(config)),
        out_shardings=shardings(config, mesh),
        compiler_options=QUICK_COMPILATION,
    )
    return jax.block_until_ready(init())  # raises here if memory is exhausted


def first_params(config: Config) -> dict:
    """Return parameters sampled from the seed; to be called within a jit."""
    return nn.unbox(_init_boxed(config.model, config.seed))


def with_params(
    config: Config, mesh: Mesh, params: dict, *, donate: bool = False
) -> TrainState:
    """Return the state before the first step of a run with the given parameters.

    With `donate`, they are not copied: arrays that are on the mesh become the state's.
    """
    first = jax.jit(
        lambda params: _first(config, params),
        out_shardings=shardings(config, mesh),
        donate_argnums=(0,) if donate else (),
    )
    return first(params)


def abstract(config: Config, mesh: Mesh) -> TrainState:
    """Return the shapes, dtypes and shardings of the state, without allocating it."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        _shapes(config),
        shardings(config, mesh),
    )


def with_rollbacks(state: TrainState, rollbacks: int) -> TrainState:
    """Return the state with `rollbacks` set to the given number."""
    sharding = state.rollbacks.sharding
    count = jax.make_array_from_callback((), sharding, lambda _: np.int32(rollbacks))
    return state.replace(rollbacks=count)


def shardings(config: Config, mesh: Mesh) -> TrainState:
    """Return the shardings of the state: moments are sharded as the parameters.

    Factored moments are small and replicated.
    """
    params = parameter_shardings(_boxed_shapes(config.model), mesh)
    shapes, on_all = _shapes(config), replicated(mesh)
    by_names = {
        _names(path): (x.shape, sharding)
        for (path, x), sharding in zip(
            jax.tree.leaves_with_path(shapes.params),
            jax.tree.leaves(params),
            strict=True,
        )
    }

    def find_sharding(path, x):
        names = _names(path)
        suffixes = (names[k:] for k in range(len(names)))
        matches = (by_names[suffix] for suffix in suffixes if suffix in by_names)
        shape, sharding = next(matches, ((), on_all))
        # Axes of layers, times or a time embedding are never sharded; moments may have
        # another number of these than the parameter, or no such axis.
        if x.ndim == len(shape) and x.shape[1:] == shape[1:]:
            return sharding
        if shape and x.shape == shape[1:]:
            return NamedSharding(mesh, PartitionSpec(*sharding.spec[1:]))
        return on_all

    opt_state = jax.tree_util.tree_map_with_path(find_sharding, shapes.opt_state)
    counters = {f.name: on_all for f in dataclasses.fields(TrainState)}
    unaveraged = params if shapes.unaveraged else {}
    return TrainState(
        **counters
        | {"params": params, "unaveraged": unaveraged, "opt_state": opt_state}
    )


def _names(path) -> tuple[str, ...]:
    """Return the dictionary keys in a path.

    In the optimizer's state, a suffix of them is the path of a parameter.
    """
    keys = (getattr(entry, "key", None) for entry in path)
    return tuple(key for key in keys if isinstance(key, str))


def parameter_shapes(c: ModelConfig) -> dict:
    """Return the shapes and dtypes of a model's parameters."""
    return nn.unbox(_boxed_shapes(c))


def make_update(config: Config) -> Update:
    c = config.training
    return Update(config.optimizer, c.num_steps, config.model, bool(c.depth_steps))


def _shapes(config: Config) -> TrainState:
    """Return the shapes and dtypes of all arrays of the state."""
    boxed = _boxed_shapes(config.model)
    return jax.eval_shape(lambda boxed: _first(config, nn.unbox(boxed)), boxed)


def _first(config: Config, params: dict) -> TrainState:
    """Return the state before the first step, with these parameters."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        unaveraged=jax.tree.map(jnp.copy, params) if config.optimizer.ema_decay else {},
        opt_state=make_update(config).init(partition(config, params)),
        bad_steps=jnp.zeros((), jnp.int32),
        skipped_steps=jnp.zeros((), jnp.int32),
        loss_ema=jnp.float32(NO_STEP_YET),
        rollbacks=jnp.zeros((), jnp.int32),
    )


def _boxed_shapes(c: ModelConfig) -> dict:
    """Return the shapes of `_init_boxed`."""
    return _trace_boxed(_canonical(c))


@functools.cache
def _trace_boxed(c: ModelConfig) -> dict:
    """Return the shapes of `_init_boxed`; cached, as it traces the whole model."""
    return jax.eval_shape(lambda: _init_boxed(c, 0))


def _canonical(c: ModelConfig) -> ModelConfig:
    """Return the model without settings that do not affect the parameters."""
    # XLA's attention kernel runs everywhere.
    return dataclasses.replace(c, attention_implementation="xla", remat="none")


def _init_boxed(c: ModelConfig, seed: int) -> dict:
    """Return the parameters, boxed with the names of their axes."""
    c = _canonical(c)
    tokens_BL = jnp.zeros((1, c.max_len), jnp.int32)
    return Transformer(c).init(jax.random.key(seed), tokens_BL)["params"]
