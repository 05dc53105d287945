"""What tests of training share: a dataset, a config and a whole run of it."""

import dataclasses

import pytest
from cases import mesh_of
from loops import train
from prepared import prepare_words
from runs import tiny_config

from diffeq_former.config import OptimizerConfig
from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.training import run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)


@pytest.fixture(scope="session")
def whole_config(dataset):
    """With all that a state can have."""
    config = tiny_config(dataset, checkpoint_every=4, sample_every=8)
    optimizer = OptimizerConfig(name="weight_space_muon", ema_decay=0.9)
    config = dataclasses.replace(config, optimizer=optimizer)
    return run_directory.fit(config, dataset)


@pytest.fixture(scope="session")
def config(whole_config):
    """Modules may have another one, for the same model."""
    return whole_config


@pytest.fixture(scope="session")
def hooks(whole_config, dataset):
    evaluate = make_evaluate(whole_config, dataset, mesh_of())
    return EvaluationHooks(
        evaluate=lambda params, should_stop: evaluate(params),
        sample=lambda params: f"{float(params['final_norm']['scale'].sum())}",
    )


@pytest.fixture(scope="session")
def uninterrupted(whole_config, dataset, hooks, tmp_path_factory):
    """The folder of a run of `config`, which no test may change."""
    workdir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    assert train(whole_config, workdir, dataset, hooks, StopRequest()) == 0
    return workdir
