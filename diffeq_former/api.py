"""A trained model in a few lines: generate, evaluate, export, look at its weights.

    run = diffeq_former.load("runs/demo")
    run.generate("It was", max_new_tokens=50, temperature=0.8)
    run.evaluate(num_steps=8)

See docs/api.md.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.analysis.loaded_model import LoadedModel, encode, sentence_states
from diffeq_former.config import MeshConfig
from diffeq_former.conversion import import_run
from diffeq_former.conversion.export_run import Exported, export_run
from diffeq_former.data.dataset import MANIFEST
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.errors import UserError
from diffeq_former.hardware import hardware_of
from diffeq_former.inference.adaptive_steps import (
    AdaptedModel,
    adapt,
    adaptive_solver,
)
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.inference.resolve_dataset import load_dataset
from diffeq_former.inference.solver_steps import at_depth
from diffeq_former.inference.text import continue_texts
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import run_directory
from diffeq_former.training.run_directory import LoadedRun


class Run(LoadedRun):
    """A trained model that generates text, and can be evaluated and analysed."""

    @property
    def model(self) -> Transformer:
        """The linen module: `run.model.apply({"params": run.params}, tokens_BL)`."""
        return Transformer(self.config.model, hardware=hardware_of(jax.devices()[0]))

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        rtol: float = 0.0,
    ) -> str | list[str]:
        """Return the prompt with its continuation; a list for several prompts.

        Args:
          prompts: One text or several; an empty one starts a new text.
          max_new_tokens: The maximum number of tokens that follow a prompt.
          temperature: The sampling temperature; 0: greedy decoding.
          top_k: Sample only from the k most likely tokens; 0: from all.
          top_p: Sample only from the nucleus with this total probability.
          min_p: Sample only from tokens at least this times as probable as the most
            likely one.
          presence_penalty: Subtract this from the logits of new tokens so far; -2 to 2.
          frequency_penalty: The same, times how often each of them occurs; -2 to 2.
          seed: The seed of the sampling; prompt i uses seed + i.
          stop: A text ends before the first of these strings.
          rtol: The tolerance of adaptive steps over depth (`ode/adaptive.py`), which
            are chosen for the prompts and kept for what follows; 0: the run's steps.

        Raises:
          UserError: If a value is out of range, a prompt leaves too little room, or the
            run's solver cannot adapt its steps.
        """
        several = [prompts] if isinstance(prompts, str) else list(prompts)
        generator = self._generator
        if rtol and several:
            adapted = self.adapt(several, rtol)
            given = (adapted.config, self.mesh, self.tokenizer.vocab_size)
            generator = Generator(*given, grid=adapted.grid)
        loaded = (generator, self.tokenizer, self.params)
        texts = continue_texts(
            *loaded,
            several,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            seed=seed,
            stop=stop,
        )
        return texts[0] if isinstance(prompts, str) else texts

    def evaluate(
        self,
        num_steps: int | None = None,
        *,
        data: str | Path | None = None,
        batch_size: int | None = None,
        solver: str | None = None,
        rtol: float = 0.0,
        exit_threshold: float = 0.0,
    ) -> dict[str, float]:
        """Return the loss on the validation split of a dataset.

        Args:
          num_steps: The number of solver steps; None: that of the config.
          data: A prepared dataset with the run's tokenizer; None: the run's.
          batch_size: The number of sequences in a batch; None: those of a micro-batch
            of training.
          solver: A name that ode/solvers.py knows, such as heun or diffrax:Tsit5; None:
            the solver of the config.
          rtol: The tolerance of adaptive steps, which are those of a batch
            (`ode/adaptive.py`); the first one that is tried is one of `num_steps`. 0:
            steps are not adaptive.
          exit_threshold: Change of a token's prediction in a step, in nats, below which
            it takes no further step (`inference/early_exit.py`). 0: tokens take all.

        Returns:
          `loss` (nats per token), `perplexity`, `bits_per_byte`, `tokens`; with
          adaptive steps `num_evaluations`, the mean number of evaluations of the vector
          field for a batch; with early exit `mean_num_steps`.

        Raises:
          UserError: If there is no such dataset or solver, the dataset has another
            tokenizer, the model has no weights for these steps, adaptive steps become
            too many, or the threshold is negative or given together with a tolerance.
        """
        if exit_threshold < 0 or (exit_threshold and rtol):
            expected = "0, as steps adapt to rtol" if rtol else "0 or more"
            raise UserError(f"exit_threshold={exit_threshold:g}: expected {expected}")
        model = at_depth(self.config.model, num_steps, solver)
        config = dataclasses.replace(self.config, model=model)
        if batch_size is not None:
            if batch_size < 1:
                raise UserError(f"batch_size: expected 1 or more, got {batch_size}")
            training = dataclasses.replace(
                config.training, batch_size=batch_size, per_device_batch_size=0
            )
            config = dataclasses.replace(config, training=training)
        dataset = load_dataset(self, data)
        config = run_directory.fit(config, dataset)
        adaptive = adaptive_solver(model, rtol) if rtol else None
        given = (config, dataset, self.mesh, adaptive, exit_threshold)
        return make_evaluate(*given)(self.params)

    def adapt(self, texts: Sequence[str], rtol: float) -> AdaptedModel:
        """Return the steps over depth that the run's solver chooses for texts.

        Args:
          texts: The texts, as one batch.
          rtol: The tolerance, see `ode/adaptive.py`.

        Raises:
          UserError: If the solver has no estimate of its error, the tolerance is out of
            range or needs too many steps, or a text is too long.
        """
        before = self.tokenizer.before
        contexts = [[*before, *self.tokenizer.encode(text)] for text in texts]
        return adapt(self.config.model, self.params, contexts, self.mesh, rtol)

    def field(self, t: float, x_BLD: jax.Array) -> jax.Array:
        """Return the vector field dx/dt = f(t, x) that the model integrates, [B, L, D].

        Args:
          t: Depth in [0, 1].
          x_BLD: States of sequences from their first position on.
        """
        return self.model.apply({"params": self.params}, t, x_BLD, method="field")

    def weights(self, times: Sequence[float] | None = None) -> dict[str, dict]:
        """Return W(t) at some times, as arrays [T, ...] in float32 on the host.

        Args:
          times: Times in [0, 1]; None: those at which each solver step evaluates the
            weights last.

        Returns:
          For each linear map and norm of the block its `kernel` and `bias`, or its
          `scale` and `shift`.

        Raises:
          UserError: If a time is outside [0, 1].
        """
        trained = self.for_analysis
        times_T = trained.times(None) if times is None else np.array(times, np.float32)
        return trained.weights_at(times_T)

    def trajectory(self, text: str) -> np.ndarray:
        """Return the states before the first and after each solver step.

        Returns:
          An array [steps + 1, L, D], float32. L counts the tokens of the text and the
          start tokens that precede it.

        Raises:
          UserError: If the text is empty or too long for the model.
        """
        trained = self.for_analysis
        [sentence] = encode(trained, [text])
        return sentence_states(trained, sentence)

    def export(
        self,
        path: str | Path,
        *,
        dtype: str = "float32",
        license: str | None = None,
    ) -> Exported:
        """Write the model as a folder that `transformers` loads, with a model card.

        A continuous model is discretised into its number of solver steps, which `load`
        can change; see docs/conversion.md.

        Args:
          path: The new folder, which must not exist.
          dtype: The type of the stored tensors, float32 or bfloat16.
          license: The license that the model card names, an identifier of the hub such
            as apache-2.0; None: the card names none.

        Returns:
          The `architecture`, `num_layers`, and the `difference` of the logits from the
          run's, relative to the largest one.

        Raises:
          UserError: If the folder exists, the model has no Hugging Face equivalent or
            adapters that are not merged, or what was written computes something else.
        """
        return export_run(self, Path(path), dtype, license=license)

    @functools.cached_property
    def for_analysis(self) -> LoadedModel:
        """The model as the functions of `diffeq_former.analysis` take it."""
        return LoadedModel(
            self.name, self.config.model, self.params, self.tokenizer, self.mesh
        )

    @functools.cached_property
    def _generator(self) -> Generator:
        return Generator(self.config.model, self.mesh, self.tokenizer.vocab_size)


def load(
    path: str | Path,
    *,
    step: int | None = None,
    num_steps: int | None = None,
    solver: str | None = None,
    mesh: MeshConfig | Mesh | None = None,
) -> Run:
    """Load a trained model.

    Args:
      path: The folder of a run, or of a Hugging Face model: GPT-2, Llama, or one that
        tools/export_hf.py wrote.
      step: The checkpoint's step; None: the latest that is not damaged.
      num_steps: The number of solver steps; None: that of training.
      solver: A name that ode/solvers.py knows, such as heun or diffrax:Tsit5; None:
        that of training.
      mesh: The mesh to shard the parameters over; None: that of the run's config.

    Raises:
      UserError: If the folder holds no such model, its files are damaged, the mesh does
        not suit it, or it has no weights for this number of steps of the solver.
    """
    path = Path(path)
    of_run = (path / MANIFEST).exists() or not (path / run_directory.CONFIG).exists()
    if mesh is None:
        mesh = run_directory.read_config(path).mesh if of_run else MeshConfig()
    if isinstance(mesh, MeshConfig):
        mesh = make_mesh(mesh)
    if of_run:
        loaded = run_directory.load(path, mesh, step)
    elif step is not None:
        raise UserError(
            f"step={step}: {path} is a Hugging Face model, which has no checkpoints;"
            " leave it out"
        )
    else:
        loaded = import_run.load(path, mesh)
    config = loaded.config
    if num_steps is not None or solver is not None:
        model = at_depth(config.model, num_steps, solver)
        config = dataclasses.replace(config, model=model)
    fields = {f.name: getattr(loaded, f.name) for f in dataclasses.fields(loaded)}
    return Run(**fields | {"config": config})
