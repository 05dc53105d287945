"""From text to text, and the sampler of the training loop."""

import dataclasses

import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.errors import UserError
from diffeq_former.generation.generate import Generator
from diffeq_former.generation.text import make_continue, make_sampler

# More ids than the tokenizer has, as when a vocabulary is padded.
MODEL = dataclasses.replace(TINY, weights="shared", vocab_size=300, max_len=32)


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


def test_texts_are_their_prompts_and_what_follows():
    continue_texts = make_continue(MODEL, mesh_of(), ByteTokenizer())
    options = {"max_new_tokens": 20, "seed": 3}
    prompts = ["naïve", "", "x = "]
    texts = continue_texts(params_of(MODEL), prompts, **options)
    for text, prompt in zip(texts, prompts, strict=True):
        assert text.startswith(prompt) and len(text) > len(prompt)


def test_before_a_text_stands_what_its_tokenizer_wants():
    tokenizer, params = ByteTokenizer(), params_of(MODEL, stddev=0.3)
    options = {"max_new_tokens": 20, "seed": 3}
    usual = make_continue(MODEL, mesh_of(), tokenizer)(params, ["x = "], **options)
    tokenizer.opening = (7,)
    [text] = make_continue(MODEL, mesh_of(), tokenizer)(params, ["x = "], **options)
    [new] = Generator(MODEL, mesh_of(), 257).generate(
        params, [[*b"x = "]], eot=256, before=[7], **options
    )
    assert text == "x = " + tokenizer.decode(new) and [text] != usual


def test_texts_end_before_a_stop_string_and_are_shown_as_they_come():
    continue_texts, params = (
        make_continue(MODEL, mesh_of(), ByteTokenizer()),
        params_of(MODEL),
    )
    options = {"max_new_tokens": 20, "seed": 3}
    prompts = ["naïve", "x = "]
    whole, pieces = continue_texts(params, prompts, **options), []
    continue_texts(params, prompts, show=lambda *piece: pieces.append(piece), **options)
    for i, text in enumerate(whole):
        of_row = [new for row, new in pieces if row == i]
        assert "".join(of_row) == text and len(of_row) > 1
    stop = whole[1][len("x = ") :][9:11]  # of the middle of what the second writes
    shown = {0: [], 1: []}
    texts = continue_texts(
        params,
        prompts,
        stop=[stop],
        show=lambda i, new: shown[i].append(new),
        **options,
    )
    assert texts[1] == "x = " + whole[1][len("x = ") :].partition(stop)[0] != whole[1]
    first = whole[0].removeprefix("naïve").partition(stop)[0]
    assert texts[0] == "naïve" + first
    assert ["".join(shown[i]) for i in (0, 1)] == texts
    with pytest.raises(UserError, match="stop: expected strings"):
        continue_texts(params, prompts, stop=[""], **options)
