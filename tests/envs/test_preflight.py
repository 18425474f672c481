"""The check before the start: what breaks the contract is refused by name, what is allowed passes."""

import time
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.envs import preflight
from appo.envs.api import EnvContext, EnvError, EnvFamily, UnsupportedSpaceError
from appo.envs.observation_watch import ObservationWatch
from appo.envs.preflight import MAX_SECONDS, MAX_STEPS, PROFILE_STEPS, check_environment
from appo.envs.registry import NoOptions, ResolvedEnv, resolve
from appo.envs.synthetic_options import SyntheticOptions
from appo.utils.options import ConfigError


class Sound(gymnasium.Env):
    """Keeps the contract; tests break one thing at a time."""

    observation_space = spaces.Dict({"seen": spaces.Box(-2, 2, (2,), np.float32), "kind": spaces.Discrete(3, start=1)})
    action_space: spaces.Space[Any] = spaces.MultiDiscrete([2, 3])
    action_mask_in_info: bool | None = True

    def __init__(self):
        self.steps, self.total, self.seeds = 0, 0, []
        self.array = np.zeros(2, np.float32)

    def observe(self):
        self.array += np.float32(0.001)  # the same array, changed in place for ever
        return {"seen": self.array, "kind": 2, "more": "is nobody's business"}

    def info(self):
        return {"action_mask": (np.array([1, 0]), np.array([0, 1, 1])), "num_frames": 4, "other": object()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.steps = 0
        return self.observe(), self.info()

    def step(self, action):
        assert action[0] == 0 and action[1] in (1, 2), action
        self.steps, self.total = self.steps + 1, self.total + 1
        ends = self.steps == 20
        info = self.info() | {"is_active": np.bool_(True)}
        if ends:
            info |= {"true_reward": np.float32(1.0), "episode_extra_stats": {"a": 1, "b": np.array(2.0)}}
        return self.observe(), np.float64(0.5), ends, np.bool_(False), info


def named(factory):
    return ResolvedEnv(EnvFamily(lambda name, options, context: factory(), NoOptions, lambda name: {}), "mine", "mine")


def check(factory, **options):
    return check_environment(named(factory), NoOptions(), **({"drops_bad_data": False} | options))


def changed(**methods):
    """A factory of sound environments in which methods or attributes are others."""
    return type("Changed", (Sound,), methods)


def test_a_sound_environment_passes_after_its_steps_with_seeds_and_its_spec():
    built = []

    def build():
        built.append(Sound())
        return built[-1]

    class Place(SimpleNamespace):
        seen: list[bytes] = []  # noqa: RUF012 - of this test alone

        def __setattr__(self, name, value):
            self.seen.append(value)

    checked = check(build, place=Place())
    assert [leaf.name for leaf in checked.spec.observations] == ["kind", "seen", "action_mask"] and not checked.warnings
    assert built[0].total == PROFILE_STEPS and None not in built[0].seeds and len(built) == 1
    steps = [f"step {number}".encode() for number in range(1, PROFILE_STEPS + 1)]
    assert [place for place in Place.seen if place.startswith(b"step")] == steps
    assert Place.seen[:2] == [b"build", b"reset(seed=...)"] and Place.seen[-1] == b"close"


def test_slow_environments_are_left_in_time():
    def slow(self, action):
        time.sleep(0.3)
        return Sound.step(self, action)

    began = time.monotonic()
    check(changed(step=slow))
    assert time.monotonic() - began < MAX_SECONDS + 1.0


def test_an_environment_that_takes_longer_to_build_than_the_check_may_is_stepped_once_all_the_same(monkeypatch):
    monkeypatch.setattr(preflight, "MAX_SECONDS", 0.0)
    episodes, steps = [], []

    def reset(self, **arguments):
        episodes.append(self)
        if len(episodes) > 10:
            pytest.fail("it is reset again and again, and never stepped")
        return Sound.reset(self, **arguments)

    def step(self, action):
        steps.append(action)
        return Sound.step(self, action)

    check(changed(reset=reset, step=step))
    assert len(episodes) == len(steps) == 1


def replaced(index, value):
    """A step of which one part is another."""

    def step(self, action):
        result = list(Sound.step(self, action))
        result[index] = value
        return tuple(result)

    return {"step": step}


def info_with(**entries):
    return {"info": lambda self: Sound.info(self) | entries}


def seen(value):
    return {"observe": lambda self: Sound.observe(self) | {"seen": value} if self.total else Sound.observe(self)}


def without_kind(self):
    return {"seen": self.array} if self.total else Sound.observe(self)


def reset_without_info(self, *, seed=None, options=None):
    return self.observe()


BROKEN = {
    "no info at a reset": ({"reset": reset_without_info}, "'reset' should be .*; end reset with: return obs"),
    "no seed": ({"reset": lambda self: (self.observe(), {})}, "'seed' should be an argument of reset: "),
    "four values": ({"step": lambda self, action: Sound.step(self, action)[:4]}, "'step' should .* tuple of 4.*; end"),
    "a flag": (replaced(2, "no"), "'terminated' should be True or False, but is str 'no'"),
    "a float flag": (replaced(3, 0.5), "'truncated' should be True or False, but is float 0.5"),
    "no reward": (replaced(1, None), "'reward' should be one real number, but is NoneType None"),
    "a reward in an array": (replaced(1, np.ones(1)), r"'reward' should be one real number, but is of shape \(1,\)"),
    "a reward of NaN": (replaced(1, float("nan")), "'reward' should be finite, but is nan"),
    "an info": (replaced(4, None), "'info' should be a dict"),
    "a key": ({"observe": without_kind}, r"'kind' should be in every observation, but is missing: it has \['seen'\]"),
    "a category": ({"observe": lambda self: Sound.observe(self) | {"kind": 4}}, "'kind' should be one of 3 .* is 4"),
    "a shape": (seen(np.zeros(1, np.float32)), r"'seen' should be of shape \(2,\), .* is of shape \(1,\)"),
    "a dtype": (seen(np.zeros(2, complex)), "'seen' should be float32, .* is complex128"),
    "a NaN": (seen(np.array([0, np.nan])), "'seen' should be finite, but is nan"),
    "frames": (info_with(num_frames=0), "'num_frames' should be a whole number of frames"),
    "frames of NaN": (info_with(num_frames=float("nan")), "'num_frames'"),
    "a true reward": (info_with(true_reward="high"), "'true_reward' should be a finite number"),
    "statistics": (info_with(episode_extra_stats={"a": [1]}), "'episode_extra_stats' should be a dict of numbers"),
    "activity": (info_with(is_active=None), "'is_active' should be True or False"),
    "a mask of another width": (info_with(action_mask=np.ones(4)), "'action_mask' should be one entry for each of 5"),
    "a mask that allows nothing": (info_with(action_mask=np.zeros(5)), "'action_mask' should be 1 for at least one"),
}  # fmt: skip


@pytest.mark.parametrize("what", ["no info at a reset", "no seed", "four values"])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_only_an_environment_of_gym_is_sent_to_what_translates_it(what, is_wrapped):
    methods, message = BROKEN[what]
    own = changed(**methods)
    with pytest.raises(ConfigError, match=message) as caught:
        check(own)
    assert "shimmy" not in str(caught.value)
    of_gym = type("OfGym", (own,), {"__module__": "gym.core"})
    with pytest.raises(ConfigError, match=message) as caught:
        check((lambda: gymnasium.Wrapper(of_gym())) if is_wrapped else of_gym)
    assert (
        '; it is an environment of gym: shimmy.GymV21CompatibilityV0(env=...) translates it: pip install "shimmy['
        in (str(caught.value))
    )


def test_a_space_of_gym_is_refused_with_where_spaces_come_from():
    of_gym = type("Discrete", (spaces.Space,), {"__module__": "gym.spaces"})()
    for name in ("observation_space", "action_space"):
        with pytest.raises(UnsupportedSpaceError, match=r"a space of gym is none of gymnasium\.spaces: import"):
            check(changed(**{name: of_gym}))


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_the_contract_is_refused_in_one_line_that_names_it(what):
    methods, message = BROKEN[what]
    with pytest.raises(ConfigError, match=rf"--env=mine, (step 1|reset\(seed=...\)): {message}") as caught:
        check(changed(**methods))
    fails_always = what in ("no info at a reset", "no seed", "four values")
    assert "\n" not in str(caught.value) and ("--check_env=False" in str(caught.value)) != fails_always


class Undeclared(Sound):
    """Does not say whether its infos hold masks: the first reset is looked at before the check begins."""

    action_space: spaces.Space[Any] = spaces.Discrete(3)
    action_mask_in_info = None

    def info(self):
        return {}

    def step(self, action):
        return Sound.step(self, [0, 1])


class Continuous(Undeclared):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


def reset_with_defect(self, *, seed=None, options=None):
    raise TypeError("can't multiply sequence by non-int of type 'float'")


@pytest.mark.parametrize("kind", [Undeclared, Continuous])
@pytest.mark.parametrize("what", ["no seed", "no info at a reset"])
def test_a_reset_that_breaks_the_contract_is_told_alike_whatever_the_actions_are(kind, what):
    methods, message = BROKEN[what]
    with pytest.raises(ConfigError, match=rf"^--env=mine, reset\(seed=...\): {message}") as caught:
        check(type("Changed", (kind,), methods))
    assert "\n" not in str(caught.value) and str(caught.value).endswith("Fix the environment, or wrap it")


@pytest.mark.parametrize("kind", [Undeclared, Continuous])
def test_a_reset_that_always_raises_is_told_alike_whatever_the_actions_are(kind):
    with pytest.raises(EnvError, match=r"reset\(seed=...\) of the check before the start 4 times in a row, .*multiply"):
        check(type("Changed", (kind,), {"reset": reset_with_defect}))


def test_a_close_that_raises_is_told_and_survived():
    def close(self):
        raise OSError("the window is gone")

    [warning] = check(changed(close=close)).warnings
    assert warning.startswith("--env=mine, close: ") and "OSError: the window is gone" in warning


def test_a_factory_that_ends_the_process_has_failed():
    def factory():
        raise SystemExit(0)

    with pytest.raises(EnvError, match="failed in make: SystemExit: 0"):
        check(factory)


def test_what_a_terminated_step_shows_is_not_looked_at():
    def step(self, action):
        _, reward, terminated, truncated, info = Sound.step(self, action)
        return None if terminated else self.observe(), reward, terminated, truncated, info

    assert not check(changed(step=step)).warnings


NO_CHOICE = {"action_mask": (np.array([0, 0]), np.array([0, 0, 0]))}


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_no_choice_is_needed_at_the_end_of_an_episode(ending):
    def step(self, action):
        observation, reward, ends, _, info = Sound.step(self, action)
        flags = (ends, False) if ending == "terminated" else (False, ends)
        return observation, reward, *flags, info | (NO_CHOICE if ends else {})

    assert not check(changed(step=step)).warnings


def test_an_inactive_agent_needs_no_choice_and_an_active_one_does():
    def step(self, action):
        self.steps, self.total = self.steps + 1, self.total + 1
        is_active = self.steps % 2 == 0
        info = self.info() if is_active else self.info() | NO_CHOICE
        return self.observe(), 0.0, self.steps == 20, False, info | {"is_active": is_active or self.lies}

    assert not check(changed(step=step, lies=False)).warnings
    with pytest.raises(ConfigError, match="step 1: 'action_mask' should be 1 for at least one choice"):
        check(changed(step=step, lies=True))


def test_an_environment_that_always_fails_is_an_error_that_names_the_step_and_the_cause():
    def step(self, action):
        raise ZeroDivisionError("the wheel came off")

    with pytest.raises(
        EnvError, match=r"in step 1 of the check before the start 4 times in a row, .*the wheel came off"
    ):
        check(changed(step=step))


def test_failing_every_other_step_is_an_error_too():
    def step(self, action):
        if self.total == 2:
            raise ZeroDivisionError("the wheel came off")
        return Sound.step(self, action)

    with pytest.raises(EnvError, match=r"as it did 10 times in the 22 steps before: .*the wheel came off"):
        check(changed(step=step))


def test_now_and_then_a_failure_is_told_and_survived():
    def step(self, action):
        if self.total == 120:
            raise ZeroDivisionError("the wheel came off")
        return Sound.step(self, action)

    first, others = check(changed(step=step)).warnings
    assert "step 121: ZeroDivisionError: the wheel came off (before the start; in the run its step would be" in first
    assert others.endswith(": ZeroDivisionError: the wheel came off, 8 times in all")


def test_bad_data_now_and_then_pass_where_training_drops_them_and_only_there():
    def observe(self):
        self.shown = getattr(self, "shown", -1) + 1  # resets are shown as well: 4 of them until then
        return Sound.observe(self) | ({"seen": np.full(2, np.nan)} if self.shown % 90 == 89 else {})

    with pytest.raises(ConfigError, match="step 85: 'seen' should be finite"):
        check(changed(observe=observe))
    first, others = check(changed(observe=observe), drops_bad_data=True).warnings
    assert "step 85: 'seen' should be finite" in first and others.endswith(", 11 times in all")


def test_nothing_but_bad_data_is_an_error_even_where_they_are_dropped():
    with pytest.raises(EnvError, match=r"times in a row, .*'reward' should be finite"):
        check(changed(**replaced(1, np.inf)), drops_bad_data=True)


@pytest.mark.parametrize(
    "name",
    [
        "synthetic_multi",
        "synthetic_tuple",
        "synthetic_dict",
        "synthetic_masked",
        "synthetic_masked_info",
        "CartPole-v1",
    ],
)
def test_other_kinds_of_environments_pass(name):
    checked = check_environment(resolve(name), None, False)
    assert checked.spec.actions and not checked.warnings


def test_agents_are_looked_at_one_by_one():
    from appo.envs.simulators.synthetic_multi import MultiIdentity

    class Broken(MultiIdentity):
        def step(self, actions):
            observations, rewards, *rest = super().step(actions)
            rewards["agent_1"] = np.nan
            return observations, rewards, *rest

    with pytest.raises(ConfigError, match="step 1: 'reward' should be finite"):
        check(lambda: Broken(SyntheticOptions(), EnvContext()))

    class Nameless(MultiIdentity):
        def step(self, actions):
            observations, *rest = super().step(actions)
            return list(observations.values()), *rest

    with pytest.raises(ConfigError, match="'observations' should be a dict by agent"):
        check(lambda: Nameless(SyntheticOptions(), EnvContext()))

    class Turns(MultiIdentity):
        """Everybody stays; it tells only of who moves next."""

        def step(self, actions):
            return *({"agent_0": result["agent_0"]} for result in super().step(actions)[:-1]), {}

    with pytest.raises(ConfigError, match="given for every agent that goes on, but is without"):
        check(lambda: Turns(SyntheticOptions(), EnvContext()))


def test_a_native_vector_environment_is_looked_at_as_a_whole():
    from gymnasium.vector import SyncVectorEnv

    class Narrow(SyncVectorEnv):
        def step(self, actions):
            observations, rewards, *rest = super().step(actions)
            return observations, rewards[0], *rest

    def built(kind):
        return lambda: kind([lambda: gymnasium.make("CartPole-v1")])

    checked = check(built(SyncVectorEnv))
    assert not checked.warnings
    assert 10 < checked.profile.episode_steps < 60 and not checked.profile.rewards_end_only
    with pytest.raises(ConfigError, match="'reward' should be one for each of 1 environments"):
        check(built(Narrow))


def test_a_native_vector_environment_is_played_with_the_actions_that_its_infos_allow():
    from gymnasium.vector import SyncVectorEnv

    class Bound(gymnasium.Env):
        observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            self.steps = 0
            return np.zeros(2, np.float32), {"action_mask": np.array([0, 1, 0])}

        def step(self, action):
            assert action == 1
            self.steps += 1
            return np.zeros(2, np.float32), -1.0, self.steps == 10, False, {"action_mask": np.array([0, 1, 0])}

    class BoundVector(SyncVectorEnv):
        action_mask_in_info = True

    checked = check(lambda: BoundVector([Bound]))
    assert not checked.warnings and 10 <= checked.profile.episode_steps <= 11


class Images(Sound):
    """Three steps of an image whose pixels are symbols."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)  # type: ignore[assignment]
    action_space = spaces.Discrete(2)
    action_mask_in_info = False
    needs_memory = True

    def observe(self):
        return np.full((8, 8, 3), 7 if self.steps else 3, np.uint8)

    def info(self):
        return {}

    def step(self, action):
        time.sleep(0.002)
        self.steps += 1
        return self.observe(), 0.5, False, self.steps == 3, {}


class PaysAtTheEnd(Images):
    def step(self, action):
        self.steps += 1
        return self.observe(), float(self.steps == 3), self.steps == 3, False, {}


class OnlyCosts(Images):
    def step(self, action):
        self.steps += 1
        return self.observe(), -float(self.steps % 2), self.steps == 3, False, {}


class CostsAndGains(Images):
    def step(self, action):
        self.steps += 1
        return self.observe(), 2.0 - self.steps, self.steps == 3, False, {}


class Slow(Images):
    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


class Levels(Sound):
    """Its seed says how long an episode is: 1, 2, 3, 1, 2, 3 ... steps."""

    def reset(self, *, seed=None, options=None):
        self.length = 1 + seed % 3
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.steps == self.length, truncated, info


def test_every_episode_of_the_check_has_a_seed_of_its_own():
    assert check(Levels).profile.episode_steps == pytest.approx(2.0, abs=0.02)


def test_the_check_tells_what_defaults_are_fitted_to():
    checked = check(lambda: gymnasium.wrappers.TimeLimit(Images(), 100))
    assert 0.002 <= checked.profile.step_s < 0.1
    assert (checked.profile.largest_pixel, checked.spec.needs_memory) == (7.0, True)
    assert (checked.profile.episode_steps, checked.profile.rewards_end_only) == (3.0, False)
    assert checked.profile.has_time_limit and checked.profile.num_episodes == checked.profile.num_steps // 3
    profile = check(PaysAtTheEnd).profile
    assert (profile.episode_steps, profile.rewards_end_only, profile.has_time_limit) == (3.0, True, False)
    assert check_environment(resolve("synthetic_identity"), SyntheticOptions(), False).profile.num_steps == MAX_STEPS
    assert not profile.rewards_only_cost and check(OnlyCosts).profile.rewards_only_cost
    mixed = check(CostsAndGains).profile
    assert not mixed.rewards_only_cost and mixed.num_gains == (mixed.num_steps + 2) // 3, "the first step of three"
    assert check(OnlyCosts).profile.num_gains == 0
    assert check(Images).profile.num_steps > check(Slow).profile.num_steps > 0
    checked = check(Sound)
    assert (checked.profile.largest_pixel, checked.spec.needs_memory) == (None, False)


def test_observations_outside_of_their_box_are_told_once_with_the_value_and_the_bounds():
    def observe(self):
        return {"seen": np.array([0.0, -2.5 if self.steps > 2 else 2.000001], np.float32), "kind": 2}

    [warning] = check(changed(observe=observe)).warnings
    assert warning.startswith("--env=mine, step 3: 'seen' is -2.5 at [1], outside of its Box from -2 to 2; ")


@pytest.mark.parametrize(
    ("shape", "dtype", "top", "is_told"),
    [
        ((16, 24, 3), np.float32, 1.0, True),
        ((1, 16, 16), np.float64, 255.0, True),
        ((16, 16, 3), np.int32, 255, True),
        ((16, 16, 3), np.uint8, 255, False),
        ((16, 16, 3), np.float32, 7.0, False),
        ((5, 5, 3), np.float32, 1.0, False),
        ((16, 16), np.float32, 1.0, False),
    ],
)
def test_images_that_no_convolution_reads_are_told(shape, dtype, top, is_told):
    class Shows(gymnasium.Env):
        observation_space = spaces.Box(0, top, shape, dtype)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(shape, dtype), {}

        def step(self, action):
            return np.zeros(shape, dtype), 0.0, False, False, {}

    warnings = check(Shows).warnings
    assert len(warnings) == is_told
    if is_told:
        assert "'obs' is an image of" in warnings[0] and "make it uint8 from 0 to 255" in warnings[0]


def test_batches_of_observations_are_looked_at_in_place():
    watch = ObservationWatch(
        spaces.Dict({"a": spaces.Dict({"b": spaces.Box(np.zeros(2, np.float32), np.array([1.0, 2.0], np.float32))})})
    )
    [line] = watch.outside({"a": {"b": np.array([[0.0, 2.0], [1.0, 2.5]])}})
    assert line.startswith("'a/b' is 2.5 at [1], outside of its Box from 0 to 2;")
    assert not list(watch.outside({"a": {"b": np.array([[-9.0, 0.0]])}})), "each array is told of once"
