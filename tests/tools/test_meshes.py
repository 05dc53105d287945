"""tools/evaluate.py and tools/generate.py on a mesh, and in two processes."""

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import command_lines
import jax
import pytest
from cases import mesh_of
from several import free_port, place

from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.inference.text import make_continue
from diffeq_former.training import run_directory, state

MESHES = {
    "fsdp": {"data": 1, "fsdp": 8},
    "tensor": {"data": 4, "tensor": 2},
    "sequence": {"data": 1, "fsdp": 2, "sequence": 4},
    "all": {"data": 1, "fsdp": 2, "sequence": 2, "tensor": 2},
}
PROMPTS = ["the cat", "", "a mat while"]
GREEDY = ("--temperature=0", "--max_new_tokens=5")


def evaluated(run, dataset, mesh) -> dict:
    return make_evaluate(run.config, dataset, mesh)(run.params)


def continued(run, mesh) -> list[str]:
    continue_texts = make_continue(run.config.model, mesh, run.tokenizer)
    return continue_texts(run.params, PROMPTS, max_new_tokens=5, temperature=0.0)


@pytest.fixture(scope="module")
def alone(trained):
    """Figures and texts of one device."""
    mesh = mesh_of()
    run = run_directory.load(trained.workdir, mesh)
    return evaluated(run, trained.dataset, mesh), continued(run, mesh)


@pytest.mark.mesh
@pytest.mark.parametrize(
    "label",
    [pytest.param(x, marks=[] if x == "all" else pytest.mark.slow) for x in MESHES],
)
def test_every_mesh_gives_what_one_device_gives(trained, alone, label):
    mesh = mesh_of(8, **MESHES[label])
    run = run_directory.load(trained.workdir, mesh)
    places = state.shardings(run.config, mesh).params
    for x, where in zip(*map(jax.tree.leaves, (run.params, places)), strict=True):
        assert x.sharding == where
        held = {shard.data.shape for shard in x.addressable_shards}
        assert held == {where.shard_shape(x.shape)}
    figures, texts = alone
    assert evaluated(run, trained.dataset, mesh) == pytest.approx(figures, rel=1e-5)
    assert continued(run, mesh) == texts


def in_two_processes(name, *flags):
    """Both exit codes and outputs; with four devices together."""
    port = free_port()
    with ThreadPoolExecutor(2) as executor:
        running = [
            executor.submit(
                command_lines.run_process,
                name,
                *flags,
                *place(port, 2, k),
                num_devices=2,
            )
            for k in range(2)
        ]
    return [process.result() for process in running]


@pytest.mark.slow
def test_two_processes_of_which_one_writes(trained, alone, monkeypatch):
    # On several CPU devices programs that were read back wait for each other for ever.
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    figures, texts = alone
    axes = {"data": 1, "fsdp": 2, "tensor": 2}
    mesh = [f"--config.mesh.{axis}={size}" for axis, size in axes.items()]
    run = (f"--workdir={trained.workdir}", *mesh)
    first, second = in_two_processes("evaluate.py", *run)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    line = json.loads(first.stdout)
    assert (line["split"], line["num_steps"]) == ("validation", 2)
    assert {name: line[name] for name in figures} == pytest.approx(figures, rel=1e-5)
    assert second.stdout == ""
    prompts = [f"--prompt={prompt}" for prompt in PROMPTS]
    first, second = in_two_processes("generate.py", *run, *prompts, *GREEDY)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout == "\n---\n".join(texts) + "\n"
    assert second.stdout == ""


TOOLS = {"evaluate.py": (), "generate.py": GREEDY}


@pytest.fixture(scope="module")
def of_eight(trained, tmp_path_factory):
    """The run, as if trained on a mesh of eight devices."""
    workdir = shutil.copytree(trained.workdir, tmp_path_factory.mktemp("eight") / "run")
    mesh = {"data": 1, "fsdp": 4, "sequence": 1, "tensor": 2}
    config = dataclasses.asdict(trained.run.config) | {"mesh": mesh}
    (workdir / "config.json").write_text(json.dumps(config))
    return workdir


def assert_as_alone(name, result, alone):
    figures, texts = alone
    assert result.returncode == 0, result.stderr
    if name == "generate.py":
        assert result.stdout == "\n---\n".join(texts) + "\n"
    else:
        line = json.loads(result.stdout)
        assert {k: line[k] for k in figures} == pytest.approx(figures, rel=1e-5)


def flags_of(name, workdir):
    prompts = [f"--prompt={prompt}" for prompt in PROMPTS if name == "generate.py"]
    return (f"--workdir={workdir}", *prompts, *TOOLS[name])


@pytest.mark.mesh
@pytest.mark.parametrize("name", TOOLS)
def test_the_mesh_is_the_runs_own_or_another(tool, of_eight, alone, name):
    own = tool(name, *flags_of(name, of_eight))
    assert_as_alone(name, own, alone)
    axes = ("--config.mesh.fsdp=2", "--config.mesh.tensor=1")
    other = tool(name, *flags_of(name, of_eight), "--config.mesh.data=4", *axes)
    assert_as_alone(name, other, alone)


@pytest.mark.parametrize("name", TOOLS)
def test_a_mesh_of_more_devices_is_refused(tool, refused, of_eight, alone, name):
    """Another one may be named."""
    line = refused(name, *flags_of(name, of_eight))
    assert line.startswith("config.mesh: data=1, fsdp=4, sequence=1, tensor=2 does not")
    one = ("--config.mesh.fsdp=1", "--config.mesh.tensor=1")
    assert_as_alone(name, tool(name, *flags_of(name, of_eight), *one), alone)


@pytest.mark.mesh
@pytest.mark.parametrize(
    "flags, words",
    [
        (["--config.mesh.fsdp=-1"], "config.mesh.fsdp: only one axis may be -1, and"),
        (
            ["--config.mesh.data=0"],
            "config.mesh.data: expected -1, or 1 or more, got 0",
        ),
        (["--config.mesh.data=x"], "flag --config.mesh.data=x"),
        (["--config.mesh.fdsp=2"], "Unknown command line flag 'config.mesh.fdsp'. Did"),
        (["--config.mesh.data=1", "--config.mesh.tensor=-1"], "config.model.num_heads"),
    ],
)
def test_no_such_mesh(refused, trained, flags, words):
    given = flags_of("generate.py", trained.workdir)
    assert refused("generate.py", *given, *flags).startswith(words)
