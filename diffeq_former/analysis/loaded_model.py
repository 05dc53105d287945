"""A trained model as analyses see it, and the sentences that they look at."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.analysis import depth
from diffeq_former.config import ModelConfig
from diffeq_former.data.tokenizers import Tokenizer
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.models.grid import own_grid
from diffeq_former.models.transformer import Transformer, ends_of
from diffeq_former.ode.grid import Grid, stage_times
from diffeq_former.ode.solvers import SOLVERS

START = "[start]"  # how each token that opens a document is shown


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model and what names it. Analyses compute in float32, on one device.

    Only the weights are made where the parameters lie, on the mesh.
    """

    name: str
    model: ModelConfig
    params: dict
    tokenizer: Tokenizer
    mesh: Mesh

    @property
    def config(self) -> ModelConfig:
        return dataclasses.replace(self.model.for_inference(), dtype="float32")

    @functools.cached_property
    def ends(self) -> dict:
        """The parameters at both ends of depth: embeddings, last norm, head."""
        return jax.device_get(ends_of(self.params))

    @functools.cached_property
    def table(self) -> dict:
        """The weights of all steps: units with leading axes [T, S]."""
        return self._tabulate(None)

    def times(self, num_times: int | None) -> np.ndarray:
        """Times in [0, 1]: where so many steps have the last of their nodes.

        Of as many steps as the model has layers (None) these are times of training.

        Raises:
          UserError: for a number that the model has no weights for.
        """
        c = self.config
        if num_times in (None, c.num_layers):
            return np.asarray(own_grid(c).times_TS[:, -1])
        if c.weights == "layer_table" or c.time_pieces:
            raise UserError(
                f"--num_times={num_times}: {self.name} has weights of its"
                f" {c.num_layers} layers and none between them; leave it out"
            )
        return np.asarray(stage_times(num_times, SOLVERS[c.solver].nodes))[:, -1]

    def weights_at(self, times_T: np.ndarray) -> dict:
        """The weights at what `times` gave: units with a leading axis T."""
        table = self._tabulate(Grid(jax.numpy.asarray(times_T)[:, None], None))
        return jax.tree.map(lambda w: w[:, 0], table)

    def _tabulate(self, grid: Grid | None) -> dict:
        make = jax.jit(
            lambda params: Transformer(self.config).apply(
                {"params": params}, grid, method="tabulate"
            )
        )
        return jax.device_get(on_mesh(self.mesh, make)(self.params))


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A text as the model reads it, after what its tokenizer puts before one."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]  # of each id, for people


def read_sentences(path: Path) -> list[str]:
    """The lines of a file, of which none may be empty.

    Raises:
      UserError: for a file that cannot be read, or has no lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"--file={path}: cannot be read as text ({error})") from error
    if not lines:
        raise UserError(f"--file={path}: it is empty; write one sentence a line")
    return lines


def encode(trained: Trained, texts: list[str]) -> list[Sentence]:
    """The texts as token ids.

    Raises:
      UserError: for a text that is empty or longer than the model.
    """
    tokenizer = trained.tokenizer
    before, most = tokenizer.before, trained.config.max_len - len(tokenizer.before)
    sentences = []
    for number, text in enumerate(texts, 1):
        ids = tokenizer.encode(text) if text.strip() else []
        if not ids:
            raise UserError(f"sentence {number} is empty: write some words, or drop it")
        if len(ids) > most:
            raise UserError(
                f"sentence {number} has {len(ids)} tokens, but after its start the"
                f" model has room for {most}: shorten it"
            )
        tokens = ([START] * len(before)) + [tokenizer.decode([i]) for i in ids]
        sentences.append(Sentence(text, (*before, *ids), tuple(tokens)))
    return sentences


def states_of(trained, sentence) -> np.ndarray:
    """Of every token, before the first step and after each: [T + 1, L, D]."""
    x_LD = depth.embed(trained.config, trained.ends, np.asarray(sentence.ids))
    return np.asarray(depth.states(trained.config, trained.table, x_LD))


def depths(trained) -> np.ndarray:
    """The time, as a share of depth, of each of these states."""
    return np.linspace(0, 1, trained.config.num_layers + 1)
