"""tools/benchmark.py speculation as a user runs it."""

import json

import pytest

TOOL = ("benchmark.py", "speculation")


@pytest.mark.slow
def test_a_line_for_plain_decoding_and_for_each_draft(tool, trained):
    flags = ("--prompt=a mat", "--prompt=the", "--max_new_tokens=8", "--rounds=2")
    drafts = ("--draft_steps=1,2", "--draft_tokens=2", "--temperature=0")
    result = tool(*TOOL, f"--workdir={trained.workdir}", *flags, *drafts)
    assert result.returncode == 0, result.stderr
    plain, one, two = map(json.loads, result.stdout.splitlines())
    assert [x["draft_steps"] for x in (plain, one, two)] == [0, 1, 2]
    assert [x["draft_tokens"] for x in (plain, one, two)] == [0, 2, 2]
    assert plain["acceptance"] is None and plain["speed_up"]["median"] == 1.0
    assert 0 <= one["acceptance"] <= 1.0 == two["acceptance"]  # 2: the model's own
    for line in (plain, one, two):
        rates = line["tokens_per_second"]
        assert 0 < rates["low"] <= rates["median"] <= rates["high"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--draft_steps=3",
            "draft_steps: expected 1 to 2, the model's own number of steps, got 3",
        ),
        (
            "--draft_steps=a,2",
            "--draft_steps=a,2: expected whole numbers of 0 or more, separated by"
            " commas",
        ),
        (
            "--draft_tokens=0",
            "draft_tokens: expected 1 to 15, for a model whose max_len is 16, got 0",
        ),
        ("--temperature=-1", "temperature: expected 0 (greedy) or more, got -1.0"),
    ],
)
def test_wrong_input(refused, trained, flag, message):
    flags = (f"--workdir={trained.workdir}", "--prompt=a", "--draft_steps=1")
    assert refused(*TOOL, *flags, "--max_new_tokens=2", flag) == message
