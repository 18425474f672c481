"""Sizes, docstrings and habits that every file of the source keeps to."""

import ast
import re

import pytest

from tests.architecture.source_tree import (
    ROOT,
    Module,
    functions,
    modules,
)

MOST_UTILITIES = 10
MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray", "split"}
CHANGES = {
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault", "add", "discard", "sort"
}  # fmt: skip
DECLARATIONS = (
    ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
    ast.Assert,
)  # fmt: skip
UNFINISHED = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error"]


def module_of(text):
    return Module("some_room.some_module", "some_module.py", text)


def all_functions():
    return [(module, name, function) for module in modules() for name, function in functions(module)]


def top_level(module):
    """The statements that run when a module is imported; those of `if` blocks too, but not the program's own start."""
    for node in module.tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            continue
        yield from node.body + node.orelse if isinstance(node, ast.If) else [node]


def shared_tables(module):
    """name -> line of every mutable container that a module binds when it is imported."""
    found: dict[str, int] = {}
    for node in top_level(module):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        value = node.value
        called = value.func if isinstance(value, ast.Call) else None
        called_name = getattr(called, "id", getattr(called, "attr", ""))
        if isinstance(value, MUTABLE) or called_name in CONTAINERS:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node.lineno for target in targets if isinstance(target, ast.Name)}
    return found


def changes_of(module, names):
    """Lines on which one of these names is changed in place."""
    for node in ast.walk(module.tree):
        target = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            target = node.func.value
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node.value
        elif isinstance(node, ast.AugAssign):
            target = node.target
        if isinstance(target, ast.Name) and target.id in names:
            yield f"{module.path}:{target.lineno} changes {target.id}"


def undocumented(module):
    """Public classes, functions and methods of public classes that have no docstring."""

    def look(body, prefix):
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            # A setter is documented where the property is read.
            is_setter = any(ast.unparse(decorator).endswith(".setter") for decorator in node.decorator_list)
            if ast.get_docstring(node) is None and not is_setter:
                yield f"{module.path}:{node.lineno} {prefix}{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from look(node.body, f"{node.name}.")

    yield from look(module.tree.body, "")


def test_everything_public_has_a_docstring_and_so_has_every_file():
    assert not [where for module in modules() for where in undocumented(module)]
    assert not [module.path for module in modules() if not ast.get_docstring(module.tree)]


def test_a_missing_docstring_is_found():
    module = module_of("class A:\n    'A.'\n    def b(self): ...\n    def _c(self): ...\ndef d(): ...\n")
    assert len(list(undocumented(module))) == 2


def test_no_function_declares_a_global():
    assert not [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]


def test_tables_of_a_module_are_constants_and_nothing_changes_them():
    tables = {module: shared_tables(module) for module in modules()}
    assert any(tables.values())
    variables = [f"{m.path}:{line} {n}" for m, found in tables.items() for n, line in found.items() if not n.isupper()]
    assert not variables
    assert not [change for module, found in tables.items() for change in changes_of(module, found)]


@pytest.mark.parametrize("change", ["CACHE[1] = 2", "CACHE.update(a=1)", "del CACHE[1]", "CACHE |= {}"])
def test_a_changed_table_is_found(change):
    module = module_of(f"CACHE = {{}}\ndef f():\n    {change}\n")
    assert list(changes_of(module, shared_tables(module)))


def test_nothing_is_done_while_a_module_is_imported():
    def is_declaration(node):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return isinstance(node, DECLARATIONS) or is_docstring

    busy = [f"{m.path}:{node.lineno}" for m in modules() for node in top_level(m) if not is_declaration(node)]
    assert not busy


def test_nothing_is_left_unfinished():
    files = [*ROOT.glob("*.py"), *ROOT.glob("Makefile"), *ROOT.glob("*.toml"), *ROOT.glob("*.md")]
    for folder in ("algorithms", "envs", "utils", "tools", "src", "benchmarks", "tests", "docs"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    words = re.compile(rf"\b({'|'.join(UNFINISHED)})\b")
    assert len(files) > 100
    assert words.search(f"# {UNFINISHED[0]}: later")
    assert not [str(path.relative_to(ROOT)) for path in files if words.search(path.read_text(encoding="utf-8"))]


def test_there_are_few_utilities():
    utilities = [module for module in modules() if module.name.startswith("appo.utils.")]
    assert 1 < len(utilities) <= MOST_UTILITIES
