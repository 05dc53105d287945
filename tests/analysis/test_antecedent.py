"""Tokens of antecedents by several tokenizers, and shares of constructed values."""

import json
import re
from collections import Counter

import numpy as np
import pytest

from diffeq_former.analysis import antecedent_sentences as sentences
from diffeq_former.analysis.antecedent import CHANCE, POSITION, PREDICTED, summarise
from diffeq_former.analysis.antecedent_sentences import Case, built_in, locate, read
from diffeq_former.analysis.token_sensitivity import ROWS
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.errors import UserError


class Pieces:
    """Up to three letters each, with the space before a word."""

    before = (0, 0)

    def __init__(self):
        self.known = ["[start]"]

    def encode(self, text):
        pieces = re.findall(r" ?\w{1,3}|\W", text)
        self.known += sorted(set(pieces) - set(self.known))
        return [self.known.index(piece) for piece in pieces]

    def decode(self, ids):
        return "".join(self.known[i] for i in ids)


def test_the_antecedent_in_pieces_of_words():
    tokenizer = Pieces()
    case = Case("Tom saw Maryanne: Tom, not Maryannes, met", "Tom", "Maryanne")
    found = locate(case, tokenizer, 100, "case")
    words = [tokenizer.known[i] for i in found.ids]
    assert words[2:] == [
        *("Tom", " saw", " Mar", "yan", "ne", ":", " Tom", ",", " not"),
        *(" Mar", "yan", "nes", ",", " met"),
    ]
    assert [words[place] for place in found.positions] == ["Tom", " Tom"]
    assert tokenizer.known[found.next_id] == " Mar" and found.first == 2
    case = Case("Tom saw Maryanne: Tom, not Maryannes, met", "Maryanne", "her")
    found = locate(case, tokenizer, 100, "case")
    assert found.positions == (4, 5, 6)


def test_the_antecedent_in_bytes():
    """The token before the next word is the space; É ends with its second byte."""
    found = locate(Case("Éva fed André", "Éva", "his"), ByteTokenizer(), 100, "case")
    assert bytes(found.ids[1:]) == "Éva fed André ".encode()
    assert found.positions == (2, 3, 4) and found.next_id == ord("h")


@pytest.mark.parametrize(
    "tokenizer", [ByteTokenizer(), Pieces()], ids=["bytes", "words"]
)
def test_no_position_is_the_antecedents_in_most_sentences(tokenizer):
    located = [locate(case, tokenizer, 200, "case") for case in built_in()]
    for group in ("possessives", "names"):
        members = [x for x in located if x.case.group == group]
        assert len(members) >= 36
        places = Counter()
        for x in members:
            assert x.case.antecedent in tokenizer.decode(
                [x.ids[place] for place in x.positions]
            ).replace(" ", "")
            assert max(x.positions) < len(x.ids) - 1
            places.update(
                {p for p in x.positions} | {p - len(x.ids) for p in x.positions}
            )
        assert max(places.values()) < 0.4 * len(members)


def test_every_built_in_sentence_has_distractors():
    """Persons or things of the same filling; the antecedent occurs once."""
    fillings = (*sentences._PERSONS, *sentences._THINGS, *sentences._NAMED)
    for case in built_in():
        words = re.findall(r"\w+", case.text)
        assert words.count(case.antecedent) == 1 and "{" not in case.text
        others = [
            name.split()[-1]
            for _, a, *names in fillings
            if a.split()[-1] == case.antecedent
            for name in names
            if name
        ]
        assert set(others) & set(words)


def test_shares_of_constructed_values():
    """A measure that knows, one that does not, and two that exclude themselves."""
    names = list(ROWS)
    measured = []
    for place in range(10):
        tokens = ["[start]"] + ["a"] * (10 + place % 2) + ["last"]
        right = np.zeros(len(tokens))
        right[1 + place] = 1
        wrong = -right
        wrong[0] = wrong[-1] = 9  # the start and the last token are no candidates
        values = dict.fromkeys(names, wrong) | {names[1]: right + (right == 0) * -5}
        values[names[1]][[0, -1]] = 7
        predicts = place < 3
        fixed = {"tokens": tokens, "first": 1, "antecedent": (1 + place,)}
        measured.append(fixed | values | {"predicts": predicts})
    found = {row["method"]: row for row in summarise(measured)}
    assert found[ROWS[names[1]]]["mean"] == 1
    assert found[ROWS[names[0]]]["mean"] < 0.2
    assert found[CHANCE]["mean"] == pytest.approx((1 / 10 + 1 / 11) / 2)
    # From the end: 10 - place candidates of even, 11 - place of odd sentences.
    assert found[POSITION]["mean"] == 0.2
    assert found[PREDICTED]["mean"] == 0.3 and found[PREDICTED]["count"] == 10


def test_files_of_sentences(tmp_path):
    path = tmp_path / "lines.jsonl"
    fields = {"text": "While Tom slept, Mary lost", "antecedent": "Mary"}
    path.write_text(json.dumps(fields | {"next": "her"}) + "\n" + json.dumps(fields))
    assert read(path) == [Case(*fields.values(), "her"), Case(*fields.values(), "Mary")]


@pytest.mark.parametrize(
    "line",
    ["", "Mary", "[1]", '"a"', '{"text": "a"}', '{"text": "a b", "antecedent": 3}']
    + ['{"text": "a b", "antecedent": " "}'],
)
def test_other_lines_are_refused(tmp_path, line):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "a b", "antecedent": "a"}\n' + line + "\n")
    with pytest.raises(UserError, match="jsonl, line 2: expected an object like"):
        read(path)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "lines.jsonl"
    with pytest.raises(UserError, match="cannot be read as text"):
        read(path)
    path.write_text("")
    with pytest.raises(UserError, match="it is empty; expected lines like"):
        read(path)


@pytest.mark.parametrize(
    "text, antecedent, words",
    [
        ("Mary lost", "Tom", "expected the antecedent 'Tom' as a word of the text"),
        ("Maryanne lost", "Mary", "expected the antecedent 'Mary' as a word"),
        ("lost by Tom", "Tom", "expected the antecedent 'Tom' .* before its last one"),
        ("Tom lost all that he had", "Tom", "case has 8 tokens, but .* for only 5"),
    ],
)
def test_unusable_sentences_are_refused(text, antecedent, words):
    with pytest.raises(UserError, match=words):
        locate(Case(text, antecedent, "her"), Pieces(), 7, "case")
