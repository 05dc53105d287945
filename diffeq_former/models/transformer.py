"""The model: embed, integrate dx/dt = f(x, W(t)) over depth, normalise, project.

B batch, L length, D model, V vocabulary, T grid steps, S stage times of a step.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.hardware import CPU, Hardware
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.depth import depth_module, initial_state, solution
from diffeq_former.models.embedding import Embedding, FinalNorm, Head
from diffeq_former.models.grid import default_grid
from diffeq_former.models.hypernetwork import Hypernetwork
from diffeq_former.models.logits import project
from diffeq_former.models.partition import HIDDEN, constrain, constrain_weights
from diffeq_former.models.step import VectorField
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.ode.grid import Grid, segment_time


class Transformer(nn.Module):
    """A decoder-only language model of continuous depth.

    The state after each step is sown as `depth/state` into the collection
    "intermediates". In training, the transport cost of each step is sown as
    `depth/transport` into "costs".

    Attributes:
      config: The model's configuration.
      train: Apply dropout, with the rng "dropout".
      cached: Read and write keys and values in the collection "cache" (pass
        `mutable=["cache"]`), at the positions `positions_BL`; see `Attend`.
      hardware: What the program is compiled for; it decides on attention kernels. Those
        of the default run everywhere.
    """

    config: ModelConfig
    train: bool = False
    cached: bool = False
    hardware: Hardware = CPU

    def setup(self):
        c = self.config
        self.block = BLOCKS[c.block]
        self.weights = SOURCES[c.weights](c, self.block.weight_specs(c))
        self.embedding = Embedding(c, self.train)
        self.final_norm = FinalNorm(c, self.block.final_norm_spec(c))
        if not self.block.tied_head(c):
            self.head = Head(c)
        given = (c, self.train, self.cached, self.hardware)
        self.depth, self.vector_field = depth_module(*given), VectorField(*given)

    def __call__(self, tokens_BL: jax.Array, **options) -> jax.Array:
        """Return the logits [B, L, V], float32; the options are those of `hidden`."""
        return self.logits(self.hidden(tokens_BL, **options))

    def hidden(
        self,
        tokens_BL: jax.Array,
        *,
        embedded_BLD: jax.Array | None = None,
        table: dict | None = None,
        grid: Grid | None = None,
        positions_BL: jax.Array | None = None,
        sequences_B: jax.Array | None = None,
    ) -> jax.Array:
        """Return the normalised state at the end of depth, [B, L, D].

        Args:
          tokens_BL: Token ids.
          embedded_BLD: The result of `embed` for them; None computes it here.
          table: The result of `tabulate` for the same parameters and grid; None
            computes it here.
          grid: The depth grid, with the nodes of the model's solver and `num_layers`
            steps; None stands for `default_grid`.
          positions_BL: Positions of the tokens in their sequences; None stands for
            0, 1, ...
          sequences_B: Numbers of the sequences, with which their dropout masks are
            sampled; None stands for 0, 1, ...
        """
        c = self.config
        positions_BL, sequences_B = _positions_and_sequences(
            tokens_BL, positions_BL, sequences_B
        )
        segments_BL = self._segments(tokens_BL)
        grid = grid or default_grid(c)
        if c.generate_weights == "per_step":
            parameters, per_step = self.weights(), grid.times_TS
        else:
            parameters, per_step = None, self.tabulate(grid) if table is None else table
        context = (parameters, positions_BL, segments_BL, sequences_B)
        x_BLD = embedded_BLD
        if x_BLD is None:
            x_BLD = self.embed(tokens_BL, positions_BL, sequences_B)
        per_step = (per_step, grid.lengths_T)
        state, _ = self.depth(initial_state(c, x_BLD), per_step, context)
        return self.normalise(solution(c, state))

    def normalise(self, x_BLD: jax.Array) -> jax.Array:
        """Apply the final norm to the state at the end of depth, [B, L, D]."""
        x_BLD = self.block.final_norm(self.final_norm(), x_BLD, self.config.norm_eps)
        return constrain(x_BLD, *HIDDEN)

    def embed(
        self,
        tokens_BL: jax.Array,
        positions_BL: jax.Array | None = None,
        sequences_B: jax.Array | None = None,
    ) -> jax.Array:
        """Return the state at the start of depth, [B, L, D]; see `hidden`."""
        given = _positions_and_sequences(tokens_BL, positions_BL, sequences_B)
        return constrain(self.embedding(tokens_BL, *given), *HIDDEN)

    def logits(self, x_BLD: jax.Array) -> jax.Array:
        """Project normalised states to logits [B, L, V], float32."""
        head_DV = self.unembedding().astype(x_BLD.dtype)
        return project(x_BLD, head_DV, self.config.logit_softcap)

    @jax.named_scope("head")
    def unembedding(self) -> jax.Array:
        """Return the matrix [D, V], float32, that maps states to logits."""
        if self.block.tied_head(self.config):
            return self.embedding.token.T
        return self.head()

    def field(
        self,
        t: jax.Array,
        x_BLD: jax.Array,
        *,
        tokens_BL: jax.Array | None = None,
    ) -> jax.Array:
        """Return the vector field dx/dt = f(t, x) that depth integrates, [B, L, D].

        It is causal: dx/dt of a position depends on it and on those before.

        Args:
          t: Depth in [0, 1]. Where W(t) is constant on segments, a time belongs to the
            segment that begins there.
          x_BLD: The state.
          tokens_BL: Token ids, for a model with `document_masking`.
        """
        c = self.config
        if c.segments:
            t = segment_time(t, c.segments)
        grid = Grid(jnp.reshape(t, (1, 1)).astype(jnp.float32), None)
        weights_S = jax.tree.map(lambda w: w[0], self.tabulate(grid))
        positions_BL, sequences_B = _positions_and_sequences(x_BLD[..., 0], None, None)
        segments_BL = self._segments(tokens_BL)
        context = (None, positions_BL, segments_BL, sequences_B)
        return self.vector_field(x_BLD, weights_S, context)

    def _segments(self, tokens_BL: jax.Array | None) -> jax.Array | None:
        """Return the numbers of documents [B, L] if attention is masked across them."""
        if self.cached or not self.config.document_masking:
            return None  # a cache holds one document
        return jnp.cumsum(tokens_BL == self.config.end_of_text, axis=1)

    @jax.named_scope("tabulate")
    def tabulate(self, grid: Grid | None = None) -> dict:
        """Return the block's weights at all times of the grid, with axes [T, S, ...].

        For `grid` see `hidden`.
        """
        c = self.config
        times_TS, specs = (grid or default_grid(c)).times_TS, self.block.weight_specs(c)
        source = SOURCES[c.weights]
        table = source.tabulate(c, specs, self.weights(), times_TS.reshape(-1))
        table = constrain_weights(specs, table)
        return jax.tree.map(lambda w: w.reshape(times_TS.shape + w.shape[1:]), table)

    @jax.named_scope("tabulate")
    def coefficients(self, grid: Grid) -> dict[str, jax.Array]:
        """Return a hypernetwork's u(t) for each weight at all grid times, [T S, E]."""
        c, times = self.config, grid.times_TS.reshape(-1)
        return Hypernetwork.coefficients(
            c, self.block.weight_specs(c), self.weights(), times
        )


def _positions_and_sequences(
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    sequences_B: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Return both, by default 0, 1, ... along their axis."""
    B, L = tokens_BL.shape
    if positions_BL is None:
        positions_BL = jnp.broadcast_to(jnp.arange(L)[None], (B, L))
    if sequences_B is None:
        sequences_B = jnp.arange(B)
    return positions_BL, sequences_B


def outer_params(params: dict) -> dict:
    """Return the parameters outside the blocks: embeddings, final norm and head."""
    return {name: value for name, value in params.items() if name != "weights"}
