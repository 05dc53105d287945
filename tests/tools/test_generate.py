"""tools/generate.py as a user runs it."""

import json
import shutil
import sys

import pytest
from cases import mesh_of

from diffeq_former import load
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.text import continue_ids, make_continue, make_sampler

TOOL = "generate.py"


@pytest.fixture(scope="module")
def continue_texts(trained):
    run = trained.run
    continue_texts = make_continue(run.config.model, mesh_of(), run.tokenizer)
    return lambda prompts, **options: continue_texts(run.params, prompts, **options)


def test_prints_the_texts(tool, trained, continue_texts):
    result = tool(
        TOOL,
        f"--workdir={trained.workdir}",
        *("--prompt=the cat", "--prompt=", "--max_new_tokens=6"),
        *("--temperature=1.3", "--top_k=50", "--top_p=0.9", "--min_p=0.01"),
        *("--presence_penalty=0.5", "--frequency_penalty=-1.5", "--seed=5"),
    )
    assert result.returncode == 0, result.stderr
    expected = continue_texts(
        ["the cat", ""],
        max_new_tokens=6,
        temperature=1.3,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        presence_penalty=0.5,
        frequency_penalty=-1.5,
        seed=5,
    )
    assert expected[0].startswith("the cat")
    assert result.stdout == "\n---\n".join(expected) + "\n"


def test_greedy(tool, trained, continue_texts):
    flags = ("--prompt=a mat", "--temperature=0", "--max_new_tokens=8")
    result = tool(TOOL, f"--workdir={trained.workdir}", *flags)
    [expected] = continue_texts(["a mat"], max_new_tokens=8, temperature=0.0)
    assert (result.returncode, result.stdout) == (0, expected + "\n"), result.stderr


def test_streams_up_to_a_stop_string(tool, trained, continue_texts):
    flags = ("--prompt=a mat", "--temperature=0", "--max_new_tokens=8", "--stream")
    [whole] = continue_texts(["a mat"], max_new_tokens=8, temperature=0.0)
    stop = whole.removeprefix("a mat")[3]
    result = tool(TOOL, f"--workdir={trained.workdir}", *flags, f"--stop={stop}")
    expected = "a mat" + whole.removeprefix("a mat").partition(stop)[0]
    assert (result.returncode, result.stdout) == (0, expected + "\n"), result.stderr


def test_drafts(tool, trained, continue_texts):
    """Greedy, it writes what it writes without."""
    flags = ("--prompt=a mat", "--temperature=0", "--max_new_tokens=8")
    drafts = ("--draft_steps=1", "--draft_tokens=2")
    result = tool(TOOL, f"--workdir={trained.workdir}", *flags, *drafts)
    [expected] = continue_texts(["a mat"], max_new_tokens=8, temperature=0.0)
    assert (result.returncode, result.stdout) == (0, expected + "\n"), result.stderr
    figures = json.loads(result.stderr)
    assert figures["acceptance"] == figures["accepted"] / figures["drafted"] <= 1
    assert figures["tokens_per_second"] > 0 and figures["drafted"] % 2 == 0


def test_other_steps_over_depth(tool, trained):
    """By the tool, and by the library; adaptive steps are counted on stderr."""
    flags = ("--prompt=a mat", "--temperature=0", "--max_new_tokens=8")
    depth = ("--solver=heun", "--num_steps=4")
    options = {"max_new_tokens": 8, "temperature": 0.0}
    run = load(trained.workdir, solver="heun", num_steps=4)
    result = tool(TOOL, f"--workdir={trained.workdir}", *flags, *depth)
    expected = run.generate("a mat", **options)
    assert (result.returncode, result.stdout) == (0, expected + "\n"), result.stderr
    result = tool(TOOL, f"--workdir={trained.workdir}", *flags, *depth, "--rtol=0.1")
    expected = run.generate("a mat", **options, rtol=0.1)
    assert (result.returncode, result.stdout) == (0, expected + "\n"), result.stderr
    adapted = run.adapt(["a mat"], 0.1)
    assert json.loads(result.stderr) == {
        "num_steps": adapted.config.num_layers,
        "num_evaluations": adapted.num_evaluations,
    }


@pytest.fixture(scope="module")
def chat_run(tmp_path_factory, trained):
    """The run with a chat template."""
    workdir = tmp_path_factory.mktemp("chat") / "run"
    shutil.copytree(trained.workdir, workdir)
    template = workdir / "tokenizer" / "chat_template.jinja"
    template.write_text("{{ messages[0].role[0] }}:{{ messages[0].content }}|")
    return workdir


