"""Random values of the flags of tools: they work, or one line says what is wrong."""

import random

from command_lines import ROOT, run
from outcome import assert_allowed, strict_json

# Tools with flags that work, and those whose values are random.
TOOLS = {
    "generate.py --workdir={run} --prompt=the --max_new_tokens=4": (
        *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed"),
        *("presence_penalty", "frequency_penalty"),
        *("num_steps", "draft_steps", "draft_tokens", "prompt", "stop"),
    ),
    "evaluate.py --workdir={run}": ("num_steps", "batch_size"),
    "analyze.py spectra --workdir={run} --output={new}": ("num_times",),
    "analyze.py trajectory --workdir={run} --text=the --output={new}": ("text",),
    "analyze.py clustering --workdir={run} --num_seeds=1 --output={new}": (
        *("num_seeds", "polynomials", "horizon", "step_size", "normalisation"),
    ),
    "analyze.py lyapunov --workdir={run} --text=the --output={new}": (
        *("num_exponents", "text"),
    ),
    "convert.py discretise --workdir={run} --num_steps=2 --output={new}": (
        "num_steps",
    ),
    "export_hf.py --workdir={run} --num_steps=2 --output={new}": (
        *("num_steps", "dtype", "license"),
    ),
    "plan.py --config={config} --nocompile --target=gpu:h100:1x1": (
        *("target", "num_slices"),
    ),
    "plot.py losses --workdir={run} --output={new}.png": ("workdir", "output"),
    "plot.py convergence --workdir={run} --output={new}.png": (
        *("num_steps", "num_sequences"),
    ),
    "prepare_data.py --source=text:{text} --tokenizer=byte --seq_len=16 --output={new}"
    " --validation_fraction=0.5": (
        *("seq_len", "validation_fraction", "source", "tokenizer"),
    ),
    "train_tokenizer.py --source=text:{text} --vocab_size=300 --output={new}.model": (
        *("vocab_size", "source"),
    ),
}
VALUES = [
    *("", "0", "1", "2", "3", "17", "0.5", "1.0", "1e-50", "-1", "-0.5", "1e400"),
    *("nan", "inf", "-inf", "2147483648", "1" + "0" * 30, "x", "é", "1,2", "1,,2", ","),
    *("true", "'", "\udcff", "\x00", "text:", "byte:x", "{run}", "{new}.txt", "a\nb"),
]


def test_flags_work_or_are_refused(tiny_run, tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    paths = {
        "run": tiny_run.folder / "run",
        "config": tiny_run.folder / "config.py",
        "text": ROOT / "README.md",
        "new": tmp_path / "new",
    }
    command, names = rng.choice(list(TOOLS.items()))
    chosen = rng.sample(names, rng.randint(1, min(2, len(names))))
    arguments = command.split() + [f"--{x}={rng.choice(VALUES)}" for x in chosen]
    program, *arguments = (x.format(**paths) for x in arguments)
    monkeypatch.chdir(tmp_path)
    result = run(program, *arguments)
    print(program, arguments, result)
    assert_allowed(result)
    if result.returncode == 0 and program != "generate.py":
        for line in result.stdout.splitlines():
            strict_json(line)
    elif result.returncode == 2:
        assert [x for x in tmp_path.rglob("*") if x.is_file()] == []
