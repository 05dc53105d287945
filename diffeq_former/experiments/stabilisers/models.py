"""The models that the study trains: what run.py needs to know about each of them."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
from jax.sharding import Mesh

from diffeq_former.analysis import depth
from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import mesh_hardware
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import state as states
from diffeq_former.training.step import step_function


class Model(Protocol):
    """A model with the config of its run; see `PlainTransformer`."""

    config: Config
    step: ClassVar[Callable]  # as `depth.step`
    logits: ClassVar[Callable]  # as `depth.logits`

    def first_state(self, seed: jax.Array, mesh: Mesh) -> Any: ...

    def train_step(
        self, state: Any, batch_BL: dict, mesh: Mesh
    ) -> tuple[Any, dict]: ...

    def tabulate(self, params: dict) -> dict: ...


@dataclasses.dataclass(frozen=True)
class PlainTransformer:
    """A Transformer of the package, in the package's own training."""

    config: Config
    step: ClassVar[Callable] = staticmethod(depth.step)
    logits: ClassVar[Callable] = staticmethod(depth.logits)

    def first_state(self, seed: jax.Array, mesh: Mesh):
        """Return the state of a training, whose `params` are sampled from the seed."""
        params = states.first_params(dataclasses.replace(self.config, seed=seed))
        return states.with_params(self.config, mesh, params)

    def train_step(self, state, batch_BL: dict, mesh: Mesh):
        """Return the next state and metrics: `loss`, `grad_norm`, `skipped_steps`.

        The learning rate of the config may be traced.
        """
        return step_function(self.config, 1, mesh_hardware(mesh))(state, batch_BL)

    def tabulate(self, params: dict) -> dict:
        """Return the weight table, arrays with leading axes [T, S]."""
        return table_of(self.config.model, params)


def table_of(c: ModelConfig, params: dict) -> dict:
    """Return the weight table of a Transformer with these parameters."""
    return Transformer(c).apply({"params": params}, method="tabulate")
