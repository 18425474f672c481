"""Environments that come vectorised: next-step autoreset as the protocol says, episodes like the serial backend's."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from appo.envs.adapters import step_arrays
from appo.envs.api import BadEnvDataError, Decorrelation, EnvContext, EnvError
from appo.envs.families.classic import ClassicOptions
from appo.envs.faults import FaultPolicy
from appo.envs.registry import make_batch_env
from appo.envs.vector.errors import EnvWorkerError
from appo.envs.vector.make import make_vec_env
from appo.envs.vector.native import VectorEnvAdapter
from appo.envs.vector.serial import SerialVecEnv
from appo.utils.options import ConfigError


class Counter(gymnasium.Env):
    """Counts its steps; terminates at 3. Tells what the vector environment is to pass on."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, limit=3, with_mask=False):
        self.limit, self.with_mask = limit, with_mask

    def _info(self):
        return {"action_mask": np.array([self.time % 2, 1])} if self.with_mask else {}

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1), self._info()

    def step(self, action):
        self.time += 1
        has_ended = self.time == self.limit
        info = self._info() | {"num_frames": 4}
        if has_ended:
            info |= {"true_reward": 7.0, "episode_extra_stats": {"time": float(self.time)}}
        return np.full(1, self.time), 1.0, has_ended, False, info


def contexts(count, seed=None):
    return [EnvContext(env_id=i, seed=seed) for i in range(count)]


def play(batch, count):
    """Of each step, after the reset: every array of the first row, and the infos of all."""
    rows = []
    for number in range(count + 1):
        out = step_arrays(batch.spec, batch.num_envs)
        for array in [*out.observations.values(), *out[1:-1]]:
            array.fill(77)
        infos = batch.step(np.zeros((batch.num_envs, 1), np.float32), out) if number else batch.reset(out)
        arrays = dict(zip(out._fields[1:-1], out[1:-1], strict=True)) | out.observations
        rows.append({name: array[0].tolist() for name, array in arrays.items()} | {"infos": infos})
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_every_end_is_flagged_once_and_a_terminated_one_shows_nothing():
    seen = play(VectorEnvAdapter(SyncVectorEnv([Counter, lambda: Counter(5)]), contexts(2)), 5)
    assert seen["obs"] == [[0], [1], [2], [0], [0], [1]]
    assert seen["is_first"] == [1, 0, 0, 0, 1, 0]
    assert seen["is_last"] == [0, 0, 0, 1, 0, 0]
    assert seen["active"] == [1, 1, 1, 1, 1, 1]
    assert seen["terminated"][1:] == [0, 0, 1, 0, 0]
    assert seen["truncated"][1:] == [0, 0, 0, 0, 0]
    assert seen["rewards"][1:] == [1, 1, 1, 0, 1]
    assert seen["frames"][1:] == [4, 4, 4, 0, 4]
    of_first = {"true_reward": 7.0, "episode_extra_stats": {"time": 3.0}}
    of_second = {"true_reward": 7.0, "episode_extra_stats": {"time": 5.0}}
    assert seen["infos"][1:] == [{}, {}, {0: of_first}, {}, {1: of_second}]


class Numbered(gymnasium.vector.VectorWrapper):
    """Says with numbers what others say with True and False."""

    number = 1

    def step(self, actions):
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        flags = (np.where(each, self.number, 0).astype(np.uint8) for each in (terminated, truncated))
        return observations, rewards, *flags, infos


def test_flags_may_be_numbers_and_nothing_but_0_and_1():
    def made():
        return SyncVectorEnv([Counter, lambda: Counter(5)])

    assert play(VectorEnvAdapter(Numbered(made()), contexts(2)), 7) == play(VectorEnvAdapter(made(), contexts(2)), 7)
    wrong = Numbered(made())
    wrong.number = 2
    with pytest.raises(EnvError, match="'terminated' should be True or False"):
        play(VectorEnvAdapter(wrong, contexts(2)), 7)


def test_a_limit_is_a_truncation_and_both_at_once_is_a_termination():
    seen = play(VectorEnvAdapter(SyncVectorEnv([lambda: TimeLimit(Counter(9), 2)]), contexts(1)), 3)
    assert seen["truncated"][1:] == [0, 1, 0] and seen["terminated"][1:] == [0, 0, 0] and seen["is_last"][2] == 1
    assert seen["obs"][2] == [2], "what would have followed is valued by the last observation"
    both = play(VectorEnvAdapter(SyncVectorEnv([lambda: TimeLimit(Counter(2), 2)]), contexts(1)), 3)
    assert both["truncated"][1:] == [0, 0, 0] and both["terminated"][1:] == [0, 1, 0] and both["is_last"][2] == 1


