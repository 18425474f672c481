"""Which trials follow from a plan, and which plans are refused."""

import datetime
import enum
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appo.tools.sweep_plan import Distribution, Plan, checked_options, name_of, parse_plan, read_injected, read_plan
from appo.tools.sweep_state import Record, Sweep, read_sweep, write_sweep
from appo.utils.options import ConfigError


def trials(**document):
    return parse_plan(document, "plan").trials()


def drawn(count, seed=0, **space):
    return [each.options for each in trials(random={"trials": count, "seed": seed, **space})]


def test_trials_are_all_combinations_of_grid_and_seeds_with_what_all_share():
    found = trials(base={"env": "e"}, grid={"gamma": [0.9, 0.99], "rollout": [8, 16]}, seeds=[1, 2])
    assert [each.name for each in found] == [
        f"gamma={gamma},rollout={rollout},seed={seed}"
        for gamma in (0.9, 0.99)
        for rollout in (8, 16)
        for seed in (1, 2)
    ]
    assert found[-1].options == {"env": "e", "gamma": 0.99, "rollout": 16, "seed": 2}


def test_grid_and_draws_are_combined():
    found = trials(grid={"gamma": [0.9, 0.99]}, random={"trials": 3, "rollout": {"int": [1, 1000]}})
    assert len(found) == 6
    assert len({each.options["rollout"] for each in found}) == 3


def test_a_plan_without_variation_is_one_trial():
    assert [each.name for each in trials(base={"env": "e"})] == ["trial"]


def test_more_draws_begin_with_the_same_ones_and_another_seed_gives_others():
    space = {"learning_rate": {"log_uniform": [1e-5, 1e-1]}, "gamma": {"uniform": [0.9, 0.999]}}
    assert drawn(5, **space) == drawn(9, **space)[:5]
    assert drawn(5, **space) != drawn(5, seed=1, **space)


@pytest.mark.parametrize("kind, low, high", [("uniform", 0.1, 0.9), ("log_uniform", 1e-5, 1e-1), ("int", 3, 7)])
def test_draws_stay_in_their_range_and_fill_it(kind, low, high):
    numbers = random.Random(0)
    values = [Distribution(kind, (low, high)).draw(numbers) for _ in range(2000)]
    assert low <= min(values) and max(values) <= high
    middle = math.sqrt(low * high) if kind == "log_uniform" else (low + high) / 2
    below = sum(value < middle for value in values) + 0.5 * sum(value == middle for value in values)
    assert 900 < below < 1100
    assert kind != "int" or set(values) == {3, 4, 5, 6, 7}


def test_a_choice_may_be_of_anything():
    assert {each["encoder"] for each in drawn(40, encoder={"choice": ["mlp", "auto"]})} == {"mlp", "auto"}


def test_draws_differ_as_long_as_there_are_others():
    assert sorted(each["rollout"] for each in drawn(4, rollout={"int": [1, 4]})) == [1, 2, 3, 4]
    assert len(drawn(9, rollout={"int": [1, 4]})) == 4


