"""Experiment trackers, with their libraries: W&B offline, MLflow in a folder.

Without the libraries, only what is said of that is tested.
"""

import dataclasses
import importlib.util
import json
import shutil
import struct

import pytest
from loops import StopAfter, lines, train
from runs import Command, assert_one_line, tiny_config

from diffeq_former.config import TrackingConfig
from diffeq_former.process_exit import OK, STOPPED
from diffeq_former.training import run_directory
from diffeq_former.training.evaluation_hooks import EvaluationHooks
from diffeq_former.training.preemption import StopRequest
from diffeq_former.training.tracking import open_trackers

BACKENDS = ("wandb", "mlflow")
INSTALLED = {name: importlib.util.find_spec(name) is not None for name in BACKENDS}
needs_wandb = pytest.mark.skipif(not INSTALLED["wandb"], reason="needs wandb")
needs_mlflow = pytest.mark.skipif(not INSTALLED["mlflow"], reason="needs mlflow")
# What the libraries themselves do not close or still use.
pytestmark = pytest.mark.filterwarnings("default")

NUM_STEPS = 6


@pytest.fixture
def config(dataset):
    config = tiny_config(dataset, num_steps=NUM_STEPS, eval_every=3, sample_every=3)
    return run_directory.fit(config, dataset)


@pytest.fixture
def hooks():
    return EvaluationHooks(
        evaluate=lambda params, should_stop: {"loss": 2.0, "loss/a+b": 3.0},
        sample=lambda params: "# One\n  *two*",
    )


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """A client of a store in a folder."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    return MlflowClient()


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def tracked(config, *backends):
    tracking = TrackingConfig(backends=backends, project="tests")
    return dataclasses.replace(config, tracking=tracking)


def run_twice(config, workdir, dataset, hooks) -> None:
    """Stopped after two steps, and resumed."""
    assert train(config, workdir, dataset, hooks, StopAfter(2)) == STOPPED
    assert train(config, workdir, dataset, hooks, StopRequest()) == OK


def wandb_records(path) -> list:
    """The records of a file of W&B: after 7 bytes, a log as that of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts, found = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        size, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(parts))
            parts = b""
    return found


def history(records) -> list[dict]:
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
        for items in (r.history.item for r in records if r.HasField("history"))
    ]


@needs_wandb
def test_wandb_gets_what_metrics_jsonl_has(config, dataset, hooks, offline, tmp_path):
    workdir = tmp_path / "run"
    run_twice(tracked(config, "wandb"), workdir, dataset, hooks)
    paths = sorted(workdir.glob("wandb/offline-run-*/*.wandb"))
    parts = [wandb_records(path) for path in paths]
    run_id = json.loads((workdir / "tracking.json").read_text())["wandb"]
    begun = [r.run for part in parts for r in part if r.HasField("run")]
    assert {(x.run_id, x.project, x.display_name) for x in begun} == {
        (run_id, "tests", "run")
    }
    settings = {x.key: json.loads(x.value_json) for x in begun[0].config.update}
    assert settings["model"]["d_model"] == config.model.d_model
    logged = [line for part in parts for line in history(part)]
    losses = {x["step"]: x["loss"] for x in logged if "loss" in x}
    assert losses == {x["step"]: x["loss"] for x in lines(workdir) if "loss" in x}
    assert len(parts) == 2 and sorted(losses) == [1, 2, 3, 4, 5, 6]
    evaluated = [x["step"] for x in logged if x.get("validation/loss/a+b") == 3.0]
    assert evaluated == [3, 6]
    texts = [json.loads(p.read_text()) for p in workdir.rglob("sample_*.table.json")]
    assert sorted(x["data"][0] for x in texts) == [
        [3, "# One\n  *two*"],
        [6, "# One\n  *two*"],
    ]


