"""Every setting is used, and says what it is."""

import ast
import dataclasses
import inspect
import io
import tokenize
from pathlib import Path

from diffeq_former import config as config_module
from diffeq_former.sharding.rules import MESH_AXES
from diffeq_former.training.parameter_groups import GROUPS

PACKAGE = Path(config_module.__file__).parent


def test_every_field_is_used():
    """A field that nothing reads promises what does not happen."""
    sections = [cls for cls in vars(config_module).values() if inspect.isclass(cls)]
    names = {
        field.name
        for cls in filter(dataclasses.is_dataclass, sections)
        for field in dataclasses.fields(cls)
    }
    assert len(names) > 50
    read = {f"{group}_multiplier" for group in GROUPS} | set(MESH_AXES)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    assert names - read == set()


def test_every_field_says_what_it_is():
    source = inspect.getsource(config_module)
    lines = io.StringIO(source).readline
    commented = {
        token.start[0]
        for token in tokenize.generate_tokens(lines)
        if token.type == tokenize.COMMENT
    }
    fields = [
        statement
        for cls in ast.parse(source).body
        if isinstance(cls, ast.ClassDef) and cls.name != "Config"
        for statement in cls.body
        if isinstance(statement, ast.AnnAssign)
    ]
    assert len(fields) > 50
    silent = [
        field.target.id
        for field in fields
        if not commented & set(range(field.lineno, field.end_lineno + 1))
    ]
    assert silent == []
