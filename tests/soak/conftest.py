"""Random cases: --examples of each test, with the seeds from --first_seed on."""

from pathlib import Path

import pytest


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