def test_names_fit_a_folder_and_differ_where_options_do():
    odd: list[dict[str, Any]] = [{"env": "a/b"}, {"env": "a_b"}, {"env_kwargs": {"size": 3}}, {"mlp_layers": [64, 64]}]
    found = parse_plan({}, "plan", odd).trials()
    assert len({each.name for each in found}) == 4
    assert found[0].name == "env=a_b" and found[1].name.startswith("env=a_b-")
    assert found[3].name == "mlp_layers=64,64"
    assert all(set(each.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_=,.-") for each in found)


def test_a_long_name_is_cut_and_stays_unlike_others():
    many = [{f"option_{i}": value for i in range(20)} for value in (1, 2)]
    names = [name_of(each) for each in many]
    assert names[0] != names[1] and all(len(name) == 120 for name in names)


def test_a_plan_of_python_computes_its_trials(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "PLAN = {'base': {'env': 'e', 'gamma': 0.9}, 'seeds': [1, 2]}\n"
        "def trials():\n    for rollout in (8, 16):\n        yield {'rollout': rollout, 'gamma': 1 - 1 / rollout}\n"
    )
    plan = read_plan(path)
    assert plan.name == "mine"
    assert [each.name for each in plan.trials()][:2] == ["rollout=8,gamma=0.875,seed=1", "rollout=8,gamma=0.875,seed=2"]
    assert plan.trials()[3].options == {"env": "e", "gamma": 0.9375, "rollout": 16, "seed": 2}


def stored(options, folder):
    """Options after they have been written to sweep.json and read again."""
    write_sweep(folder, Sweep("reward", "maximize", {"a": Record(options, varied=options)}))
    found = read_sweep(folder)
    assert found is not None and found.records["a"].options == found.records["a"].varied
    return found.records["a"].varied


LONG = {f"option_{i}": 1 for i in range(20)}  # so many that a name ends in a digest of them


@pytest.mark.parametrize("more", [{}, LONG])
@pytest.mark.parametrize("value", [math.inf, -math.inf, [1.0, math.inf], {"limit": math.inf}, "inf", {"limit": "inf"}])
def test_what_has_no_limit_is_the_same_trial_after_it_was_stored(tmp_path, value, more):
    plan = parse_plan({"grid": {"reward_clip": [value], **{name: [each] for name, each in more.items()}}}, "plan")
    (trial,) = plan.trials()
    assert stored(trial.options, tmp_path) == trial.options
    assert plan.trial(stored(plan.varied[0], tmp_path), {trial.name: trial}) == trial
    assert "inf" in str(trial.options["reward_clip"]).lower()  # otherwise nothing would have been stored


def test_wherever_a_plan_says_that_there_is_no_limit_its_trials_survive(tmp_path):
    choice = {"trials": 1, "reward_clip": {"choice": [math.inf]}}
    documents: list[dict[str, Any]] = [{"base": {"reward_clip": math.inf}}, {"random": choice}]
    found = [trial for document in documents for trial in trials(**document)]
    search = parse_plan({"search": {"method": "optuna", **choice}}, "plan")
    assert search.search is not None
    drawn = {name: each.draw(random.Random(0)) for name, each in search.search.space.items()}
    injected = checked_options({"reward_clip": math.inf}, "inject.toml")
    found += [search.trial(drawn, {}), parse_plan({}, "plan", [injected]).trials()[0]]
    assert [stored(trial.options, tmp_path) for trial in found] == [{"reward_clip": "inf"}] * 4


@pytest.mark.parametrize(
    "value, kept",
    [
        (np.int64(3), 3),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (Path("a/b.toml"), "a/b.toml"),
        ((64, np.int32(64)), [64, 64]),
        ({"size": np.float64(0.5), "path": Path("a")}, {"size": 0.5, "path": "a"}),
        (None, None),
    ],
)
def test_values_of_python_become_what_json_gives_back(tmp_path, value, kept):
    row = {"gamma": value}
    for (trial,) in (trials(base=row), trials(grid={"gamma": [value]}), parse_plan({}, "plan", [row]).trials()):
        found = trial.options["gamma"]
        assert found == kept and type(found) is type(kept)
        assert stored(trial.options, tmp_path) == json.loads(json.dumps(trial.options)) == trial.options


class Size(enum.IntEnum):
    """Numbers that are written otherwise than they are stored."""

    SMALL = 3


@pytest.mark.parametrize(
    "value", [datetime.date(2026, 1, 1), {1: 2}, {"a": {2}}, [object()], np.arange(3), 1j, b"a", Size.SMALL, "a\0b"]
)
def test_values_that_no_option_has_are_refused_with_the_name_of_the_entry(value):
    choice = {"trials": 1, "gamma": {"choice": [value]}}
    asks = {
        r"\[base\] gamma": lambda: trials(base={"gamma": value}),
        r"\[grid\] gamma": lambda: trials(grid={"gamma": [value]}),
        r"\[random\] gamma": lambda: trials(random=choice),
        r"\[search\] gamma": lambda: trials(search={"method": "optuna", **choice}),
        r"trials\(\) gamma": lambda: parse_plan({}, "plan", [{"gamma": value}]),
    }
    for where, ask in asks.items():
        with pytest.raises(ConfigError, match=where) as refused:
            ask()
        assert "write" in str(refused.value) and "\n" not in str(refused.value)


def test_words_of_other_programs_are_the_options_that_they_mean():
    (trial,) = parse_plan({"base": {"learning_rate": 1, "env_id": "e"}}, "plan", [{"lr": 2}]).trials()
    assert trial == ("lr=2", {"learning_rate": 2, "env": "e"}), "what a trial says wins, and its folder is named so"
    found = parse_plan({}, "plan", [{"lr": 1}, {"learning_rate": 2}]).trials()
    assert [each.options for each in found] == [{"learning_rate": 1}, {"learning_rate": 2}]


@pytest.mark.parametrize("suffix", ["toml", "jsonl"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_of_trials_in_another_encoding_is_refused_in_one_line(tmp_path, suffix, encoding):
    path = tmp_path / f"inject.{suffix}"
    text = "[[trials]]\nenv = 'gr\u00f6\u00dfe'\n" if suffix == "toml" else '{"env": "gr\u00f6\u00dfe"}\n'
    path.write_bytes(text.encode(encoding))
    with pytest.raises(ConfigError, match="save it as UTF-8") as refused:
        read_injected(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_of_trials_that_is_nested_without_end_is_refused(tmp_path):
    (tmp_path / "inject.jsonl").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="cannot be understood"):
        read_injected(tmp_path / "inject.jsonl")


@pytest.mark.parametrize("suffix", ["toml", "jsonl"])
def test_trials_are_injected_as_toml_or_json(tmp_path, suffix):
    path = tmp_path / f"inject.{suffix}"
    path.write_text("[[trials]]\ngamma = 0.5\n" if suffix == "toml" else '{"gamma": 0.5}\n')
    assert read_injected(path) == [{"gamma": 0.5}]
    path.write_text("gamma")
    with pytest.raises(ConfigError, match="inject"):
        read_injected(path)


def test_a_trial_that_exists_keeps_its_name():
    plan = Plan("plan", {"env": "e"}, ())
    first = plan.trial({"gamma": 0.9}, {})
    assert plan.trial({"gamma": 0.9}, {first.name: first}) == first


@pytest.mark.parametrize(
    "document, told",
    [
        ({"gird": {}}, "did you mean grid"),
        ({"gamma": 0.9}, "belong below"),
        ({"grid": {"gamma": 0.9}}, "list of values"),
        ({"grid": {"gamma": []}}, "list of values"),
        ({"grid": {"gamma": [0.9, 0.9]}}, "gamma=0.9 twice"),
        ({"base": {"gamma": 1}, "grid": {"gamma": [0.9]}}, "gamma in two places"),
        ({"base": {"seed": 1}, "seeds": [1]}, "seed in two places"),
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": [True]}, "whole numbers"),
        ({"base": {"experiment": "a"}}, "cannot set experiment"),
        ({"base": {"restart_behavior": "restart"}}, "cannot set restart_behavior"),
        ({"base": {"exp_name": "a"}}, "cannot set exp_name, here experiment"),
        ({"grid": {"exp_name": ["a", "b"]}}, "cannot set exp_name"),
        ({"random": {"trials": 1, "exp_name": {"choice": ["a"]}}}, "cannot set exp_name"),
        ({"base": {"completion": "bash"}}, "cannot set completion"),
        ({"base": {"lr": 1, "learning_rate": 2}}, "learning_rate as lr and as learning_rate; leave one out"),
        ({"base": {"lr": 1}, "grid": {"learning_rate": [2]}}, "learning_rate as lr and as learning_rate in two places"),
        ({"base": {"num_epochs": 1}, "grid": {"n_epochs": [2]}}, "ppo_epochs as num_epochs and as n_epochs"),
        ({"grid": {"lr": [1]}, "random": {"trials": 1, "learning_rate": {"choice": [1]}}}, "in two places"),
        ({"base": {"learning-rate": 1}}, "without hyphens"),
        ({"random": {"gamma": {"uniform": [0, 1]}}}, "how many trials"),
        ({"random": {"trials": 3}}, "names no option"),
        ({"random": {"trials": 0, "gamma": {"uniform": [0, 1]}}}, "at least 1"),
        ({"random": {"trials": 3, "gamma": {"normal": [0, 1]}}}, "log_uniform"),
        ({"random": {"trials": 3, "gamma": {"uniform": [1, 0]}}}, "the lower one first"),
        ({"random": {"trials": 3, "gamma": {"log_uniform": [0, 1]}}}, "above 0"),
        ({"random": {"trials": 3, "rollout": {"int": [0.5, 3]}}}, "whole numbers"),
        ({"search": {"method": "grid"}}, "optuna"),
        ({"search": {"method": "optuna", "gamma": {"uniform": [0, 1]}}}, "how many trials"),
        ({"search": {"method": "optuna", "trials": 1, "gamma": {"uniform": [0, 1]}}, "seeds": [1]}, "leave out"),
        ({"objective": "rewrad"}, "unknown"),
        ({"direction": "up"}, "maximize"),
        ({"name": "a/b"}, "name of a folder"),
        ({"parallel": 0}, "at least 1"),
        ({"gpus": [-1]}, "from 0"),
        ({"base": []}, r"\[base\]"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused_in_one_line(document, told):
    with pytest.raises(ConfigError, match=told) as refused:
        parse_plan(document, "plan").trials()
    assert "\n" not in str(refused.value)


def test_a_trial_that_is_asked_for_in_two_words_is_refused():
    with pytest.raises(ConfigError, match="learning_rate=1 twice, also as lr=1"):
        parse_plan({}, "plan", [{"lr": 1}, {"learning_rate": 1}]).trials()


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("plan.yaml", "", "TOML"),
        ("missing.toml", None, "cannot be read"),
        ("plan.toml", "[grid", "not TOML"),
        ("plan.py", "raise RuntimeError('oh')", "raised RuntimeError: oh"),
        ("plan.py", "A = 1", "neither PLAN nor trials"),
        ("plan.py", "PLAN = 3", "should be a dict"),
        ("plan.py", "def trials():\n    yield 3", "dicts of options"),
        ("plan.py", "PLAN = {'grid': {'a': [1]}}\ndef trials():\n    yield {'b': 3}", "takes the place"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, name, text, told):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_plan(tmp_path / name)
