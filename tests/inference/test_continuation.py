"""Text as it comes: whole characters, stop strings that tokens cut in any place."""

import itertools

import pytest

from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.errors import UserError
from diffeq_former.inference.continuation import Continuation, check_stop

TOKENIZER = ByteTokenizer()


def pieces(text, cuts, stop=(), prompt="So: "):
    """What comes of the text's bytes, given in parts; stops where it shall."""
    tokens, found = TOKENIZER.encode(text), []
    row = Continuation(TOKENIZER, TOKENIZER.encode(prompt), list(stop))
    for end in [*cuts, len(tokens)]:
        found.append(row.update(tokens[:end], end == len(tokens)))
        if row.stopped:
            break
    return found, row


def all_cuts(text):
    length = len(text.encode())
    return itertools.chain.from_iterable(
        itertools.combinations(range(1, length), n) for n in range(length)
    )


def test_no_half_of_a_character_is_shown():
    text = "aé€😀b"
    for cuts in all_cuts(text):
        found, row = pieces(text, cuts)
        assert "".join(found) == row.text == text
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in found)


def test_what_is_no_character_is_shown_at_the_end():
    row = Continuation(TOKENIZER, [], [])
    assert row.update([97, 0xE2, 0x82], last=False) == "a"
    assert row.update([97, 0xE2, 0x82], last=True) == "\N{REPLACEMENT CHARACTER}"


def test_a_prompt_may_end_in_half_a_character():
    euro = list("€".encode())
    row = Continuation(TOKENIZER, [97, *euro[:2]], [])
    assert row.update([euro[2]], last=False) == "€"
    assert row.update([euro[2], 98], last=True) == "b"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one END two", ["END"], "one "),
        ("one EN two", ["END"], "one EN two"),
        ("ababac", ["abac"], "ab"),  # begins anew within itself
        ("so it ends", ["ends", "it"], "so "),
        ("so it ends", ["it ends", "ends"], "so "),
        ("END", ["END"], ""),
        ("xx\n\ny", ["\n\n"], "xx"),
        ("a€b", ["€"], "a"),
    ],
)
def test_text_ends_before_the_first_stop_string(text, stop, expected):
    for cuts in itertools.islice(all_cuts(text), 300):
        found, row = pieces(text, cuts, stop)
        assert "".join(found) == row.text == expected
        assert row.stopped == (expected != text)


def test_a_stop_string_in_the_prompt_ends_nothing():
    _, row = pieces("bc", (), ["ab"], prompt="a")
    assert (row.text, row.stopped) == ("bc", False)


def test_tokens_count_up_to_the_stop_string():
    _, row = pieces("one END and much more", (2, 6), ["END"])
    assert row.num_tokens == len("one END")
    _, row = pieces("one", ())
    assert row.num_tokens == 3


def test_an_empty_stop_string():
    with pytest.raises(UserError, match="stop: expected strings of one character"):
        check_stop(["a", ""])
