"""All programs that can be compiled for a mesh: those of inference beside the step."""

import math
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.config import Config
from diffeq_former.distributed.mesh import layout, replicated, rows_at_once
from diffeq_former.inference import buckets, perplexity
from diffeq_former.inference.cached_model import CachedModel
from diffeq_former.inference.programs import View, make_programs
from diffeq_former.inference.sampling import Rule, Sampling
from diffeq_former.planning.compiled import lower, tokens, training_step
from diffeq_former.training import state


def compile_program(config: Config, mesh: Mesh, name: str = "train"):
    """Compile one of `PROGRAMS` for the devices of the mesh.

    Returns:
      The compiled program, and the bytes of its arguments on one device, those included
      that it does not read.

    Raises:
      UserError: If the mesh does not divide the model or the batch.
      jax.errors.JaxRuntimeError: If a program for TPUs does not fit their memory.
    """
    with layout(mesh):
        function, arguments = PROGRAMS[name](config, mesh)
        compiled = lower(function, mesh, *arguments).compile()
    return compiled, sum(map(_shard_bytes, jax.tree.leaves(arguments)))


def _shard_bytes(x) -> int:
    sharding = getattr(x, "sharding", None)
    shape = sharding.shard_shape(x.shape) if sharding else x.shape
    return math.prod(shape) * x.dtype.itemsize


def _evaluate(config: Config, mesh: Mesh):
    """The sums of one batch of the validation split, as large as a micro-batch."""
    tabulate, sum_batch = perplexity.make_programs(config, mesh)
    params = state.abstract(config, mesh).params
    tokens_BL = tokens(rows_at_once(config.training, mesh), config.model.max_len, mesh)
    batch_BL = {"inputs": tokens_BL, "targets": tokens_BL}
    return sum_batch, (params, _results(tabulate, mesh, params), batch_BL)


def _prefill(config: Config, mesh: Mesh):
    """One call that reads a chunk of each prompt, of as many as in a micro-batch."""
    programs, weights, caches = _generation(config, mesh)
    B = rows_at_once(config.training, mesh)
    C = min(buckets.CHUNK, config.model.max_len)
    tokens_BC = jax.ShapeDtypeStruct((B, C), np.int32, sharding=replicated(mesh))
    arrays, view = (tokens_BC,) * 3, View(None, config.model.max_len)
    return programs.read, (weights, caches, view, *arrays, np.bool_(False))


def _decode(config: Config, mesh: Mesh):
    """One call that decodes `programs.STRIDE` tokens of each sequence."""
    programs, weights, caches = _generation(config, mesh)
    B = rows_at_once(config.training, mesh)
    numbers_B = np.zeros(B, np.int32)
    new_BS = np.zeros((B, config.model.max_len), np.int32)
    state = (np.zeros((B, 2), np.int32), *[numbers_B] * 3, new_BS)
    rule = Rule.of([Sampling()] * B)
    given = (*state, np.int32([0]), rule, np.bool_(False))
    return programs.decode, (weights, caches, View(None, config.model.max_len), *given)


def _generation(config: Config, mesh: Mesh):
    """Return the programs of generation, and abstract weights and caches."""
    c = config.model
    programs = make_programs((CachedModel(c),), mesh, 0, c.vocab_size)
    params = state.abstract(config, mesh).params
    B = rows_at_once(config.training, mesh)
    weights = _results(programs.tabulate, mesh, params)
    return programs, weights, _results(programs.empty, mesh, B, c.max_len)


def _results(function: Callable, mesh: Mesh, *arguments):
    """Return shapes and shardings of the results of a jitted function."""
    lowered = lower(function, mesh, *arguments)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        lowered.out_info,
        lowered.compile().output_shardings,
    )


PROGRAMS = {
    "train": training_step,
    "evaluate": _evaluate,
    "prefill": _prefill,
    "decode": _decode,
}
