import pkgutil
import subprocess
import sys

import diffeq_former.data

MODULES = [
    module.name
    for module in pkgutil.walk_packages(
        diffeq_former.data.__path__, "diffeq_former.data."
    )
]


CODE = f"""
import importlib, sys

def loaded(names): print(*(name for name in names.split() if name in sys.modules))

for name in {MODULES}: importlib.import_module(name)
loaded("jax tensorflow torch grain datasets tensorflow_datasets pyarrow tokenizers")
loaded("sentencepiece")
from diffeq_former.data import dataset, pipeline, unigram
d = dataset.load(sys.argv[1])
next(pipeline.train_batches(d, batch_size=4, seed=0))
next(pipeline.validation_batches(d, batch_size=4))
unigram.bits_per_byte(d)
loaded("grain tensorflow torch")
"""


def test_what_is_imported(prepared_path):
    """By worker processes nothing heavy, no JAX; by the pipeline no TensorFlow."""
    result = subprocess.run(
        [sys.executable, "-c", CODE, prepared_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(MODULES) > 10
    assert result.stdout == "\n\ngrain\n"
