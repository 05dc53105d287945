"""Import of a Hugging Face folder as a run at step 0."""

import contextlib
import dataclasses
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from diffeq_former.atomic_io import atomic_directory
from diffeq_former.config import Config, MeshConfig, ModelConfig
from diffeq_former.conversion import hf_tokenizer, hypernetwork_fit
from diffeq_former.conversion.architecture import to_params
from diffeq_former.conversion.architectures import of_config, read_model
from diffeq_former.conversion.hf_folder import CONFIG, HFFolder
from diffeq_former.distributed.mesh import check_model_fits
from diffeq_former.errors import UserError
from diffeq_former.training import run_directory, state
from diffeq_former.training.checkpoint import Checkpoints
from diffeq_former.training.run_directory import LoadedRun


def model_of(folder: HFFolder) -> ModelConfig:
    """Return the layer_table that a folder's config.json describes."""
    with _named(folder.path / CONFIG):
        return read_model(of_config(folder.config), folder.config)


def params_of(folder: HFFolder, model: ModelConfig, **options) -> dict:
    """Read the parameters of the layer_table, float32; options as for `to_params`."""
    architecture = of_config(folder.config)
    with _named(folder.path):
        return to_params(architecture, model, folder.keys, folder.read, **options)


def sharded_params_of(folder: HFFolder, config: Config, mesh: Mesh) -> dict:
    """As `params_of`, each sharded over the mesh before the next one is read."""
    shardings = flatten_dict(state.shardings(config, mesh).params)

    def place(path, array):
        return jax.block_until_ready(jax.device_put(array, shardings[path]))

    return params_of(folder, config.model, place=place)


def load(path: Path, mesh: Mesh) -> LoadedRun:
    """Load the model of a Hugging Face folder as a run at step 0.

    Raises:
      UserError: If the folder cannot be read, the model is not supported, or the mesh
        does not divide its dimensions.
    """
    folder = HFFolder(path)
    model = model_of(folder)
    tokenizer = hf_tokenizer.read(path, folder.config, model.vocab_size)
    check_model_fits(model, mesh)
    config = Config(model=model)
    params = sharded_params_of(folder, config, mesh)
    return LoadedRun(path, config, params, tokenizer, 0, mesh)


def import_run(
    path: Path,
    output: Path,
    mesh_config: MeshConfig,
    mesh: Mesh,
    time_embed_dim: int | None = None,
    dtype: str | None = None,
) -> tuple[Config, dict[str, float]]:
    """Write the model of a Hugging Face folder as a run at step 0.

    Args:
      path: The Hugging Face folder.
      output: The folder of the run, which must not exist; written atomically.
      mesh_config: The mesh config of the run.
      mesh: The mesh of that config.
      time_embed_dim: Size E of the time embedding of the hypernetwork that is fitted
        to the model; 0: the number of layers; None: keep a layer_table.
      dtype: The model's dtype, in which it is computed; None: float32 if the tensors
        are stored in float32, otherwise bfloat16.

    Returns:
      The config of the run, and for a hypernetwork the relative error of the weights of
      each linear layer and norm.

    Raises:
      UserError: If the folder cannot be read, or the model is not supported.
    """
    folder, errors = HFFolder(path), {}
    model = model_of(folder)
    model = dataclasses.replace(model, dtype=dtype or model.dtype)
    tokenizer = hf_tokenizer.read(path, folder.config, model.vocab_size)
    check_model_fits(model, mesh)
    config = Config(model=model, mesh=mesh_config)
    with atomic_directory(output) as aside:
        if time_embed_dim is None:
            params = sharded_params_of(folder, config, mesh)
        else:
            params, E = params_of(folder, model), time_embed_dim or model.num_layers
            model = hypernetwork_fit.continuous_model(model, E)
            params, errors = hypernetwork_fit.fit(model, params)
            config = dataclasses.replace(config, model=model)
        run_directory.write_without_data(aside, config, tokenizer)
        hf_tokenizer.keep(path, folder.config, aside / run_directory.TOKENIZER)
        checkpoints = Checkpoints(aside / run_directory.CHECKPOINTS, 1, 0)
        with contextlib.closing(checkpoints):
            first = state.with_params(config, mesh, params, donate=True)
            checkpoints.save(0, first)
    return config, errors


@contextlib.contextmanager
def _named(path: Path):
    """Prefix the message of a UserError with the file or folder it is about."""
    try:
        yield
    except UserError as error:
        text = str(error)
        raise UserError(text if str(path) in text else f"{path}: {text}") from error
