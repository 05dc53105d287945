"""tools/experiment.py comparison as a user runs it, on tiny runs."""

import csv
import json
import math
import shutil
import statistics
from types import SimpleNamespace

import pytest
from prepared import prepare_words, random_texts

from diffeq_former.experiments.comparison import run_study
from diffeq_former.experiments.runs import Study
from diffeq_former.training import run_directory

TOOL = ("experiment.py", "comparison")
RATE = "optimizer.learning_rate"
STUDY = {
    "baseline": "table",
    "models": {
        "hyper": [],
        "table": ["model.weights=layer_table", "model.solver=lie_trotter"],
    },
    # That of the trained run, and one at which the first update ruins the weights.
    "search": {"hyper": {RATE: [0.05, 1e30]}, "table": {RATE: [1e30, 0.05]}},
    "search_settings": ["training.eval_every=3"],
    "final_settings": ["training.eval_every=1"],
}


def write(path, study) -> str:
    path.write_text(f"def get_study():\n    return {study!r}\n")
    return f"--study={path}"


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held_out")
    return prepare_words(folder, seq_len=16, texts=random_texts(60)[::-1]).path


@pytest.fixture(scope="module")
def flags(trained, held_out):
    config = trained.workdir.parent / "config.py"
    given = [f"--config={config}", f"--held_out={held_out}"]
    return [*given, "--config.training.sample_every=0"]


