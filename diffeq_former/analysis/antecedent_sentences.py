"""Sentences whose next word refers to a known earlier word, its antecedent.

The built-in ones are filled templates. {A} is the antecedent; {B} and {C} are
distractors of the same kind, which the grammar of the sentence rules out. The
antecedent is the first, the second and the last of them about equally often, so no
position is right in most sentences.
"""

import dataclasses
import json
import os
import re
from pathlib import Path

from diffeq_former.errors import UserError


@dataclasses.dataclass(frozen=True)
class Case:
    """A text, a word of it, and the word that follows the text and refers to it."""

    text: str
    antecedent: str
    next: str
    group: str = "sentences"


@dataclasses.dataclass(frozen=True)
class LocatedCase:
    """A case in tokens. The last of `ids` predicts the next word's first token."""

    case: Case
    ids: tuple[int, ...]  # with the tokenizer's start tokens
    first: int  # position of the text's first token
    positions: tuple[int, ...]  # of the antecedent
    next_id: int


_POSSESSIVES = (
    "{A} met {B} at the gate and lost",
    "At last {A} saw {B} again after so many years and forgot",
    "Last winter {A}, who was a friend of {B}, sold",
    "In the evening {A} left {B} with {C} and finished",
    "Early one day {A} said good-bye to {B} and, without another word, took up",
    "{B} spoke first; {A} looked at {C} and raised",
    "For {B} it was too late, but {A}, with the help of {C}, saved",
    "{B} stood at the window; {A} gave {C} a chair and dried",
    "When {B} was gone, {A} sat for a while with {C} in the dark and counted",
    "{B} laughed, but {A} was angry and only shook",
    "While {B} slept by the fire, {A} in the other room opened",
    "It was raining when {B} came in, so {A}, before going out, put on",
    "{B} quarrelled with {C} for so long that {A} at last lost",
    "After supper {B} went out with {C}, and in the silence {A} took out",
    "As soon as {B} had left {C} at the door, {A} came back and closed",
    "{B} had not seen {C} for years when {A} changed",
)
_PERSONS = (
    ("her", "Mary", "Tom", "John"),
    ("his", "Oliver", "Anne", "Jane"),
    ("her", "the queen", "the king", "the boy"),
    ("his", "the captain", "the widow", "the girl"),
)
_OF_THINGS = (
    "{A} behind {B} had lost",
    "Of all that we saw, {A} among {B} had kept",
    "{B} had fallen, and {A} had lost",
    "When {B} were gone, {A} came slowly back to",
)
_THINGS = (
    "{A} behind {B} had lost",
    "Of all that we saw, {A} among {B} had kept",
    "{B} had fallen, and {A} had lost",
    "When {B} were gone, {A} came back to",
)
_THINGS = (
    ("its", "the tree", "the houses", ""),
    ("its", "the ship", "the boats", ""),
    ("its", "the horse", "the dogs", ""),
)
_NAMES = (
    "When {A} and {B} came home, {B} said to",
    "{A}, {B} and {C} were old friends, and one day {B} and {C} called on",
    "{A} wrote a long letter from the country to {B}, and at once {B} wrote back to",
    "Of the two friends {A} is the elder and {B} is the younger. The elder is called",
    "That night there were in the room {B}, {A} and {C}. {B} and {C} shook hands with",
    "{B} let in {A} and then {C}. While {C} took a chair, {B} spoke to",
    "{B} and {A} were sitting by the fire when {B} gave the letter to",
    "No one was surprised when {B}, so fond of {A}, married",
    "As nobody but {B} had ever seen {A}, {B} was sent out to find",
    "{B}, {C} and {A} walked to the town, and there {B} and {C} left",
    "{B} and {C} had waited all day and half the night for {A}. {C} said they had lost",
    "Of the two friends {B} is the elder and {A} the younger. The younger is called",
)
_NAMED = (
    ("", "Oliver", "Mary", "Tom"),
    ("", "Anne", "John", "George"),
    ("", "Henry", "Jane", "Emma"),
)


def built_in() -> list[Case]:
    """Return all templates with all fillings, in the groups possessives and names."""
    groups = (
        ("possessives", _POSSESSIVES, _PERSONS),
        ("possessives", _OF_THINGS, _THINGS),
        ("names", _NAMES, _NAMED),
    )
    return [
        _fill(group, template, *filling)
        for group, templates, fillings in groups
        for template in templates
        for filling in fillings
    ]


def _fill(group: str, template: str, next_word: str, a: str, b: str, c: str) -> Case:
    text = template.format(A=a, B=b, C=c)
    antecedent = a.split()[-1]
    return Case(text[0].upper() + text[1:], antecedent, next_word or antecedent, group)


def read(path: Path) -> list[Case]:
    """Read cases from JSON lines with the fields text, antecedent and next.

    `next` may be missing; it is then the antecedent.

    Raises:
      UserError: If the file cannot be read or has no or other lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"--file={path}: cannot be read as text ({error})") from error
    if not lines:
        raise UserError(f"--file={path}: it is empty; expected lines like {_EXAMPLE}")
    return [_parse(line, f"--file={path}, line {n}") for n, line in enumerate(lines, 1)]


_EXAMPLE = '{"text": "While Tom slept, Mary lost", "antecedent": "Mary", "next": "her"}'


def _parse(line: str, where: str) -> Case:
    try:
        fields = json.loads(line)
        text, antecedent = fields["text"], fields["antecedent"]
        case = Case(text, antecedent, fields.get("next", antecedent))
        usable = all(word.strip() for word in (case.text, case.antecedent, case.next))
    except (ValueError, TypeError, KeyError, AttributeError):
        usable = False
    if not usable:
        raise UserError(f"{where}: expected an object like {_EXAMPLE}")
    return case


def locate(case: Case, tokenizer, max_len: int, where: str) -> LocatedCase:
    """Find the tokens of a case, for any tokenizer.

    A token has the characters by which it extends the decoded text; a character of
    several tokens is that of the last one. The antecedent's tokens are all that
    have characters of it, wherever it occurs as a word of the text. The prediction is
    that of the token which has the first character of the next word, by the token
    before it.

    Args:
      case: The text, its antecedent, and the next word.
      tokenizer: The model's tokenizer.
      max_len: The model's context.
      where: Name of the case, for messages.

    Raises:
      UserError: If the antecedent has no token before the last one of the text, or if
        the text exceeds the context.
    """
    ids = tokenizer.encode(f"{case.text} {case.next}")
    decoded = tokenizer.decode(ids)
    start = len(decoded) - len(case.next)
    ends = [
        len(os.path.commonprefix([decoded, tokenizer.decode(ids[: count + 1])]))
        for count in range(len(ids))
    ]
    target = next(place for place, end in enumerate(ends) if end > start)
    word = rf"(?<!\w){re.escape(case.antecedent)}(?!\w)"
    spans = [match.span() for match in re.finditer(word, decoded[:start])]
    first = len(tokenizer.before)
    positions = tuple(
        first + place
        for place in range(target - 1)
        if any(low < ends[place] and _before(ends, place) < high for low, high in spans)
    )
    if not positions:
        raise UserError(
            f"{where}: expected the antecedent {case.antecedent!r} as a word of the"
            f" text before its last one; the text is {case.text!r}"
        )
    if first + target > max_len:
        raise UserError(
            f"{where} has {target} tokens, but the model has room for only"
            f" {max_len - first} after the start tokens: give shorter ones by --file"
        )
    known = (*tokenizer.before, *ids[:target])
    return LocatedCase(case, known, first, positions, ids[target])


def _before(ends: list[int], place: int) -> int:
    return ends[place - 1] if place else 0
