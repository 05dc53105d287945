"""Runs on several datasets, by the command line."""

import dataclasses
import json
import math

import command_lines
import pytest
from cases import mesh_of
from kills import differences, run_and_kill
from loops import lines
from prepared import prepare_words, random_texts
from runs import Command, assert_one_line, tiny_config

from diffeq_former.data import dataset as datasets
from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.training import provenance, run_directory

WEIGHTS = (0.75, 0.25)
NUM_STEPS = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, count in (("books", 12), ("code", 40)):
        prepare_words(folder, 16, texts=random_texts(count), name=name)
    return str(folder / "books"), str(folder / "code")


@pytest.fixture(scope="module")
def command(folders, tmp_path_factory):
    config = tiny_config(datasets.load(folders[0]))
    data = dataclasses.replace(config.data, path="", mixture=folders, weights=WEIGHTS)
    config = dataclasses.replace(config, data=data)
    return Command(tmp_path_factory.mktemp("command"), config)


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    result = command.run(workdir)
    assert result.returncode == 0, result.stderr
    return workdir, json.loads(result.stdout)


def test_metrics_name_the_sources(whole, folders):
    workdir, printed = whole
    last = [line for line in lines(workdir) if "loss" in line][-1]
    assert last["step"] == NUM_STEPS
    for folder, weight in zip(folders, WEIGHTS, strict=True):
        source = datasets.load(folder)
        num_read = NUM_STEPS * 8 * weight
        assert last[f"data/weight/{source.name}"] == weight
        assert last[f"data/share/{source.name}"] == weight
        assert last[f"data/epoch/{source.name}"] == num_read / len(source.rows("train"))
        assert f"loss/{source.name}" in printed


def test_validation_is_that_of_each_source_and_their_weighted_mean(whole, folders):
    workdir, printed = whole
    run = run_directory.load(workdir, mesh_of())
    found = [
        make_evaluate(run.config, datasets.load(folder), mesh_of())(run.params)
        for folder in folders
    ]
    for name, own in zip(("books", "code"), found, strict=True):
        for metric, value in own.items():
            assert printed[f"{metric}/{name}"] == pytest.approx(value, rel=1e-6)
    loss = sum(w * own["loss"] for w, own in zip(WEIGHTS, found, strict=True))
    assert printed["loss"] == pytest.approx(loss, rel=1e-6)
    assert printed["perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)
    assert printed["tokens"] == sum(own["tokens"] for own in found)
    # Bytes per token of a text with these shares of its tokens.
    ratio = sum(
        w * own["loss"] / own["bits_per_byte"] / math.log(2)
        for w, own in zip(WEIGHTS, found, strict=True)
    )
    assert printed["bits_per_byte"] == pytest.approx(loss / math.log(2) / ratio)


def test_killed_and_resumed_it_ends_like_uninterrupted(command, whole, tmp_path):
    workdir = tmp_path / "run"
    run_and_kill(command, workdir, early=False)
    result = command.run(workdir)
    assert result.returncode == 0, result.stderr
    config = run_directory.read_config(whole[0])
    assert differences(workdir, whole[0], config) == []


def test_the_run_knows_its_sources(whole, folders):
    workdir, printed = whole
    config = run_directory.read_config(workdir)
    assert (config.data.path, config.data.mixture) == ("", folders)
    [record] = provenance.read(workdir)
    assert record["data"] == ", ".join(folders)
    result = command_lines.run("evaluate.py", f"--workdir={workdir}")
    assert result.returncode == 0, result.stderr
    line = json.loads(result.stdout)
    for name in ("loss", "loss/books", "perplexity/code"):
        assert line[name] == pytest.approx(printed[name], rel=1e-6)
    one = command_lines.run(
        "evaluate.py", f"--workdir={workdir}", f"--data={folders[1]}"
    )
    assert json.loads(one.stdout)["loss"] == pytest.approx(printed["loss/code"])
    assert "loss/code" not in one.stdout


def test_other_weights_are_another_run(command, whole):
    result = command.run(whole[0], "--config.data.weights=(1,2)")
    change = "data.weights: (0.75, 0.25) -> (1.0, 2.0)"
    assert_one_line(result, "is a run with another config", change)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["path=x"], ["config.data.mixture", "(x)", "leave one of them empty"]),
        (["weights=(1,)"], ["config.data.weights", "expected 2, one", "got 1: (1.0,)"]),
        (["weights=()"], ["config.data.weights", "expected 2, one", "got 0: ()"]),
        (["weights=(1,0)"], ["config.data.weights", "above 0"]),
        (["weights=(1,-1)"], ["config.data.weights", "above 0"]),
        (["weights=('a','b')"], ["config.data.weights", "expected float, got 'a'"]),
        (["mixture=('x/a','y/a')"], ["config.data.mixture", "called 'a'", "rename"]),
        (["mixture=('x/a','nowhere')"], ["no prepared dataset at x/a"]),
        (["mixture=()"], ["config.data.weights", "expected 0"]),
        (["mixture=()", "weights=()"], ["config.data.path is empty"]),
        (["max_epochs=1"], ["1 epochs of", "use at most", "a smaller weight"]),
        (["max_epochs=-1"], ["config.data.max_epochs", "0 or more"]),
    ],
    ids=str,
)
def test_wrong_input(command, tmp_path, flags, parts):
    workdir = tmp_path / "run"
    result = command.run(workdir, *(f"--config.data.{flag}" for flag in flags))
    assert_one_line(result, *parts)
    assert not workdir.exists()


def test_a_single_dataset_has_a_limit_of_epochs_too(command, folders, tmp_path):
    flags = ["mixture=()", "weights=()", f"path={folders[0]}", "max_epochs=2.5"]
    flags = [f"--config.data.{flag}" for flag in flags]
    num_rows = len(datasets.load(folders[0]).rows("train"))
    most = int(2.5 * num_rows / 8)
    result = command.run(tmp_path / "run", *flags)
    assert_one_line(
        result, f"{folders[0]} end before", f"at most {most} steps, or more"
    )
    result = command.run(
        tmp_path / "run", *flags, f"--config.training.num_steps={most}"
    )
    assert result.returncode == 0, result.stderr
