"""tools/experiment.py paper as a user runs it, on tiny runs."""

import json
import math
from pathlib import Path

import pytest
from prepared import prepare_words, random_texts
from runs import ROOT
from studies import MODEL, TRAINING, settings

from diffeq_former.experiments.paper.page import ANALYSES

TOOL = ("experiment.py", "paper")


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    texts = {"one": random_texts(60), "other": random_texts(60)[::-1]}
    paths = {}
    for name, text in texts.items():
        (folder / f"{name}-words").mkdir()
        made = prepare_words(folder / f"{name}-words", seq_len=64, texts=text)
        paths[name] = Path(made.path).rename(folder / name)
    given = [f"--config={ROOT}/configs/tiny.py", f"--data={paths['other']}"]
    given += [f"--config.data.path={paths['one']}"]
    model = MODEL | {"solver": "euler", "num_layers": 4, "max_len": 64}
    given += settings("--config.", "model", model)
    given += settings("--config.", "training", TRAINING | {"log_every": 1})
    for mode in ("full", "lora"):
        given += settings(f"--{mode}=", "training", TRAINING)
    return given


@pytest.mark.slow
@pytest.mark.usefixtures("trainings_in_this_process")
def test_a_page_of_all_figures(tool, flags, tmp_path):
    result = tool(*TOOL, *flags, f"--output={tmp_path}")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    models = {}
    for row in rows:
        models.setdefault(row["section"], []).append(row["model"])
    assert models == {
        "gpt": ["DiffEqFormer", "plain", "shared weights"],
        "llama": ["DiffEqFormer", "plain"],
        "b2": ["0.95", "0.999", "plain, 0.95", "plain, 0.999"],
        "widths": ["1", "2", "4", "8", "plain"],
        "time_mlp": ["per_weight", "shared"],
        # In 2 of 3 solver steps, which is two thirds as well as half, 3 and 4.
        "finetuning": 2 * [*6 * ["DiffEqFormer"], *2 * ["plain"]],
    }
    perplexity = {(row["section"], row["model"]): row.get("perplexity") for row in rows}
    # The same run, wherever its settings are the config's own.
    same = [("gpt", "DiffEqFormer"), ("b2", "0.95"), ("widths", "4")]
    assert len({perplexity[key] for key in same}) == 1
    assert perplexity["b2", "0.999"] != perplexity["b2", "0.95"]
    folders = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {"config,seed=0", "plain,seed=0", "model.num_layers=3,seed=0"} <= folders
    verdicts = json.loads((tmp_path / "page" / "verdicts.json").read_text())
    first = verdicts[0]
    assert first["claim"] == "DiffEqFormer: lower perplexity than plain"
    ours, plain = (perplexity["gpt", name] for name in ("DiffEqFormer", "plain"))
    assert first["verdict"] == ("supported" if ours < plain else "contradicted")
    assert math.isclose(
        float(first["difference"].split("%")[0]) / 100 + 1, ours / plain, abs_tol=1e-3
    )
    page = (tmp_path / "page" / "index.html").read_text()
    pictures = [*(tmp_path / "page").rglob("*.png")]
    assert page.count("<img") == len(pictures) > len(models)
    assert all(title in page for title, *_ in ANALYSES)
    again = tool(*TOOL, *flags, f"--output={tmp_path}")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"error: output {tmp_path / 'page'} exists")


def test_two_texts_of_one_name_are_refused(refused, flags, tmp_path):
    names = ("--config.data.path=a/b", "--data=c/b")
    line = refused(*TOOL, *flags, *names, f"--output={tmp_path / 'out'}")
    assert line.startswith(
        "--data=c/b: its folder is called b like that of config.data"
    )
    assert not (tmp_path / "out").exists()
