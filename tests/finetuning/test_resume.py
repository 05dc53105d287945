"""A run with adapters that is stopped goes on bit for bit, without its base."""

import dataclasses
import shutil

import numpy as np
import pytest
from cases import mesh_of
from loops import StopAfter, assert_same, last_state, train
from runs import TINY

from diffeq_former.config import (
    Config,
    DataConfig,
    FinetuneConfig,
    ModelConfig,
    TrainingConfig,
)
from diffeq_former.finetuning.base import complete, first_state
from diffeq_former.process_exit import STOPPED
from diffeq_former.training import run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest

HOOKS = EvaluationHooks(
    evaluate=lambda params, should_stop: {
        "loss": float(abs(params["weights"]["qkv"]["lora_b"]).sum())
    },
    sample=lambda params: "text",
)


@pytest.mark.slow
def test_stopped_and_continued(write_run, dataset, tmp_path):
    model = dataclasses.replace(TINY.model, dropout=0.0)
    base = write_run(tmp_path / "base", model)
    wanted = Config(
        model=ModelConfig(lora_rank=2, lora_dropout=0.1, dtype="float32"),
        data=DataConfig(path=str(dataset.path)),
        training=TrainingConfig(
            num_steps=4, batch_size=8, eval_every=2, sample_every=2, log_every=1
        ),
        finetune=FinetuneConfig(str(base), 3),
    )

    def run(workdir, stop) -> tuple[int, Config]:
        config = run_directory.fit(complete(wanted, workdir, dataset), dataset)
        options = {"first_state": first_state}
        return train(config, workdir, dataset, HOOKS, stop, **options), config

    code, config = run(tmp_path / "whole", StopRequest())
    assert code == 0
    assert run(tmp_path / "parts", StopAfter(2))[0] == STOPPED
    start = first_state(config, mesh_of()).params
    shutil.rmtree(base)
    assert run(tmp_path / "parts", StopRequest())[0] == 0
    assert_same(tmp_path / "whole", tmp_path / "parts", config)
    final = last_state(tmp_path / "parts", config)[0].params
    for name, unit in start["weights"].items():
        for key in unit.keys() - {"lora_a", "lora_b"}:
            np.testing.assert_array_equal(final["weights"][name][key], unit[key])
