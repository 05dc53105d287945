"""A trained model and encoded sentences, as the analyses take them."""

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
from diffeq_former.models.grid import default_grid, with_equal_steps
from diffeq_former.models.transformer import Transformer, outer_params
from diffeq_former.ode.grid import Grid, stage_times
from diffeq_former.ode.solvers import get_solver

START = "[start]"  # label of the tokens that open a document


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A trained model for analyses, which compute in float32 on one device.

    Only the weight table is generated on the mesh over which the parameters are
    sharded.
    """

    name: str
    model: ModelConfig
    params: dict
    tokenizer: Tokenizer
    mesh: Mesh

    @property
    def config(self) -> ModelConfig:
        """The model's config for inference in float32."""
        return dataclasses.replace(self.model.for_inference(), dtype="float32")

    @functools.cached_property
    def outer(self) -> dict:
        """The parameters outside the integration: embeddings, final norm, head."""
        return jax.device_get(outer_params(self.params))

    @functools.cached_property
    def table(self) -> dict:
        """The weight table of all steps: arrays with leading axes [T, S].

        It is that of steps of equal length: where lengths differ, they are absorbed.
        """
        return jax.device_get(with_equal_steps(self.config, self._tabulate(None)))

    @property
    def is_continuous(self) -> bool:
        """Whether the weights change within a step of training."""
        return self.config.weights != "layer_table"

    def times(self, num_times: int | None) -> np.ndarray:
        """Return the last stage time, in [0, 1], of each of `num_times` steps.

        For None or the model's number of layers, these are the times used in training.
        """
        c = self.config
        if num_times in (None, c.num_layers):
            return default_grid(c).times_TS[:, -1]
        return stage_times(num_times, get_solver(c.solver).nodes)[:, -1]

    def weights_at(self, times_T: np.ndarray) -> dict:
        """Return the weights at the given times: arrays with a leading axis T.

        Raises:
          UserError: If a time is outside [0, 1].
        """
        if not np.all((times_T >= 0) & (times_T <= 1)):
            raise UserError(f"times={list(times_T)}: expected times in [0, 1]")
        table = self._tabulate(Grid(jax.numpy.asarray(times_T)[:, None], None))
        return jax.tree.map(lambda w: w[:, 0], table)

    def _tabulate(self, grid: Grid | None) -> dict:
        return jax.device_get(on_mesh(self.mesh, self._generate)(self.params, grid))

    @functools.cached_property
    def _generate(self):
        return jax.jit(
            lambda params, grid: Transformer(self.config).apply(
                {"params": params}, grid, method="tabulate"
            )
        )


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A text with its token ids, including the tokenizer's start tokens."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]  # each id as readable text


def read_sentences(path: Path) -> list[str]:
    """Return the lines of a text file.

    Raises:
      UserError: If the file cannot be read or has no lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"--file={path}: cannot be read as text ({error})") from error
    if not lines:
        raise UserError(f"--file={path}: it is empty; write one sentence a line")
    return lines


def encode(trained: LoadedModel, texts: list[str]) -> list[Sentence]:
    """Tokenise the texts.

    Raises:
      UserError: If a text is empty or longer than the model's context.
    """
    tokenizer = trained.tokenizer
    before, most = tokenizer.before, trained.config.max_len - len(tokenizer.before)
    sentences = []
    for number, text in enumerate(texts, 1):
        ids = tokenizer.encode(text) if text.strip() else []
        if not ids:
            raise UserError(f"sentence {number} is empty: add some text or remove it")
        if len(ids) > most:
            raise UserError(
                f"sentence {number} has {len(ids)} tokens, but the model has room for"
                f" only {most} after the start tokens: shorten it"
            )
        tokens = ([START] * len(before)) + [tokenizer.decode([i]) for i in ids]
        sentences.append(Sentence(text, (*before, *ids), tuple(tokens)))
    return sentences


def sentence_states(trained, sentence) -> np.ndarray:
    """Return the states before the first step and after each step [T + 1, L, D]."""
    x_LD = depth.embed(trained.config, trained.outer, np.asarray(sentence.ids))
    return np.asarray(depth.states(trained.config, trained.table, x_LD))


def depths(trained) -> np.ndarray:
    """Return the times of `sentence_states`, as fractions of depth: [T + 1]."""
    lengths_T, T = default_grid(trained.config).lengths_T, trained.config.num_layers
    if lengths_T is None:
        return np.linspace(0, 1, T + 1)
    return np.concatenate([[0], np.cumsum(lengths_T)])
