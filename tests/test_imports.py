"""Every module imports; imports go one way; nothing brings in TensorFlow or torch."""

import ast
import functools
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
MODULES = [
    module.name
    for module in pkgutil.walk_packages(diffeq_former.__path__, "diffeq_former.")
    if not module.name.startswith(OF_EXTRAS)
]
EVERYWHERE = {"config", "settings", "errors", "output", "cli"}
# What each part of the package may import, beside itself and what all may.
ALLOWED = {
    "compilation_cache": set(),
    "settings": set(),
    "errors": set(),
    "output": set(),
    "cli": set(),
    "distributed": set(),
    "pictures": set(),
    "config": {"ode"},
    "validation": {"models", "ode"},
    "ode": set(),
    "data": set(),
    "sharding": set(),
    "models": {"ode"},
    "training": {"models", "ode", "data", "sharding"},
    "planning": {"training", "models", "ode", "sharding"},
    "generation": {"models", "sharding"},
    "evaluation": {"models", "data", "generation", "sharding"},
    "finetuning": {"training", "models", "ode", "data", "sharding"},
    "pages": {"pictures"},
    "studies": set(),
    "analysis": {"models", "ode", "data", "sharding", "pictures", "pages"},
    "stability": {
        *("analysis", "training", "models", "data", "sharding", "pictures", "pages")
    },
    "reporting": {"analysis", "training", "pictures", "pages"},
    "conversion": {"finetuning", "training", "models", "ode", "data", "sharding"},
    "serving": {"generation"},
    "benchmarks": {"planning", "training", "generation", "data", "sharding"},
}
# resolve() validates; validation imports the settings' classes.
EXCEPTIONS = {("config/schema.py", "validation")}


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


def parts_imported(path):
    names = (name.split(".") for name in imported(path))
    return {name[1] for name in names if name[0] == "diffeq_former" and name[1:]}


def is_part(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_go_one_way(part):
    folder, file = PACKAGE / part, PACKAGE / f"{part}.py"
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [file]
    assert paths
    for path in paths:
        others = {
            other
            for other in parts_imported(path) - ALLOWED[part] - EVERYWHERE - {part}
            if is_part(other) and (path.name, other) not in EXCEPTIONS
        }
        assert not others, f"{path.relative_to(ROOT)} imports {others}"


def test_the_rules_name_every_part():
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "main"}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert files | folders == set(ALLOWED)


def test_nothing_imports_main_or_tools():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        assert "main" not in parts_imported(path), path
        assert not [name for name in imported(path) if name.startswith("tools")], path


def test_what_leaves_jax_alone():
    files = ("errors.py", "training/checksums.py", "training/checkpoint_integrity.py")
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