def test_the_unseen_step_pays_nothing_and_a_final_observation_is_of_an_active_agent():
    class Generous(SyncVectorEnv):
        def step(self, actions):
            observations, rewards, terminated, truncated, _ = super().step(actions)
            return observations, rewards + 5, terminated, truncated, {"is_active": np.zeros(1, bool)}

    seen = play(VectorEnvAdapter(Generous([Counter]), contexts(1)), 5)
    assert seen["rewards"][1:] == [6, 6, 6, 0, 6]
    assert seen["active"] == [1, 0, 0, 1, 0, 0]


def test_masks_in_infos_become_an_observation():
    envs = SyncVectorEnv([lambda: Counter(9, True), lambda: Counter(9, True)])
    seen = play(VectorEnvAdapter(envs, contexts(2)), 3)
    assert seen["action_mask"] == [[0, 1], [1, 1], [0, 1], [1, 1]]


def test_a_reset_forgets_an_end():
    batch = VectorEnvAdapter(SyncVectorEnv([Counter]), contexts(1))
    assert play(batch, 3)["is_last"][3] == 1
    assert play(batch, 1)["is_first"] == [1, 0]


def cartpoles(count):
    return [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30) for _ in range(count)]


def episodes(batch, num_envs, steps):
    """Per row, its decisions: (observation, action, reward, terminated, truncated), the unseen steps left out."""
    actions_of = [np.random.default_rng(row) for row in range(num_envs)]
    out = step_arrays(batch.spec, num_envs)
    batch.reset(out)
    decisions: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]
    for _ in range(steps):
        before, is_final = out.observations["obs"].copy(), out.is_last.astype(bool)
        actions = [[0 if is_final[row] else actions_of[row].integers(2)] for row in range(num_envs)]
        batch.step(np.array(actions, np.float32), out)
        for row in np.flatnonzero(~is_final):
            ends = (out.terminated[row].item(), out.truncated[row].item())
            decisions[row].append((before[row].tolist(), actions[row][0], out.rewards[row].item(), *ends))
    return decisions


def test_a_vector_of_single_environments_plays_the_same_episodes_as_the_serial_backend():
    serial = episodes(SerialVecEnv([make() for make in cartpoles(3)], contexts(3, seed=4)), 3, 100)
    vector = episodes(VectorEnvAdapter(SyncVectorEnv(cartpoles(3)), contexts(3, seed=4)), 3, 100)
    for by_serial, by_vector in zip(serial, vector, strict=True):
        # After the first end the environment draws from its own generator, which both backends left alone alike.
        assert by_vector == by_serial[: len(by_vector)]
        ends = [(step[3], step[4]) for step in by_vector]
        assert (1, 0) in ends and len(by_vector) > 80
    assert any((0, 1) in [(step[3], step[4]) for step in row] for row in vector)


def test_cartpole_vectorised_by_its_authors_is_reproducible_and_ends_where_the_pole_falls():
    def batch(seed):
        return make_batch_env("CartPole-v1", ClassicOptions(classic_vectorized=True), contexts(4, seed=seed))

    assert isinstance(batch(1), VectorEnvAdapter)
    played = episodes(batch(1), 4, 80)
    assert played == episodes(batch(1), 4, 80) != episodes(batch(2), 4, 80)
    for row in played:
        assert all(reward == 1.0 for _, _, reward, _, _ in row)
        for (observation, *_), (_, _, _, has_terminated, _) in zip(row[1:], row[:-1], strict=True):
            if has_terminated:
                assert np.abs(observation).max() <= 0.05, "the decision after an end is on a first observation"
    assert any(step[3] for row in played for step in row)


def test_decorrelation_brings_environments_out_of_step_as_their_episodes_end():
    vector = SyncVectorEnv(cartpoles(8))
    batch = VectorEnvAdapter(vector, contexts(8, seed=1))
    out = step_arrays(batch.spec, 8)
    elapsed = batch.decorrelate(Decorrelation(np.random.default_rng(0), 45), out)
    assert elapsed.tolist() == [env.get_wrapper_attr("_elapsed_steps") for env in vector.envs]
    assert out.is_first.all() and not out.rewards.any()
    first_end = np.zeros(8, int)
    for step in range(1, 40):
        batch.step(np.zeros((8, 1), np.float32), out)
        first_end[(first_end == 0) & ((out.terminated | out.truncated) == 1)] = step
    assert len(set(first_end.tolist())) > 2


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_ways_to_start_anew_are_refused(mode):
    with pytest.raises(ConfigError, match=r"autoreset_mode .*AutoresetMode\.NEXT_STEP"):
        VectorEnvAdapter(SyncVectorEnv([Counter], autoreset_mode=mode), contexts(1))


