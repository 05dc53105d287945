"""A config of the command that trains, and a folder for its file."""

import pytest
from prepared import prepare_words
from runs import LONG, tiny_config


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    dataset = prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)
    return tiny_config(dataset, checkpoint_every=LONG, sample_every=LONG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")
