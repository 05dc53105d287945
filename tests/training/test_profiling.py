"""What `config.profile` leaves behind, and the names that it finds in the program."""

import contextlib
import dataclasses
import gzip
import json
import re

import jax
import numpy as np
import pytest
from cases import TINY, mesh_of
from loops import StopAfter, train

from diffeq_former.config import Config, ProfileConfig, TrainingConfig
from diffeq_former.distributed.mesh import batch_sharding, layout
from diffeq_former.process_exit import STOPPED
from diffeq_former.training import state
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest
from diffeq_former.training.profiling import Profile
from diffeq_former.training.step import make_train_step

SCOPES = ("tabulate", "attention", "feed_forward", "head", "optimizer")


@pytest.fixture(scope="module")
def config(config):
    settings = {"eval_every": 8, "checkpoint_every": 8, "sample_every": 0}
    training = dataclasses.replace(config.training, **settings)
    return dataclasses.replace(config, training=training)


def recording(config, **profile):
    return dataclasses.replace(config, profile=ProfileConfig(**profile))


def hooks(evaluate=lambda params, should_stop: {"loss": 1.0}):
    return EvaluationHooks(evaluate=evaluate, sample=None)


def traces(workdir) -> list:
    return sorted((workdir / "profile" / "plugins" / "profile").glob("*"))


def traced_steps(folder) -> list[int]:
    """The steps that a trace has marked for TensorBoard."""
    with gzip.open(folder / "perfetto_trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert any(e.get("args", {}).get("hlo_module") == "jit_train_step" for e in events)
    return [int(e["args"]["step_num"]) for e in events if e.get("name") == "train"]


def is_named(scope: str, names: str) -> bool:
    """Whether an operation of the step stands in the scope."""
    return bool(re.search(rf"jit\(train_step\)/[\w./()]*\b{scope}\b[/)]", names))


def test_a_trace_of_the_chosen_steps(config, dataset, tmp_path, capsys):
    chosen = recording(config, start_step=3, num_steps=2)
    assert train(chosen, tmp_path, dataset, hooks(), StopAfter(6)) == STOPPED
    [folder] = traces(tmp_path)
    assert traced_steps(folder) == [3, 4]
    [planes] = folder.glob("*.xplane.pb")
    names = planes.read_bytes().decode("latin1")
    assert [scope for scope in SCOPES if not is_named(scope, names)] == []
    said = f"profile of steps 3 to 4: run tensorboard --logdir={tmp_path}/profile"
    assert said in capsys.readouterr().err


def test_without_it_there_is_none_and_nothing_waits(config, dataset, tmp_path):
    assert train(config, tmp_path, dataset, hooks(), StopAfter(4)) == STOPPED
    assert not (tmp_path / "profile").exists()

    def asked():
        raise AssertionError

    profile = Profile(config.profile, tmp_path, 0, contextlib.nullcontext, print)
    for step in range(1, 30):
        with profile.of_step(step, asked):
            pass


def test_a_run_that_is_stopped_leaves_its_part_and_the_next_the_rest(
    config, dataset, tmp_path, capsys
):
    chosen = recording(config, start_step=2, num_steps=4)
    assert train(chosen, tmp_path, dataset, hooks(), StopAfter(3)) == STOPPED
    [first] = traces(tmp_path)
    first = first.rename(tmp_path / "first")  # the folders are named by the second
    assert train(chosen, tmp_path, dataset, hooks(), StopAfter(5)) == STOPPED
    [rest] = traces(tmp_path)
    assert (traced_steps(first), traced_steps(rest)) == ([2, 3], [4, 5])
    assert train(chosen, tmp_path, dataset, hooks(), StopAfter(1)) == STOPPED
    said = "no profile: steps 2 to 5 are already done, the run is at step 8"
    assert said in capsys.readouterr().err


def test_a_run_that_fails_leaves_its_part(config, dataset, tmp_path):
    def fails(params, should_stop):
        raise ValueError("in the evaluation")

    training = dataclasses.replace(config.training, eval_every=3)
    chosen = dataclasses.replace(config, training=training)
    chosen = recording(chosen, start_step=2, num_steps=5)
    with pytest.raises(ValueError, match="in the evaluation"):
        train(chosen, tmp_path, dataset, hooks(fails), StopRequest())
    [folder] = traces(tmp_path)
    assert traced_steps(folder) == [2, 3]


def test_a_run_that_goes_back_records_anew(tmp_path):
    """Two whole traces, the first of what was recorded until then."""
    said = []
    c = ProfileConfig(start_step=2, num_steps=2)
    profile = Profile(c, tmp_path, 0, contextlib.nullcontext, said.append)
    for step in (1, 2, 1, 2, 3):
        with profile.of_step(step, lambda: None):
            pass
    profile.close()
    assert [line.partition(":")[0] for line in said] == [
        "profile of steps 2 to 2",
        "profile of steps 2 to 3",
    ]


@pytest.mark.parametrize(
    "block, generate_weights", [("gpt", "tabulated"), ("llama", "per_step")]
)
def test_every_product_of_a_step_stands_in_a_scope(block, generate_weights):
    model = dataclasses.replace(TINY, block=block, generate_weights=generate_weights)
    config, mesh = Config(model=model, training=TrainingConfig(batch_size=2)), mesh_of()
    shape = (2, model.max_len)
    tokens_BL = jax.ShapeDtypeStruct(shape, np.int32, sharding=batch_sharding(mesh))
    step = make_train_step(config, mesh).__wrapped__
    with layout(mesh):
        batch = {"inputs": tokens_BL, "targets": tokens_BL}
        program = step.lower(state.abstract(config, mesh), batch).compile().as_text()
    products = re.findall(r' dot\([^\n]*op_name="([^"]*)"', program)
    assert len(products) > 15
    outside = [p for p in products if not any(is_named(s, p) for s in SCOPES)]
    assert outside == []
    names = re.findall(r'op_name="([^"]*)"', program)
    assert all(any(is_named(scope, name) for name in names) for scope in SCOPES)
