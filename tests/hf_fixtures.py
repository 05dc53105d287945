"""The folders of tests/conversion/fixtures, copies to damage, and runs to export."""

import dataclasses
import json
import shutil
from pathlib import Path

from cases import mesh_of, params_of

from diffeq_former.config import Config, ModelConfig
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.training import run_directory, state
from diffeq_former.training.checkpoint import Checkpoints

FIXTURES = Path(__file__).parent / "conversion/fixtures"
BYTES = ModelConfig(
    num_layers=3,
    d_model=16,
    num_heads=4,
    d_ff=40,
    vocab_size=260,
    max_len=24,
    time_embed_dim=4,
    num_frequencies=5,
    dtype="float32",
    weights="layer_table",
    solver="lie_trotter",
)


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def edit(path: Path, **changes) -> None:
    """Changes entries of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def run_of(folder, changes):
    """A run of the byte tokenizer with random parameters."""
    config = Config(model=dataclasses.replace(BYTES, **changes))
    params = params_of(config.model, stddev=0.3)
    run_directory.write_without_data(folder, config, ByteTokenizer())
    checkpoints = Checkpoints(folder / run_directory.CHECKPOINTS, 1, 0)
    checkpoints.save(0, state.with_params(config, mesh_of(1), params))
    checkpoints.close()
    return config.model, params
