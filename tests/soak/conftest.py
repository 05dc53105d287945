"""Random cases: --examples of each test, with the seeds from --first_seed on."""

from pathlib import Path
from typing import NamedTuple

import pytest
from prepared import prepare_words
from runs import Command, tiny_config

from diffeq_former.config import Config
from diffeq_former.data.dataset import Dataset


class TinyRun(NamedTuple):
    folder: Path  # with run/, the run, and config.py
    dataset: Dataset
    config: Config


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("tiny")
    dataset = prepare_words(folder, seq_len=16)
    config = tiny_config(dataset, num_steps=2, eval_every=2)
    result = Command(folder, config).run(folder / "run")
    assert result.returncode == 0, result.stderr
    return TinyRun(folder, dataset, config)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.soak)


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        option = metafunc.config.getoption
        first = option("first_seed")
        every = getattr(metafunc.module, "EVERY", 1)
        metafunc.parametrize("seed", range(first, first + option("examples"), every))
