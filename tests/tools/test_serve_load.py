"""tools/benchmark.py serve as a user runs it."""

import json

import pytest

TOOL = ("benchmark.py", "serve")


def test_a_line_for_each_number_of_clients(tool, trained):
    flags = ("--prompt=a", "--prompt=the", "--max_new_tokens=4", "--rounds=2")
    result = tool(*TOOL, f"--workdir={trained.workdir}", *flags, "--clients=1,3")
    assert result.returncode == 0, result.stderr
    one, three = map(json.loads, result.stdout.splitlines())
    assert [(x["clients"], x["requests"]) for x in (one, three)] == [(1, 2), (3, 6)]
    assert one["speed_up"] == 1.0
    rates = [x["tokens_per_second"] for x in (one, three)]
    assert three["speed_up"] == pytest.approx(rates[1] / rates[0]) and rates[0] > 0
    for line in (one, three):
        seconds = line["seconds_to_first_text"]
        assert 0 < seconds["median"] <= seconds["p95"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--workdir=/no/such/run", "/no/such/run is not a run: it has no config.json"),
        (
            "--clients=0",
            "--clients=0: expected whole numbers of 1 or more, separated by commas",
        ),
        (
            "--max_new_tokens=20",
            "max_tokens: 20 new tokens after 2 are more than the model's max_len of 16"
            " has room for; shorten the prompt or ask for at most 15 new tokens",
        ),
        ("--draft_steps=1", "--draft_steps: serve does not take it; leave it out"),
    ],
)
def test_wrong_input(refused, trained, flag, message):
    flags = (f"--workdir={trained.workdir}", "--prompt=a", "--clients=1")
    assert refused(*TOOL, *flags, flag) == message
