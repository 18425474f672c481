"""The suite that no default was tuned on: its halves, its table, what its command refuses, and its own options."""

import hashlib
import importlib.util
import json

import pytest

from appo.envs.registry import resolve
from benchmarks.learning import table
from benchmarks.learning.table import Outcome, Task, main, summarise_unseen
from benchmarks.learning.unseen import tasks
from benchmarks.learning.unseen.tasks import ALL, DEVELOPMENT, REPORT, UNSEEN, choose, half_of, names_of
from tests.architecture.source_tree import ROOT

TASK = Task("FrozenLake-v1", 0.7, 300_000, random=0.0)


def refused(argv, capsys):
    """The one line of the error."""
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def nothing_runs(monkeypatch):
    """Tells which tasks would have run."""
    ran = []

    def fake(name, task, seed, folder):
        ran.append((name, task, seed))
        return Outcome(name, seed, True, 1000, 1.0, task.bar, 0, task.bar)

    monkeypatch.setattr(table, "run", fake)
    return ran


def test_the_half_is_a_function_of_the_name_alone():
    for name in UNSEEN:
        is_odd = int(hashlib.sha256(name.encode()).hexdigest()[:2], 16) % 2
        assert half_of(name) == (REPORT if is_odd else DEVELOPMENT)
    # A change of the rule would move tasks that were looked at into the report.
    assert (half_of("taxi"), half_of("frozen_lake")) == (DEVELOPMENT, REPORT)


def test_both_halves_have_two_fifths_of_the_tasks_and_nothing_is_in_both():
    halves = {half: set(names_of(half)) for half in (DEVELOPMENT, REPORT)}
    assert min(map(len, halves.values())) >= 0.4 * len(UNSEEN)
    assert not halves[DEVELOPMENT] & halves[REPORT]
    assert halves[DEVELOPMENT] | halves[REPORT] == set(names_of(ALL)) == set(UNSEEN)


def test_every_task_has_a_good_score_above_chance_and_a_budget():
    assert len(UNSEEN) >= 40
    assert not [name for name, task in UNSEEN.items() if not task.random < task.good]
    assert not [name for name, task in UNSEEN.items() if not 100_000 <= task.frames <= 2_000_000]
    assert len({task.env for task in UNSEEN.values()}) == len(UNSEEN)


@pytest.mark.parametrize("name", [name for name, task in UNSEEN.items() if task.package not in ("minatar", "popgym")])
def test_every_task_is_known_to_the_program(name):
    assert resolve(UNSEEN[name].env).name == UNSEEN[name].env


def test_no_default_is_made_for_an_environment_of_the_suite_itself():
    own = [task.env for task in UNSEEN.values() if ":" in task.env and "popgym" not in task.env]
    assert len(own) >= 20
    assert not [env for env in own if (found := resolve(env)).family.defaults(found.name)]


def test_families_treat_the_suite_like_any_task_that_they_do_not_name():
    rows = {name: task.env for name, task in UNSEEN.items() if ":" not in task.env}
    named = {name for name, env in rows.items() if resolve(env).family.defaults(env) != unnamed_defaults(env)}
    assert len(rows) >= 12
    # The first has continuous actions, the others a recurrent core.
    assert named == {"mountain_car_continuous", "minigrid_memory", "minigrid_four_rooms"}


def unnamed_defaults(env):
    return resolve(env).family.defaults("Unnamed-v0")


def test_without_a_half_only_the_development_set_runs(nothing_runs):
    assert main(["--suite=unseen", "--tasks=taxi,recall_cue", "--seeds=1"]) == 0
    assert [name for name, _, _ in nothing_runs] == ["taxi", "recall_cue"]
    (_, task, seed), _ = nothing_runs
    assert seed == 1
    assert task == Task("Taxi-v4", UNSEEN["taxi"].good, UNSEEN["taxi"].frames, random=UNSEEN["taxi"].random)
    assert not task.options


def test_all_tasks_of_a_half_are_its_tasks():
    assert choose("all", REPORT) == names_of(REPORT)
    assert choose("taxi,frozen_lake,taxi", ALL) == ["taxi", "frozen_lake"]


