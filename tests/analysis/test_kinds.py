"""Every kind on a tiny model: its pictures, and the numbers behind them."""

import dataclasses
import inspect
import json

import jax
import numpy as np
import pytest
from browser import assert_readable, needs_browser, on_a_phone
from cases import mesh_of, params_of
from runs import TINY

from diffeq_former.analysis import loaded_model as subjects
from diffeq_former.analysis import plotting, simulation, spectra_plots
from diffeq_former.analysis.registry import KINDS, load
from diffeq_former.analysis.results import bind
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.errors import UserError
from diffeq_former.models.transformer import Transformer

TEXTS = ["the <cat>", "on $a$ é", "mat"]
# Numbers that a kind must have written, and how many there are.
WRITTEN = {
    "spectra": ("spectra.json", lambda x: np.shape(x["run"]["qk"]["largest"]), (2, 2)),
    "lyapunov": (
        "lyapunov.json",
        lambda x: np.shape(x["sentences"][0]["whole"]),
        (10, 3),
    ),
    "antecedent": (
        "antecedent.json",
        lambda x: np.shape(x["sentences"][1]["whole"]),
        (16,),
    ),
    "adversarial": (
        "adversarial.json",
        lambda x: np.shape([s["ascent"]["change"] for s in x["sentences"]]),
        (3, 4),
    ),
    "attention": ("attention.json", lambda x: np.shape(x["mean"]["entropy"]), (2, 2)),
    "induction": (
        "induction.json",
        lambda x: np.shape(x["beside"]["scores"]["prefix_matching"]),
        (2, 2),
    ),
    "entropy": (
        "entropy.json",
        lambda x: np.shape(x["sentences"][0]["entropy"]),
        (3, 10),
    ),
    "trajectory": (
        "trajectory.json",
        lambda x: np.shape(x["mean"]["norm"]["low"]),
        (3,),
    ),
    "pde": ("pde.json", lambda x: np.shape(x["over depth"][5]["roughness"]), (3,)),
    "clustering": (
        "clustering.json",
        lambda x: np.shape(x["runs"][-1]["mean"]["clusters"]),
        (3,),
    ),
}


@pytest.fixture(scope="module")
def model():
    """A model with the shapes of the tools' trained run, to share its programs."""
    config = dataclasses.replace(TINY.model, vocab_size=258)
    params = params_of(config, stddev=0.1)
    return subjects.LoadedModel("tiny", config, params, ByteTokenizer(), mesh_of())


def _entropies(model, sentences):
    """The mean cross-entropy of each sentence's next tokens, by the model itself."""
    rows = [np.pad(s.ids, (0, model.config.max_len - len(s.ids))) for s in sentences]
    apply = jax.jit(Transformer(model.config).apply)
    logits_BLV = np.asarray(apply({"params": model.params}, np.stack(rows)), float)
    log_p_BLV = logits_BLV - np.log(np.exp(logits_BLV).sum(-1, keepdims=True))
    return [
        -np.mean(
            [log_p_LV[place, following] for place, following in enumerate(s.ids[1:])]
        )
        for log_p_LV, s in zip(log_p_BLV, sentences, strict=True)
    ]


def _antecedents(path):
    """A file of two sentences, as short as the model's context."""
    path.write_text(
        '{"text": "Al met Bo", "antecedent": "Al", "next": "his"}\n'
        '{"text": "Al saw Bo lose", "antecedent": "Bo"}\n'
    )
    return path


@pytest.fixture(scope="module", params=KINDS)
def written(request, model, tmp_path_factory):
    """A kind, its folder, and its figures."""
    plotting.require_matplotlib()
    kind, folder = request.param, tmp_path_factory.mktemp("kind")
    known = inspect.signature(load(kind)).parameters
    options = {
        "sentences": subjects.encode(model, TEXTS),
        "num_seeds": 2,
        "file": str(_antecedents(folder.with_suffix(".jsonl"))),
        "polynomials": ["(t/T)^0", "(t/T)^2"],
        "beside": model,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "NUM_TOKENS", 6)  # a line each in each picture
        figures = load(kind)(
            model, folder, **{k: v for k, v in options.items() if k in known}
        )
    bind(folder, kind, figures)
    return kind, folder, figures


def test_pictures_and_numbers(written, model):
    kind, folder, figures = written
    assert figures and json.dumps(figures, allow_nan=False)
    images = list(folder.glob("*.png"))
    assert images and all(i.read_bytes().startswith(b"\x89PNG") for i in images)
    name, measured, shape = WRITTEN[kind]
    numbers = json.loads((folder / name).read_text(), parse_constant=pytest.fail)
    assert measured(numbers) == shape
    for path in folder.glob("*.npz"):
        arrays = np.load(path, allow_pickle=False)
        assert arrays.files and all(np.isfinite(arrays[key]).all() for key in arrays)
    if kind == "pde":  # without diffusion it is the model
        sentences = subjects.encode(model, TEXTS)
        entropy = _entropies(model, sentences)
        assert figures[0]["mean"] == pytest.approx(np.mean(entropy), rel=1e-6)
        roughness = [run["roughness"][-1] for run in numbers["over depth"]]
        assert roughness[0] > roughness[-1]
    if kind == "lyapunov":
        page = (folder / "tokens.html").read_text()
        assert "&lt;" in page and "<cat>" not in page


@needs_browser
def test_a_browser_shows_them_on_a_phone(written, tmp_path):
    kind, folder, figures = written
    seen = on_a_phone(folder / "index.html", tmp_path)
    assert_readable(seen, num_pictures=len(list(folder.glob("*.png"))))
    assert seen.text.startswith(kind)
    if kind == "lyapunov":
        seen = on_a_phone(folder / "tokens.html", tmp_path)
        assert_readable(seen, num_pictures=0)
        assert "the <cat>" in seen.text and "on $a$ " in seen.text


def test_eigenvalues_are_written_complex(model, tmp_path, monkeypatch):
    for name in ("plot_bands", "plot_heads", "plot_paths", "plot_jumps"):
        monkeypatch.setattr(spectra_plots, name, lambda *args: None)
    load("spectra")(model, tmp_path, num_times=5)
    arrays = np.load(tmp_path / "spectra.npz", allow_pickle=False)
    assert np.abs(arrays["run.ov.eigenvalues"].imag).max() > 0
    assert arrays["run.ov.eigenvalues"].shape == (5, 2, 8)


def test_wrong_sentences_are_refused(model, tmp_path):
    long = "a" * 16
    for texts, words in (
        (["fine", "  "], "sentence 2 is empty"),
        ([""], "sentence 1 is empty"),
        (
            [long],
            "sentence 1 has 16 tokens, but the model has room for only",
        ),
    ):
        with pytest.raises(UserError, match=words):
            subjects.encode(model, texts)
    assert len(subjects.encode(model, [long[1:]])[0].ids) == model.config.max_len
    path = tmp_path / "lines.txt"
    with pytest.raises(UserError, match="cannot be read as text"):
        subjects.read_sentences(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="it is empty"):
        subjects.read_sentences(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read as text"):
        subjects.read_sentences(path)
    path.write_text("one\ntwo\n")
    assert subjects.read_sentences(path) == ["one", "two"]


def test_more_exponents_than_dimensions_are_refused(model, tmp_path):
    sentences = subjects.encode(model, TEXTS[:1])
    with pytest.raises(UserError, match="--num_exponents=17: expected at most .* 16"):
        load("lyapunov")(model, tmp_path, sentences=sentences, num_exponents=17)
