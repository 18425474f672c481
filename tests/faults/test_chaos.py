"""Chaos as a command: what it asks for and refuses, and a minute and a half of it on real runs."""

import json

import pytest

from appo.utils.failpoints import NAMES, VARIABLE, parse
from benchmarks.faults.chaos import Plan, _parser, bars_of, each_failpoint, main, odds, plan_of, plans_of
from benchmarks.faults.chaos import _parser as parser
from benchmarks.faults.report import Bars

# Two busy cores are shared with other tests: what is demanded here is that nothing hangs, leaks or is miscounted.
PATIENT = "--bars=actor=20,policy=20,learner=30,end=30"
# Blocks are begun and taken four times as often, so that one in a thousand comes soon.
SHORT_ROLLOUTS = ["--", "--rollout=8", "--recurrence=8"]


def planned(*words):
    return plan_of(parser().parse_args(words))


def test_a_command_line_becomes_a_plan():
    wanted = planned(
        "--kills=40", "--seconds=60", "--kinds=actor,actor,learner", "--signals=kill,freeze", "--", "--a=1"
    )
    assert wanted.interval_s == pytest.approx(1.5)
    assert wanted.kinds == ("actor", "actor", "learner") and wanted.signals == ("kill", "freeze")
    assert wanted.options == ("--a=1",)
    assert planned("--kills=40", "--seconds=60", "--interval=0.5").interval_s == 0.5
    assert planned() == Plan()


def test_words_that_mean_nothing_are_refused_with_those_that_do(capsys):
    for words, answer in (
        ("--kinds=actor,env", "env is unknown; there are actor, policy, learner"),
        ("--signals=hup", "hup is unknown; there are kill, stop, freeze, term"),
        ("--bars=speed=1", "there is no bar 'speed'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([words])
        assert answer in capsys.readouterr().err


def test_speed_has_a_bar_where_only_actors_are_killed_every_other_second():
    assert bars_of(planned("--kinds=actor"), "") == Bars(share=0.7)
    assert bars_of(planned("--kinds=actor", "--interval=0.5"), "") == Bars()
    assert bars_of(planned(), "") == Bars()
    assert bars_of(planned(), "share=0.3").share == 0.3


def test_environments_keep_books_and_failpoints_are_handed_on(tmp_path):
    command = planned("--failpoints=a=kill@0.5", "--", "--rollout=16").run_in(tmp_path).command
    assert f"{VARIABLE}=a=kill@0.5" in command and "CHAOS_ENV=CartPole-v1" in command
    assert command.index("--num_workers=4") < command.index("--rollout=16")  # what is typed comes last and wins
    assert "--env=benchmarks.faults.counted_steps:make_env" in command


def test_doom_is_started_as_it_is(tmp_path):
    command = planned("--env=doom_basic").run_in(tmp_path).command
    assert {"--env=doom_basic", "--num_workers=2", "--num_envs_per_worker=4"} <= set(command)
    assert not [word for word in command if word.startswith((VARIABLE, "CHAOS_"))]


def test_some_failpoints_can_be_chosen_and_unknown_ones_are_refused():
    chosen = _parser().parse_args(["--each_failpoint=5", "--failpoints=learner-step,learner-take"])
    assert [plan.failpoints.partition("=")[0] for plan in plans_of(chosen)] == ["learner-step", "learner-take"]
    chosen.failpoints = "learner-step,nowhere"
    with pytest.raises(ValueError, match=r"nowhere is unknown; there are .*learner-take"):
        plans_of(chosen)


def test_places_that_only_a_population_passes_have_one():
    plans = {plan.failpoints.partition("=")[0]: plan.options for plan in each_failpoint(planned(), NAMES, times=1)}
    assert {name for name, options in plans.items() if "--with_pbt=True" in options} == {"adopt-read", "adopt-kept"}


def test_each_failpoint_is_armed_alone_until_it_has_killed_often_enough():
    plans = each_failpoint(planned(), NAMES, times=20)
    assert [list(parse(each.failpoints)) for each in plans] == [[name] for name in NAMES]
    assert all(each.kills == 0 and each.losses == 20 for each in plans)
    assert odds("actor-ask") < odds("actor-block-begin") < odds("learner-step") < odds("checkpoint-before-fsync")


@pytest.mark.slow
def test_a_run_survives_kills_and_stops_of_all_its_workers_without_hang_leak_or_false_count(tmp_path):
    out = tmp_path / "chaos.json"
    words = ["--kills=10", "--interval=1.5", "--seed=2", "--signals=kill,kill,stop,term", "--undisturbed=3"]
    assert main([*words, PATIENT, f"--out={out}"]) == 0
    (numbers,) = json.loads(out.read_text())
    killed = {hit["worker"].partition("-")[0] for hit in numbers["hits"] if hit["signal"] == "kill"}
    assert killed == {"actor", "policy", "learner"}  # or it would prove less
    assert any(loss["working_s"] for loss in numbers["losses"] if loss["how"] == "kill")


@pytest.mark.parametrize(
    "place, kind",
    [("actor-block-complete", "actor"), pytest.param("learner-release", "learner", marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_a_run_survives_deaths_at_the_worst_moment_and_can_be_taken_up_again(place, kind, tmp_path):
    out = tmp_path / "chaos.json"
    words = [f"--failpoints={place}", "--each_failpoint=2"]
    assert main([*words, PATIENT, f"--out={out}", *SHORT_ROLLOUTS]) == 0
    (numbers,) = json.loads(out.read_text())
    died = [loss for loss in numbers["losses"] if loss["worker"].startswith(kind)]
    assert len(died) >= 2 and len(died) == len(numbers["losses"])