@needs_mlflow
def test_mlflow_gets_what_metrics_jsonl_has(config, dataset, hooks, mlflow, tmp_path):
    workdir = tmp_path / "run"
    run_twice(tracked(config, "mlflow"), workdir, dataset, hooks)
    experiment = mlflow.get_experiment_by_name("tests")
    [run] = mlflow.search_runs([experiment.experiment_id])
    assert json.loads((workdir / "tracking.json").read_text()) == {
        "mlflow": run.info.run_id
    }
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["model.d_model"] == str(config.model.d_model)
    for ours, theirs in (
        ("loss", "loss"),
        ("grad_norm/bank", "grad_norm.bank"),
        ("validation/loss/a+b", "validation.loss.a_b"),
    ):
        found = mlflow.get_metric_history(run.info.run_id, theirs)
        expected = {x["step"]: x[ours] for x in lines(workdir) if ours in x}
        assert {x.step: x.value for x in found} == pytest.approx(expected)
        assert len(found) == len(expected) > 1
    for step in (3, 6):
        path = f"sample/step-{step:09}.txt"
        local = mlflow.download_artifacts(run.info.run_id, path)
        with open(local, encoding="utf-8") as file:
            assert file.read() == "# One\n  *two*"


@needs_mlflow
def test_mlflow_says_how_a_run_ended(config, mlflow, tmp_path):
    def status_after(step, error=None):
        with pytest.raises(RuntimeError) if error else open_trackers(*args, 4) as found:
            if error:
                with open_trackers(*args, 4) as found:
                    raise error
            found.scalars(step, {"loss": float("nan")})
        [name] = (x.info.run_id for x in mlflow.search_runs([experiment()]))
        return mlflow.get_run(name).info.status

    def experiment():
        return mlflow.get_experiment_by_name("tests").experiment_id

    args = (tracked(config, "mlflow"), tmp_path)
    assert status_after(5) == "KILLED"
    assert status_after(6, RuntimeError()) == "FAILED"
    assert status_after(6) == "FINISHED"


@needs_mlflow
def test_an_error_of_a_tracker_does_not_end_the_run(config, mlflow, tmp_path, capsys):
    with open_trackers(tracked(config, "mlflow"), tmp_path, 0) as trackers:
        shutil.rmtree(tmp_path / "mlruns")
        capsys.readouterr()
        for step in (1, 2):
            trackers.scalars(step, {"loss": 1.0})
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("mlflow: ") and "the run continues without it" in line


@needs_mlflow
def test_a_tracked_run_that_was_deleted(config, dataset, mlflow, tmp_path):
    workdir = tmp_path / "run"
    command = Command(tmp_path, tracked(config, "mlflow"))
    shorter = "--config.training.num_steps=1"
    assert command.run(workdir, shorter).returncode == 0
    shutil.rmtree(tmp_path / "mlruns")
    result = command.run(workdir, shorter)
    assert_one_line(
        result, "config.tracking.backends: mlflow: ", "not exist (", "tracking.json"
    )


@needs_wandb
def test_wandb_without_a_login(config, dataset, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    command = Command(tmp_path, tracked(config, "wandb"))
    result = command.run_process(tmp_path / "run", stdin=-3)  # DEVNULL
    assert_one_line(result, "backends: wandb: No API key", "WANDB_MODE=offline")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_library(config, tmp_path, monkeypatch, backend):
    """Also where a folder has its name."""
    if INSTALLED[backend]:
        pytest.skip(f"{backend} is installed")
    (tmp_path / backend).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command, workdir = Command(tmp_path, tracked(config, backend)), tmp_path / "run"
    assert_one_line(
        command.run(workdir),
        f"config.tracking.backends: the package {backend} is missing: pip install"
        f" -c constraints.txt -e '.[{backend}]'",
    )
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("flag", "parts"),
    [
        (
            "backends=comet",
            ["config.tracking.backends", "one of wandb, mlflow", "comet"],
        ),
        ("project=", ["config.tracking.project: expected a name, got ''"]),
    ],
)
def test_wrong_settings(config, tmp_path, flag, parts):
    command, workdir = Command(tmp_path, tracked(config, "wandb")), tmp_path / "run"
    assert_one_line(command.run(workdir, f"--config.tracking.{flag}"), *parts)
    assert not workdir.exists()
