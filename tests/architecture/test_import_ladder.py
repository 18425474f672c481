"""The floor plan, enforced: which room may import which, and what some rooms may never import."""

import ast
import sys

import pytest

from tests.architecture.source_tree import (
    IMPORTED_AS_APPO,
    ROOT,
    Module,
    imports,
    module_names,
    modules,
    modules_of_tests,
)

FLOORS = [
    ["appo.utils"],
    ["appo.envs"],
    [
        "appo.algorithms.messages",
        "appo.algorithms.specs",
        "appo.algorithms.run_state",
        "appo.algorithms.checkpoint_names",
        "appo.algorithms.fitted_defaults",
        "appo.algorithms.familiar_words",
        "appo.algorithms.saved_config",
        "appo.algorithms.cuda_graphs",
    ],
    ["appo.algorithms.learning", "appo.algorithms.models", "appo.algorithms.memory", "appo.algorithms.checkpoints"],
    ["appo.algorithms.sampling", "appo.algorithms.population"],
    ["appo.algorithms.train_config", "appo.algorithms.option_hints"],
    ["appo.algorithms.config_file"],
    ["appo.algorithms.config"],
    ["appo.algorithms.evaluation"],
    ["appo.algorithms.reporting", "appo.algorithms.workers"],
    ["appo.algorithms.run"],
    ["train_appo", "enjoy_appo", "appo.tools"],
    ["benchmarks"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
CONFIG_READERS = {"appo.algorithms.train_config", "appo.algorithms.config"}  # of every room's config.py, on any floor
HOLDERS_OF_THE_WHOLE_CONFIG = {
    "appo.algorithms.train_config",
    "appo.algorithms.config_file",
    "appo.algorithms.config",
    "appo.algorithms.run",
    "appo.algorithms.evaluation",  # a policy is loaded from its experiment
    *FLOORS[-2],
    *FLOORS[-1],
}
PROCESS_LIBRARIES = {"multiprocessing", "threading", "_thread", "queue", "socket", "subprocess", "gymnasium"}
SIMULATORS = {"ale_py", "vizdoom", "mujoco", "minigrid", "Box2D", "nle", "mpe2", "procgen", "envpool"}


def room_of(name):
    """The room that a module belongs to; None for a package that is only a corridor, and for other people's."""
    parts = name.split(".")
    rooms = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((room for room in rooms if room in FLOOR), None)


def is_ours(target):
    return target.partition(".")[0] in {"appo", "benchmarks", "train_appo", "enjoy_appo"}


def ladder_violations(module, ours=None):
    source = room_of(module.name)
    for found in imports(module, ours):
        if not is_ours(found.target):
            continue
        target = room_of(found.target)
        if target == source or (target is not None and FLOOR[target] < FLOOR[source]):
            continue
        if source in CONFIG_READERS and found.target.endswith(".config"):
            continue
        yield f"{module.path}:{found.line}: {source} must not import {found.target}"


def rooms_that_import(top_level_names, *, within=None):
    """room or file -> where it imports one of these libraries."""
    return [
        (module.name, f"{module.path}:{found.line} imports {found.target}")
        for module in modules()
        if within is None or room_of(module.name) in within
        for found in imports(module)
        if found.target.partition(".")[0] in top_level_names and not found.is_for_types
    ]


def test_every_file_belongs_to_a_room():
    homeless = [m.path for m in modules() if room_of(m.name) is None and m.name != "appo.algorithms"]
    assert not homeless
    assert len(modules()) > 50  # otherwise the rest would prove nothing


def test_no_room_imports_its_neighbours_or_upwards():
    assert not [violation for module in modules() for violation in ladder_violations(module)]


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("appo.algorithms.learning.x", "from appo.algorithms.models import actor_critic"),
        ("appo.algorithms.learning.x", "def f():\n    import appo.algorithms.memory.blocks"),
        ("appo.algorithms.memory.x", "from appo.algorithms import checkpoints"),
        ("appo.algorithms.sampling.x", "from ..workers import worker"),
        ("appo.algorithms.workers.x", "from appo.algorithms.run.config import RunConfig"),
        ("appo.algorithms.config", "from appo.algorithms.run import experiment"),
        ("appo.algorithms.evaluation.x", "from appo.algorithms.workers.jobs import ActorJob"),
        ("appo.algorithms.reporting.x", "from appo.algorithms.workers.roster import Roster"),
        ("appo.tools.x", "from benchmarks.measuring import ROOT"),
        ("appo.algorithms.run.x", "import appo.algorithms"),
        ("appo.envs.x", "import appo.algorithms.specs"),
        ("appo.utils.x", "from appo.envs.api import EnvSpec"),
    ],
)
def test_a_forbidden_import_is_found_in_every_form(name, statement):
    assert list(ladder_violations(Module(name, "x.py", statement), module_names()))


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("appo.algorithms.config", "from appo.algorithms.run.config import RunConfig"),
        ("appo.algorithms.run.x", "from appo.algorithms.workers.supervisor import Supervisor"),
        ("appo.algorithms.workers.x", "from appo.algorithms import checkpoints"),
        ("appo.algorithms.models.x", "from .config import ModelConfig"),
    ],
)
def test_an_allowed_import_is_not_reported(name, statement):
    assert not list(ladder_violations(Module(name, "x.py", statement), module_names()))


