"""A run for which memory ends: real processes that may have only so much of it."""

import dataclasses
import random

import jax
import pytest
from loops import train
from prepared import WORDS, prepare_words
from runs import Command, tiny_config

from diffeq_former.errors import OutOfMemoryError
from diffeq_former.process_exit import WRONG_INPUT
from diffeq_former.training import run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest

LONG = 16384
WITH_LITTLE_MEMORY = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (7 << 30, 7 << 30))
sys.argv[0] = "main"
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def dataset(folder):
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=3000)) for _ in range(30)]
    return prepare_words(folder, seq_len=LONG, texts=texts)


def with_model(config, **changes):
    return dataclasses.replace(
        config, model=dataclasses.replace(config.model, **changes)
    )


@pytest.mark.parametrize(
    "where, model, largest, first",
    [
        ("state", {"vocab_size": 2**26}, "loss chunk", "training.loss_chunk=64"),
        pytest.param(
            *("step", {}, "saved states", "training.per_device_batch_size=4"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_table_and_what_to_change(dataset, folder, where, model, largest, first):
    """The embedding alone has 4 GiB, and its moments 8; or the scores of a step."""
    config = with_model(tiny_config(dataset), max_len=LONG, **model)
    result = Command(folder, config).run_process(
        folder / where, script=WITH_LITTLE_MEMORY
    )
    assert result.returncode == WRONG_INPUT, result.stderr
    _, _, told = result.stderr.rpartition("error: ")
    lines = told.splitlines()
    assert lines[0] == "a device ran out of memory: no checkpoint was saved yet"
    assert lines[1].startswith("Estimated memory of a training step on each device, wh")
    assert lines[2].endswith(f" GB  {largest}")
    title = lines.index("Changes that save most memory, each on its own:")
    assert lines[title - 1].endswith(" GB  total")
    assert lines[title + 1].endswith(f" GB  --config.{first}")
    assert title + 5 == len(lines) < 15


@pytest.mark.slow
def test_in_an_evaluation_the_last_checkpoint_stands(tmp_path):
    """Of the type and in the words of XLA."""
    dataset = prepare_words(tmp_path, seq_len=16)
    config = run_directory.fit(
        tiny_config(dataset, num_steps=4, eval_every=3, checkpoint_every=2), dataset
    )

    def evaluate(params, should_stop):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")

    hooks = EvaluationHooks(evaluate=evaluate, sample=None)
    with pytest.raises(OutOfMemoryError) as error:
        train(config, tmp_path / "run", dataset, hooks, StopRequest())
    assert str(error.value).endswith("the last good checkpoint is that of step 2")
    other = jax.errors.JaxRuntimeError("INTERNAL: something else")

    def fails(params, should_stop):
        raise other

    hooks = dataclasses.replace(hooks, evaluate=fails)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        train(config, tmp_path / "other", dataset, hooks, StopRequest())
