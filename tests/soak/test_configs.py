"""Random settings over the whole schema train, or are refused before a folder is."""

import dataclasses
import random
import re
import typing

import pytest
from outcome import assert_allowed, strict_json
from prepared import prepare_words
from runs import Command, tiny_config

from diffeq_former.config import Config
from diffeq_former.config.dataclass_config import flatten

INTEGERS = [-2, -1, 0, 1, 2, 3, 4, 5, 8, 16, 17, 32, 300]
LARGE_INTEGERS = [2**31 - 1, 2**31, 2**32, 10**11, 2**64]
FLOATS = [0.0, 1e-50, 1e-30, 1e-8, 0.1, 0.5, 0.999, 1.0, 1.5, 2.0, 30.0, 1e30]
ODD_FLOATS = [-1.0, -1e-30, 3.5e38, float("inf"), float("-inf"), float("nan")]
STRINGS = ["", "x", "euler", "float16", "é" * 3, " ", "a/b", "[1]", "'", "\n"]
# They would train too long, wait, read other files, or write a trace of seconds.
LEFT_OUT = {
    *("training.num_steps", "data.path", "data.timeout", "finetune.base"),
    *("profile.num_steps", "training.rollbacks"),
    *("harness.every", "tracking.backends"),
}


def fields(cls=Config, within="") -> dict[str, type]:
    """All settings with their types, by their names on the command line."""
    found = {}
    for name, kind in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            found |= fields(kind, f"{within}{name}.")
        else:
            found[within + name] = kind
    return found


def value(kind: type, rng: random.Random) -> str:
    odd = rng.random() < 0.15
    if typing.get_origin(kind) is typing.Literal:
        return rng.choice(STRINGS if odd else typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        [item, _] = typing.get_args(kind)
        return ",".join(value(item, rng) for _ in range(rng.randrange(4)))
    if kind is bool:
        return rng.choice(["true", "false"])
    if kind is int:
        return str(rng.choice(LARGE_INTEGERS if odd else INTEGERS))
    if kind is float:
        return str(rng.choice(ODD_FLOATS if odd else FLOATS))
    return rng.choice(STRINGS)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)


def test_every_setting_is_known():
    assert fields().keys() == flatten(dataclasses.asdict(Config())).keys()


def test_settings_train_or_are_refused(dataset, tmp_path, seed):
    rng = random.Random(seed)
    names = rng.sample(sorted(fields().keys() - LEFT_OUT), rng.randint(1, 5))
    flags = [f"--config.{name}={value(fields()[name], rng)}" for name in names]
    config = tiny_config(dataset, num_steps=2, sample_prompt="")
    workdir = tmp_path / "run"
    result = Command(tmp_path, config).run(workdir, *flags)
    print(flags, result.returncode, result.stdout, result.stderr)
    assert_allowed(result)
    if result.returncode == 0:
        metrics = strict_json(result.stdout)
        assert metrics["step"] == 2
    else:
        diverged = re.search("diverged|is not finite", result.stderr)
        assert diverged or not workdir.exists()
