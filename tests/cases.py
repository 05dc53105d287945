"""Model configurations that the suites run over: every combination that is allowed."""

import dataclasses
import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from diffeq_former.config import MeshConfig, ModelConfig, Stabilisers
from diffeq_former.config.model_validation import validate_model
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.ode.grid import Grid, on_points
from diffeq_former.ode.solvers import SOLVERS

TINY = ModelConfig(
    num_layers=3,
    d_model=16,
    num_heads=2,
    d_ff=24,
    vocab_size=32,
    max_len=8,
    time_embed_dim=4,
    num_frequencies=5,
    dtype="float32",
)

# Options of the architecture that change what a model computes.
OPTIONS = {"qk_norm": True, "activation": "relu_squared", "logit_softcap": 2.0}

# Wide enough that what is small in real models, such as norms, is small here.
WIDE = ModelConfig(
    num_layers=3,
    d_model=64,
    num_heads=8,
    vocab_size=128,
    max_len=32,
    time_embed_dim=16,
    num_frequencies=8,
    dtype="float32",
    remat="full",
)
# Of eight devices, by name.
EVERY_MESH = {
    "data": {"data": 8},
    "fsdp": {"data": 1, "fsdp": 8},
    "sequence": {"data": 1, "sequence": 8},
    "tensor": {"data": 1, "tensor": 8},
    "data-fsdp-tensor": {"data": 2, "fsdp": 2, "tensor": 2},
    "fsdp-sequence-tensor": {"data": 1, "fsdp": 2, "sequence": 2, "tensor": 2},
}


def mesh_of(num_devices: int = 1, **axes: int) -> Mesh:
    return make_mesh(MeshConfig(**axes), jax.devices()[:num_devices])


def allowed(**fixed) -> list[ModelConfig]:
    """Allowed combinations in which every two of block, source and solver meet.

    The hypernetwork comes with every block and solver; the other sources with every
    solver, the blocks taking turns. What is `fixed` stays so.
    """
    both = itertools.product(["hypernetwork"], SOLVERS, BLOCKS)
    return _allowed([*both, *_in_turn(set(SOURCES) - {"hypernetwork"})], fixed)


def allowed_in_turn(**fixed) -> list[ModelConfig]:
    """As `allowed`, for what hardly depends on the block: they all take turns."""
    return _allowed(_in_turn(SOURCES), fixed)


def _in_turn(sources) -> list[tuple[str, str, str]]:
    turns = itertools.cycle(BLOCKS)
    pairs = itertools.product(sorted(sources), SOLVERS)
    return [(*pair, next(turns)) for pair in pairs]


def _allowed(combinations, fixed: dict) -> list[ModelConfig]:
    configs = {}
    for weights, solver, block in combinations:
        chosen = {"weights": weights, "solver": solver, "block": block} | fixed
        config = dataclasses.replace(TINY, **chosen)
        if is_allowed(config):
            configs[config] = None
    return list(configs)


def model(block: str, weights: str, solver: str, **changes) -> ModelConfig:
    chosen = {"block": block, "weights": weights, "solver": solver}
    return dataclasses.replace(TINY, **chosen | changes)


def covering() -> list[ModelConfig]:
    """Every two of block, source and solver that are allowed together meet.

    All that is in `stabilised` and `at_other_depths` is among them.
    """
    usual = (
        ("gpt", "hypernetwork", "euler"),
        ("llama", "shared", "euler"),
        ("gpt", "shared", "lie_trotter"),
        ("gpt", "hypernetwork", "strang"),
        ("gpt", "shared", "strang"),
        ("llama", "layer_table", "strang"),
        ("llama", "hypernetwork", "midpoint"),
        ("gpt", "shared", "midpoint"),
        ("gpt", "layer_table", "midpoint"),
        ("gpt", "shared", "heun"),
        ("llama", "hypernetwork", "rk4"),
        ("gpt", "shared", "rk4"),
        ("gpt", "layer_table", "rk4"),
    )
    return [*(model(*names) for names in usual), *stabilised(), *at_other_depths()]


def stabilised() -> list[ModelConfig]:
    """Every norm and residual connection other than the usual ones, and every source.

    Post-norm goes with one solver only.
    """
    chosen = (
        ("gpt", "layer_table", "lie_trotter", Stabilisers(1.0, "post")),
        ("llama", "hypernetwork", "lie_trotter", Stabilisers(0.5, "post")),
        ("gpt", "hypernetwork", "euler", Stabilisers(0.0, "none")),
        ("llama", "shared", "lie_trotter", Stabilisers(1.0, "none")),
        ("gpt", "layer_table", "lie_trotter", Stabilisers(0.0, "pre")),
        ("llama", "layer_table", "euler", Stabilisers(0.5, "pre")),
    )
    names = ("block", "weights", "solver", "stabilisers")
    given = (dict(zip(names, values, strict=True)) for values in chosen)
    return [dataclasses.replace(TINY, **fields) for fields in given]


def at_other_depths() -> list[ModelConfig]:
    """In fewer steps than trained, and in more."""
    llama = model("llama", "hypernetwork", "heun")
    plain = model("gpt", "layer_table", "heun")
    return [TINY.at_depth(2), llama.at_depth(5), plain.at_depth(5)]


def uneven_grid(c: ModelConfig, seed: int = 1) -> Grid:
    """Steps of random lengths."""
    lengths_T = np.random.default_rng(seed).uniform(0.5, 1.5, c.num_layers)
    points_T1 = np.concatenate([[0], np.cumsum(lengths_T) / lengths_T.sum()])
    return on_points(points_T1, SOLVERS[c.solver].nodes)


def with_options() -> ModelConfig:
    """All `OPTIONS`, with grouped queries and two evaluations a step."""
    grouped = {"num_heads": 4, "num_kv_heads": 2}
    return model("llama", "hypernetwork", "midpoint", **grouped, **OPTIONS)


def coupled() -> ModelConfig:
    """Reversible steps, which have two states."""
    return dataclasses.replace(with_options(), backward="reversible")


def in_two_lots(cases, is_quick) -> list:
    """Parameters of a test, of which those that are not quick are left out at first."""
    return [
        pytest.param(case, marks=[] if is_quick(case) else pytest.mark.slow)
        for case in cases
    ]


def is_allowed(config: ModelConfig) -> bool:
    try:
        validate_model(config)
    except UserError:
        return False
    return True


def name(config: ModelConfig) -> str:
    s, known = config.stabilisers, f"{config.block}-{config.weights}-{config.solver}"
    if config.num_layers != TINY.num_layers:
        known += f"-{config.num_layers}_steps"
    if config.qk_norm:
        known += "-options"
    if config.backward == "reversible":
        known += "-reversible"
    return known if s == Stabilisers() else f"{known}-{s.norm}-{s.residual:g}"


@functools.cache
def shapes_of(config: ModelConfig):
    """The parameters' shapes."""
    init = Transformer(config).init
    boxed = jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    return jax.tree.map(lambda x: x.shape, nn.unbox(boxed)["params"])


def params_of(config: ModelConfig, seed: int = 0, stddev: float = 0.2):
    """Parameters of which none is zero and with which the weights move in time."""
    random = np.random.default_rng(seed)

    def draw(path, shape):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(random.normal(mean, stddev, shape), jnp.float32)

    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    return jax.tree_util.tree_map_with_path(draw, shapes_of(config), **is_shape)


def tokens_of(config: ModelConfig, batch: int = 2, seed: int = 1) -> np.ndarray:
    shape = (batch, config.max_len)
    return np.random.default_rng(seed).integers(0, config.vocab_size, shape)