def test_learning_and_models_know_no_process_and_no_environment_library():
    assert not rooms_that_import(PROCESS_LIBRARIES, within={"appo.algorithms.learning", "appo.algorithms.models"})


def test_only_workers_and_vector_environments_import_multiprocessing():
    users = rooms_that_import({"multiprocessing", "faster_fifo"})
    assert users
    assert not [
        where
        for name, where in users
        if not name.startswith(("appo.algorithms.workers.", "appo.envs.vector.", "appo.utils.doorbells"))
    ]


def test_environments_do_not_know_the_algorithms_and_utilities_know_nothing_of_ours():
    def of_ours(room, forbidden):
        return [
            f"{module.path}:{found.line}"
            for module in modules()
            if module.name.startswith(room)
            for found in imports(module)
            if found.target.startswith(forbidden)
        ]

    assert not of_ours("appo.envs", ("appo.algorithms", "benchmarks"))
    assert not of_ours("appo.utils", ("appo.algorithms", "appo.envs", "benchmarks"))


def test_every_module_is_imported_by_its_name_below_the_import_root():
    bare = [
        f"{module.path}:{found.line} imports {found.target}"
        for module in [*modules(), *modules_of_tests()]
        for found in imports(module)
        if found.target.partition(".")[0] in IMPORTED_AS_APPO
    ]
    assert not bare


def test_learning_models_and_memory_do_not_import_each_other():
    rooms = ("appo.algorithms.learning", "appo.algorithms.models", "appo.algorithms.memory")
    crossings = [
        f"{module.path}:{found.line} imports {found.target}"
        for module in modules()
        if (source := room_of(module.name)) in rooms
        for found in imports(module)
        if (target := room_of(found.target)) in rooms and target != source
    ]
    assert not crossings


def test_nothing_that_an_actor_imports_imports_torch():
    def reachable(name, seen):
        if name in seen or name not in by_name:
            return seen
        seen.add(name)
        for found in imports(by_name[name]):
            if not found.is_for_types:
                reachable(found.target, seen)
        return seen

    by_name = {module.name: module for module in modules()}
    of_actor = reachable("appo.algorithms.workers.actor_worker", set())
    assert {"appo.algorithms.sampling.env_split", "appo.algorithms.memory.blocks", "appo.envs.registry"} <= of_actor
    numpy_only = of_actor | {name for name in by_name if name.startswith(("appo.envs.", "appo.algorithms.sampling."))}
    torch_users = {module.name for module in modules() for i in imports(module) if i.target.startswith("torch")}
    assert torch_users  # otherwise the next line would prove nothing
    assert not numpy_only & torch_users


def test_a_simulator_is_imported_only_by_the_environments_built_on_it():
    users = rooms_that_import(SIMULATORS)
    assert users
    # What another framework's own Python runs is no part of ours.
    allowed = ("appo.envs.families.", "appo.envs.simulators.", "benchmarks.peers.", "benchmarks.vector_envs")
    assert not [where for name, where in users if not name.startswith(allowed)]


