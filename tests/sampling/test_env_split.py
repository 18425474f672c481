"""A split: every array of its blocks against a slow plain account of the same environments, and what it counts."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from appo.algorithms.memory.blocks import BlockState, SplitBlocks, block_states
from appo.algorithms.memory.layout import OBSERVATION
from appo.algorithms.memory.request_table import SplitRequests
from appo.algorithms.sampling import policy_assignment
from appo.algorithms.sampling.env_split import EnvSplit
from appo.algorithms.sampling.matchmaking import MatchAssignment
from appo.algorithms.sampling.policy_assignment import (
    ROLLOUTS_PER_TURN,
    SplitAssignment,
)
from appo.algorithms.specs import ELAPSED_STEPS
from appo.envs.adapters import first_seed
from appo.envs.api import Decorrelation, EnvContext
from appo.envs.faults import FaultPolicy
from appo.envs.registry import make_batch_env
from appo.envs.simulators.synthetic_multi import MultiIdentity
from appo.envs.synthetic_options import SyntheticOptions
from appo.envs.vector.serial import SerialVecEnv
from tests.sampling.sampling_cases import (
    CONTINUES,
    CRASHES,
    IS_TRUNCATED,
    TERMINATES,
    Played,
    Scripted,
    parallel_streams,
    single_stream,
)

T = 4
SCRIPTS = [
    [CONTINUES],
    [CONTINUES, TERMINATES],
    [CONTINUES] * (T - 2) + [IS_TRUNCATED] + [CONTINUES] * 2,
    [CONTINUES] * (T - 1) + [IS_TRUNCATED],  # the first truncation falls on T - 1: its final row is carried over
    [IS_TRUNCATED, TERMINATES, CONTINUES, CONTINUES, (True, True)],
]


def scripted(frames=1, says_more=False):
    return [Scripted(script, frames=frames, says_more=says_more) for script in SCRIPTS]


def batch_of(envs):
    return SerialVecEnv(envs, [EnvContext(env_id=i) for i in range(len(envs))])


def streams_of(envs, played):
    return [single_stream(env, actions) for env, actions in zip(envs, np.transpose(played.actions), strict=True)]


def rows_of(played, name):
    """Every row of a run once: row T of one block is row 0 of the next."""
    return np.concatenate([rollout[name][number > 0 :] for number, rollout in enumerate(played.rollouts)])


def column(stream, field, start, count):
    return [getattr(row, field) for row in stream[start : start + count]]


def assert_blocks_equal(played, streams):
    for number, rollout in enumerate(played.rollouts):
        start = number * played.arrays.sizes.rollout
        for row, stream in enumerate(streams):
            seen = rollout["obs/obs"][:, row]
            np.testing.assert_array_equal(seen, np.reshape(column(stream, "observation", start, T + 1), seen.shape))
            for name in ("is_first", "is_last", "active"):
                expected = column(stream, name, start, T + 1)
                np.testing.assert_array_equal(rollout[name][:, row], expected, err_msg=f"{name} {number} {row}")
            for name, field in [("rewards", "reward"), ("terminated",) * 2, ("truncated",) * 2]:
                expected = column(stream, field, start, T)
                np.testing.assert_array_equal(rollout[name][:, row], expected, err_msg=f"{name} {number} {row}")


def episodes_by_definition(streams, policies_of):
    """(step, policy, return, true return, frames, extra) of every episode, row by row, in plain Python."""
    found = []
    extra: dict[str, float]
    for row, stream in enumerate(streams):
        total, frames, true_return, extra = 0.0, 0, None, {}
        for step, decision in enumerate(stream[:-1]):
            if decision.info.get("lost"):
                total, frames, true_return, extra = 0.0, 0, None, {}
                continue
            total += decision.reward
            frames += decision.frames
            true_return = decision.info.get("true_reward", true_return)
            extra = extra | decision.info.get("episode_extra_stats", {})
            if decision.terminated or decision.truncated:
                found.append((step, row, policies_of(step, row), total, true_return, frames, extra))
                total, frames, true_return, extra = 0.0, 0, None, {}
    return [(step, *rest) for step, _, *rest in sorted(found, key=lambda entry: entry[:2])]


def as_tuples(episodes):
    """With None for an objective that was not reported: NaN equals nothing."""
    return [
        (step, *one._replace(true_return=None if math.isnan(one.true_return) else one.true_return))
        for step, one in episodes
    ]


def test_blocks_hold_what_a_slow_plain_account_of_the_same_environments_says():
    played = Played(batch_of(scripted()), rollout=T)
    played.split.start()
    played.play(rollouts=11)
    streams = streams_of(scripted(), played)
    assert_blocks_equal(played, streams)
    assert len(played.rollouts) == 11
    names = ("is_last", "is_first", "truncated")
    seen = {name: np.stack([rollout[name] for rollout in played.rollouts]) for name in names}
    assert seen["truncated"][:, T - 1].any() and seen["is_last"][:, T].any()  # truncated in the last step,
    assert (seen["is_last"][:-1, T] == seen["is_last"][1:, 0]).all()  # and carried over
    assert seen["is_last"][1:, 0].any()
    assert seen["is_first"][:, T].any() and seen["is_first"][1:, 0].any()


@pytest.mark.parametrize("decorrelation", [None, Decorrelation(np.random.default_rng(0), 10)], ids=["fresh", "moved"])
@pytest.mark.parametrize("crashes", [False, True])
def test_steps_of_each_episode_are_counted_as_its_environment_counts_them(crashes, decorrelation):
    played = Played(crashing() if crashes else batch_of(scripted()), rollout=T, timed=True)
    name = OBSERVATION + ELAPSED_STEPS.name
    played.arrays[name].fill(99.0)  # of a predecessor
    played.split.start(decorrelation)
    played.play(rollouts=11)
    is_first, elapsed = rows_of(played, "is_first"), rows_of(played, name)[..., 0]
    is_last, cut = rows_of(played, "is_last"), np.zeros_like(is_first)
    cut[1:] = np.concatenate([rollout["truncated"] for rollout in played.rollouts]) & is_last[1:]
    assert cut.any()
    counted = rows_of(played, "obs/obs")[..., 1]
    # Nothing follows the time of a time limit: its value is that of a time which rewards do follow.
    np.testing.assert_array_equal(elapsed, np.where(cut, 0.5 * counted, counted))
    assert elapsed.max() > T  # an episode longer than a block
    assert (elapsed[is_first == 1] == 0).all() or decorrelation is not None
    assert (elapsed[is_last == 1] > 0).all() or crashes
    assert (elapsed[0].max() > 0) == (decorrelation is not None)


def test_row_t_is_row_0_of_the_next_block_and_nothing_is_seen_twice_as_reward():
    played = Played(batch_of(scripted()), rollout=T, blocks=1, policies=2)
    played.split.start()
    played.play(rollouts=6)
    for before, after in zip(played.rollouts, played.rollouts[1:], strict=False):
        for name in ("obs/obs", "is_first", "is_last", "active", "policy_id"):
            np.testing.assert_array_equal(before[name][T], after[name][0])


def test_a_split_does_not_start_over_rollouts_that_no_learner_has_taken():
    played = Played(batch_of(scripted()), rollout=T, blocks=1)
    assert played.split.start()
    while played.split.completed < 1:
        played.step()
    assert not played.split.start()
    assert played.learn() == 1
    assert played.split.start()


def test_a_successor_starts_with_episodes_out_of_step_once_a_rollout_of_its_predecessor_was_taken():
    played = Played(batch_of(scripted()), rollout=T, blocks=1)
    played.split.start()
    while played.split.completed < 1:
        played.step()
    place = SplitBlocks(played.arrays, *played.cell), SplitRequests(played.arrays, *played.cell)
    counted = np.zeros(1, np.int64), np.zeros(1, np.int64)
    successor = EnvSplit(batch_of(scripted()), *place, MatchAssignment(1, np.random.SeedSequence(1)), counted)
    assert not successor.start(Decorrelation(np.random.default_rng(0), 10)) and not successor.try_next_block()
    assert successor.waits_for_block and not successor.has_started and not played.requests[0].count()
    assert played.learn() == 1
    assert successor.try_next_block()
    assert successor.has_started and not successor.waits_for_block and played.requests[0].count() == 1
    time_in_episode = played.arrays["obs/obs"][(*played.cell, 0)][0][:, 1]
    assert len(set(time_in_episode.tolist())) > 1


def test_every_row_is_asked_for_once_and_in_order():
    played = Played(batch_of(scripted()), rollout=T, blocks=3)
    played.split.start()
    played.play(rollouts=7)
    assert played.asked[: 7 * T] == [(number % 3, step) for number in range(7) for step in range(T)]


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("policies", [1, 2, 3])
def test_counters_and_episodes_are_those_of_a_slow_plain_account(frames, policies):
    played = Played(batch_of(scripted(frames, says_more=True)), rollout=T, policies=policies)
    played.split.start()
    played.play(rollouts=12)
    envs = scripted(frames, says_more=True)
    streams = streams_of(envs, played)
    ids = np.concatenate([rollout["policy_id"][:T] for rollout in played.rollouts])

    def policy_of(step, row):
        return int(ids[step, row])

    env_frames, agent_steps = [0] * policies, [0] * policies
    for row, stream in enumerate(streams):
        for step, decision in enumerate(stream[:-1]):
            env_frames[policy_of(step, row)] += decision.frames
            agent_steps[policy_of(step, row)] += decision.frames > 0
    assert played.arrays["env_frames"].tolist() == [[0] * policies, env_frames]
    assert played.arrays["agent_steps"].tolist() == [[0] * policies, agent_steps]
    assert sum(agent_steps) < len(streams) * 12 * T  # rows after a truncation are not counted
    assert min(env_frames) > 0 and (sum(env_frames) > 3 * sum(agent_steps)) == (frames > 1)
    expected = episodes_by_definition(streams, policy_of)
    assert as_tuples(played.episodes) == expected
    assert len(expected) > 30
    assert {len(entry[-1]) for entry in expected} == {1, 2}  # an episode of one step says one thing only


def test_a_policy_plays_an_episode_from_its_first_row_to_its_last():
    played = Played(batch_of(scripted()), rollout=T, policies=4)
    played.split.start()
    played.play(rollouts=40)
    ids, is_first = rows_of(played, "policy_id"), rows_of(played, "is_first")
    changed = ids[1:] != ids[:-1]
    assert not changed[is_first[1:] == 0].any()
    drawn = ids[is_first == 1]
    assert 0.65 < changed[is_first[1:] == 1].mean() < 0.85  # three of four draws are another policy
    assert np.bincount(drawn, minlength=4).min() > len(drawn) / 8
    assert len(set(ids[0].tolist())) > 1  # the very first episodes are drawn too


CRASHING = [
    [CONTINUES] * 6 + [CRASHES],  # at every step of a rollout of 4, one after the other
    [CONTINUES] * (T - 1) + [CRASHES],  # always in the last step: the final row is T - 1
    [CRASHES] + [CONTINUES] * (T - 1),  # always in the first: its row 0 was row T of a block that is handed over
    [CONTINUES, IS_TRUNCATED, CONTINUES, CRASHES, TERMINATES],
    [TERMINATES, CONTINUES],
]


def crashing(**options):
    """A split in which environments crash; whoever takes the place of one plays its script on."""
    envs = [Scripted(script, **options) for script in CRASHING]
    return SerialVecEnv(
        envs, [EnvContext(env_id=i) for i in range(len(envs))], FaultPolicy(10), lambda context: envs[context.env_id]
    )


@pytest.mark.parametrize("policies", [1, 3])
def test_a_step_in_which_an_environment_crashed_is_a_cut_before_it_as_a_slow_plain_account_says(policies):
    played = Played(crashing(says_more=True), rollout=T, policies=policies)
    played.split.start()
    played.play(rollouts=30)
    streams = streams_of([Scripted(script, says_more=True) for script in CRASHING], played)
    lost = np.array([[row.info.get("lost", False) for row in stream[:-1]] for stream in streams])[:, : 30 * T]
    assert {step % T for step in np.flatnonzero(lost[0])} == set(range(T)) and not lost[-1].any()
    for number, rollout in enumerate(played.rollouts):
        start = number * T
        for row, stream in enumerate(streams):
            now = stream[start : start + T + 1]
            np.testing.assert_array_equal(rollout["is_last"][:T, row], [seen.is_last for seen in now[:T]])
            np.testing.assert_array_equal(rollout["is_first"][:, row], [seen.is_first for seen in now])
            for name, field in [("rewards", "reward"), ("terminated",) * 2, ("truncated",) * 2]:
                np.testing.assert_array_equal(rollout[name][:, row], [getattr(seen, field) for seen in now[:T]])
            np.testing.assert_array_equal(rollout["obs/obs"][:, row], [seen.observation for seen in now])
    ids = np.concatenate([rollout["policy_id"][:T] for rollout in played.rollouts])
    expected = episodes_by_definition(streams, lambda step, row: int(ids[step, row]))
    assert as_tuples(played.episodes) == expected and len(expected) > 30
    frames = sum(row.frames for stream in streams for row in stream[:-1])
    assert played.arrays["env_frames"].sum() == frames < len(streams) * 30 * T


def test_what_is_learned_around_a_crash_is_what_is_learned_around_a_truncation():
    """The row before the crash bootstraps with the value of the crashed row, which itself is no decision."""
    torch = pytest.importorskip("torch")
    from appo.algorithms.learning.masks import trajectory_structure

    played = Played(crashing(), rollout=T)
    played.split.start()
    played.play(rollouts=30)
    crashed_in_row_0 = 0
    for number, rollout in enumerate(played.rollouts):
        flags = {name: torch.from_numpy(rollout[name]) for name in ("is_first", "is_last", "active", "terminated")}
        own = torch.ones_like(flags["is_first"], dtype=torch.bool)
        masks = trajectory_structure(**flags, own=own, gamma=0.9)
        for t in range(T):
            if (number * T + t) % 7 != 6:
                continue
            assert not masks.valid[t, 0] and masks.discounts[t, 0] == masks.has_delta[t, 0] == 0
            assert masks.resets[t + 1, 0] == 1
            if t > 0:
                assert masks.valid[t - 1, 0] and masks.discounts[t - 1, 0] == pytest.approx(0.9)
            crashed_in_row_0 += t == 0
    assert crashed_in_row_0 > 2


def test_a_split_waits_for_a_block_and_goes_on_where_it_was():
    played = Played(batch_of(scripted()), rollout=T, blocks=2)
    played.split.start()
    for _ in range(2 * T):
        played.step()
    assert played.split.waits_for_block and played.split.completed == 2
    assert not played.split.is_answered() and not played.split.try_next_block()
    assert not played.requests[0].count()  # nobody computes actions that cannot be used
    assert played.learn() == 2
    assert played.split.try_next_block()
    assert not played.split.waits_for_block and not played.split.is_answered()
    played.play(rollouts=5)
    streams = streams_of(scripted(), played)
    assert_blocks_equal(played, streams)


def test_a_block_becomes_ready_only_when_it_is_full():
    played = Played(batch_of(scripted()), rollout=T, blocks=2)
    played.split.start()
    for step in range(T):
        assert block_states(played.arrays)[1, 0].tolist() == [BlockState.FILLING, BlockState.FREE], step
        played.step()
    assert block_states(played.arrays)[1, 0].tolist() == [BlockState.READY, BlockState.FILLING]
    assert not block_states(played.arrays)[0].any() and not block_states(played.arrays)[1, 1].any()


def test_several_agents_share_a_split_as_a_slow_plain_account_says():
    options = SyntheticOptions(synthetic_num_agents=3, synthetic_episode_length=5, synthetic_frames_per_step=2)
    contexts = [EnvContext(env_id=i, seed=3) for i in range(2)]
    played = Played(make_batch_env("synthetic_multi", options, contexts), rollout=T, policies=2)
    played.split.start()
    played.play(rollouts=9)
    streams = []
    for env, context in enumerate(contexts):
        actions = [step[3 * env : 3 * env + 3] for step in played.actions]
        seed = first_seed(context)
        assert seed is not None
        streams += parallel_streams(MultiIdentity(options, context), seed, actions)
    assert_blocks_equal(played, streams)
    inactive = np.concatenate([rollout["active"][:T] == 0 for rollout in played.rollouts])
    assert 0.1 < inactive.mean() < 0.6
    ids = np.concatenate([rollout["policy_id"][:T] for rollout in played.rollouts])
    expected = episodes_by_definition(streams, lambda step, row: int(ids[step, row]))
    assert as_tuples(played.episodes) == expected
    assert {entry[-1]["lifetime"] for entry in expected} == {2.0, 4.0, 5.0}
    frames = np.array([[row.frames for row in stream[:-1]] for stream in streams])  # [row, step]
    of_simulators = frames.reshape(2, 3, -1).max(axis=1)
    assert played.arrays["env_frames"].sum() == of_simulators.sum() < frames.sum() / 1.5
    assert played.arrays["agent_steps"].sum() == np.count_nonzero(frames)


class Crowd:
    """A parallel environment without an end: agent i is there in every step; a step covers 3 frames."""

    metadata: dict = {}  # noqa: RUF012 - PettingZoo's own way to declare it

    def __init__(self, agents):
        self.possible_agents = self.agents = [f"agent {number}" for number in range(agents)]

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    action_mask_in_info = False

    def reset(self, seed=None, options=None):
        return self._of_each(np.zeros(1, np.float32)), self._of_each({})

    def step(self, actions):
        told = [self._of_each(value) for value in (np.zeros(1, np.float32), 0.0, False, False, {"num_frames": 3})]
        return tuple(told)

    def _of_each(self, value):
        return dict.fromkeys(self.possible_agents, value)

    def close(self):
        pass


@pytest.mark.parametrize("agents, policies", [(1, 1), (4, 1), (4, 3), (2, 5)])
def test_a_simulator_s_frame_counts_once_however_many_agents_and_policies_share_it(agents, policies):
    envs = [Crowd(agents) for _ in range(2)]
    played = Played(batch_of(envs), rollout=T, policies=policies)
    played.split.start()
    played.play(rollouts=50)
    steps = 2 * T * 50
    frames, decisions = played.arrays["env_frames"][1], played.arrays["agent_steps"][1]
    assert frames.sum() == 3 * steps and decisions.sum() == agents * steps
    # Nobody is left out: each policy gets the share of the frames that it has of the agents, whichever those are.
    np.testing.assert_allclose(frames, decisions * 3 / agents, atol=2 * agents)


def test_environments_that_are_moved_apart_begin_in_different_steps_and_ask_once():
    options = SyntheticOptions(synthetic_episode_length=50)

    def started(how):
        contexts = [EnvContext(env_id=i, seed=1) for i in range(16)]
        played = Played(make_batch_env("synthetic_identity", options, contexts), rollout=8)
        played.split.start(how)
        assert played.requests[0].count() == 1
        assert (played.arrays["is_first"][1, 0, 0, 0] == 1).all()
        played.play(rollouts=13)
        assert {episode.length_frames for _, episode in played.episodes} == {50}  # seen from their first step
        return [step for step, _ in played.episodes]

    apart = started(Decorrelation(np.random.default_rng(0), 1000))
    assert len(apart) == 16 and len(set(apart)) > 3 and max(apart) <= 99
    assert max(apart) - min(apart) > 3 * 8, "over the episode, not over a rollout of it"
    assert started(None) == [49] * 16 + [99] * 16


def test_closing_a_split_closes_its_environments():
    class Closing(Scripted):
        closed = 0

        def close(self):
            self.closed += 1

    envs = [Closing([CONTINUES]) for _ in range(2)]
    Played(batch_of(envs)).split.close()
    assert [env.closed for env in envs] == [1, 1]


def test_a_policy_is_given_its_turn_of_a_split_whose_episodes_never_end(monkeypatch):
    monkeypatch.setattr(policy_assignment, "LONGEST_EPISODE", 20)
    envs = [Scripted([CONTINUES]), Scripted([CONTINUES]), Scripted([CONTINUES] * 30 + [TERMINATES])]
    played = Played(batch_of(envs), policies=3, assignment=SplitAssignment(3, 0, 2))
    played.play(2 * ROLLOUTS_PER_TURN)
    ids, is_last = rows_of(played, "policy_id"), rows_of(played, "is_last")
    is_first, truncated = rows_of(played, "is_first"), np.concatenate([r["truncated"] for r in played.rollouts])
    cut = 20 * T + 1  # the row after the first step of that rollout
    for row in range(2):
        assert np.flatnonzero(is_last[:, row]).tolist() == [cut]
        assert np.flatnonzero(truncated[:, row]).tolist() == [cut - 1]
        assert np.flatnonzero(is_first[:, row]).tolist() == [0, cut + 1]
        assert ids[: cut + 1, row].tolist() == [0] * (cut + 1) and set(ids[cut + 1 :, row].tolist()) == {1}
    assert not is_last[:, 2].any() and not truncated[:, 2].any()  # these episodes end by themselves
    assert {int(ids[step, 2]) for step in (0, 31, 62)} == {0} and len(played.episodes) == 4
    assert {episode.length_frames for _, episode in played.episodes} == {31}  # what was cut is not told of
