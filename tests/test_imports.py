"""Every module imports; imports go one way; nothing brings in TensorFlow or torch."""

import ast
import functools
import graphlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import diffeq_former

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "diffeq_former"
# What these start with needs the extra hf, or harness.
OF_EXTRAS = (
    "diffeq_former.benchmarks.torch_",
    "diffeq_former.conversion.modeling_",
    "diffeq_former.inference.harness",
)
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = [
    module.name
    for module in pkgutil.walk_packages(diffeq_former.__path__, "diffeq_former.")
    if not module.name.startswith(OF_EXTRAS)
]
# From the bottom up: a part imports only what stands above it in this list.
LAYERS = (
    *("errors", "process_exit", "compilation_cache", "atomic_io"),
    "ode",
    "config",
    "models",
    "data",
    "distributed",
    "training",
    "inference",
    "finetuning",
    "conversion",
    "planning",
    "analysis",
    "experiments",
    "benchmarks",
    "api",
    "cli",
    "main",
)
# What a part may not import although it stands below.
APART = {
    "data": {"ode", "config", "models"},
    "distributed": {"models", "data"},
    "inference": {"training"},
    "planning": {"data", "inference", "finetuning", "conversion"},
    "analysis": {"inference", "finetuning", "conversion", "planning"},
}


@functools.cache
def imported(path):
    """Names of all modules that a file imports, also inside functions."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def modules_imported(path):
    """Those of the package that a file imports, as dotted names."""
    for name in imported(path):
        while name.startswith("diffeq_former.") and name not in FILES:
            name = name.rpartition(".")[0]
        if name.startswith("diffeq_former."):
            yield name


def parts_imported(path):
    return {name.split(".")[1] for name in modules_imported(path)}


@pytest.mark.parametrize("part", LAYERS)
def test_imports_go_one_way(part):
    folder, file = PACKAGE / part, PACKAGE / f"{part}.py"
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [file]
    allowed = {part, *LAYERS[: LAYERS.index(part)]} - APART.get(part, set())
    for path in paths:
        others = parts_imported(path) - allowed
        assert not others, f"{path.relative_to(ROOT)} imports {others}"


def test_no_imports_form_a_circle():
    """Imports inside of functions included."""
    graph = {name: set(modules_imported(path)) for name, path in FILES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, naming them


def test_the_layers_name_every_part():
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert files | folders == set(LAYERS)


def test_nothing_imports_main_or_tools():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        assert "main" not in parts_imported(path), path
        assert not [name for name in imported(path) if name.startswith("tools")], path


def test_what_leaves_jax_alone():
    files = (
        "errors.py",
        "training/checkpoint/checksums.py",
        "training/checkpoint/integrity.py",
    )
    for path in [*(PACKAGE / "data").rglob("*.py"), *map(PACKAGE.joinpath, files)]:
        libraries = {name.split(".")[0] for name in imported(path)}
        heavy = libraries & {"jax", "flax", "orbax"}
        assert not heavy, path


def test_every_module_imports_without_tensorflow_and_torch():
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print([m for m in ('tensorflow', 'torch') if m in sys.modules])"
    )
    command = [sys.executable, "-W", "error", "-c", code, *MODULES]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[]\n"
    assert len(MODULES) > 30
