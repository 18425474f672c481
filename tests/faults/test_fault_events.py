"""What is read out of recorded events, samples and looks: recoveries, counters, standstills, trends."""

import math
from typing import Any

import pytest

from benchmarks.faults.events import (
    ITSELF,
    SLOPE_LEAST_S,
    SLOPE_WARM_UP_S,
    Hit,
    Look,
    Sample,
    backwards,
    between,
    frames_at,
    frames_per_second,
    grown,
    kind_of,
    losses,
    not_back,
    percentile,
    sample_of,
    slope_mb_per_hour,
    standstill,
)


def event(time, what, worker, **more):
    return {"time": time, "event": what, "worker": worker} | more


def samples(*frames, counter="env_frames"):
    """One a second."""
    return [Sample(float(second), count, {counter: count}) for second, count in enumerate(frames)]


RECORDED = [
    event(10.1, "lost", "actor-00", cause="was killed by SIGKILL", phase="step"),
    event(10.1, "started", "actor-00", generation=1),
    event(10.3, "ready", "actor-00", generation=1, seconds=0.2),
    event(10.6, "working", "actor-00", generation=1, seconds=0.5),
    event(12.0, "lost", "learner-0", cause="was killed by SIGKILL", phase="step"),
    {"time": 12.5, "event": "stall", "stage": "training"},
    event(13.0, "ready", "learner-0", generation=1, seconds=1.0),
    event(13.5, "lost", "learner-0", cause="failpoint", phase="step"),
    event(16.0, "working", "learner-0", generation=2, seconds=2.5),
]


def test_a_recovery_is_counted_from_the_fault_not_from_when_the_run_noticed():
    actor, first, second = losses(RECORDED, [Hit(10.0, "actor-00", "kill"), Hit(11.9, "learner-0", "kill")])
    assert (actor.kind, actor.how) == ("actor", "kill")
    assert (actor.ready_s, actor.working_s) == pytest.approx((0.3, 0.6))
    assert first.ready_s == pytest.approx(1.1)
    assert first.working_s is None  # lost again before it had done anything: that time says nothing
    assert (second.how, second.cause) == (ITSELF, "failpoint")
    assert second.working_s == pytest.approx(2.5)


def test_a_loss_answers_the_deadliest_of_the_signals_before_it():
    lost = [event(20.0, "lost", "actor-00")]
    stopped, terminated = Hit(8.0, "actor-00", "stop"), Hit(19.0, "actor-00", "term")
    assert losses(lost, [stopped, terminated])[0].how == "stop"
    assert losses(lost, [Hit(9.0, "actor-00", "freeze"), Hit(10.0, "actor-00", "stop")])[0].fault_time == 9.0
    assert losses(lost, [terminated])[0].how == ITSELF  # SIGTERM kills no worker
    assert losses(lost, [Hit(19.0, "actor-01", "kill")])[0].how == ITSELF
    assert losses(lost, [Hit(21.0, "actor-00", "kill")])[0].how == ITSELF
    assert losses([event(90.0, "lost", "actor-00")], [stopped])[0].how == ITSELF  # it went on long since


def test_one_fault_answers_for_one_loss():
    lost = [event(1.0, "lost", "actor-00"), event(2.0, "lost", "actor-00")]
    assert [loss.how for loss in losses(lost, [Hit(0.9, "actor-00", "kill")])] == ["kill", ITSELF]


def test_a_successor_killed_in_its_first_moments_was_not_lost_by_itself():
    told = [event(10.0, "lost", "policy-0-0"), event(10.06, "lost", "policy-0-0")]
    hits = [Hit(9.99, "policy-0-0", "kill"), Hit(10.03, "policy-0-0", "kill")]
    assert [(loss.how, loss.fault_time) for loss in losses(told, hits)] == [("kill", 9.99), ("kill", 10.03)]
    late_clock = [Hit(9.0, "policy-0-0", "term"), Hit(10.03, "policy-0-0", "kill")]
    assert [loss.how for loss in losses(told[:1], late_clock)] == ["kill"]


