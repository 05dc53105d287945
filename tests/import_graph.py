"""What imports what: the layers of the package, and their picture in the docs.

    python tests/import_graph.py

draws the picture of docs/architecture.md again.
"""

import ast
import functools
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "diffeq_former"
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "```mermaid\n", "```\n"

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}
# From the bottom up: a part imports only what stands above it in this list.
LAYERS = (
    *("errors", "process_exit", "compilation_cache", "json_io", "locks", "hardware"),
    "atomic_io",
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
    "api",
    "experiments",
    "benchmarks",
    "cli",
    "main",
)
# What a part may not import although it stands below.
APART = {
    "data": {"ode", "config", "models"},
    "distributed": {"models", "data"},
    "inference": {"training"},
    "planning": {"data", "finetuning", "conversion"},
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


def paths_of(part):
    """The files of a part of the package: a folder, or one file."""
    folder, file = PACKAGE / part, PACKAGE / f"{part}.py"
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [file]


def picture() -> str:
    """The parts and their imports, without those that follow from others.

    Parts that are one file are left out, except main and api.
    """
    parts = [p for p in LAYERS if (PACKAGE / p).is_dir() or p in ("main", "api")]
    direct = {
        part: {x for path in paths_of(part) for x in parts_imported(path)}
        & set(parts) - {part}
        for part in parts
    }
    reached = {}
    for part in parts:  # from the bottom up
        reached[part] = direct[part].union(*(reached[x] for x in direct[part]))
    lines = ["graph TD"]
    for part in reversed(parts):
        implied = set().union(*(reached[x] for x in direct[part]))
        shown = sorted(direct[part] - implied, key=LAYERS.index, reverse=True)
        lines += [f"    {part} --> {other}" for other in shown]
    return "\n".join(lines) + "\n"


def with_picture(page: str) -> str:
    """The page with its picture drawn again."""
    before, rest = page.split(BEGIN)
    after = rest.split(END, 1)[1]
    return before + BEGIN + picture() + END + after


if __name__ == "__main__":
    drawn = with_picture(PAGE.read_text(encoding="utf-8"))
    sys.exit(PAGE.write_text(drawn, encoding="utf-8") and 0)
