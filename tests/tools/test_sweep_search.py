"""Choices of a search, on scores and costs that are known."""

import pytest
from rich.console import Console

from appo.tools import sweep_screen
from appo.tools.sweep_plan import parse_plan
from appo.tools.sweep_search import choose, require_optuna
from appo.tools.sweep_state import DONE, FAILED, RUNNING, WAITING, Record, Result, Sweep, front_of, table_of
from appo.utils.options import ConfigError

SPACE = {"hidden_size": {"int": [1, 100]}, "learning_rate": {"log_uniform": [1e-4, 1.0]}}


def search_of(**more):
    search = {"method": "optuna", "trials": 40, **SPACE, **more}
    return parse_plan({"base": {"env": "CartPole-v1"}, "search": search}, "plan").search


def chosen_sizes(search, number):
    """Sizes in the order of their choice, where ten are enough for the best score, and minutes grow with the size."""
    require_optuna()
    records: dict[str, Record] = {}
    results: dict[str, Result] = {}
    sizes: list[int] = []
    for trial in range(number):
        varied = choose(search, "maximize", records, results, trial)
        size, name = varied["hidden_size"], str(trial)
        records[name] = Record(varied, DONE, varied=varied)
        results[name] = Result(1000, float(size), min(size / 10, 1.0), "reached train_for_env_steps=1000")
        sizes.append(size)
    return sizes


def test_a_search_that_weighs_cost_looks_where_trials_are_cheap():
    blind, weighing = (chosen_sizes(search_of(**more), 40)[20:] for more in ({}, {"cost": "minutes"}))
    assert sum(size <= 30 for size in weighing) >= 15
    assert sum(size <= 30 for size in blind) <= 10


def test_trials_without_a_result_are_no_obstacle():
    search = search_of(cost="frames")
    varied = {"hidden_size": 5, "learning_rate": 0.1}
    states = {"a": DONE, "b": FAILED, "c": RUNNING, "d": DONE}
    records = {name: Record(varied, state, varied=varied) for name, state in states.items()}
    results = dict.fromkeys("abc", Result(None, None, None, "")) | {"d": Result(10, 1.0, 2.0, "reached")}
    require_optuna()
    assert 1 <= choose(search, "minimize", records, results, 0)["hidden_size"] <= 100


@pytest.mark.parametrize(
    "outside", [{"hidden_size": 101}, {"hidden_size": 1.5}, {"learning_rate": 2.0}, {"optimizer": "gone"}]
)
@pytest.mark.parametrize("state", [DONE, RUNNING, FAILED])
def test_trials_outside_of_the_present_ranges_are_no_obstacle(outside, state):
    search = search_of(optimizer={"choice": ["adam", "sgd"]})
    varied = {"hidden_size": 5, "learning_rate": 0.1, "optimizer": "adam", **outside}
    result = Result(10, 1.0, 2.0, "reached")
    require_optuna()
    chosen = choose(search, "maximize", {"a": Record(varied, state, varied=varied)}, {"a": result}, 0)
    assert 1 <= chosen["hidden_size"] <= 100 and chosen["optimizer"] in ("adam", "sgd")


def test_a_search_learns_from_trials_that_were_injected_in_the_words_of_another_program(monkeypatch):
    learned = []
    monkeypatch.setattr("optuna.study.Study.add_trial", lambda study, trial: learned.append(trial.params))
    varied = {"hidden_size": 5, "lr": 0.1}
    records = {"a": Record(varied, DONE, is_injected=True, varied=varied)}
    require_optuna()
    choose(search_of(), "maximize", records, {"a": Result(10, 1.0, 2.0, "reached")}, 0)
    assert learned == [{"hidden_size": 5, "learning_rate": 0.1}]


def sweep_of(direction, rows):
    """Trials with objective and minutes."""
    records = {name: Record({}, DONE if minutes else WAITING) for name, (_, minutes) in rows.items()}
    results = {name: Result(1, minutes, objective, "reached") for name, (objective, minutes) in rows.items()}
    return Sweep("reward", direction, records, "minutes"), results


def test_the_front_holds_what_is_not_beaten_in_both():
    rows = {"best": (9.0, 8.0), "good": (7.0, 2.0), "worse": (6.0, 3.0), "cheap": (1.0, 1.0), "waits": (None, None)}
    rows |= {"same": (7.0, 2.0)}
    sweep, results = sweep_of("maximize", rows)
    assert front_of(sweep, results) == {"best", "good", "same", "cheap"}
    sweep, results = sweep_of("minimize", rows)
    assert front_of(sweep, results) == {"cheap"}
    table = table_of(sweep, results, list(rows), front_of(sweep, results))
    assert "cheap *" in list(table.columns[0].cells) and "cheaper in minutes" in table.caption
    assert front_of(sweep._replace(cost=""), results) == set()


def test_the_table_of_what_runs_asks_for_no_result_of_what_is_done(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep_screen, "terminal", lambda: Console(force_terminal=True, width=100))
    sweep, _ = sweep_of("maximize", {"first": (9.0, 8.0)})
    sweep.records["second"] = Record({}, RUNNING)
    with sweep_screen.Screen(tmp_path) as screen:
        screen.show(sweep)
    shown = capsys.readouterr().out
    assert "second" in shown and "1 running, 1 done" in shown and "first" not in shown


def test_an_unknown_cost_is_refused():
    with pytest.raises(ConfigError, match="minutes"):
        search_of(cost="money")