def test_replies_to_a_message(tool, trained, chat_run):
    """As a whole, as a stream, and with steps that adapt to it."""
    flags = (f"--workdir={chat_run}", "--chat", "--temperature=0")
    flags += ("--max_new_tokens=8", "--prompt=mat")
    run = trained.run
    generator = Generator(run.config.model, mesh_of(), run.tokenizer.vocab_size)
    options = {"max_new_tokens": 8, "temperature": 0.0, "before": []}
    model = (generator, run.tokenizer, run.params)
    [expected] = continue_ids(*model, [list(b"u:mat|")], **options)
    for more in ((), ("--stream",)):
        result = tool(TOOL, *flags, *more)
        assert (result.returncode, result.stdout) == (0, expected + "\n"), result.stderr
    result = tool(TOOL, *flags, "--solver=heun", "--num_steps=4", "--rtol=0.1")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stderr)["num_steps"] > 0


def test_chats_need_a_template_and_jinja(refused, trained, chat_run, monkeypatch):
    line = refused(TOOL, f"--workdir={trained.workdir}", "--chat", "--prompt=a")
    assert line.startswith("--chat: this model has no chat template; complete a text")
    name = "diffeq_former.inference.chat_template"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    line = refused(TOOL, f"--workdir={chat_run}", "--chat", "--prompt=a")
    advice = "pip install -c constraints.txt -e '.[serve]'"
    assert line == f"the package jinja2 is missing: {advice}"


def test_training_sampled_the_same(trained):
    """What the loop wrote down is what its sampler makes of the last parameters."""
    sample = make_sampler(trained.run.config, mesh_of(), trained.run.tokenizer)
    text = sample(trained.run.params)
    assert text.startswith("the")
    assert text in (trained.workdir / "samples.txt").read_text()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--temperature=-1", "temperature: expected 0 (greedy) or more, got -1.0"),
        ("--top_k=-2", "top_k: expected 0 (all tokens) or more, got -2"),
        ("--top_p=1.5", "top_p: expected 0 < top_p <= 1, got 1.5"),
        ("--min_p=2", "min_p: expected 0 <= min_p <= 1, got 2.0"),
        ("--presence_penalty=3", "presence_penalty: expected -2 to 2, got 3.0"),
        ("--max_new_tokens=-1", "max_new_tokens: expected 0 or more, got -1"),
        (
            "--max_new_tokens=15",
            "max_new_tokens: 15 new tokens after 3 are more than the model's max_len of"
            " 16 has room for; shorten the prompt or ask for at most 14 new tokens",
        ),
        (
            "--seed=-1",
            "flag --seed=-1: -1 is not an integer in the range [0, 2147483648]",
        ),
        ("--stop=", "stop: expected strings of one character or more, got ''"),
        (
            "--draft_steps=3",
            "draft_steps: expected 1 to 2, the model's own number of steps, got 3",
        ),
        ("--workdir=/no/such/run", "/no/such/run is not a run: it has no config.json"),
    ],
)
def test_wrong_input(refused, trained, flag, message):
    flags = (f"--workdir={trained.workdir}", "--max_new_tokens=1", "--prompt=ab")
    assert refused(TOOL, *flags, flag) == message


def test_special_tokens_are_text_unless_they_are_to_be_parsed(tool, trained, refused):
    flags = (f"--workdir={trained.workdir}", "--prompt=a", "--temperature=0")
    flags += ("--max_new_tokens=4", "--solver=heun", "--num_steps=4", "--rtol=0.1")
    usual, parsed = (tool(TOOL, *flags, *more) for more in ((), ("--parse_special",)))
    assert parsed.returncode == 0 and parsed.stdout == usual.stdout  # bytes have none
    assert refused(TOOL, *flags, "--chat", "--parse_special") == (
        "--parse_special: a chat template writes the special tokens; leave out this"
        " flag or --chat"
    )


def test_several_prompts_are_no_stream(refused, trained):
    flags = (f"--workdir={trained.workdir}", "--prompt=a", "--prompt=b", "--stream")
    assert refused(TOOL, *flags) == (
        "--stream: expected one --prompt, got 2; leave it out for several"
    )


def test_no_prompt(refused, trained):
    line = refused(TOOL, f"--workdir={trained.workdir}")
    assert line == (
        "this command needs --prompt (a text to continue; can be repeated): add"
        " --prompt=VALUE; see --help"
    )