def read(path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.usefixtures("trainings_in_this_process")
def test_a_whole_study_and_the_same_command_again(tool, flags, tmp_path, held_out):
    output = tmp_path / "out"
    study = write(tmp_path / "study.py", STUDY)
    given = (*TOOL, *flags, study, "--num_seeds=2", f"--output={output}")
    result = tool(*given)
    assert result.returncode == 0, result.stderr
    trials, finals = read(output / "trials.csv"), read(output / "finals.csv")
    assert [
        (row["model"], row["settings"], row["validation_loss"] == "inf")
        for row in trials
    ] == [
        ("hyper", f"{RATE}=0.05", False),
        ("hyper", f"{RATE}=1e+30", True),
        ("table", f"{RATE}=1e+30", True),
        ("table", f"{RATE}=0.05", False),
    ]
    assert [row["model"] for row in finals] == ["hyper"] * 2 + ["table"] * 2
    name = f"table,{RATE}=0.05,seed=1"
    assert_evaluated(tool, output / "finals" / name, held_out, finals[-1])
    hyper, table = map(json.loads, result.stdout.splitlines())
    assert_compared(hyper, table, [float(row["held_out_loss"]) for row in finals])
    assert "hyper" in (output / "table.md").read_text()
    assert f"warning: hyper: {hyper['warnings'][0]}\n" in result.stderr
    for name in ("comparison.png", "searches.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    again = tool(*given)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == (
        f"error: output {output}/comparison.png exists: remove it or name another\n"
    )
    (output / "comparison.png").unlink()
    before = metrics(output)
    resumed = tool(*given)
    assert (resumed.returncode, resumed.stdout) == (0, result.stdout)
    assert len(before) == 8 and metrics(output) == before


def metrics(output) -> dict:
    """With the times of each step, which differ if it is trained again."""
    return {path: path.read_bytes() for path in output.glob("*/*/metrics.jsonl")}


def assert_evaluated(tool, workdir, held_out, row):
    """Its losses are those of tools/evaluate.py."""
    evaluated = tool("evaluate.py", f"--workdir={workdir}", f"--data={held_out}")
    line = json.loads(evaluated.stdout)
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert float(row[f"held_out_{name}"]) == pytest.approx(line[name], rel=1e-5)
    assert int(row["parameters"]) > 0 and int(row["weights_per_token"]) > 0
    assert float(row["tokens_per_second"]) > 0 and float(row["planned_memory_gib"]) > 0


def assert_compared(hyper, table, losses):
    """By hand, with one degree of freedom: Student's t is Cauchy's distribution."""
    a, b = losses[:2], losses[2:]
    one, other = (x - y for x, y in zip(a, b, strict=True))
    mean, error = (one + other) / 2, abs(one - other) / 2
    warning = (
        f"{RATE}=0.05 is at an end of the searched range (0.05 to 1e+30): search"
        " further values"
    )
    assert hyper == {
        "model": "hyper",
        "settings": f"{RATE}=0.05",
        "seeds": 2,
        "training_flops": hyper["training_flops"],
        "held_out_loss": pytest.approx(statistics.mean(a)),
        "held_out_loss_std": pytest.approx(abs(a[0] - a[1]) / math.sqrt(2)),
        "difference": pytest.approx(mean),
        "difference_low": pytest.approx(mean - 12.7062047 * error),
        "difference_high": pytest.approx(mean + 12.7062047 * error),
        "p_value": pytest.approx(1 - 2 * math.atan(abs(mean) / error) / math.pi),
        "perplexity_ratio": pytest.approx(math.exp(mean)),
        "warnings": [warning],
    }
    assert table["held_out_loss"] == pytest.approx(statistics.mean(b))
    assert table["difference"] is table["p_value"] is table["perplexity_ratio"] is None


# Last validation losses by rate; None: the run diverged.
SEARCHED = {
    "hyper": {0.001: 4.4, 0.002: 4.2, 0.004: None},
    "table": {0.001: 4.5, 0.002: 4.4, 0.004: 4.3},
    "shared": {0.001: 4.8, 0.002: 4.6, 0.004: 4.7},
}
CHOSEN = {"hyper": 0.002, "table": 0.004, "shared": 0.002}
HELD_OUT = {"hyper": (4.0, 5.0, 6.5), "table": (4.1, 5.3, 6.7)}
HELD_OUT["shared"] = 4.9, None, 5.1
LENGTH = ["training.num_steps=700"]
THREE = {
    "baseline": "table",
    "models": {name: [] for name in SEARCHED},
    "search": {name: {RATE: list(rates)} for name, rates in SEARCHED.items()},
    "search_settings": LENGTH,
    "final_settings": ["training.num_steps=2000"],
}


@pytest.fixture
def losses_without_training(trained, monkeypatch):
    """Trainings only leave a config and a curve; all runs are listed."""
    listed = []

    def train(self, rows, *, may_diverge):
        assert may_diverge
        for row, run in rows:
            stage, name = run.workdir.parts[-2:]
            listed.append((stage, name, run.flags[-4:]))
            run.workdir.mkdir(parents=True, exist_ok=True)
            shutil.copy(trained.workdir / "config.json", run.workdir)
            loss = SEARCHED[row["model"]][float(row["settings"].partition("=")[2])]
            if stage == "finals":
                loss = HELD_OUT[row["model"]][row["seed"]]
            curve = [{"step": 700, "validation/loss": 1 + (loss or 4)}]
            end = {"diverged": "so"} if loss is None else {"validation/loss": loss}
            curve.append({"step": 2000} | end)
            text = "".join(json.dumps(line) + "\n" for line in curve)
            (run.workdir / "metrics.jsonl").write_text(text)

    def load(workdir):
        model, *_, seed = workdir.name.split(",")
        loss = HELD_OUT[model][int(seed.partition("=")[2])]
        values = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": 1.5}
        return SimpleNamespace(evaluate=lambda data: values)

    monkeypatch.setattr(Study, "train", train)
    monkeypatch.setattr(run_study, "api", SimpleNamespace(load=load))
    return listed


def compare(tool, flags, tmp_path, study):
    given = (write(tmp_path / "study.py", study), f"--output={tmp_path / 'out'}")
    result = tool(*TOOL, *flags, *given, "--num_seeds=3")
    assert result.returncode == 0, result.stderr
    return tmp_path / "out", result


def test_the_best_of_each_model_is_compared(
    tool, trained, flags, tmp_path, losses_without_training
):
    output, result = compare(tool, flags, tmp_path, THREE)
    assert losses_without_training == [
        *(listed("trials", m, x, 0, 700) for m in SEARCHED for x in SEARCHED[m]),
        *(listed("finals", m, CHOSEN[m], s, 2000) for m in CHOSEN for s in range(3)),
    ]
    hyper, table, shared = map(json.loads, result.stdout.splitlines())
    assert (output / "figures.jsonl").read_text() == result.stdout
    # Differences of -0.1, -0.3 and -0.2; of 3 pairs, t is t / sqrt(t^2 + 2) of 1/2.
    t = 0.2 * math.sqrt(3) / 0.1
    assert (hyper["difference"], hyper["warnings"]) == (pytest.approx(-0.2), [])
    assert hyper["p_value"] == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert table["warnings"] == [
        f"{RATE}=0.004 is at an end of the searched range (0.001 to 0.004): search"
        " further values"
    ]
    assert shared["warnings"] == ["1 of 3 runs diverged"]
    assert shared["held_out_loss"] is shared["difference"] is None
    ratio = f"{math.exp(-0.2):.4f}"
    cells = ("hyper", f"{RATE}=0.002", "3", "5.1667 ± 1.2583", "-0.2000")
    interval = "-0.4484 to +0.0484"  # -0.2 +- 4.3027 * 0.1 / sqrt(3)
    row = " | ".join([*cells, interval, f"{hyper['p_value']:.2g}", ratio, ""])
    assert f"| {row} |\n" in (output / "table.md").read_text()
    finals = read(output / "finals.csv")
    assert [row["held_out_loss"] for row in finals[:3]] == ["4.0", "5.0", "6.5"]
    assert (finals[7]["validation_loss"], finals[7]["parameters"]) == ("inf", "")
    c = run_directory.read_config(trained.workdir)
    tokens = c.training.num_steps * c.training.batch_size * c.model.max_len
    attention = 12 * c.model.num_layers * c.model.d_model * c.model.max_len
    per_token = 6 * int(finals[0]["weights_per_token"]) + attention
    assert hyper["training_flops"] == tokens * per_token
    for name in ("comparison.png", "searches.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")


def test_without_a_search_only_finals_are_trained(
    tool, flags, tmp_path, losses_without_training
):
    given = {name: {RATE: [CHOSEN[name]]} for name in SEARCHED}
    output, result = compare(tool, flags, tmp_path, THREE | {"search": given})
    assert losses_without_training == [
        listed("finals", m, CHOSEN[m], s, 2000) for m in CHOSEN for s in range(3)
    ]
    hyper, *_ = map(json.loads, result.stdout.splitlines())
    assert (hyper["settings"], hyper["warnings"]) == (f"{RATE}=0.002", [])
    assert hyper["difference"] == pytest.approx(-0.2)
    assert read(output / "trials.csv") == []
    assert not (output / "searches.png").exists()


def test_trials_of_full_length_are_the_runs_of_the_first_seed(
    tool, flags, tmp_path, losses_without_training
):
    compare(tool, flags, tmp_path, THREE | {"final_settings": LENGTH})
    stages = [stage for stage, name, _ in losses_without_training]
    assert stages == ["trials"] * 9 + ["trials", "finals", "finals"] * 3


# Parabolas over log2(rate / 0.001), with minima at 1 and 1.25 and the curvature 0.1.
PARABOLAS = {
    name: {
        0.001 * 2**x: None if x > most else 4 + 0.1 * (x - minimum) ** 2
        for x in range(4)
    }
    for name, minimum, most in (("small", 1, 3), ("large", 1.25, 3), ("odd", 2, 2))
}


@pytest.mark.usefixtures("losses_without_training")
def test_a_study_that_only_searches(tool, flags, tmp_path, monkeypatch):
    for name, losses in PARABOLAS.items():
        monkeypatch.setitem(SEARCHED, name, losses)
    study = {
        "baseline": "small",
        "models": {name: [] for name in PARABOLAS},
        "search": {name: {RATE: list(rates)} for name, rates in PARABOLAS.items()},
        "search_settings": LENGTH,
    }
    output, result = compare(tool, (flags[0], flags[-1]), tmp_path, study)
    small, large, odd = map(json.loads, result.stdout.splitlines())
    assert (small["optimum"], small["ratio"]) == (pytest.approx(0.002), 1)
    assert (small["loss"], small["excess"]) == (4, 0)
    assert (large["best"], large["loss"]) == (0.002, pytest.approx(4 + 0.1 / 16))
    assert large["ratio"] == pytest.approx(2**0.25)
    assert (odd["best"], odd["optimum"], odd["ratio"]) == (0.004, None, None)
    assert odd["excess"] == pytest.approx(0.1)
    assert "| odd | 0.004 | 4 |  |  | 0.1 |" in (output / "table.md").read_text()
    assert len(read(output / "trials.csv")) == 12
    assert (output / "searches.png").read_bytes().startswith(b"\x89PNG")
    assert not (output / "finals.csv").exists()


def listed(stage, model, rate, seed, num_steps):
    settings = (f"training.num_steps={num_steps}", f"{RATE}={rate}", f"seed={seed}")
    flags = tuple(f"--config.{setting}" for setting in settings)
    name = f"{model},{RATE}={rate},seed={seed}"
    return stage, name, ("--config.training.sample_every=0", *flags)


@pytest.mark.usefixtures("losses_without_training")
def test_a_model_whose_trials_all_diverged(refused, flags, tmp_path, monkeypatch):
    monkeypatch.setitem(SEARCHED, "table", dict.fromkeys(SEARCHED["table"]))
    given = (write(tmp_path / "study.py", THREE), f"--output={tmp_path / 'out'}")
    line = refused(*TOOL, *flags, *given)
    assert line == "all trials of 'table' diverged; search lower learning rates for it"
