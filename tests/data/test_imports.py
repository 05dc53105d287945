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


def test_imports_nothing_heavy(environment):
    """Worker processes import the package: no JAX ever, readers only when used."""
    heavy = "jax tensorflow torch grain datasets tensorflow_datasets pyarrow tokenizers"
    code = (
        "import importlib, sys\n"
        f"for name in {MODULES}: importlib.import_module(name)\n"
        f"print([m for m in '{heavy} sentencepiece'.split() if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(MODULES) > 10
    assert result.stdout.strip() == "[]"


def test_pipeline_runs_without_tensorflow(prepared_path, environment):
    code = (
        "import sys\n"
        "from diffeq_former.data import dataset, pipeline, unigram\n"
        f"d = dataset.load({str(prepared_path)!r})\n"
        "next(pipeline.train_batches(d, batch_size=4, seed=0))\n"
        "next(pipeline.validation_batches(d, batch_size=4))\n"
        "unigram.bits_per_byte(d)\n"
        "print([m for m in ('tensorflow', 'torch') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
