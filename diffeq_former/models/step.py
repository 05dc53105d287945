"""One solver step through a block, the body of the scan over depth.

B batch, L length, D model, S stage times of a step.
"""

import flax.linen as nn
import jax
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.hardware import Hardware
from diffeq_former.models.attention import Attend
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.dropout import Dropout, Noise
from diffeq_former.models.linear import for_training
from diffeq_former.models.lora import with_dropout
from diffeq_former.models.partition import (
    HIDDEN,
    KEYS,
    QUERIES,
    constrain,
    constrain_weights,
)
from diffeq_former.models.remat import (
    FEED_FORWARD_OUTPUT,
    GENERATED_WEIGHTS,
    named,
)
from diffeq_former.models.stabilisers import stabilised_step
from diffeq_former.models.transport import COSTS, cost_of_step
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.ode.solvers import Term, get_solver


class Step(nn.Module):
    """One step x(t) -> x(t + h), as the body of a scan.

    Called with
      x_BLD: The state.
      per_step: The step's weights with a leading axis S (or its times, if weights are
        generated per step), and its length as a fraction of the depth interval (None
        if all steps have the same length).
      context: The values that all steps share: the parameters of the weight source
        (None with a table of weights), positions_BL, segments_BL (or None) and
        sequences_B.

    Attributes:
      config: The model's configuration.
      train: Whether dropout is applied.
      cached: Whether keys and values are read from and written to a cache.
      hardware: What the program is compiled for.
      reverse: Whether the step has the opposite sign, from the end of its interval to
        the start. It uses the same weights, in the opposite order if their nodes are
        symmetric, which is enough for the order of every solver.
    """

    config: ModelConfig
    train: bool
    cached: bool
    hardware: Hardware
    reverse: bool = False

    @nn.compact
    def __call__(self, x_BLD: jax.Array, per_step, context):
        weights_or_times_S, length = per_step
        c, block = self.config, BLOCKS[self.config.block]
        weights_S = self._weights(weights_or_times_S, context[0])
        h = c.step_size
        if length is not None:
            h = (c.interval * length).astype(x_BLD.dtype)
        if self.reverse:
            h, weights_S = -h, self._reversed(weights_S)
        before_BLD, terms = x_BLD, self._terms(weights_S, context)
        x_BLD = stabilised_step(c, block, terms, weights_S, x_BLD, h)
        if self.train and c.depth_noise:
            fraction = 1 / c.num_layers if length is None else length
            x_BLD = Noise(c.depth_noise * fraction**0.5)(x_BLD, context[-1])
        self.sow("intermediates", "state", x_BLD)
        if self.train:
            self.sow(COSTS, "transport", cost_of_step(c, before_BLD, x_BLD, length))
        return x_BLD, None

    def _terms(self, weights_S: dict, context) -> tuple[Term, Term]:
        """Return attention and feed-forward, functions of a stage and a state."""
        _, positions_BL, segments_BL, sequences_B = context
        c, block = self.config, BLOCKS[self.config.block]

        def dropped(dx_BLD):
            return Dropout(c.dropout if self.train else 0.0)(dx_BLD, sequences_B)

        @jax.named_scope("attention")
        def attention(node: int, x_BLD):
            def attend(q_BLNH, k_BLKH, v_BLKH):
                o_BLNH = Attend(c, self.train, self.cached, self.hardware)(
                    constrain(q_BLNH, *QUERIES),
                    constrain(k_BLKH, *KEYS),
                    constrain(v_BLKH, *KEYS),
                    positions_BL,
                    segments_BL,
                    sequences_B,
                )
                return constrain(o_BLNH, *QUERIES)

            weights = self._at(node, weights_S, sequences_B)
            x_BLD = x_BLD.astype(c.dtype)
            dx_BLD = block.attention(c, weights, x_BLD, positions_BL, attend)
            return dropped(constrain(dx_BLD, *HIDDEN))

        @jax.named_scope("feed_forward")
        def feed_forward(node: int, x_BLD):
            weights = self._at(node, weights_S, sequences_B)
            dx_BLD = block.feed_forward(c, weights, x_BLD.astype(c.dtype))
            return dropped(named(FEED_FORWARD_OUTPUT, constrain(dx_BLD, *HIDDEN)))

        return attention, feed_forward

    def _weights(self, weights_or_times_S, parameters) -> dict:
        c = self.config
        if c.generate_weights == "tabulated":
            return weights_or_times_S
        specs = BLOCKS[c.block].weight_specs(c)
        with jax.named_scope("tabulate"):
            generated = SOURCES[c.weights].tabulate(
                c, specs, parameters, weights_or_times_S
            )
        return named(GENERATED_WEIGHTS, constrain_weights(specs, generated))

    def _reversed(self, weights_S: dict) -> dict:
        nodes = get_solver(self.config.solver).nodes
        if any(1 - node not in nodes for node in nodes):
            return weights_S
        order = [nodes.index(1 - node) for node in nodes]
        return jax.tree.map(lambda w: w[np.array(order)], weights_S)

    def _at(self, node: int, weights_S: dict, sequences_B: jax.Array) -> dict:
        weights = jax.tree.map(lambda w: w[node], weights_S)
        if not self.train:
            return weights
        weights = for_training(self.config, weights)
        if not self.config.lora_dropout:
            return weights

        def dropout(x):
            return Dropout(self.config.lora_dropout)(x, sequences_B)

        return with_dropout(weights, dropout)


class VectorField(Step):
    """dx/dt at one time, in units of the depth interval [0, 1]."""

    @nn.compact
    def __call__(self, x_BLD: jax.Array, weights_S: dict, context) -> jax.Array:
        """Return the sum of the terms [B, L, D], given weights of one stage."""
        attention, feed_forward = self._terms(weights_S, context)
        return self.config.interval * (attention(0, x_BLD) + feed_forward(0, x_BLD))
