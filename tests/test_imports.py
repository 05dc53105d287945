"""Every module imports; imports go one way; nothing brings in TensorFlow or torch."""

import graphlib
import pkgutil
import subprocess
import sys

import pytest
from import_graph import (
    APART,
    FILES,
    LAYERS,
    PACKAGE,
    PAGE,
    ROOT,
    imported,
    modules_imported,
    parts_imported,
    paths_of,
    with_picture,
)

import diffeq_former

# What these start with needs the extra hf, or harness.
OF_EXTRAS = (
    "diffeq_former.benchmarks.torch_",
    "diffeq_former.conversion.modeling_",
    "diffeq_former.inference.harness",
)
MODULES = [
    module.name
    for module in pkgutil.walk_packages(diffeq_former.__path__, "diffeq_former.")
    if not module.name.startswith(OF_EXTRAS)
]


@pytest.mark.parametrize("part", LAYERS)
def test_imports_go_one_way(part):
    allowed = {part, *LAYERS[: LAYERS.index(part)]} - APART.get(part, set())
    for path in paths_of(part):
        others = parts_imported(path) - allowed
        assert not others, f"{path.relative_to(ROOT)} imports {others}"


def test_no_imports_form_a_circle():
    """Imports inside of functions included."""
    graph = {name: set(modules_imported(path)) for name, path in FILES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, naming them


def test_the_picture_of_the_imports_is_theirs():
    page = PAGE.read_text(encoding="utf-8")
    assert with_picture(page) == page, "run python tests/import_graph.py"


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
