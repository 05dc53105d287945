"""An import holds one parameter at a time beside those that are on the devices."""

import json
import shutil
import subprocess
import sys
import weakref

import jax
import numpy as np
import pytest
from hf_fixtures import FIXTURES

from diffeq_former.config import ModelConfig
from diffeq_former.conversion import hf_folder
from diffeq_former.conversion.architecture import to_tensors
from diffeq_former.conversion.hf_folder import HFFolder
from diffeq_former.conversion.import_run import model_of, params_of
from diffeq_former.conversion.llama import LLAMA
from diffeq_former.training.state import parameter_shapes

# Load a folder, and print how much the peak memory has grown, in bytes.
LOAD = r"""
import re, sys
from pathlib import Path
from diffeq_former.config import MeshConfig
from diffeq_former.conversion import import_run
from diffeq_former.distributed.mesh import make_mesh
def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024
mesh, before = make_mesh(MeshConfig()), peak()
run = import_run.load(Path(sys.argv[1]), mesh)
print(peak() - before)
"""


@pytest.mark.parametrize("name", ["sharded", "gpt2"])
def test_a_parameter_and_a_tensor_are_held_at_a_time(name):
    folder, alive, most = HFFolder(FIXTURES / name), [], []
    model, read = model_of(folder), folder.read

    def watched(array):
        owner = array if array.base is None else array.base
        if all(ref() is not owner for ref in alive):
            alive.append(weakref.ref(owner))
        most.append(sum(ref().nbytes for ref in alive if ref() is not None))
        return array

    folder.read = lambda key: watched(read(key))
    placed = params_of(folder, model, place=lambda path, x: watched(x).nbytes)
    sizes = jax.tree.leaves(placed)
    assert max(sizes) <= max(most) <= 2 * max(sizes) < sum(sizes)


@pytest.mark.slow
def test_the_peak_memory_of_a_process(tmp_path):
    """A model of 300 MB; without streaming it is in memory twice."""
    sizes = {"num_layers": 16, "d_model": 512, "d_ff": 2048, "vocab_size": 8000}
    c = ModelConfig(block="llama", solver="lie_trotter", weights="layer_table", **sizes)
    params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), parameter_shapes(c))
    written = {"model_type": LLAMA.model_type, **LLAMA.write_config(c)}
    tensors = to_tensors(LLAMA, c, params)
    hf_folder.write(tmp_path, written, tensors, "float32", 5 * 10**7)
    assert len(list(tmp_path.glob("*.safetensors"))) > 5
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURES / "llama" / name, tmp_path)
    run = [sys.executable, "-c", LOAD, str(tmp_path)]
    found = subprocess.run(run, check=True, capture_output=True, text=True)
    total = sum(x.nbytes for x in jax.tree.leaves(params))
    assert total < json.loads(found.stdout) < 1.6 * total
