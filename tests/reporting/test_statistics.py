"""What the driver knows: episodes of the right policy, rates over the right time, counters that survive a resume."""

import json
import math

import pytest

from appo.algorithms.memory.counters import EventCounter, Timer
from appo.algorithms.messages import EpisodesFinished, EvaluationVideoSaved, PolicyAdopted
from appo.algorithms.reporting import statistics as module
from appo.algorithms.reporting.episodes import EpisodeWindow
from appo.algorithms.reporting.rates import RateMeter
from appo.algorithms.reporting.snapshot import Point
from tests.reporting.reporting_cases import Clock, episode, restored, small_statistics, training


def window(size, *values):
    made = EpisodeWindow(size)
    for value in values:
        made.add(episode(value=value, frames=int(10 * value), kills=value + 1).episodes[0])
    return made


def test_averages_cover_the_last_episodes_only():
    tags = window(3, 1.0, 100.0, 2.0, 6.0, 4.0).scalars()
    assert tags == {
        "0_aux/avg_reward": 4.0,
        "0_aux/avg_reward_min": 2.0,
        "0_aux/avg_reward_max": 6.0,
        "0_aux/avg_true_reward": 4.0,
        "0_aux/avg_true_reward_min": 2.0,
        "0_aux/avg_true_reward_max": 6.0,
        "0_aux/avg_len": 40.0,
        "0_aux/avg_len_min": 20.0,
        "0_aux/avg_len_max": 60.0,
        "0_aux/avg_kills": 5.0,
    }


def test_before_the_first_episode_there_is_nothing_to_average():
    assert EpisodeWindow(100).scalars() == {}


def test_one_episode_is_enough_for_averages_but_not_for_a_full_one():
    one = window(2, 5.0)
    assert one.scalars()["0_aux/avg_reward"] == 5.0 and one.full_average("reward") is None
    assert window(2, 5.0, 6.0).full_average("reward") == 5.5
    assert window(2, 5.0, 6.0, 7.0).full_average("reward") == 6.5


@pytest.mark.parametrize("metric", ["true_reward", "kills"])
def test_an_average_is_full_when_enough_episodes_had_that_metric(metric):
    made = EpisodeWindow(2)
    for value in (1.0, 2.0, 3.0):
        made.add(episode(value=value, true=math.nan).episodes[0])
    made.add(episode(value=9.0, true=50.0, kills=50.0).episodes[0])
    assert made.full_average("reward") == 6.0 and made.full_average(metric) is None
    made.add(episode(value=9.0, true=70.0, kills=70.0).episodes[0])
    assert made.full_average(metric) == 60.0
    assert made.full_average("unheard_of") is None


def filled(*true, reports_true_reward=False, size=10):
    made = EpisodeWindow(size)
    made.reports_true_reward = reports_true_reward
    for value in true:
        made.add(episode(value=1.0, true=value).episodes[0])
    return made


def test_an_episode_without_an_objective_does_not_enter_its_average():
    made = filled(math.nan, 4.0, math.nan, 6.0)
    assert made.scalars()["0_aux/avg_true_reward"] == 5.0
    assert made.scalars()["0_aux/avg_reward"] == 1.0 and made.finished == 4


def test_the_return_stands_for_an_objective_only_where_no_episode_has_one():
    assert filled(math.nan, math.nan).scalars()["0_aux/avg_true_reward"] == 1.0
    # Lost lives before the end of the first game are none, where the environment says so;
    assert not any("true" in tag for tag in filled(math.nan, math.nan, reports_true_reward=True).scalars())
    assert filled(math.nan, 7.0, reports_true_reward=True).scalars()["0_aux/avg_true_reward"] == 7.0
    # and neither are they when a run goes on whose games had been scored.
    after = EpisodeWindow(10)
    after.restore(json.loads(json.dumps(filled(7.0).state())))
    for _ in range(20):
        after.add(episode(value=1.0, true=math.nan).episodes[0])
    assert after.scalars()["0_aux/avg_true_reward"] == 7.0


