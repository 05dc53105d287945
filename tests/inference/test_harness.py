"""Our model in lm-evaluation-harness against the harness's own, on one export."""

import dataclasses

import numpy as np
import pytest
import tokenizers
from cases import mesh_of
from harness_tasks import TASKS, write_tasks
from hf_fixtures import edit, run_of

from diffeq_former.config import MeshConfig
from diffeq_former.conversion.export_run import export_run
from diffeq_former.conversion.import_run import import_run
from diffeq_former.training import run_directory

pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and of torch

CONTEXTS = ["", "a", "the cat sat on the mat, ", "x " * 40]
CONTINUATIONS = ["b", " of the long road", "y" * 30]
ASKED = [
    ("the", {"until": ["e"], "max_gen_toks": 9}),
    ("a long road home " * 3, {"until": "\n\n", "max_gen_toks": 12}),
]


def with_an_opening(folder):
    """Makes its tokenizer put <s> before each text, as Llama's does."""
    path = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.add_special_tokens(["<s>"])
    start = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[start]
    )
    tokenizer.save(path)
    edit(folder / "tokenizer_config.json", bos_token="<s>")


@pytest.fixture(scope="module", params=["gpt", "llama", "with an opening"])
def both(request, tmp_path_factory):
    """Ours and theirs."""
    from lm_eval.models.huggingface import HFLM

    from diffeq_former.inference.harness import HarnessModel

    folder, used = tmp_path_factory.mktemp("both"), "run"
    # An answer has 256 tokens where nothing says how many.
    changes = {"max_len": 280, "block": "gpt" if request.param == "gpt" else "llama"}
    run_of(folder / "run", changes)
    export_run(run_directory.load(folder / "run", mesh_of()), folder / "out", "float32")
    if request.param == "with an opening":
        with_an_opening(folder / "out")
        used = "back"
        import_run(folder / "out", folder / used, MeshConfig(), mesh_of())
    run = run_directory.load(folder / used, mesh_of())
    assert run.tokenizer.before == [256 if used == "run" else 257]
    theirs = HFLM(str(folder / "out"), device="cpu", dtype="float32", batch_size=1)
    model = dataclasses.replace(run.config.model, dtype="float32")
    return HarnessModel(model, run.params, run.tokenizer, mesh_of(), 2), theirs


def requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]


def test_log_likelihoods(both):
    pairs = [(before, more) for before in CONTEXTS for more in CONTINUATIONS]
    found = [m.loglikelihood(requests("loglikelihood", pairs)) for m in both]
    (ours, our_greedy), (theirs, their_greedy) = (zip(*x, strict=True) for x in found)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert our_greedy == their_greedy


def test_a_context_of_spaces(both):
    asked = requests("loglikelihood", [("  ", "b"), ("", "  b")])
    spaces, nothing = both[0].loglikelihood(asked)
    assert spaces == nothing


def test_log_likelihoods_of_texts_of_several_windows(both):
    texts = [(c,) for c in (*CONTINUATIONS, "the long road home " * 50)]
    asked = [requests("loglikelihood_rolling", texts) for _ in both]
    ours, theirs = (
        m.loglikelihood_rolling(r) for m, r in zip(both, asked, strict=True)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-4)


def test_answers(both):
    ours, theirs = (m.generate_until(requests("generate_until", ASKED)) for m in both)
    assert ours == theirs and max(map(len, ours)) > 5


@pytest.mark.parametrize("both", ["gpt"], indirect=True)
def test_an_answer_of_default_length(both):
    asked = requests("generate_until", [("q", {"until": []})])
    [ours], [theirs] = (model.generate_until(asked) for model in both)
    assert ours == theirs and len(ours) > 100


@pytest.mark.parametrize("both", ["with an opening"], indirect=True)
def test_scores(both, tmp_path, monkeypatch):
    from diffeq_former.inference import harness_tasks

    monkeypatch.setattr(harness_tasks, "RESAMPLES", 100)
    descriptions, data = write_tasks(tmp_path)
    tasks = harness_tasks.Tasks(list(TASKS), descriptions, data)
    ours, theirs = (tasks.evaluate(model, num_fewshot=3) for model in both)
    assert len(ours) == len(TASKS)
    for our, their in zip(ours, theirs, strict=True):
        assert our.pop("task") == their.pop("task")
        assert our == pytest.approx(their, rel=1e-5)


def test_samples_differ_from_request_to_request(both):
    sampled = {"until": [], "max_gen_toks": 8, "do_sample": True}
    twice = requests("generate_until", [("the", sampled), ("the", sampled)])
    first, second = both[0].generate_until(twice)
    assert first != second and [first, second] == both[0].generate_until(twice)
