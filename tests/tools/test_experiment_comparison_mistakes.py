"""Invalid inputs of tools/experiment.py comparison."""

import pytest
from prepared import prepare_words, random_texts

from diffeq_former.data import sentencepiece_training

TOOL = ("experiment.py", "comparison")
RATE = "optimizer.learning_rate"
MODELS = {"hyper": [], "table": ["model.weights=layer_table"]}
SEARCH = {"hyper": {RATE: [0.05, 0.1]}, "table": {RATE: [0.1, 0.05]}}


def changed(**changes) -> dict:
    study = {"baseline": "table", "models": MODELS, "search": SEARCH}
    return study | {"search_settings": [], "final_settings": []} | changes


def only_search(search) -> dict:
    study = changed(search=search)
    del study["final_settings"]
    return study


MISTAKES = [
    (3, "get_study() returned int; return a dict of the study"),
    ({"baseline": "table"}, "get_study() returned no 'models'; add it"),
    (changed(sarch={}), "study.sarch: no such key; the nearest is study.search"),
    (changed(models=["hyper"]), "study.models: expected dict, got ['hyper'] (list)"),
    (
        changed(search_settings="training.num_steps=3"),
        "study.search_settings: expected a tuple of str, got 'training.num_steps=3'",
    ),
    (
        changed(baseline="plain"),
        "baseline: no model 'plain'; expected one of hyper, table",
    ),
    (
        changed(models={"table": []}, search={"table": {}}),
        "models: expected two or more to compare",
    ),
    (
        changed(models=MODELS | {"a/b": []}),
        "models: 'a/b' names a folder; use letters, digits, spaces and any of _.+-",
    ),
    (
        changed(models=MODELS | {"hyper": "model.solver=heun"}),
        "models: expected a list of SECTION.FIELD=VALUE for 'hyper', got 'model.sol",
    ),
    (
        changed(models=MODELS | {"hyper": ["model.solver"]}),
        "model 'hyper': --study: expected SECTION.FIELD=VALUE, got 'model.solver'",
    ),
    (
        changed(final_settings=["training.nun_steps=1"]),
        "model 'hyper': config.training.nun_steps: no such key; the nearest is",
    ),
    (
        changed(search={"table": {}}),
        "search: no settings of 'hyper'; search and models need the same names",
    ),
    (
        changed(search=SEARCH | {"other": {}}),
        "search: no model 'other'; search and models need the same names",
    ),
    (
        changed(search=SEARCH | {"table": [RATE]}),
        "search: expected SECTION.FIELD and values for 'table', got",
    ),
    (
        changed(search=SEARCH | {"table": {RATE: 0.1}}),
        f"search: expected a list of values of {RATE} for 'table', got 0.1",
    ),
    (
        changed(search=SEARCH | {"table": {RATE: [0.1]}}),
        "search: the numbers of trials differ (2 of hyper, 1 of table); give each",
    ),
    (
        only_search(SEARCH | {"table": {"optimizer.b1": [0.8, 0.9]}}),
        "search: without final_settings, the searches of one number are compared; sear",
    ),
]


@pytest.fixture
def flags(trained, tmp_path):
    config = trained.workdir.parent / "config.py"
    path = tmp_path / "study.py"
    path.write_text(f"def get_study():\n    return {changed()!r}\n")
    given = [f"--config={config}", f"--held_out={trained.dataset.path}"]
    return [*given, f"--study={path}", f"--output={tmp_path / 'out'}"]


def refused_study(refused, flags, tmp_path, text) -> str:
    """Returns what is said of a study file with this text."""
    path = tmp_path / "study.py"
    path.write_text(text)
    line = refused(*TOOL, *flags)
    assert not (tmp_path / "out").exists()
    assert line.startswith(f"--study={path}: ")
    return line.removeprefix(f"--study={path}: ")


@pytest.mark.parametrize(("study", "message"), MISTAKES)
def test_mistakes_in_a_study(refused, flags, tmp_path, study, message):
    text = f"def get_study():\n    return {study!r}\n"
    assert refused_study(refused, flags, tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(): pass", "the file defines no get_study()"),
        ("def get_study(): return x", "NameError: name 'x' is not defined"),
        ("def get_study(:", "SyntaxError: invalid syntax"),
    ],
)
def test_files_that_are_no_study(refused, flags, tmp_path, text, message):
    assert refused_study(refused, flags, tmp_path, text).startswith(message)


def test_texts_that_cannot_be_held_out(refused, trained, flags, tmp_path):
    line = refused(*TOOL, *flags)
    own = trained.dataset.path
    assert line.startswith(f"--held_out={own}: the settings are chosen by its losses")
    (tmp_path / "long").mkdir()
    longer = prepare_words(tmp_path / "long", seq_len=17).path
    line = refused(*TOOL, *flags, f"--held_out={longer}")
    assert line.startswith("config.model.max_len: 16 is too small")
    assert str(longer) in line
    model = tmp_path / "other.model"
    model.write_bytes(sentencepiece_training.train(random_texts(), 320))
    other = prepare_words(tmp_path, 16, f"sentencepiece:{model}").path
    line = refused(*TOOL, *flags, f"--held_out={other}")
    assert line == (
        f"--held_out={other}: it has another tokenizer than config.data.path; prepare"
        " it with --tokenizer=byte"
    )
    line = refused(*TOOL, *flags, f"--held_out={tmp_path}/no")
    assert line.startswith(f"no prepared dataset at {tmp_path}/no")
    assert not (tmp_path / "out").exists()


def test_what_is_held_out_goes_with_final_settings(refused, trained, flags, tmp_path):
    without = [flag for flag in flags if not flag.startswith("--held_out")]
    line = refused(*TOOL, *without)
    assert line.startswith("--held_out: name a prepared text of other documents")
    text = f"def get_study():\n    return {only_search(SEARCH)!r}\n"
    (tmp_path / "study.py").write_text(text)
    line = refused(*TOOL, *flags)
    assert line.startswith(f"--held_out={trained.dataset.path}: the study has no final")
    assert not (tmp_path / "out").exists()


def test_a_study_that_is_not_there(refused, flags, tmp_path):
    line = refused(*TOOL, *flags, f"--study={tmp_path}/no.py")
    assert line == f"{tmp_path}/no.py: No such file or directory"


def test_more_runs_at_once_than_cores(refused, flags):
    line = refused(*TOOL, *flags, "--num_parallel=10000")
    assert line.startswith("--num_parallel=10000: each run needs a core of its own")
