"""tools/experiment.py finetuning as a user runs it, at rates that move nothing."""

import itertools
import json
from pathlib import Path

import pytest
from prepared import prepare_words, random_texts
from runs import ROOT
from studies import MODEL, TRAINING, settings

TOOL = ("experiment.py", "finetuning")


@pytest.fixture(scope="module")
def flags(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    other = prepare_words(folder, seq_len=16, texts=random_texts(60)[::-1])
    renamed = Path(other.path).rename(folder / "other")
    given = [f"--config={ROOT}/configs/tiny.py", f"--data={renamed}"]
    given += [f"--config.data.path={trained.dataset.path}"]
    model = MODEL | {"solver": "lie_trotter", "num_layers": 2, "max_len": 16}
    given += settings("--config.", "model", model)
    given += settings("--config.", "training", TRAINING)
    for mode in ("full", "lora"):
        given += settings(f"--{mode}=", "training", TRAINING)
        given += [f"--{mode}=optimizer.learning_rate=1e-12"]
        given += [f"--{mode}=model.dtype=float32", f"--{mode}=model.remat=none"]
    return given


@pytest.mark.slow
@pytest.mark.usefixtures("trainings_in_this_process")
def test_each_run_starts_at_the_loss_of_its_base(tool, flags, tmp_path):
    result = tool(*TOOL, *flags, "--plain=model.num_layers=3", f"--output={tmp_path}")
    assert result.returncode == 0, result.stderr
    figures = [json.loads(line) for line in result.stdout.splitlines()]
    keys = ("direction", "model", "mode", "num_layers")
    found = {tuple(figure[key] for key in keys): figure["losses"] for figure in figures}
    depths = {"continuous": [1, 2, 3], "plain": [3]}
    one, other = (
        Path(flag.partition("=")[2])
        for flag in flags
        if "data.path=" in flag or "--data=" in flag
    )
    directions = {
        f"{a.name} to {b.name}": (a, b) for a, b in ((other, one), (one, other))
    }
    assert list(found) == [
        (direction, model, mode, depth)
        for direction in directions
        for model in depths
        for mode in ("full", "lora")
        for depth in depths[model]
    ]
    for (direction, (source, target)), (model, numbers) in itertools.product(
        directions.items(), depths.items()
    ):
        steps = [f"--num_steps={','.join(map(str, numbers))}"] * (len(numbers) > 1)
        name = ["plain", "model.num_layers=3"] * (model == "plain")
        name += [f"data.path={source.name}"] * (source == one)
        base = f"--workdir={tmp_path}/{','.join(name or ['config'])},seed=0"
        evaluated = tool("evaluate.py", base, f"--data={target}", *steps)
        assert evaluated.returncode == 0, evaluated.stderr
        for line in map(json.loads, evaluated.stdout.splitlines()):
            expected = pytest.approx([line["loss"]] * 2, rel=1e-6)
            for mode in ("full", "lora"):
                assert found[direction, model, mode, line["num_steps"]] == expected
    assert (tmp_path / "figures.jsonl").read_text() == result.stdout
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_setting_ends_it_with_the_line_of_the_training(
    tool, trainings_in_this_process, flags, tmp_path
):
    result = tool(*TOOL, *flags, f"--output={tmp_path}", "--config.data.path=nowhere")
    assert result.returncode == 2 and not any(tmp_path.glob("*/config.json"))
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "nowhere" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("mode", ["finetuning", "paper"])
@pytest.mark.parametrize("flag", ["full", "lora"])
def test_the_nearest_setting_is_named(refused, flags, tmp_path, mode, flag):
    given = [f"--{flag}=training.num_stps=3", f"--output={tmp_path / 'out'}"]
    line = refused("experiment.py", mode, *flags, *given)
    assert line == (
        f"--{flag}=training.num_stps=3: no such key; the nearest is training.num_steps"
    )
    assert not (tmp_path / "out").exists()


def test_two_texts_of_one_name_are_refused(refused, flags, tmp_path):
    line = refused(
        *TOOL,
        *flags,
        "--config.data.path=a/b",
        "--data=c/b",
        f"--output={tmp_path / 'out'}",
    )
    assert line.startswith(
        "--data=c/b: its folder is called b like that of config.data"
    )
    assert not (tmp_path / "out").exists()
