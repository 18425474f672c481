"""The project's own source as syntax trees: which module imports what, and where its functions are."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
IMPORTED_AS_APPO = ("algorithms", "envs", "tools", "utils")  # folders below the import root, see src/appo
PACKAGES = (*IMPORTED_AS_APPO, "benchmarks")
PROGRAMS = ("train_appo.py", "enjoy_appo.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One file of source."""

    name: str  # dotted; of a package without __init__
    path: str  # from the project's root
    text: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return _parse(self.text)


class Import(NamedTuple):
    """One imported module."""

    target: str  # dotted; a module of ours as precisely as the statement tells
    line: int
    is_local: bool  # inside a function, so it happens when that is called
    is_for_types: bool  # under `if TYPE_CHECKING`, so it never happens


@functools.cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def modules() -> tuple[Module, ...]:
    """Every file of source but the tests."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found += [ROOT / program for program in PROGRAMS if (ROOT / program).exists()]
    return tuple(_module(path) for path in found)


@functools.cache
def modules_of_tests() -> tuple[Module, ...]:
    """Every file of the tests."""
    return tuple(_module(path) for path in sorted((ROOT / "tests").rglob("*.py")))


def module_names() -> set[str]:
    return {module.name for module in modules()}


def _module(path: Path) -> Module:
    relative = path.relative_to(ROOT)
    is_package = path.name == "__init__.py"
    parts = relative.parent.parts if is_package else relative.with_suffix("").parts
    root = ("appo",) if parts[0] in IMPORTED_AS_APPO else ()
    return Module(".".join(root + parts), str(relative), path.read_text(encoding="utf-8"), is_package)


def imports(module: Module, ours: set[str] | None = None) -> Iterator[Import]:
    """Every import of a module. `ours`: names that tell `from package import module` from `import name`."""
    known = module_names() if ours is None else ours
    yield from _imports_below(module.tree, module, known, is_local=False, is_for_types=False)


def _imports_below(node: ast.AST, module: Module, ours: set[str], *, is_local: bool, is_for_types: bool):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, is_local, is_for_types)
        elif isinstance(child, ast.ImportFrom):
            base = _base(child, module)
            for target in {f"{base}.{a.name}" if f"{base}.{a.name}" in ours else base for a in child.names}:
                yield Import(target, child.lineno, is_local, is_for_types)
        else:
            inside = is_local or isinstance(child, Function | ast.Lambda)
            types_only = is_for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            yield from _imports_below(child, module, ours, is_local=inside, is_for_types=types_only)


def _base(statement: ast.ImportFrom, module: Module) -> str:
    if not statement.level:
        return statement.module or ""
    package = module.name.split(".")
    package = package[: len(package) - statement.level + module.is_package]
    return ".".join([*package, *filter(None, [statement.module])])


def functions(module: Module) -> Iterator[tuple[str, Function]]:
    """Qualified name and node of every function and method, nested ones too."""
    yield from _functions_below(module.tree, "")


def _functions_below(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, Function):
                yield name, child
            yield from _functions_below(child, f"{name}.")
        else:
            yield from _functions_below(child, prefix)


def num_code_lines(module: Module, function: Function) -> int:
    """Lines of a function that hold code: neither blank, nor comment, nor docstring."""
    has_docstring = ast.get_docstring(function) is not None
    docstring = function.body[0] if has_docstring else None
    skipped = range(docstring.lineno, (docstring.end_lineno or 0) + 1) if docstring else range(0)
    lines = range(function.lineno, (function.end_lineno or 0) + 1)
    return sum(line in code_lines(module.text) and line not in skipped for line in lines)


@functools.cache
def code_lines(text: str) -> frozenset[int]:
    """Numbers of the lines on which some token other than a comment stands."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            numbers.update(range(token.start[0], token.end[0] + 1))
    return frozenset(numbers)


def num_parameters(function: Function) -> int:
    """Parameters that a caller may have to think about: all but self and cls."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    named = [parameter for parameter in named if parameter.arg not in ("self", "cls")]
    return len(named) + (given.vararg is not None) + (given.kwarg is not None)
