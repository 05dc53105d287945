import dataclasses
import json
import math
import struct
import subprocess
import sys

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from diffeq_former.config import Config
from diffeq_former.training import metrics_file
from diffeq_former.training.writers import MetricsWriter


def events(workdir) -> list[Event]:
    """All events of a folder; a record is length, checksum, bytes, checksum."""
    found = []
    for path in sorted(workdir.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def values(workdir, tag: str) -> dict:
    return {
        event.step: value
        for event in events(workdir)
        for value in event.summary.value
        if value.tag == tag
    }


def lines(workdir) -> list[dict]:
    return [json.loads(x) for x in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def workdir(tmp_path):
    """A run that was killed after step 4."""
    writer = MetricsWriter(tmp_path)
    for step in range(5):
        writer.scalars(step, {"loss": 5.0 - step, "grad_norm/bank": 0.25})
    writer.close()
    return tmp_path


def test_both_places_have_the_same_numbers(workdir):
    assert lines(workdir)[3] == {"step": 3, "loss": 2.0, "grad_norm/bank": 0.25}
    losses = values(workdir, "loss")
    assert {k: v.simple_value for k, v in losses.items()} == {
        line["step"]: line["loss"] for line in lines(workdir)
    }


def test_a_resumed_run_repeats_no_line(workdir):
    before = (workdir / "metrics.jsonl").read_text()
    writer = MetricsWriter(workdir, step=2)
    assert [x["step"] for x in lines(workdir)] == [0, 1, 2]
    for step in (3, 4):
        writer.scalars(step, {"loss": 5.0 - step, "grad_norm/bank": 0.25})
    writer.close()
    assert (workdir / "metrics.jsonl").read_text() == before
    assert not list(workdir.glob(".*.partial"))


def test_a_resumed_run_tells_tensorboard_to_forget_later_steps(workdir):
    MetricsWriter(workdir, step=2).close()
    starts = [e.step for e in events(workdir) if e.HasField("session_log")]
    assert 3 in starts


def test_divergence_is_the_last_record_until_the_run_is_resumed(workdir):
    writer = MetricsWriter(workdir, step=4)
    assert not metrics_file.diverged(workdir)
    writer.diverged(4, "too high")
    writer.close()
    assert lines(workdir)[-1] == {"step": 4, "diverged": "too high"}
    assert metrics_file.diverged(workdir)
    MetricsWriter(workdir, step=3).close()
    assert not metrics_file.diverged(workdir)
    assert not metrics_file.diverged(workdir / "new")


def test_a_line_cut_off_by_a_kill_is_dropped(workdir):
    path = workdir / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 1, "lo')
    MetricsWriter(workdir, step=9).close()
    assert [x["step"] for x in lines(workdir)] == [0, 1, 2, 3, 4]


def test_a_rollback_drops_later_lines_and_is_recorded(workdir):
    writer = MetricsWriter(workdir, step=4)
    writer.roll_back(2, 1, True, "too high")
    writer.scalars(3, {"loss": 1.0})
    writer.roll_back(1, 2, True, "still too high")
    writer.scalars(2, {"loss": 0.5})
    writer.close()
    first = {"step": 2, "rollbacks": 1, "why": "too high"}
    second = {"step": 1, "rollbacks": 2, "why": "still too high"}
    assert lines(workdir)[2:] == [first, second, {"step": 2, "loss": 0.5}]
    starts = [e.step for e in events(workdir) if e.HasField("session_log")]
    assert starts[-2:] == [3, 2]
    assert values(workdir, "rollbacks")[1].simple_value == 2
    words = [
        v.tensor.string_val for v in values(workdir, "rollback/text_summary").values()
    ]
    assert words == [[b"    too high"], [b"    still too high"]]

    MetricsWriter(workdir, step=2, rollbacks=1).close()
    assert lines(workdir)[2:] == [first, {"step": 2, "loss": 0.5}]


def test_what_is_not_finite_is_null(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.scalars(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    writer.close()
    assert lines(tmp_path) == [{"step": 1, "a": None, "b": None, "c": 1.0}]
    assert math.isnan(values(tmp_path, "a")[1].simple_value)


def test_lines_are_there_at_once(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.scalars(1, {"loss": 1.0})
    assert lines(tmp_path) == [{"step": 1, "loss": 1.0}]
    writer.close()


def test_text_is_kept_as_it_is(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.text(7, "sample", "# One\n  *two*")
    writer.close()
    (value,) = [
        v for e in events(tmp_path) for v in e.summary.value if "sample" in v.tag
    ]
    # Four spaces make it a block of code for the Markdown that TensorBoard reads.
    assert value.tensor.string_val[0].decode() == "    # One\n      *two*"


def test_settings_and_parameters_are_told(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.hyper_parameters(dataclasses.asdict(Config(seed=5)), "validation/loss")
    writer.parameter_overview({"head": {"kernel": np.zeros((3, 4), np.float32)}})
    writer.close()
    assert len(list(tmp_path.glob("events.*"))) == 1
    everything = b"".join(e.SerializeToString() for e in events(tmp_path))
    for words in (b"model.d_model", b"seed", b"validation/loss", b"head/kernel"):
        assert words in everything, words


def test_tensorflow_is_not_needed():
    code = "import sys; import diffeq_former.training.writers; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "tensorboardX" in modules
    assert not {"tensorflow", "torch"} & set(modules)
