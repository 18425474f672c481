"""Synthetic environments: their optimum is what they say, others fall short, and the faults happen where asked for."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appo.envs.action_layout import random_actions
from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext, EnvError
from appo.envs.families.synthetic import FAMILY, NAMES
from appo.envs.registry import make_batch_env, register_env, resolve
from appo.envs.synthetic_options import BAD_DATA, SyntheticOptions
from appo.utils.options import ConfigError, options_of

LENGTH = 20  # of an episode, by default
ENVS = 4


def returns(name, policy, num_episodes=12, **options):
    """Mean return per episode and row of a policy: observations {name: [E, ...]} -> [E, W]."""
    batch = make_batch_env(name, SyntheticOptions(**options), [EnvContext(seed=3, env_id=i) for i in range(ENVS)])
    out = step_arrays(batch.spec, ENVS)
    batch.reset(out)
    total, ends = 0.0, 0
    while ends < num_episodes * len(out.is_first):
        is_counted = out.is_last == 0
        batch.step(np.asarray(policy(out.observations, out), np.float32), out)
        total += out.rewards[is_counted].sum()
        ends += int(out.terminated.sum() + out.truncated.sum())
    batch.close()
    return total / ends


def at_random(name, **options):
    spec = make_batch_env(name, SyntheticOptions(**options), [EnvContext()]).spec
    rng = np.random.default_rng(0)
    return lambda observations, out: random_actions(spec.actions, rng, len(out.is_first))


def brightest(images):
    """Which quadrant of [E, C, H, W] is bright."""
    half = images.shape[-1] // 2
    quadrants = [images[:, 0, row, column] for row in (0, half) for column in (0, half)]
    return np.argmax(quadrants, axis=0)


def answer_of_the_sensor(seen, out):
    points_at_category = seen["pointer"][:, 0] > 0
    return np.where(points_at_category, seen["sensors/category"][:, 0], brightest(seen["sensors/camera"]))[:, None]


class Remembers:
    """Keeps the cue that the first observation shows."""

    def __call__(self, seen, out):
        cues = seen["obs"][:, :-1]
        self.cue = np.where(out.is_first == 1, cues.argmax(axis=1), getattr(self, "cue", 0))
        return self.cue[:, None]


def allowed(seen, out):
    return seen["action_mask"].argmax(axis=1)[:, None]


OPTIMAL = {
    "identity": (lambda seen, out: seen["obs"], LENGTH),
    "bandit": (lambda seen, out: np.full((ENVS, 1), 3), LENGTH * 3 / 4),
    "memory": (Remembers(), 1.0),
    "masked": (allowed, LENGTH),
    "masked_info": (allowed, LENGTH),
    "truncation": (lambda seen, out: np.zeros((ENVS, 1)), LENGTH),
    "tuple": (lambda s, out: np.hstack([s["choices"][:, :1], s["number"], s["choices"][:, 1:]]), LENGTH),
    "image": (lambda seen, out: brightest(seen["obs"])[:, None], LENGTH),
    "dict": (answer_of_the_sensor, LENGTH),
    "continuous": (lambda seen, out: seen["obs"] / 2, 0.0),
    "slow": (lambda seen, out: seen["obs"], LENGTH),
}


@pytest.mark.parametrize("kind", OPTIMAL)
def test_the_optimum_is_what_the_class_says_and_chance_falls_short_of_it(kind):
    name, (policy, optimum) = f"synthetic_{kind}", OPTIMAL[kind]
    quick = {"synthetic_step_ms": 0.0}
    tolerance = 1.5 if kind == "bandit" else 1e-4
    assert returns(name, policy, **quick) == pytest.approx(optimum, abs=tolerance)
    if kind != "truncation":
        assert returns(name, at_random(name), **quick) < optimum - 0.2 * max(optimum, 1.0)


def test_memory_cannot_be_solved_from_what_is_seen():
    def answers_what_it_sees(seen, out):
        return seen["obs"][:, :-1].argmax(axis=1)[:, None]

    by_sight = returns("synthetic_memory", answers_what_it_sees, num_episodes=100, synthetic_delay=2)
    assert by_sight == pytest.approx(1 / 4, abs=0.12)


def test_several_numbers_reach_their_targets():
    policy, optimum = OPTIMAL["continuous"]
    assert returns("synthetic_continuous", policy, synthetic_action_size=3) == pytest.approx(optimum, abs=1e-4)
    assert returns("synthetic_continuous", lambda seen, out: 0 * seen["obs"], synthetic_action_size=3) < -LENGTH / 2


def steps_of(name, count, num_envs=1, **options):
    """The arrays and infos of each step, with actions that copy the observation."""
    contexts = [EnvContext(seed=1, env_id=i) for i in range(num_envs)]
    batch = make_batch_env(name, SyntheticOptions(**options), contexts)
    out = step_arrays(batch.spec, num_envs)
    batch.reset(out)
    for _ in range(count):
        infos = batch.step(out.observations["obs"].astype(np.float32)[:, :1], out)
        yield out, infos


def test_agents_leave_one_after_the_other_and_earn_their_lifetime():
    lifetimes = {}
    earned = np.zeros(3)
    for number, (out, infos) in enumerate(steps_of("synthetic_multi", 20), start=1):
        earned += out.rewards
        for row in np.flatnonzero(out.terminated):
            lifetimes[int(row)] = (number, infos[int(row)]["episode_extra_stats"]["lifetime"])
    assert lifetimes == {0: (7, 7.0), 1: (14, 14.0), 2: (20, 20.0)}
    assert earned.tolist() == [7, 14, 20]
    assert out.is_first.tolist() == [1, 1, 1], "the next episode has begun with everybody"


def test_statistics_true_rewards_and_frames_come_with_the_steps():
    *_, (out, infos) = steps_of("synthetic_identity", LENGTH, synthetic_frames_per_step=4)
    assert infos == {0: {"episode_extra_stats": {"right": 1.0}, "num_frames": 4}} and out.frames.tolist() == [4]
    *_, (_, infos) = steps_of("synthetic_bandit", LENGTH)
    assert infos == {0: {"true_reward": pytest.approx(LENGTH / 4)}}


def test_truncation_never_terminates():
    flags = [(out.terminated[0], out.truncated[0]) for out, _ in steps_of("synthetic_truncation", 63)]
    assert flags.count((0, 1)) == 3 and (1, 0) not in flags


@pytest.mark.parametrize("busy", [False, True])
def test_slow_steps_take_their_time_and_one_may_take_longer(busy):
    def seconds(**options):
        begin = time.perf_counter()
        for _ in steps_of("synthetic_slow", 4, num_envs=2, synthetic_busy=busy, **options):
            pass
        return time.perf_counter() - begin

    assert seconds(synthetic_step_ms=5.0) >= 0.04
    assert seconds(synthetic_step_ms=0.0, synthetic_slow_env=1, synthetic_slow_ms=20.0) >= 0.08
    assert seconds(synthetic_step_ms=0.0, synthetic_reset_ms=20.0) >= 0.04
    assert min(seconds(synthetic_step_ms=0.0) for _ in range(5)) < 0.04


def test_uneven_steps_differ():
    durations, last = [], time.perf_counter()
    for _ in steps_of("synthetic_uneven", 12, synthetic_step_ms=3.0):
        durations.append(time.perf_counter() - last)
        last = time.perf_counter()
    assert max(durations) > 3 * min(durations)


def test_a_crash_comes_at_its_step_in_its_environment():
    steps = steps_of("synthetic_crashing", 9, num_envs=3, synthetic_fault_step=5, synthetic_fault_env=2)
    with pytest.raises(EnvError, match=r"environment 2 .*failed in step: RuntimeError: synthetic crash in step 5"):
        for number, _ in enumerate(steps):
            assert number < 5
    assert number == 4


def test_a_crash_by_chance_is_reproducible_and_absent_without_chance():
    def survived(probability):
        number = 0
        try:
            for _ in steps_of("synthetic_crashing", 300, synthetic_fault_probability=probability):
                number += 1
        except EnvError:
            return number
        return None

    assert survived(0.05) == survived(0.05) is not None
    assert survived(0.0) is None


def test_a_stall_lasts_and_then_goes_on():
    begin = time.perf_counter()
    steps = list(steps_of("synthetic_hanging", 3, synthetic_fault_step=1, synthetic_stall_seconds=0.1))
    assert len(steps) == 3 and time.perf_counter() - begin >= 0.1


@pytest.mark.parametrize("bad, told", [(word, word.partition("_")[2] or word) for word in BAD_DATA])
def test_bad_data_come_at_their_step_and_are_what_they_are_called(bad, told):
    options = SyntheticOptions(synthetic_fault_step=2, synthetic_bad_data=bad)
    env = resolve("synthetic_bad_data").family.make("synthetic_bad_data", options, EnvContext())
    env.reset(seed=1)
    for step in range(4):
        observation, reward, *_ = env.step(0)
        is_sound = (
            env.observation_space.contains(observation) and np.isfinite(reward) and np.isfinite(observation).all()
        )
        assert is_sound == (step != 2)
        if step == 2:
            in_reward = np.isnan(reward)
            assert {
                "observation": observation.shape == (1,) and not np.isfinite(observation).any(),
                "reward": in_reward,
                "shape": observation.shape == (),
                "dtype": observation.dtype == np.complex64,
            }[told]


def test_a_fault_may_come_with_a_reset_instead():
    options = {"synthetic_fault_in": "reset", "synthetic_fault_step": 2}
    steps, number = steps_of("synthetic_crashing", 3 * LENGTH, **options), 0
    with pytest.raises(EnvError, match="failed in reset: RuntimeError: synthetic crash in step 2"):
        for _ in steps:
            number += 1
    assert number == 2 * LENGTH - 1, "the third reset, of which the second and third end episodes"


def test_an_unreliable_cartpole_raises_and_stalls_as_often_as_asked():
    options = SyntheticOptions(
        synthetic_fault_probability=0.05, synthetic_stall_probability=0.1, synthetic_stall_seconds=0.02
    )
    context = EnvContext(seed=1)
    env = resolve("synthetic_unreliable_cartpole").family.make("synthetic_unreliable_cartpole", options, context)
    env.reset(seed=1)
    raised = stalled = 0
    for _ in range(1000):
        began = time.perf_counter()
        try:
            _, _, terminated, _, _ = env.step(0)
        except RuntimeError:
            raised += 1
            continue
        stalled += time.perf_counter() - began >= 0.4 * 0.02
        if terminated:
            env.reset()
    assert 25 < raised < 80 and 60 < stalled < 150
    defaults = FAMILY.defaults("synthetic_unreliable_cartpole")
    assert defaults["synthetic_fault_probability"] == 1e-3 and defaults["synthetic_stall_probability"] == 5e-4


def test_an_exit_ends_the_process_with_its_code():
    code = (
        "from appo.envs.registry import resolve; from appo.envs.api import EnvContext\n"
        "from appo.envs.synthetic_options import SyntheticOptions\n"
        "options = SyntheticOptions(synthetic_fault_step=0, synthetic_exit_code=9)\n"
        "env = resolve('synthetic_exit').family.make('synthetic_exit', options, EnvContext())\n"
        "env.reset(seed=0); env.step(0)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=60).returncode == 9


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_built_steps_within_its_spaces_and_is_reproducible(name):
    def play(seed):
        env = resolve(name).family.make(name, SyntheticOptions(synthetic_step_ms=0.1), EnvContext(seed=seed))
        if name == "synthetic_multi":
            return [str(env.reset(seed=seed)), str(env.step(dict.fromkeys(env.agents, 1)))]
        env.action_space.seed(0)
        observation, _ = env.reset(seed=seed)
        seen = []
        for _ in range(LENGTH - 1):
            assert env.observation_space.contains(observation), observation
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()
            seen.append(str((observation, reward, info)))
        return seen

    assert play(4) == play(4)
    if name not in ("synthetic_truncation", "synthetic_lock"):  # in which nothing is drawn
        assert play(4) != play(5)


def test_options_and_names_are_declared_for_every_kind():
    assert all(rule.help for _, rule in options_of(SyntheticOptions))
    assert all(FAMILY.defaults(name)["encoder"] for name in NAMES)
    with pytest.raises(ConfigError, match="synthetic_memory"):
        FAMILY.defaults("synthetic_memry")


def test_random_numbers_of_agents_in_a_class_without_wrappers_are_restored():
    from appo.envs.simulators.synthetic_multi import MultiIdentity

    class Plain(MultiIdentity):
        unwrapped = property()  # as of a class that knows nothing of Gymnasium

        def reset(self, seed=None, options=None):
            if seed is not None:
                self.np_random = np.random.default_rng(seed)
            self.np_random.random()
            return super().reset(seed=seed, options=options)

    register_env("plain", lambda: Plain(SyntheticOptions(synthetic_episode_length=2), EnvContext()))
    batch: Any = make_batch_env("plain", None, [EnvContext(seed=3)])
    out = step_arrays(batch.spec, 1)
    batch.remember_randomness()
    batch.reset(out)
    for _ in range(6):
        batch.step(np.zeros((3, 1), np.float32), out)
    (state,) = batch.randomness()
    assert state["seed"] is None and state["generator"] is not None
    batch.restore_randomness([state])
    batch.reset(out)
    assert batch.randomness() == [state]
    batch.close()


def test_agents_whose_random_numbers_cannot_be_seen_are_started_anew_all_the_same():
    """As serial runs ask it of each environment; the episode of a seed can be begun once more, later ones cannot."""
    batch: Any = make_batch_env("synthetic_multi", SyntheticOptions(synthetic_episode_length=2), [EnvContext(seed=3)])
    out = step_arrays(batch.spec, 1)
    batch.remember_randomness()
    batch.reset(out)
    assert batch.randomness()[0]["seed"] is not None
    for _ in range(6):
        batch.step(np.zeros((3, 1), np.float32), out)
    assert batch.randomness() == [{"seed": None, "generator": None}]
    batch.restore_randomness(batch.randomness())
    batch.reset(out)
    batch.close()