def test_a_vector_of_another_size_is_refused():
    with pytest.raises(ConfigError, match=r"of 2 environments where 3 step together.*vector_size"):
        VectorEnvAdapter(SyncVectorEnv([Counter, Counter]), contexts(3))


@pytest.mark.parametrize("phase", ["reset", "step", "close"])
def test_a_failure_carries_its_cause(phase):
    envs = SyncVectorEnv([Counter])
    batch = VectorEnvAdapter(envs, contexts(1))
    out = step_arrays(batch.spec, 1)
    batch.reset(out)

    def fail(*args, **kwargs):
        raise FloatingPointError("overflow")

    setattr(envs, phase, fail)
    calls = {"reset": lambda: batch.reset(out), "close": batch.close}
    with pytest.raises(EnvError, match=f"failed in {phase}: FloatingPointError") as caught:
        calls.get(phase, lambda: batch.step(np.zeros((1, 1), np.float32), out))()
    assert isinstance(caught.value.__cause__, FloatingPointError)


class Breaking(Counter):
    """A counter that does in its second step, or in its reset, what it was told to."""

    def __init__(self, does, built):
        super().__init__(limit=5)
        self.does, self.built = does, built

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        if self.does == "always bad":
            observation[:] = np.nan
        return observation, info

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.time == 2 and self.does == "raise" and self.built == 1:
            raise FloatingPointError("overflow")
        if self.time == 2 and self.does == "bad":
            observation = np.full(1, np.inf)
        return observation, reward, *rest


def breaking(does, count, **keeper):
    """A vector of `count` counters, of which the last breaks; who counts; and how often it was built."""
    failures: list[bool] = []
    built: list[EnvContext] = []

    def build(context):
        built.append(context)
        ordinary = [lambda: Counter(9)] * (count - 1)
        return SyncVectorEnv([*ordinary, lambda: Breaking(does, len(built))])

    faults = FaultPolicy(**({"max_rebuilds": 10} | keeper), count=lambda is_bad_data, _: failures.append(is_bad_data))
    return VectorEnvAdapter(build(contexts(count)[0]), contexts(count), faults, build), failures, built


@pytest.mark.parametrize(("does", "is_bad_data", "times_built"), [("raise", False, 2), ("bad", True, 1)])
def test_environments_that_cannot_be_rebuilt_alone_restart_together_and_lose_the_step(does, is_bad_data, times_built):
    batch, failures, built = breaking(does, 2, drops_bad_data=True)
    seen = play(batch, 4)  # of the first environment, which had done nothing wrong
    assert seen["obs"] == [[0], [1], [0], [1], [0] if is_bad_data else [2]]
    assert seen["crashed"][1:] == [0, 1, 0, int(is_bad_data)]
    assert seen["is_first"] == [1, 0, 1, 0, int(is_bad_data)]
    assert seen["rewards"][1:3] == [1, 0] and seen["frames"][1:3] == [4, 0]
    assert failures == [is_bad_data] * (2 if is_bad_data else 1)
    assert len(built) == times_built


def test_what_an_environment_was_told_is_told_to_the_one_that_takes_its_place():
    class Listening(SyncVectorEnv):
        def set_training_progress(self, env_frames):
            heard.append((self, env_frames))

        def get_reward_shaping(self):
            return {"speed": 1.0}

        def set_reward_shaping(self, weights):
            heard.append((self, weights))

    heard: list[tuple[SyncVectorEnv, Any]] = []
    built: list[EnvContext] = []

    def build(context):
        built.append(context)
        return Listening([lambda: Breaking("raise", len(built))])

    batch = VectorEnvAdapter(build(contexts(1)[0]), contexts(1), FaultPolicy(10), build)
    batch.set_training_progress(1000)
    batch.shape_rewards(0, [{"speed": 2.0}])
    first, said = batch.env, [1000, {"speed": 2.0}]
    play(batch, 2)
    assert batch.env is not first and built[1].attempt == 1
    assert heard == [(env, what) for env in (first, batch.env) for what in said]