def test_an_extra_statistic_does_not_take_the_place_of_a_curve_of_ours():
    made = EpisodeWindow(3)
    names = ("reward", "len", "true_reward", "reward_max", "kills")
    made.add(episode(value=1.0, frames=5, **dict.fromkeys(names, 99.0)).episodes[0])
    tags = made.scalars()
    assert (tags["0_aux/avg_reward"], tags["0_aux/avg_len"], tags["0_aux/avg_true_reward"]) == (1.0, 5.0, 1.0)
    assert tags["0_aux/avg_reward_max"] == 1.0
    assert [tags[f"0_aux/avg_extra_{name}"] for name in names[:-1]] == [99.0] * 4 and tags["0_aux/avg_kills"] == 99.0


def test_what_decides_about_the_best_is_a_curve_of_ours_by_the_name_that_it_is_shown_under():
    made = EpisodeWindow(1)
    made.add(episode(value=1.0, frames=5, reward=99.0, len=98.0).episodes[0])
    metrics = ("reward", "len", "extra_reward", "extra_len", "true_reward", "absent")
    assert [made.full_average(metric) for metric in metrics] == [1.0, 5.0, 99.0, 98.0, 1.0, None]


def test_a_checkpoint_that_does_not_say_whether_true_rewards_were_reported_is_understood():
    """It held returns as true returns where there were none of the environment's own."""
    for true_returns, reports in (([1.0, 2.0], False), ([1.0, 5.0], True)):
        state = window(2, 1.0, 2.0).state() | {"true_returns": true_returns}
        del state["reports_true_reward"]
        after = EpisodeWindow(2)
        after.restore(state)
        after.add(episode(value=8.0, true=math.nan).episodes[0])
        assert after.reports_true_reward == reports
        assert after.scalars()["0_aux/avg_true_reward"] == (3.0 if reports else 5.0)


def test_a_window_goes_on_from_what_a_checkpoint_holds():
    before = window(3, 1.0, 2.0, 3.0, 4.0)
    after = EpisodeWindow(3)
    after.restore(json.loads(json.dumps(before.state())))
    assert (after.scalars(), after.finished, after.full_average("reward")) == (before.scalars(), 4, 3.0)
    for one in (before, after):
        one.add(episode(value=9.0, kills=0.0).episodes[0])
    assert after.scalars() == before.scalars()


def test_a_window_that_was_made_smaller_keeps_the_newest():
    after = EpisodeWindow(2)
    after.restore(window(4, 1.0, 2.0, 3.0, 4.0).state())
    assert list(after.returns) == [3.0, 4.0] and list(after.extra["kills"]) == [4.0, 5.0]


def metered(seconds, count_at):
    meter = RateMeter()
    for tenth in range(int(10 * seconds) + 1):
        meter.add(500.0 + tenth / 10, count_at(tenth / 10))
    return meter


def test_a_steady_counter_has_one_rate_in_every_window():
    meter = metered(400, lambda s: int(50 * s))
    assert [meter.rate(window_s) for window_s in meter.windows_s] == pytest.approx([50.0] * 3, rel=0.01)


def test_each_window_sees_its_own_time():
    """100 per second for 380 s, then nothing for 20 s."""
    meter = metered(400, lambda s: int(100 * min(s, 380.0)))
    assert meter.rate(10) == 0.0
    assert meter.rate(60) == pytest.approx(100 * 40 / 60, rel=0.02)
    assert meter.rate(300) == pytest.approx(100 * 280 / 300, rel=0.02)


def test_a_young_meter_uses_the_time_that_there_is():
    meter = metered(2, lambda s: int(30 * s))
    assert [meter.rate(window_s) for window_s in meter.windows_s] == pytest.approx([30.0] * 3)


def test_no_rate_without_two_looks_and_after_a_long_pause_the_last_two_count():
    meter = RateMeter()
    assert meter.rate(10) == 0.0
    meter.add(0.0, 5)
    assert meter.rate(10) == 0.0
    meter.add(50.0, 105)
    assert meter.rate(10) == 2.0


def test_a_meter_forgets_what_no_window_needs():
    meter = metered(1000, lambda s: int(s))
    assert len(meter._history) <= 3020


