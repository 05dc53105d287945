"""Every setting is used, and says what it is."""

import ast
import dataclasses
import functools
import inspect
import io
import tokenize
from pathlib import Path

import diffeq_former
from diffeq_former.config import model_schema, schema
from diffeq_former.distributed.sharding_rules import MESH_AXES
from diffeq_former.training.optimizer import GROUPS

PACKAGE = Path(diffeq_former.__file__).parent
SECTIONS = {
    name: cls
    for name, cls in (vars(model_schema) | vars(schema)).items()
    if inspect.isclass(cls) and dataclasses.is_dataclass(cls)
}
FIELDS = {
    (name, field.name): getattr(field.type, "__name__", "")
    for name, cls in SECTIONS.items()
    for field in dataclasses.fields(cls)
}
# To be checked is no use.
VALIDATION = {PACKAGE / "config/validation.py", PACKAGE / "config/model_validation.py"}
# Read by a name that is put together.
BY_NAME = {("OptimizerConfig", f"{group}_multiplier") for group in GROUPS}
BY_NAME |= {("MeshConfig", axis) for axis in MESH_AXES}


def section_of(annotation) -> str | None:
    """The section that an annotation names, also as a string."""
    name = getattr(annotation, "id", None) or getattr(annotation, "value", None)
    return name if isinstance(name, str) and name in SECTIONS else None


class Reads(ast.NodeVisitor):
    """Collects (section, attribute) of what is known to be a section.

    Known are annotated parameters and class attributes, fields of sections, what
    their methods and annotated functions return, and names assigned from these. A
    parameter `config` without an annotation is a Config.
    """

    def __init__(self, returns: dict[str, str]):
        self._returns, self._names, self.found = returns, {}, set()

    def visit_ClassDef(self, node):
        own = {"self": node.name} if node.name in SECTIONS else {}
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and (s := section_of(line.annotation)):
                own[f"self.{line.target.id}"] = s
        self._visit_in_scope(node, own)

    def visit_FunctionDef(self, node):
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        own = {arg.arg: section_of(arg.annotation) for arg in given}
        own |= {arg.arg: "Config" for arg in given if ast.unparse(arg) == "config"}
        own.pop("self", None)
        self._visit_in_scope(node, own)

    def visit_Assign(self, node):
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            else:
                pairs = [(target, node.value)]
            for name, value in pairs:
                if ast.Starred in (type(name), type(value)):
                    break
                self._names[ast.unparse(name)] = self._section(value)

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and (owner := self._section(node.value)):
            self.found.add((owner, node.attr))

    def _visit_in_scope(self, node, own: dict[str, str | None]):
        outer = self._names
        self._names = outer | own
        self.generic_visit(node)
        kept = {name: s for name, s in self._names.items() if name[:5] == "self."}
        # What a method, such as __init__, assigns is known in those that follow.
        self._names = outer | (kept if isinstance(node, ast.FunctionDef) else {})

    def _section(self, node) -> str | None:
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="replace")):
                is_module = ast.unparse(owner) == "dataclasses"
                return self._section(node.args[0]) if is_module else None
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                method = getattr(SECTIONS.get(self._section(owner)), name, None)
                return name_of_result(method) or self._returns.get(name)
            case ast.Call(func=ast.Name(id=name)):
                return name if name in SECTIONS else self._returns.get(name)
            case ast.Attribute(value=owner, attr=name):
                section = self._section(owner)
                known = self._names.get(ast.unparse(node))
                method = getattr(SECTIONS.get(section), name, None)
                result = name_of_result(getattr(method, "fget", None))
                field = FIELDS.get((section, name))
                return known or result or (field if field in SECTIONS else None)
            case ast.Name(id=name):
                return self._names.get(name)


def name_of_result(function) -> str | None:
    annotation = getattr(function, "__annotations__", {}).get("return")
    name = getattr(annotation, "__name__", annotation)
    return name if name in SECTIONS else None


@functools.cache
def reads() -> set[tuple[str, str]]:
    """(section, field) of all that the package reads, where the section is sure."""
    paths = set(PACKAGE.rglob("*.py")) - VALIDATION
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(paths)]
    nodes = [node for tree in trees for node in tree.body]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    returns = {f.name: section_of(f.returns) for f in functions}
    found = set()
    for tree in trees:
        visitor = Reads(returns)
        visitor.visit(tree)
        found |= visitor.found
    return found


def test_every_field_is_used():
    """A field that nothing reads promises what does not happen."""
    assert len(FIELDS) > 80
    assert FIELDS.keys() - reads() - BY_NAME == set()


def test_every_property_is_used():
    properties = {
        (section, name)
        for section, cls in SECTIONS.items()
        for name, value in vars(cls).items()
        if isinstance(value, property)
    }
    assert len(properties) > 5
    assert properties - reads() == set()


def test_a_field_of_another_section_is_no_use():
    """Names that the package reads, but not from these sections."""
    for read in (("DataConfig", "path"), ("Stabilisers", "norm"), ("Config", "seed")):
        assert read in reads()
        for section in SECTIONS.keys() - {read[0]}:
            assert (section, read[1]) not in reads()


def test_every_field_says_what_it_is():
    source = inspect.getsource(model_schema) + inspect.getsource(schema)
    lines = io.StringIO(source).readline
    comments = {
        token.start[0]: token.line.lstrip().startswith("#")
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
        if not comments.keys() & set(range(field.lineno, field.end_lineno + 1))
        and not comments.get(field.lineno - 1)  # a comment's own line, above
    ]
    assert silent == []
