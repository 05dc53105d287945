"""tools/benchmark.py torch against our own models; most of it needs the extra hf."""

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys

import command_lines
import jax
import pytest
from cases import TINY as MODEL
from cases import shapes_of
from runs import ROOT

from diffeq_former.config import resolve
from diffeq_former.training.flops import flops_per_token

TOOL = ("benchmark.py", "torch")
TINY = f"--config={ROOT}/configs/tiny.py"
SMALL = [
    "--config.model.num_layers=2",
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.vocab_size=300",
    "--config.model.max_len=32",
    "--rounds=2",
    "--steps=1",
]
PLAIN = {"weights": "layer_table", "solver": "lie_trotter"}
MODELS = {
    "gpt": dataclasses.replace(MODEL, **PLAIN),
    "llama": dataclasses.replace(MODEL, **PLAIN, block="llama"),
    "grouped": dataclasses.replace(MODEL, **PLAIN, block="llama", num_kv_heads=1),
}
CONFIGS = ("gpt_small", "gpt_medium", "gpt_large", "llama1b")


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("transformers")
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def make_model(torch):
    from diffeq_former.benchmarks.torch_models import make_model

    return make_model


def lines(*flags):
    """As a user runs it, where JAX has no device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "none_such")
        result = command_lines.run_process(*TOOL, TINY, *SMALL, *flags)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def num_parameters(model):
    shapes = jax.tree.leaves(shapes_of(model), is_leaf=lambda x: isinstance(x, tuple))
    return sum(map(math.prod, shapes))


def of_file(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"configs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = resolve(module.get_config()).model
    return dataclasses.replace(model, **PLAIN, dropout=0.0)


@pytest.mark.parametrize("name", [*MODELS, *CONFIGS])
def test_as_many_parameters_as_ours(torch, make_model, name):
    model = MODELS.get(name) or of_file(name)
    with torch.device("meta"):
        theirs = make_model(model, model.vocab_size)
    assert sum(p.numel() for p in theirs.parameters()) == num_parameters(model)
    assert {p.dtype for p in theirs.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", MODELS)
def test_as_many_flops_as_by_our_definition(torch, make_model, name):
    from torch.utils.flop_counter import FlopCounterMode

    model, rows = MODELS[name], 3
    theirs = make_model(model, model.vocab_size)
    theirs.set_attn_implementation("eager")  # all of its products are counted
    tokens = torch.zeros(rows, model.max_len, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        theirs(input_ids=tokens).logits.sum().backward()
    ours = flops_per_token(model, model.max_len) * tokens.numel()
    assert counter.get_total_flops() == ours


@pytest.mark.parametrize("name", MODELS)
def test_compiled_attention_is_causal_and_has_no_mask(torch, make_model, name):
    model, calls = MODELS[name], []

    def record(graph_module, example_inputs):
        calls.extend(
            (node.kwargs["attn_mask"], node.kwargs["is_causal"])
            for node in graph_module.graph.nodes
            if "scaled_dot_product_attention" in str(node.target)
        )
        return graph_module.forward

    theirs = make_model(model, model.vocab_size)
    tokens = torch.arange(2 * model.max_len).reshape(2, -1) % model.vocab_size
    compiled = torch.compile(theirs, backend=record, fullgraph=True)
    logits = compiled(input_ids=tokens).logits
    assert calls == [(None, True)] * model.num_layers
    theirs.set_attn_implementation("eager")
    torch.testing.assert_close(logits, theirs(input_ids=tokens).logits)


def assert_lines(found, tried, vocab_sizes):
    assert {line["variant"]: line["vocab_size"] for line in found} == vocab_sizes
    own = found[0]
    for line in found:
        seconds = line["seconds"]
        assert 0 < seconds["low"] <= seconds["median"] <= seconds["high"]
        tokens = line["tokens_per_second"] * seconds["median"]
        assert tokens == pytest.approx(8 * 32)
        assert list(line["tried"]) == tried
        assert line["tried"][str(line["micro_batch_size"])] == max(
            line["tried"].values()
        )
        assert line["tokens_per_second"] == max(line["tried"].values())
        assert line["host_peak_bytes"] > 50e6 and line["compile_seconds"] > 0
        # Padding is no work.
        flops = line["model_flops_per_second"] / line["tokens_per_second"]
        assert flops == pytest.approx(
            own["model_flops_per_second"] / own["tokens_per_second"]
        )


def test_pytorch_takes_turns_with_our_steps(torch):
    flags = (TINY, *SMALL, "--beside=torch")
    result = command_lines.run_process("benchmark.py", "train", *flags)
    assert result.returncode == 0, result.stderr
    base, *theirs = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["variant"] for line in theirs] == ["torch", "torch_compile"]
    for line in theirs:
        ratio = base["seconds"]["median"] / line["seconds"]["median"]
        assert line["ratio"]["low"] / 2 < ratio < 2 * line["ratio"]["high"]
        assert line["tokens_per_second"] > 0


def test_the_fastest_micro_batch_of_each_vocabulary(torch):
    vocab_sizes = {"torch": 300, "torch_padded_vocabulary": 384}
    found = lines("--batch_sizes=2,8", "--nocompile")
    assert_lines(found, ["2", "8"], vocab_sizes)


@pytest.mark.slow
@pytest.mark.parametrize("block", ["gpt", "llama"])
def test_compiled_in_bfloat16(torch, block):
    """A vocabulary of a round size is not padded."""
    settings = {"block": block, "dtype": "bfloat16", "num_layers": 1, "vocab_size": 384}
    flags = [f"--config.model.{name}={value}" for name, value in settings.items()]
    assert_lines(lines("--batch_sizes=4", *flags), ["4"], {"torch": 384})


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra(missing):
    others = {"torch", "transformers"} - {missing}
    code = f"""
import importlib.machinery, runpy, sys
class Installed:
    def find_spec(self, name, path=None, target=None):
        if name in {others}:
            return importlib.machinery.ModuleSpec(name, None, origin="here")
sys.meta_path.insert(0, Installed())
sys.modules[{missing!r}] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            f"tools/{TOOL[0]}",
            TOOL[1],
            TINY,
            "--batch_sizes=8",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: the package {missing} is missing: pip install")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "torch needs --batch_sizes (micro-batch sizes, such as 8,16,32): "),
        (["--batch_sizes=8,x"], "--batch_sizes=8,x: expected whole numbers of 1 or"),
        (["--batch_sizes=0"], "--batch_sizes=0: expected whole numbers of 1 or more"),
        (["--batch_sizes=8", "--batch=8"], "Unknown command line flag 'batch'"),
    ],
)
def test_wrong_input(refused, flags, message):
    assert refused(*TOOL, TINY, *flags).startswith(message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--batch_sizes: expected divisors of config.training.batch_size (8), got"),
        (
            ["--config.training.batch_size=3", "--config.model.dropout=0.1"],
            "config.model.dropout: expected 0, as the Llama of transformers has none",
        ),
        (
            ["--config.training.batch_size=3", "--config.model.chain_norms=True"],
            "config.model.chain_norms: expected False, as in transformers, got True",
        ),
        (
            ["--config.training.batch_size=3", "--config.model.logit_softcap=30"],
            "config.model.logit_softcap: expected 0.0, as in transformers, got 30.0",
        ),
    ],
)
def test_what_torch_cannot_train(torch, refused, flags, message):
    assert refused(*TOOL, TINY, "--batch_sizes=3", *flags).startswith(message)