def test_episodes_and_metrics_belong_to_the_policy_that_made_them():
    statistics = small_statistics(policies=2)
    statistics.add(episode(0, 1.0))
    statistics.add(episode(1, 5.0))
    statistics.add(training(1, 3, loss=0.5, version_diff_min=1.0, version_diff_avg=2.0, version_diff_max=3.0))
    first, second = statistics.scalars(0), statistics.scalars(1)
    assert (first["0_aux/avg_reward"], second["0_aux/avg_reward"]) == (1.0, 5.0)
    assert second["train/loss"] == 0.5 and not any(tag.startswith("train/") for tag in first)
    lags = {tag: value for tag, value in second.items() if tag.startswith("0_aux/policy_lag")}
    assert lags == {"0_aux/policy_lag_min": 1.0, "0_aux/policy_lag_avg": 2.0, "0_aux/policy_lag_max": 3.0}
    assert not any(tag.startswith("0_aux/policy_lag") for tag in first)
    assert second["0_aux/master_process_memory_mb"] > 10.0


def test_frozen_policies_have_neither_frames_nor_curves():
    statistics = small_statistics(policies=2, frozen=1)
    statistics.add(EpisodesFinished([*episode(2, 9.0).episodes, *episode(1, 5.0).episodes]))
    statistics.arrays["env_frames"][...] = [[1, 20], [300, 4000]]
    snapshot = statistics.snapshot()
    assert [policy.avg_reward for policy in snapshot.policies] == [None, 5.0]
    assert snapshot.env_frames == 4321 and [statistics.env_frames(policy) for policy in range(2)] == [301, 4020]


