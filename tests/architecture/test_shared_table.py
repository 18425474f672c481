"""Every array of the shared table is used by the kinds of process that the table names."""

import ast

import pytest

from appo.algorithms.memory.layout import OBSERVATION, all_arrays, batch_arrays
from tests.architecture.source_tree import modules
from tests.memory.memory_cases import small_sizes

# Which code works for which kind of process; `counters`, `worker` and `blocks` serve several.
CODE = {
    "actor": ("sampling.", "workers.actor_worker", "memory.blocks", "memory.request_table", "memory.counters"),
    "policy": ("workers.policy_", "workers.core_sharing", "memory.request_table", "memory.counters"),
    "learner": ("workers.learner_", "workers.core_sharing", "memory.blocks", "memory.collate", "memory.counters"),
    "opponent worker": ("workers.opponent",),
    "driver": ("run.", "reporting.", "workers.supervisor", "workers.worker", "memory.blocks", "memory.settings"),
    "each": ("memory.counters", "workers.worker"),
}
ARRAYS = [spec for spec in all_arrays(small_sizes()) if not spec.name.startswith(OBSERVATION)]


def named_in(tree):
    """Every text in a module but its docstrings: arrays are named so."""
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    first = [node.body[0] for node in documented if node.body]
    docstrings = {id(node.value) for node in first if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {node.value for node in texts if id(node) not in docstrings}


def users(name):
    """Modules of ours in which an array is named, the table itself left out."""
    rooms = "appo.algorithms."
    found = {module.name for module in modules() if name in named_in(module.tree)}
    return {each.removeprefix(rooms) for each in found if each.startswith(rooms)} - {"memory.layout"}


def kinds_of(words):
    """The kinds of process in the columns `writer` and `reader`."""
    named = words.replace(";", ",").split(", ")
    return {kind.removesuffix("s") for kind in named if kind != "all others"} - {""}


@pytest.mark.parametrize("spec", ARRAYS, ids=lambda spec: spec.name)
def test_every_kind_of_process_that_the_table_names_has_code_that_uses_the_array(spec):
    using = users(spec.name)
    assert using, f"nobody uses {spec.name}"
    for kind in kinds_of(spec.writer) | kinds_of(spec.reader):
        assert [name for name in using if name.startswith(CODE[kind])], f"no code of {kind} names {spec.name}: {using}"


def test_a_batch_holds_what_the_learner_reads_and_nothing_else():
    (core,) = [module for module in modules() if module.name.endswith("workers.learner_core")]
    subscripts = [node for node in ast.walk(core.tree) if isinstance(node, ast.Subscript)]
    of_batch = [node for node in subscripts if ast.unparse(node.value) == "on_device"]
    read = {node.slice.value for node in of_batch if isinstance(node.slice, ast.Constant)}
    held = {spec.name for spec in batch_arrays(small_sizes()) if not spec.name.startswith(OBSERVATION)}
    assert read == held and len(held) > 8


def test_the_kinds_of_a_column_are_found_in_all_its_forms():
    assert kinds_of("actor, policy") == {"actor", "policy"}
    assert kinds_of("each; learners") == {"each", "learner"} and kinds_of("all others") == set()