def test_raising_when_told_of_progress_is_a_failure_of_the_next_step():
    class Curious(SyncVectorEnv):
        def set_training_progress(self, env_frames):
            if len(built) == 1:
                raise FloatingPointError("overflow")

    def build(context):
        built.append(context)
        return Curious([lambda: Counter(9)] * 2)

    built: list[EnvContext] = []
    failures: list[bool] = []
    batch = VectorEnvAdapter(
        build(contexts(2)[0]),
        contexts(2),
        FaultPolicy(10, count=lambda is_bad_data, _: failures.append(is_bad_data)),
        build,
    )
    out = step_arrays(batch.spec, 2)
    batch.reset(out)
    batch.set_training_progress(1000)
    assert len(built) == 1 and not failures
    batch.step(np.zeros((2, 1), np.float32), out)
    assert out.crashed.tolist() == [1, 1] == out.is_first.tolist() and failures == [False] and len(built) == 2
    batch.step(np.zeros((2, 1), np.float32), out)
    assert not out.crashed.any()


def test_failures_with_sound_steps_between_them_are_not_in_a_row():
    batch, failures, _ = breaking("bad", 1, drops_bad_data=True, max_rebuilds=1)
    play(batch, 12)  # every second step
    assert failures == [True] * 6


def test_bad_numbers_end_the_run_unless_they_may_be_dropped():
    batch, failures, _ = breaking("bad", 2)
    with pytest.raises(BadEnvDataError, match=r"environment 1 .*place 1.*failed in step: 'obs' should be finite"):
        play(batch, 2)
    assert not failures


BAD_INFOS = [
    ({"num_frames": np.array([4, -88])}, "'num_frames' should be a whole number of frames, .* but is -88"),
    ({"num_frames": np.array([4.0, 1.5])}, "'num_frames' should be a whole number of frames, .* but is 1.5"),
    ({"num_frames": np.ones(1)}, "'num_frames' should be one for each of 2 environments"),
    ({"true_reward": np.array([1.0, np.nan])}, "'true_reward' should be a finite number, .* but is nan"),
    ({"true_reward": np.array([1.0, "x"], object)}, "'true_reward' should be a finite number, .* but is str 'x'"),
    ({"true_reward": np.ones(1)}, "'true_reward' should be one for each environment"),
    ({"episode_extra_stats": {"a": np.array([1, None], object)}}, "'episode_extra_stats' should be a dict of numbers"),
    ({"episode_extra_stats": np.array([{}, 3], object)}, "'episode_extra_stats' should be a dict of numbers"),
    ({"is_active": np.array([1, 7])}, "'is_active' should be True or False"),
]


@pytest.mark.parametrize(("said", "message"), BAD_INFOS)
def test_a_bad_info_later_on_names_its_environment_or_is_dropped_with_its_step(said, message):
    class Talking(SyncVectorEnv):
        steps = 0

        def step(self, actions):
            self.steps += 1
            *results, infos = super().step(actions)
            return *results, infos | (said if self.steps == 2 else {})

    def built(**rules):
        return VectorEnvAdapter(
            Talking([lambda: Counter(9)] * 2),
            contexts(2),
            FaultPolicy(**({"max_rebuilds": 10} | rules)),
            lambda _: None,
        )

    with pytest.raises(BadEnvDataError, match=f"failed in step: {message}") as caught:
        play(built(), 2)
    assert caught.value.env_index == ("one for each" not in message)
    seen = play(built(drops_bad_data=True), 3)
    assert seen["crashed"][1:] == [0, 1, 0] and seen["frames"][1:] == [4, 0, 4] and seen["infos"][2] == {}


def test_environments_that_never_begin_soundly_are_given_up():
    batch, failures, _ = breaking("always bad", 1, drops_bad_data=True, max_rebuilds=3)
    with pytest.raises(EnvError, match="failed in reset 4 times in a row") as caught:
        play(batch, 0)
    assert caught.value.in_a_row == 4 and failures == [True] * 3


def test_a_last_observation_that_is_not_finite_fails_where_the_episode_was_truncated():
    class EndsBadly(gymnasium.Env):
        observation_space = spaces.Box(-9, 9, (2,), np.float32)
        action_space = spaces.Discrete(2)
        action_mask_in_info = False

        def reset(self, *, seed=None, options=None):
            self.steps = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.steps += 1
            return np.full(2, np.nan if self.steps == 2 else 1.0, np.float32), 0.0, False, self.steps == 2, {}

    def make():
        return SyncVectorEnv([EndsBadly, EndsBadly])

    with make_vec_env(make, 2, backend="native") as env:
        env.reset()
        env.step([0, 0])
        with pytest.raises(EnvWorkerError, match=r"failed in step.*'obs' should be finite"):
            env.step([0, 0])
