"""The update of all parameters: banks one by one, all others together."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from diffeq_former.config import OptimizerConfig
from diffeq_former.training.bank_update import rows_at_once, update_bank
from diffeq_former.training.hypernetwork_params import join, split, tree_of
from diffeq_former.training.optimizer import make_optimizer
from diffeq_former.training.tree_update import Updated, update_tree


class OptState(NamedTuple):
    rest: optax.OptState
    banks: dict[str, optax.OptState]  # by the name of the unit


@dataclasses.dataclass(frozen=True)
class Update:
    """Clipping by the norm of all gradients, then the optimizer."""

    config: OptimizerConfig
    num_steps: int  # length of the schedule

    def init(self, params: dict) -> OptState:
        rest, banks = split(params)
        trees = {name: tree_of(name, bank) for name, bank in banks.items()}
        of_banks = {name: self._optimizer(t).init(t) for name, t in trees.items()}
        return OptState(self._optimizer(rest).init(rest), of_banks)

    def apply(
        self,
        gradients: dict,
        norm: jax.Array,
        opt_state: OptState,
        params: dict,
        good: jax.Array,
    ) -> Updated:
        """The next parameters; the same if not `good`. See `tree_update.update_tree`.

        Args:
          gradients: like the parameters; of a bank perhaps a BankGradient.
          norm: of all of them: they are scaled down to `clip_norm`.
          opt_state: what `init` made.
          params: all parameters.
          good: whether to update.
        """
        clip = self.config.clip_norm
        scale = jnp.minimum(1.0, clip / norm) if clip else jnp.float32(1.0)
        (rest, banks), (of_rest, of_banks) = split(params), split(gradients)
        done = update_tree(
            self._optimizer(rest), of_rest, opt_state.rest, rest, scale, good
        )
        each = {
            name: update_bank(
                self._optimizer(tree_of(name, bank)),
                name,
                of_banks[name],
                opt_state.banks[name],
                bank,
                scale,
                good,
                rows_at_once(self.config, bank.shape),
            )
            for name, bank in banks.items()
        }

        def joined(field: str) -> dict:
            found = {name: getattr(one, field) for name, one in each.items()}
            return join(getattr(done, field), found)

        return Updated(
            joined("params"),
            OptState(done.opt_state, {k: one.opt_state for k, one in each.items()}),
            joined("update_squares"),
            joined("param_squares"),
        )

    def _optimizer(self, params: dict) -> optax.GradientTransformation:
        return make_optimizer(self.config, self.num_steps, params)
