"""From text to text, and the sampler of the training loop."""

import dataclasses

import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.errors import UserError
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.text import make_continue, make_sampler

# More ids than the tokenizer has, as when a vocabulary is padded.
MODEL = dataclasses.replace(TINY, weights="shared", vocab_size=300, max_len=32)


# As many as a batch has rows, so that all tests use the same programs.
PROMPTS = ["naïve", "x = ", "", "the"]
OPTIONS = {"max_new_tokens": 20, "seed": 3}


@pytest.fixture(scope="module")
def continue_texts():
    return make_continue(MODEL, mesh_of(), ByteTokenizer())


def config(prompt):
    return Config(model=MODEL, training=TrainingConfig(sample_prompt=prompt))


def test_a_sampler_uses_what_room_there_is():
    params, sample = (
        params_of(MODEL),
        make_sampler(config("The "), mesh_of(), ByteTokenizer()),
    )
    text = sample(params)
    assert text.startswith("The ") and len(text) > len("The ")
    assert sample(params) == text
    assert sample(params_of(MODEL, seed=5)) != text


def test_a_sample_prompt_without_room_for_an_answer():
    make_sampler(config("a" * 31), mesh_of(), ByteTokenizer())
    with pytest.raises(UserError) as raised:
        make_sampler(config("a" * 32), mesh_of(), ByteTokenizer())
    assert str(raised.value) == (
        "config.training.sample_prompt: expected fewer tokens than model.max_len (32), "
        "got 32; shorten it"
    )


def test_texts_are_their_prompts_and_what_follows(continue_texts):
    texts = continue_texts(params_of(MODEL), PROMPTS, **OPTIONS)
    for text, prompt in zip(texts, PROMPTS, strict=True):
        assert text.startswith(prompt) and len(text) > len(prompt)


def test_before_a_text_stands_what_its_tokenizer_wants(continue_texts):
    tokenizer, params = ByteTokenizer(), params_of(MODEL, stddev=0.3)
    usual = continue_texts(params, PROMPTS, **OPTIONS)
    tokenizer.opening = (7,)
    texts = make_continue(MODEL, mesh_of(), tokenizer)(params, PROMPTS, **OPTIONS)
    rows = Generator(MODEL, mesh_of(), 257).generate(
        params, [[*p.encode()] for p in PROMPTS], before=[7], ends=[256], **OPTIONS
    )
    expected = [p + tokenizer.decode(row) for p, row in zip(PROMPTS, rows, strict=True)]
    assert texts == expected != usual


def test_texts_end_before_a_stop_string_and_are_shown_as_they_come(continue_texts):
    params, pieces = params_of(MODEL), []
    whole = continue_texts(params, PROMPTS, **OPTIONS)
    continue_texts(params, PROMPTS, show=lambda *piece: pieces.append(piece), **OPTIONS)
    for i, text in enumerate(whole):
        of_row = [new for row, new in pieces if row == i]
        assert "".join(of_row) == text and len(of_row) > 1
    stop = whole[1][len("x = ") :][9:11]  # of the middle of what the second writes
    shown = {i: [] for i in range(len(PROMPTS))}
    texts = continue_texts(
        params,
        PROMPTS,
        stop=[stop],
        show=lambda i, new: shown[i].append(new),
        **OPTIONS,
    )
    for text, prompt, full in zip(texts, PROMPTS, whole, strict=True):
        assert text == prompt + full.removeprefix(prompt).partition(stop)[0]
    assert texts[1] != whole[1]
    assert ["".join(new) for new in shown.values()] == texts
    with pytest.raises(UserError, match="stop: expected strings"):
        continue_texts(params, PROMPTS, stop=[""], **OPTIONS)