def test_frames_are_summed_over_actors_and_resumes(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    statistics = small_statistics(policies=2)
    statistics.arrays["env_frames"][...] = [[1, 20], [300, 4000]]
    assert [statistics.env_frames(policy) for policy in range(2)] == [301, 4020]
    empty = small_statistics().run_state(0)["episodes"]
    statistics.add(restored(0, env_frames=50_000, train_seconds=70.0, episodes=empty))
    statistics.add(restored(1))
    assert [statistics.env_frames(policy) for policy in range(2)] == [50_301, 4020]
    assert statistics.total_env_frames == 54_321
    clock.now += 5.0
    assert statistics.train_seconds == 75.0


def test_what_a_checkpoint_keeps_is_where_the_next_run_starts(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    before = small_statistics()
    before.arrays["env_frames"][:, 0] = [10, 20]
    for value in (1.0, 2.0, 3.0, 4.0):
        before.add(episode(value=value))
    clock.now += 8.0
    after = small_statistics()
    after.add(restored(0, **json.loads(json.dumps(before.run_state(0)))))
    assert (after.env_frames(0), after.train_seconds) == (30, 8.0)
    assert after.episodes[0].scalars() == before.episodes[0].scalars() != {}
    assert after.episodes[0].finished == 4
    assert not after.snapshot().policies[0].has_new_episodes
    after.add(episode(value=5.0))
    clock.now += 8.0
    assert after.snapshot().policies[0].has_new_episodes and before.snapshot().policies[0].has_new_episodes


def test_a_resumed_run_has_no_point_before_it_has_finished_an_episode_or_learned(monkeypatch):
    """At first its rates and shares are zeros, which say nothing."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    before = small_statistics()
    before.add(episode(value=1.0))
    for news in (episode(value=2.0), training(loss=1.0)):
        after = small_statistics()
        after.add(restored(0, **before.run_state(0)))
        for _ in range(60):
            clock.now += 1.0
            assert not after.snapshot().points
        after.add(news)
        clock.now += 1.0
        [point] = after.snapshot().points
        assert "0_aux/avg_reward" in point.scalars


def test_the_last_snapshot_of_a_run_that_has_not_begun_says_so_and_has_no_points():
    statistics = small_statistics()
    assert statistics.last_snapshot().state == "ended" and statistics.last_snapshot().points
    statistics.restored[0] = None
    last = statistics.last_snapshot()
    assert (last.state, last.points, last.timing) == ("starting", (), ())


def test_rates_come_from_the_counters_of_this_run(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    statistics = small_statistics(policies=2)
    for looks in range(30):
        statistics.snapshot()
        is_told = {"0_aux/_fps", "0_aux/_sample_throughput"} & statistics.scalars(0).keys()
        assert bool(is_told) == (looks > 0), "a curve does not begin with a speed of 0"
        clock.now += 1.0
        statistics.arrays["env_frames"][...] += [[10, 20], [30, 40]]
        statistics.arrays["agent_steps"][...] += [[1, 20], [2, 30]]
    assert [statistics.scalars(policy)["0_aux/_fps"] for policy in range(2)] == [pytest.approx(100.0)] * 2
    throughput = [statistics.scalars(policy)["0_aux/_sample_throughput"] for policy in range(2)]
    assert throughput == [pytest.approx(3.0), pytest.approx(50.0)], "each policy has its own"


def test_each_kind_of_process_shares_its_time_among_its_stages():
    # Actors 0 and 1, policy workers 2 and 3, the opponent worker 4, learners 5 and 6, the evaluation worker 7.
    statistics = small_statistics(policies=2, opponents=1, evaluators=1)
    timers, event_counts = statistics.arrays["timers"], statistics.arrays["event_counts"]
    timers[0, Timer.ACTOR_ENV_STEP], timers[1, Timer.ACTOR_WAIT_POLICY] = 3.0, 1.0
    timers[2, Timer.POLICY_FORWARD], timers[3, Timer.POLICY_WAIT] = 1.0, 1.0
    timers[4, Timer.OPPONENT_WAIT], timers[4, Timer.OPPONENT_FORWARD] = 3.0, 1.0
    timers[6, Timer.LEARNER_TRAIN] = 7.0
    event_counts[2:4, EventCounter.POLICY_BATCHES], event_counts[2:4, EventCounter.POLICY_ROWS] = [4, 6], [20, 80]
    event_counts[5:7, EventCounter.LEARNER_BATCHES] = [1, 2]
    statistics.arrays["memory_mb"][:] = [50, 70, 300, 100, 500, 400, 200, 90]
    tags = statistics.stage_scalars()
    assert (tags["stats/actor_env_step"], tags["stats/actor_wait_policy"]) == (0.75, 0.25)
    assert (tags["stats/policy_forward"], tags["stats/policy_wait"]) == (0.5, 0.5)
    assert (tags["stats/opponent_forward"], tags["stats/opponent_memory_mb"]) == (0.25, 500.0)
    assert (tags["stats/learner_train"], tags["stats/learner_wait_batch"]) == (1.0, 0.0)
    assert (tags["stats/policy_batch_size"], tags["stats/learner_batches"]) == (10.0, 3.0)
    memory = [tags[f"stats/{kind}_memory_mb"] for kind in ("actor", "policy", "learner")]
    assert memory == [60.0, 200.0, 300.0]
    assert {f"stats/{timer.name.lower()}" for timer in Timer} <= tags.keys()


def test_stages_are_told_since_the_last_time_and_a_clock_that_began_anew_counts_from_there():
    statistics = small_statistics()
    timers, event_counts = statistics.arrays["timers"], statistics.arrays["event_counts"]
    timers[:2, Timer.ACTOR_ENV_STEP], event_counts[2, EventCounter.LEARNER_BATCHES] = 100.0, 5
    assert statistics.stage_scalars()["stats/actor_env_step"] == 1.0
    timers[0, Timer.ACTOR_WAIT_BLOCK] += 6.0
    timers[1, Timer.ACTOR_ENV_STEP] += 2.0
    timers[0, Timer.ACTOR_ENV_STEP] = 0.0  # a new actor
    event_counts[2, EventCounter.LEARNER_BATCHES] += 2
    tags = statistics.stage_scalars()
    assert (tags["stats/actor_env_step"], tags["stats/actor_wait_block"]) == (0.25, 0.75)
    assert tags["stats/learner_batches"] == 2.0


def test_shares_of_nothing_are_nothing():
    assert set(small_statistics().stage_scalars().values()) == {0.0}


def test_a_video_waits_for_the_next_point_and_is_in_one_only(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    statistics = small_statistics()
    statistics.add(restored(0))
    statistics.add(episode(value=1.0))
    statistics.snapshot()
    statistics.add(EvaluationVideoSaved(0, 7, "video.gif"))
    points: list[Point] = []
    for _ in range(2):
        clock.now += 100.0
        points += statistics.snapshot().points[:1]
    assert [point.video for point in points] == ["video.gif", ""]
    statistics.add(EvaluationVideoSaved(0, 7, "of_the_policy_before.gif"))
    statistics.add(PolicyAdopted(0, 1, {}, 9, 1))
    clock.now += 100.0
    assert not statistics.snapshot().points[0].video
