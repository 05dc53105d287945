"""Random cases: --examples of each test, with the seeds from --first_seed on."""


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        option = metafunc.config.getoption
        first = option("first_seed")
        metafunc.parametrize("seed", range(first, first + option("examples")))