def test_the_report_half_is_not_run_by_accident(capsys):
    error = refused(["--suite=unseen", "--tasks=taxi,frozen_lake"], capsys)
    assert "frozen_lake; --half=report or --half=all" in error


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--suite=unseen", "--tasks=nowhere"], "unknown tasks nowhere; there are frozen_lake_8x8, taxi"),
        (["--suite=unseen", "--tasks=frozen_lak"], "did you mean frozen_lake (report half) or frozen_lake_8x8 (dev"),
        (["--suite=unseen", "--tasks="], "unknown tasks (empty); there are frozen_lake_8x8"),
        (["--tasks=taxi"], "unknown tasks taxi; there are identity"),
        (["--tasks=taxi"], "; taxi is a task of --suite=unseen"),
        (["--tasks=pendulums"], "did you mean pendulum"),
        (["--tasks=cartpole", "--half=report"], "--half and --measure_random are for --suite=unseen"),
        (["--tasks=cartpole", "--measure_random"], "--half and --measure_random are for --suite=unseen"),
        (["--suite=unseen", "--tasks=taxi", "--seeds=0"], "--seeds=0"),
        (["--suite=unseen", "--tasks=taxi", "--out=/nowhere/file.json"], "there is no folder /nowhere"),
        (["--suite=unseen", "--tasks=taxi", "--out=/"], "--out=/ is a folder"),
        (["--suite=unseen", "--tasks=taxi", "--episodes=10"], "--episodes is for --measure_random"),
        (["--suite=unseen", "--tasks=taxi", "--episodes=1", "--measure_random"], "--episodes=1: at least 1 and 2"),
    ],
)
def test_what_cannot_run_is_refused_with_what_could(argv, reason, nothing_runs, capsys):
    assert reason in refused(argv, capsys)
    assert not nothing_runs


def test_a_missing_package_is_told_with_its_tasks_and_the_list_that_installs_it(monkeypatch, nothing_runs, capsys):
    installed = importlib.util.find_spec
    monkeypatch.setattr(tasks.importlib.util, "find_spec", lambda name: None if name == "minatar" else installed(name))
    error = refused(["--suite=unseen", "--tasks=taxi,minatar_breakout"], capsys)
    assert (
        "minatar is not installed, for minatar_breakout: pip install -r benchmarks/learning/unseen/requirements.txt"
        in error
    )
    assert not nothing_runs


def test_what_the_suite_needs_is_pinned_beside_it():
    lines = (ROOT / tasks.REQUIREMENTS).read_text().splitlines()
    pinned = [line.partition("==")[0].lower() for line in lines if "==" in line]
    assert {"minatar", "popgym"} <= set(pinned)
    (other,) = [line.removeprefix("-r ") for line in lines if line.startswith("-r ")]
    assert ((ROOT / tasks.REQUIREMENTS).parent / other).resolve() == ROOT / "requirements-envs.txt"


def test_the_page_of_the_suite_holds_the_table():
    page = (ROOT / "docs" / "unseen_suite.md").read_text()
    for name, task in UNSEEN.items():
        cells = [name, f"`{task.env}`", half_of(name), f"{task.random:g}", f"{task.good:g}", f"{task.frames // 1000}k"]
        assert f"\n| {' | '.join([*cells, task.peer])} |\n" in page


def test_a_row_tells_random_and_good_score_and_which_runs_are_above_chance():
    best = [0.9, 0.71, 0.13]  # a fifth of the way to the good score is 0.14
    outcomes = [Outcome("lake", seed, score >= 0.7, 250_000, 20.0, score, 0, 0.0) for seed, score in enumerate(best)]
    cells = summarise_unseen("lake", TASK, outcomes)
    assert cells == ["lake", "0", "0.7 in 300k", "2 of 3", "250k (max 250k)", "20 (max 20)", "0.13 .. 0.9", "2 of 3"]
    assert len(cells) == len(table.UNSEEN_COLUMNS)


def test_random_play_is_measured_by_the_command_and_compared_with_the_table(tmp_path, monkeypatch, capsys):
    argv = ["--suite=unseen", "--half=all", "--tasks=recall_cue,near_or_far", "--measure_random"]
    argv += ["--episodes=64", f"--out={tmp_path / 'random.json'}"]
    assert main(argv) == 0
    measured = json.loads((tmp_path / "random.json").read_text())
    assert measured["recall_cue"]["episodes"] == 64
    assert measured["near_or_far"]["mean"] == pytest.approx(0.27, abs=0.2)
    assert "| near_or_far | benchmarks.learning.unseen.horizon:NearOrFar | 0.27 |" in capsys.readouterr().out
    monkeypatch.setitem(tasks.UNSEEN, "recall_cue", UNSEEN["recall_cue"]._replace(random=0.9))
    assert main(argv) == 1