def test_a_worker_that_was_lost_and_has_not_worked_since_is_missing():
    assert not_back(RECORDED) == []
    assert not_back(RECORDED[:3]) == ["actor-00"]  # ready is not yet at work
    assert not_back(RECORDED[:-1]) == ["learner-0"]
    assert not_back([*RECORDED[:-1], event(15.0, "quarantined", "learner-0")]) == []


@pytest.mark.parametrize("share, expected", [(0.0, 1), (0.5, 10), (0.95, 19), (0.951, 20), (1.0, 20)])
def test_a_percentile_is_one_of_the_values(share, expected):
    assert percentile(range(20, 0, -1), share) == expected
    assert math.isnan(percentile([], share))


@pytest.mark.parametrize(
    "title, kind",
    [("actor-00", "actor"), ("policy-0-1", "policy"), ("learner-12", "learner"), ("appo driver", ""), ("actor", "")],
)
def test_a_worker_is_known_by_its_title(title, kind):
    assert kind_of(title) == kind


def test_counters_that_go_back_are_named_with_both_values():
    status: dict[str, Any] = {
        "time": 1.0,
        "env_frames": 700,
        "train_seconds": 2.5,
        "policies": [{"env_frames": 700, "train_steps": 40, "episodes": 9, "avg_reward": None}],
    }
    first = sample_of(status)
    status |= {"train_seconds": 2.4, "policies": [status["policies"][0] | {"train_steps": 38}]}
    assert backwards([first, first]) == []
    assert backwards([first, sample_of(status)]) == [
        "train_seconds went from 2.5 to 2.4",
        "policy 0 train_steps went from 40 to 38",
    ]


def test_speed_is_counted_between_the_first_and_the_last_sample_of_a_time():
    told = samples(0, 100, 200, 300, 500)
    assert frames_per_second(between(told, 1.0, 4.0)) == pytest.approx(400 / 3)
    assert math.isnan(frames_per_second(between(told, 3.5, 4.0)))


def test_a_standstill_lasts_from_the_last_growth_to_the_last_sample_without():
    assert standstill(samples(0, 10, 20, 30), "env_frames") == 0.0
    assert standstill(samples(0, 10, 10, 10, 20, 20, 30), "env_frames") == 2.0
    assert standstill(samples(0, 10, 10, 10, 10), "env_frames") == 3.0  # it never went on
    assert standstill([], "env_frames") == 0.0


def test_a_trend_of_memory_is_fitted_after_the_warm_up_and_needs_a_long_life():
    def life(seconds, mb_per_hour):
        times = [float(second) for second in range(0, int(seconds), 10)]
        return [Look(t, 50.0 * (t > SLOPE_WARM_UP_S / 2) + mb_per_hour * t / 3600.0, 9) for t in times]

    long = SLOPE_WARM_UP_S + SLOPE_LEAST_S + 60.0
    assert slope_mb_per_hour(life(long, 2.5)) == pytest.approx(2.5)
    assert math.isnan(slope_mb_per_hour(life(SLOPE_LEAST_S, 2.5)))


def test_only_what_has_grown_is_told():
    assert grown({"a": 1, "b": 2}, {"a": 1, "b": 1}) == []
    assert grown({"a": 1}, {"a": 3, "c": 1}) == ["a: 1 -> 3", "c: 0 -> 1"]


def test_a_bar_is_reached_when_enough_episodes_were_that_good():
    def sample(frames, episodes, mean_return):
        return Sample(1.0, frames, {"policy 0 episodes": episodes, "policy 1 episodes": episodes + 7}, mean_return)

    told = [sample(100, 99, 480.0), sample(200, 100, 474.9), sample(300, 110, math.nan), sample(400, 120, 475.0)]
    assert frames_at(told, 475.0, 100) == 400
    assert frames_at(told[:3], 475.0, 100) is None
    assert frames_at([], 475.0, 100) is None