def test_families_import_simulators_and_what_is_built_on_them_only_when_an_environment_is_made():
    built_on_them = SIMULATORS | {"gymnasium", "pettingzoo", "cv2"}
    early = [
        f"{module.path}:{found.line} imports {found.target} too early"
        for module in modules()
        if module.name.startswith("appo.envs.families.")
        for found in imports(module)
        if not found.is_local
        and (found.target.partition(".")[0] in built_on_them or found.target.startswith("appo.envs.simulators"))
    ]
    assert not early


def test_only_families_import_what_is_built_on_simulators():
    strangers = [
        f"{module.path}:{found.line} imports {found.target}"
        for module in modules()
        if not module.name.startswith(("appo.envs.families.", "appo.envs.simulators."))
        for found in imports(module)
        if found.target.startswith("appo.envs.simulators")
    ]
    assert not strangers


def test_a_package_file_holds_a_docstring_and_nothing_else():
    packages = [module for module in modules() if module.is_package]
    assert len(packages) > 10
    for module in packages:
        if module.path == "algorithms/evaluation/__init__.py":
            continue  # `load_policy`, for programs of users
        assert ast.get_docstring(module.tree), module.path
        assert len(module.tree.body) == 1 and isinstance(module.tree.body[0], ast.Expr), module.path


def test_every_folder_of_source_is_a_package():
    folders = {(ROOT / module.path).parent for module in modules()} - {ROOT}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]


def test_only_the_driver_and_the_evaluation_hold_the_whole_configuration():
    holders = {
        (room_of(module.name), f"{module.path}:{found.line}")
        for module in modules()
        for found in imports(module)
        if found.target in CONFIG_READERS
    }
    assert any(room == "appo.algorithms.run" for room, _ in holders)
    assert not [where for room, where in holders if room not in HOLDERS_OF_THE_WHOLE_CONFIG]
    names = [
        m.path for m in modules() if "TrainConfig" in m.text and room_of(m.name) not in HOLDERS_OF_THE_WHOLE_CONFIG
    ]
    assert not names


def test_rooms_below_the_configuration_read_no_options_but_their_own():
    strangers = [
        f"{module.path}:{found.line} imports {found.target}"
        for module in modules()
        if FLOOR.get(room_of(module.name), 9) < FLOOR["appo.algorithms.train_config"]
        for found in imports(module)
        if found.target.endswith(".config") and room_of(found.target) != room_of(module.name)
    ]
    assert not strangers


def test_declaring_options_needs_the_standard_library_and_utils_only():
    declarations = [
        module for module in modules() if module.name.endswith(".config") and module.name not in CONFIG_READERS
    ]
    assert len(declarations) >= 7
    heavy = [
        f"{module.path}:{found.line} imports {found.target}"
        for module in declarations
        for found in imports(module)
        if not found.is_local
        and found.target.partition(".")[0] not in sys.stdlib_module_names
        and not found.target.startswith("appo.utils.")
    ]
    assert not heavy


def circles(graph):
    """Groups of modules that import each other, directly or not: Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_ones: list[str] = []
    found = []

    def visit(name):
        order[name] = lowest[name] = len(order)
        open_ones.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
            if other in open_ones:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            place = open_ones.index(name)
            group = open_ones[place:]
            del open_ones[place:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_no_modules_import_each_other_in_a_circle():
    def counts(module, found):
        # A simulator's environment names the class of its options, which its family declares.
        return not (found.is_for_types and module.name.startswith("appo.envs.simulators."))

    names = module_names()
    graph = {
        module.name: {found.target for found in imports(module) if found.target in names and counts(module, found)}
        - {module.name}
        for module in modules()
    }
    assert sum(map(len, graph.values())) > 500
    assert not circles(graph)


def test_a_circle_is_found_however_long_it_is():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}) == [["a", "b", "c"]]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_the_import_root_holds_links_and_no_copy():
    entries = {path.name: path for path in (ROOT / "src" / "appo").iterdir() if path.name != "__pycache__"}
    assert set(entries) == {*IMPORTED_AS_APPO, "__init__.py", "train_appo.py", "enjoy_appo.py"}
    for name, path in entries.items():
        assert name == "__init__.py" or path.resolve() == ROOT / name, f"{path} is no link to {ROOT / name}"
