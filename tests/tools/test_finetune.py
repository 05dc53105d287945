"""Fine-tuning as a user runs it: train, evaluate, merge, export."""

import dataclasses
import json

import pytest
from cases import in_two_lots, mesh_of
from runs import Command

from diffeq_former.config import Config, FinetuneConfig, ModelConfig, TrainingConfig
from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.training import run_directory

NUM_STEPS = 5
SLOW = "--config.optimizer.learning_rate=1e-12"  # it moves nothing


def config_of(trained, **model) -> Config:
    return Config(
        model=ModelConfig(dtype="float32", **model),
        data=trained.run.config.data,
        training=TrainingConfig(num_steps=3, batch_size=8, eval_every=3),
        finetune=FinetuneConfig(str(trained.workdir), NUM_STEPS),
    )


@pytest.fixture(scope="module")
def command(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    return Command(folder, config_of(trained, lora_rank=2, lora_dropout=0.1))


@pytest.fixture(scope="module")
def tuned(command, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("tuned") / "run"
    result = command.run(workdir, "--config.optimizer.learning_rate=0.05")
    assert result.returncode == 0, result.stderr
    return workdir, json.loads(result.stdout)


def figures_of(tool, workdir) -> dict:
    result = tool("evaluate.py", f"--workdir={workdir}")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def loss_of_the_base(trained, num_steps: int) -> float:
    model = trained.run.config.model.at_depth(num_steps)
    config = dataclasses.replace(trained.run.config, model=model)
    return make_evaluate(config, trained.dataset, mesh_of())(trained.run.params)["loss"]


def test_it_starts_at_the_loss_of_its_base(command, trained, tmp_path):
    result = command.run(tmp_path / "run", SLOW)
    assert result.returncode == 0, result.stderr
    loss = loss_of_the_base(trained, NUM_STEPS)
    assert json.loads(result.stdout)["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [0, 7])
def test_so_does_training_of_all(trained, tmp_path, num_steps):
    depth = f"--config.finetune.num_steps={num_steps}"
    result = Command(tmp_path, config_of(trained)).run(tmp_path / "run", SLOW, depth)
    assert result.returncode == 0, result.stderr
    loss = loss_of_the_base(trained, num_steps or trained.run.config.model.num_layers)
    assert json.loads(result.stdout)["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_it_is_used_like_any_run(tool, tuned, trained):
    workdir, figures = tuned
    config = run_directory.read_config(workdir)
    assert (config.model.weights, config.model.num_layers) == ("layer_table", NUM_STEPS)
    assert figures["loss"] < loss_of_the_base(trained, NUM_STEPS)
    assert figures_of(tool, workdir)["loss"] == pytest.approx(figures["loss"], rel=1e-5)
    flags = ("--prompt=the", "--max_new_tokens=4", "--temperature=0")
    result = tool("generate.py", f"--workdir={workdir}", *flags)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("the")


@pytest.mark.slow
def test_merged_it_has_the_same_loss(tool, tuned, tmp_path):
    workdir, figures = tuned
    output = tmp_path / "merged"
    result = tool(
        "convert.py", "merge_lora", f"--workdir={workdir}", f"--output={output}"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "workdir": str(workdir),
        "adapter": None,
        "output": str(output),
    }
    assert run_directory.read_config(output).model.lora_rank == 0
    assert figures_of(tool, output)["loss"] == pytest.approx(figures["loss"], rel=1e-5)


@pytest.mark.slow
def test_what_the_tools_refuse(refused, tuned, trained, tmp_path):
    workdir, _ = tuned
    output = f"--output={tmp_path / 'out'}"
    for command, run, words in (
        (
            "convert.py export_adapter",
            workdir,
            "a model of layer_table and euler has no Hugging",
        ),
        ("convert.py export_adapter", trained.workdir, "this run has no adapter"),
        ("convert.py export_adapter", tmp_path, f"{tmp_path} is not a run"),
        ("export_hf.py", workdir, f"{workdir} has adapters of its own; merge them"),
        (
            "convert.py merge_lora",
            trained.workdir,
            f"{trained.workdir} has no adapter to merge",
        ),
    ):
        assert refused(*command.split(), f"--workdir={run}", output).startswith(words)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    line = refused(
        "convert.py", "merge_lora", f"--workdir={workdir}", f"--output={tmp_path}/mine"
    )
    assert line.startswith(f"output {tmp_path}/mine exists")


WRONG = [
    ("--config.finetune.num_steps=-1", "config.finetune.num_steps: expected 0"),
    ("--config.finetune.base=", "config.finetune.num_steps: 5 applies only to f"),
    ("--config.finetune.base=/none", "/none is not a run: it has no config.json"),
    ("--config.model.block=llama", "config.model.block: 'llama' is not what the"),
    ("--config.model.lora_targets=gate", "config.model.lora_targets: 'gate' is not"),
]


@pytest.mark.parametrize("case", in_two_lots(WRONG, WRONG[3].__eq__))
def test_wrong_wishes_are_one_line_and_leave_nothing(command, tmp_path, case):
    flag, words = case
    result = command.run(tmp_path / "run", flag)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: {words}")
    assert not (tmp_path / "run").exists()
