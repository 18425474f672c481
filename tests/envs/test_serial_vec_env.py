"""The serial backend: what a caller sees of episodes, seeds, infos, masks, failures; every array of scripted steps."""

import gc
import time
import weakref
from collections import OrderedDict, UserDict
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.adapters import SingleEnvAdapter, first_seed, step_arrays
from appo.envs.api import ActionLeaf, Decorrelation, DifferentSpecError, EnvContext, EnvError, EnvSpec, ObservationLeaf
from appo.envs.families.classic import ClassicOptions
from appo.envs.faults import FaultPolicy
from appo.envs.registry import make_batch_env
from appo.envs.specs import in_words, require_spec
from appo.envs.synthetic_options import SyntheticOptions
from appo.envs.vector.make import make_vec_env
from appo.envs.vector.serial import SerialVecEnv
from appo.utils.options import ConfigError

CONTINUES, TERMINATES, IS_TRUNCATED, BOTH = (False, False), (True, False), (False, True), (True, True)


class Scripted(gymnasium.Env):
    """Ends its steps as the script says, again and again; observes [episode, step], rewards 10 * episode + step."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)
    action_mask_in_info: bool | None = False

    def __init__(self, *script, infos=None):
        self.script, self.infos = script, infos or {}
        self.episode, self.time, self.seeds, self.actions, self.is_closed = 0, 0, [], [], 0

    def _observation(self):
        return np.array([self.episode, self.time], np.float64)

    def reset(self, *, seed=None, options=None):
        self.episode, self.time = self.episode + 1, 0
        self.seeds.append(seed)
        return self._observation(), dict(self.infos.get("reset", {}))

    def step(self, action):
        terminated, truncated = self.script[len(self.actions) % len(self.script)]
        self.actions.append(int(action))
        self.time += 1
        info = dict(self.infos.get(len(self.actions), {}))
        return self._observation(), 10.0 * self.episode + self.time, terminated, truncated, info

    def close(self):
        self.is_closed += 1


def batch_of(*envs, seed=None):
    return SerialVecEnv(envs, [EnvContext(env_id=i, seed=seed) for i in range(len(envs))])


def garbage(batch):
    """Arrays full of what no step should leave behind."""
    arrays = step_arrays(batch.spec, batch.num_envs)
    for array in [*arrays.observations.values(), *arrays[1:-1]]:
        array.fill(99)
    return arrays


def after_steps(batch, count, action=0):
    """The arrays after the reset and after each step, every one written over garbage of its own."""
    first = garbage(batch)
    batch.reset(first)
    results = [first]
    for _ in range(count):
        results.append(garbage(batch))
        batch.step(np.full((batch.num_envs * batch.spec.agents_per_env, 1), action, np.float32), results[-1])
    return results


def history(results, name, row=0):
    if name in results[0].observations:
        return [step.observations[name][row].tolist() for step in results]
    return [getattr(step, name)[row].item() for step in results]


def test_a_reset_starts_every_episode_and_writes_nothing_of_a_step():
    batch = batch_of(Scripted(CONTINUES), Scripted(CONTINUES))
    (out,) = after_steps(batch, 0)
    assert out.observations["obs"].tolist() == [[1, 0], [1, 0]] and out.observations["obs"].dtype == np.float32
    assert out.is_first.tolist() == [1, 1] and out.is_last.tolist() == [0, 0] and out.active.tolist() == [1, 1]
    for untouched in (out.rewards, out.terminated, out.truncated, out.frames):
        assert untouched.tolist() == [99, 99]


def test_a_terminated_step_shows_the_next_episode_at_once():
    steps = after_steps(batch_of(Scripted(CONTINUES, TERMINATES, CONTINUES)), 3)
    assert history(steps, "obs") == [[1, 0], [1, 1], [2, 0], [2, 1]]
    assert history(steps[1:], "rewards") == [11, 12, 21]
    assert history(steps[1:], "terminated") == [0, 1, 0]
    assert history(steps[1:], "truncated") == [0, 0, 0]
    assert history(steps, "is_first") == [1, 0, 1, 0]
    assert history(steps, "is_last") == [0, 0, 0, 0]
    assert history(steps, "active") == [1, 1, 1, 1]
    assert history(steps[1:], "frames") == [1, 1, 1]


def test_a_truncated_step_shows_the_last_observation_and_the_next_one_starts_anew():
    env = Scripted(CONTINUES, IS_TRUNCATED, CONTINUES)
    steps = after_steps(batch_of(env), 4)
    assert history(steps, "obs") == [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert history(steps[1:], "rewards") == [11, 12, 0, 21]
    assert history(steps[1:], "truncated") == [0, 1, 0, 0]
    assert history(steps[1:], "terminated") == [0, 0, 0, 0]
    assert history(steps, "is_last") == [0, 0, 1, 0, 0]
    assert history(steps, "is_first") == [1, 0, 0, 1, 0]
    assert history(steps, "active") == [1, 1, 1, 1, 1]
    assert history(steps[1:], "frames") == [1, 1, 0, 1]
    assert len(env.actions) == 3, "the action on the final observation does not reach the environment"


def test_a_step_that_ends_in_both_ways_is_terminated():
    steps = after_steps(batch_of(Scripted(BOTH)), 2)
    assert history(steps[1:], "terminated") == [1, 1] and history(steps[1:], "truncated") == [0, 0]
    assert history(steps, "is_last") == [0, 0, 0] and history(steps, "is_first") == [1, 1, 1]


def test_a_reset_forgets_a_truncation():
    env = Scripted(IS_TRUNCATED)
    batch = batch_of(env)
    after_steps(batch, 1)
    steps = after_steps(batch, 1)
    assert history(steps, "obs") == [[2, 0], [2, 1]] and len(env.actions) == 2


def test_environments_of_a_batch_end_on_their_own():
    steps = after_steps(batch_of(Scripted(TERMINATES), Scripted(CONTINUES), Scripted(IS_TRUNCATED)), 2)
    assert [step.terminated.tolist() for step in steps[1:]] == [[1, 0, 0], [1, 0, 0]]
    assert [step.truncated.tolist() for step in steps[1:]] == [[0, 0, 1], [0, 0, 0]]
    assert steps[2].observations["obs"].tolist() == [[3, 0], [1, 2], [2, 0]]


def test_each_environment_gets_its_own_action():
    batch = batch_of(Scripted(CONTINUES), Scripted(CONTINUES), Scripted(CONTINUES))
    out = garbage(batch)
    batch.reset(out)
    batch.step(np.array([[2], [0], [1]], np.float32), out)
    assert [adapter.env.actions for adapter in batch._adapters] == [[2], [0], [1]]


def test_infos_give_frames_activity_and_what_the_caller_is_to_count():
    stats = {"episode_extra_stats": {"kills": 2.0}, "true_reward": 5.0}
    infos = {1: {"num_frames": 4, "is_active": False}, 2: {"other": 1}, 3: stats}
    batch = batch_of(Scripted(CONTINUES), Scripted(CONTINUES, CONTINUES, TERMINATES, infos=infos))
    out = garbage(batch)
    batch.reset(out)
    seen = []
    for _ in range(3):
        row_infos = batch.step(np.zeros((2, 1), np.float32), out)
        seen.append((out.frames.tolist(), out.active.tolist(), row_infos))
    assert seen == [([1, 4], [1, 0], {}), ([1, 1], [1, 1], {}), ([1, 1], [1, 1], {1: stats})]


def test_a_final_observation_is_of_an_active_agent():
    infos = {1: {"is_active": False}, 2: {"is_active": False}}
    steps = after_steps(batch_of(Scripted(CONTINUES, IS_TRUNCATED, infos=infos)), 2)
    assert history(steps, "active") == [1, 0, 1] and history(steps, "is_last") == [0, 0, 1]


@pytest.mark.parametrize(
    ("info", "name", "value"),
    [
        ({"num_frames": 4}, "frames", 4),
        ({"num_frames": np.float64(4)}, "frames", 4),
        ({"is_active": False}, "active", 0),
    ],
)
def test_each_word_of_an_info_counts_without_the_others(info, name, value):
    steps = after_steps(batch_of(Scripted(CONTINUES, infos={2: info | {"other": 1}})), 3)
    assert history(steps[1:], name) == [1, value, 1]


@pytest.mark.parametrize("info", [{"true_reward": 2.0}, {"episode_extra_stats": {"kills": 1.0}}])
def test_what_the_caller_is_to_count_comes_in_the_middle_of_an_episode_too(info):
    batch = batch_of(Scripted(CONTINUES, infos={1: info}))
    out = garbage(batch)
    batch.reset(out)
    assert batch.step(np.zeros((1, 1), np.float32), out) == {0: info}


def test_an_info_that_is_no_dict_is_refused_whatever_it_holds():
    class Listing(Scripted):
        def step(self, action):
            return *super().step(action)[:4], ["other"]

    with pytest.raises(EnvError, match="'info' should be a dict, but is list"):
        after_steps(batch_of(Listing(CONTINUES)), 1)


@pytest.mark.parametrize("frames", [0, -1, 2**31, 1.5, "2"])
def test_a_step_of_no_sensible_number_of_frames_is_refused(frames):
    with pytest.raises(EnvError, match="'num_frames' should be a whole number of frames"):
        after_steps(batch_of(Scripted(CONTINUES, infos={1: {"num_frames": frames}})), 1)


def test_frames_are_those_of_their_step_when_a_caller_gives_the_same_arrays_each_time():
    with make_vec_env([lambda: Scripted(CONTINUES, infos={2: {"num_frames": 4}})] * 2, backend="serial") as vec:
        vec.reset()
        batches = [vec.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert [batch.frames.tolist() for batch in batches] == [[1, 1], [4, 4], [1, 1]]


class InDict(Scripted):
    """Observes a dict, which `given` may change."""

    observation_space = spaces.Dict({"place": Scripted.observation_space})

    def __init__(self, *script, given=dict):
        super().__init__(*script)
        self.given = given

    def _observation(self):
        return self.given({"place": super()._observation()})


class OtherDict(UserDict):
    """Not a `dict`."""


@pytest.mark.parametrize("given", [dict, OrderedDict, OtherDict, lambda it: {"other": 1} | it | {"more": 1}])
def test_the_only_observation_of_a_dict_is_found_whatever_kind_of_dict_it_is(given):
    steps = after_steps(batch_of(InDict(CONTINUES, TERMINATES, given=given), InDict(CONTINUES, given=given)), 3)
    assert [step.observations["place"].tolist() for step in steps] == [
        [[1, 0], [1, 0]],
        [[1, 1], [1, 1]],
        [[2, 0], [1, 2]],
        [[2, 1], [1, 3]],
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda it: {"other": it["place"]},
            r"'place' should be in every observation, but is missing: it has \['other'",
        ),
        (lambda it: it["place"], "'place' should be in every observation"),
        (lambda it: {"place": it["place"][:1]}, r"'place' should be of shape \(2,\)"),
        (lambda it: {"place": it["place"].astype(complex)}, "'place' should be float64"),
    ],
)
def test_a_dict_whose_only_observation_is_missing_or_does_not_fit_is_refused_in_mid_episode(given, message):
    env = InDict(CONTINUES)
    batch = batch_of(env)
    after_steps(batch, 2)
    env.given = given
    with pytest.raises(EnvError, match=message):
        batch.step(np.zeros((1, 1), np.float32), garbage(batch))


class Pictured(InDict):
    """Observes a small image in a dict, its colours interleaved."""

    observation_space = spaces.Dict({"place": spaces.Box(0, 255, (4, 5, 3), np.uint8)})

    def _observation(self):
        return {"place": np.full((4, 5, 3), 10 * self.episode + self.time, np.uint8) + np.arange(3, dtype=np.uint8)}


def test_an_image_in_a_dict_is_stored_with_its_channels_first():
    steps = after_steps(batch_of(Pictured(CONTINUES), Pictured(CONTINUES, TERMINATES)), 2)
    images = steps[2].observations["place"]
    assert images.shape == (2, 3, 4, 5)
    assert images[:, :, 3, 4].tolist() == [[12, 13, 14], [20, 21, 22]]


@pytest.mark.parametrize("info", [{"num_frames": 4}, {"other": 1}, {}])
@pytest.mark.parametrize("kind", [Scripted, InDict, Pictured])
def test_a_step_without_news_takes_the_short_way(kind, info, monkeypatch):
    envs = [kind(CONTINUES), kind(CONTINUES)]
    for env in envs:
        env.infos = dict.fromkeys(range(1, 3), info)
    batch = batch_of(*envs)
    after_steps(batch, 1)
    monkeypatch.setattr(SingleEnvAdapter, "finish", lambda *_: pytest.fail("the long way"))
    out = garbage(batch)
    batch.step(np.zeros((2, 1), np.float32), out)
    assert out.frames.tolist() == [info.get("num_frames", 1)] * 2


class Choosing(Scripted):
    """Observes two choices, counted from `start`, alone or in a dict."""

    def __init__(self, start, is_dict):
        super().__init__(CONTINUES)
        self.start, self.is_dict = start, is_dict
        space = spaces.MultiDiscrete([3, 3], start=[start, start])
        self.observation_space = spaces.Dict({"obs": space}) if is_dict else space

    def _observation(self):
        choices = np.array([self.start, self.start + 1])
        return {"obs": choices} if self.is_dict else choices


@pytest.mark.parametrize("ways", [[(0, False), (5, False)], [(0, True), (5, True)], [(0, False), (0, True)]])
def test_environments_of_one_spec_may_give_their_observations_in_other_ways(ways):
    for order in (ways, ways[::-1]):
        steps = after_steps(batch_of(*(Choosing(*way) for way in order)), 3)
        assert [step.observations["obs"].tolist() for step in steps] == [[[0, 1], [0, 1]]] * 4


def test_frames_of_a_step_that_terminates_count():
    steps = after_steps(batch_of(Scripted(TERMINATES, infos={1: {"num_frames": 3}})), 1)
    assert history(steps[1:], "frames") == [3]


def test_masks_in_infos_become_an_observation():
    infos = {"reset": {"action_mask": np.array([1, 0, 1])}, 1: {"action_mask": [0, 1, 1]}}
    env = Scripted(CONTINUES, CONTINUES, TERMINATES, infos=infos)
    env.action_mask_in_info = True
    steps = after_steps(batch_of(env), 3)
    assert history(steps, "action_mask") == [[1, 0, 1], [0, 1, 1], [1, 1, 1], [1, 0, 1]]


def test_undeclared_masks_are_found_without_spending_an_episode():
    env = Scripted(CONTINUES, infos={"reset": {"action_mask": np.array([1, 0, 1])}})
    env.action_mask_in_info = None
    batch = batch_of(env, seed=3)
    assert [leaf.name for leaf in batch.spec.observations] == ["obs", "action_mask"]
    (out,) = after_steps(batch, 0)
    assert out.observations["action_mask"].tolist() == [[1, 0, 1]]
    assert out.observations["obs"].tolist() == [[1, 0]], "the early reset is the first episode"
    assert env.seeds == [first_seed(EnvContext(seed=3))]


def test_a_mask_method_behind_wrappers_is_looked_up_once_and_asked_after_each_reset_and_step():
    class Asked(Scripted):
        looked_up = 0

        @property
        def action_masks(self):
            type(self).looked_up += 1
            return lambda: [self.time != choice for choice in range(3)]

    env = Asked(CONTINUES, CONTINUES, TERMINATES)
    batch = batch_of(gymnasium.wrappers.TimeLimit(env, 100))
    assert [leaf.name for leaf in batch.spec.observations] == ["obs", "action_mask"]
    looked_up = Asked.looked_up
    steps = after_steps(batch, 3)
    assert history(steps, "action_mask") == [[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 1, 1]]
    assert env.looked_up == looked_up, "no attribute is searched for while stepping"


def test_only_the_first_reset_is_seeded_and_only_by_seed_id_and_attempt():
    env = Scripted(TERMINATES)
    batch = batch_of(env, seed=5)
    after_steps(batch, 1)
    after_steps(batch, 0)
    assert env.seeds[0] is not None and env.seeds[1:] == [None, None]
    base = EnvContext(seed=5, env_id=2)
    assert first_seed(base) == first_seed(base._replace(worker_index=3, vector_index=1, num_envs=9, vector_size=4))
    others = [base._replace(seed=6), base._replace(env_id=3), base._replace(attempt=1)]
    assert len({first_seed(context) for context in [base, *others]}) == 4
    assert first_seed(EnvContext()) is None


def rollout(contexts, actions):
    """Everything that 60 steps of CartPole write, by environment."""
    batch = make_batch_env("CartPole-v1", None, contexts)
    out = step_arrays(batch.spec, len(contexts))
    batch.reset(out)
    seen = [out.observations["obs"].copy()]
    for step in actions[:, [context.env_id for context in contexts]]:
        batch.step(step, out)
        flags = np.stack([out.rewards, out.terminated, out.is_first]).T
        seen.append(np.hstack([out.observations["obs"], flags]).copy())
    batch.close()
    return {context.env_id: [step[row].tolist() for step in seen] for row, context in enumerate(contexts)}


def test_episodes_do_not_depend_on_how_environments_are_divided_among_workers():
    actions = np.random.default_rng(0).integers(0, 2, (60, 4, 1)).astype(np.float32)
    contexts = [EnvContext(seed=11, env_id=i, num_envs=4) for i in range(4)]
    together = rollout(contexts, actions)
    apart = rollout(contexts[:1], actions) | rollout([contexts[3], contexts[1], contexts[2]], actions)
    assert together == apart
    assert together[0][0] != together[1][0], "otherwise all of them would play the same episode"
    other_seed = rollout([context._replace(seed=12) for context in contexts], actions)
    assert other_seed[0] != together[0]


def test_decorrelation_leaves_every_environment_at_another_moment():
    envs = [Scripted(*[CONTINUES] * 1000) for _ in range(16)]
    batch = batch_of(*envs)
    out = garbage(batch)
    elapsed = batch.decorrelate(Decorrelation(np.random.default_rng(0), 100), out)
    moments = out.observations["obs"][:, 1]
    assert elapsed.tolist() == moments.tolist()
    assert len(set(moments.tolist())) > 10 and 0 <= moments.min() < moments.max() <= 100
    assert {action for env in envs for action in env.actions} == {0, 1, 2}
    assert out.is_first.all() and not out.is_last.any() and out.active.all()
    assert (out.rewards == 99).all() and (out.frames == 99).all(), "its steps are nobody's"


def test_decorrelation_crosses_ends_and_never_stops_on_a_final_observation():
    envs = [Scripted(CONTINUES, IS_TRUNCATED), Scripted(CONTINUES, CONTINUES, TERMINATES)] * 8
    batch = batch_of(*envs)
    out = garbage(batch)
    elapsed = batch.decorrelate(Decorrelation(np.random.default_rng(0), 50), out)
    episodes, moments = out.observations["obs"].T
    assert episodes.max() > 1 and elapsed.tolist() == moments.tolist()
    assert set(moments[::2].tolist()) <= {0, 1} and set(moments[1::2].tolist()) <= {0, 1, 2}
    batch.step(np.zeros((16, 1), np.float32), out)
    assert not out.is_first[::2][moments[::2] == 0].any(), "no episode is owed"


def test_decorrelation_is_reproducible_and_stops_when_its_time_is_over():
    def moments(seed, max_seconds=60.0):
        batch = batch_of(*[Scripted(CONTINUES) for _ in range(8)])
        out = garbage(batch)
        batch.decorrelate(Decorrelation(np.random.default_rng(seed), 50, max_seconds), out)
        return out.observations["obs"][:, 1].tolist()

    assert moments(1) == moments(1) != moments(2)
    assert moments(1, max_seconds=0.0) == [0.0] * 8


def test_decorrelation_comes_to_every_moment_of_an_episode_without_playing_many():
    length = 20
    envs = [Scripted(*[CONTINUES] * (length - 1), TERMINATES) for _ in range(200)]
    batch = batch_of(*envs)
    out = garbage(batch)
    batch.decorrelate(Decorrelation(np.random.default_rng(0), 1000), out)
    moments = out.observations["obs"][:, 1].astype(int)
    assert np.bincount(moments, minlength=length).min() > 0 and moments.max() < length
    assert max(len(env.actions) for env in envs) < 2 * length


def test_environments_that_are_not_to_be_moved_apart_go_equally_far():
    def moments(seed):
        batch = batch_of(*[Scripted(CONTINUES) for _ in range(8)])
        out = garbage(batch)
        batch.decorrelate(Decorrelation(np.random.default_rng(seed), 50, moves_apart=False), out)
        return set(out.observations["obs"][:, 1].tolist())

    assert len(moments(1)) == len(moments(2)) == 1 and moments(1) != moments(2)


def test_where_time_is_short_environments_are_apart_all_the_same():
    class Slow(Scripted):
        def step(self, action):
            time.sleep(0.002)
            return super().step(action)

    envs = [Slow(CONTINUES) for _ in range(8)]
    batch = batch_of(*envs)
    out = garbage(batch)
    began = time.monotonic()
    batch.decorrelate(Decorrelation(np.random.default_rng(0), 1000, 0.5), out)
    assert 0.3 < time.monotonic() - began < 5.0
    moments = out.observations["obs"][:, 1]
    assert moments.sum() < 300 and moments.max() > 3 * moments.min() + 3 and len(set(moments.tolist())) > 4


def test_decorrelation_is_a_sign_of_life_and_ends_when_it_is_not_needed_any_more():
    answers = iter([True] * 11 + [False] * 100)
    envs = [Scripted(CONTINUES) for _ in range(2)]
    contexts = [EnvContext(env_id=i) for i in range(2)]
    batch = SerialVecEnv(
        envs, contexts, FaultPolicy(10, beat=lambda: next(answers)), lambda context: Scripted(CONTINUES)
    )
    batch.decorrelate(Decorrelation(np.random.default_rng(0), 1000), garbage(batch))
    assert sum(len(env.actions) for env in envs) == 11 - 2 - 2, "2 were built and 2 reset before"


def test_decorrelation_keeps_to_the_mask():
    infos = {key: {"action_mask": [0, 1, 0]} for key in ("reset", *range(1, 60))}
    env = Scripted(CONTINUES, infos=infos)
    env.action_mask_in_info = True
    batch = batch_of(env)
    batch.decorrelate(Decorrelation(np.random.default_rng(3), 50), garbage(batch))
    assert len(env.actions) > 3 and set(env.actions) == {1}


@pytest.mark.parametrize("phase", ["reset", "step", "close", "reset within a step"])
def test_a_failure_names_the_environment_and_carries_the_cause(phase, monkeypatch):
    def fail(*args, **kwargs):
        raise FloatingPointError("overflow in the solver")

    method = phase.partition(" ")[0]
    envs = [Scripted(TERMINATES) for _ in range(3)]
    if method == "step":
        monkeypatch.setattr(envs[1], "step", fail)
    batch = batch_of(*envs)
    out = garbage(batch)
    if "step" in phase:
        batch.reset(out)
    monkeypatch.setattr(envs[1], method, fail)
    calls = {"reset": lambda: batch.reset(out), "close": batch.close}
    with pytest.raises(EnvError, match=r"environment 1 .*failed in .*: FloatingPointError: overflow") as caught:
        calls.get(phase, lambda: batch.step(np.zeros((3, 1), np.float32), out))()
    assert caught.value.env_index == 1 and caught.value.phase == method
    assert isinstance(caught.value.__cause__, FloatingPointError)


def test_closing_reaches_every_environment_once_whatever_fails(monkeypatch):
    envs = [Scripted(CONTINUES) for _ in range(3)]
    monkeypatch.setattr(envs[0], "close", lambda: 1 / 0)
    batch = batch_of(*envs)
    with pytest.raises(EnvError, match=r"environment 0 .*failed in close"):
        batch.close()
    batch.close()
    assert envs[1].is_closed == envs[2].is_closed == 1


def test_environments_with_different_spaces_are_refused():
    other = Scripted(CONTINUES)
    other.action_space = spaces.Discrete(4)
    message = (
        r"environment 1 .*differ.*actions: one of 4; 1 agent\]; expected \[.*actions: one of 3; 1 agent\]; all env"
    )
    with pytest.raises(DifferentSpecError, match=message) as caught:
        batch_of(Scripted(CONTINUES), other)
    assert not caught.value.retryable and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, first, second",
    [
        ("synthetic_identity", {}, {"synthetic_size": 9}),
        ("synthetic_continuous", {}, {"synthetic_action_size": 5}),
        ("synthetic_image", {}, {"synthetic_image_size": 20}),
        ("synthetic_multi", {}, {"synthetic_num_agents": 5}),
        ("classic", {"classic_vectorized": True}, {"classic_vectorized": True}),
    ],
)
def test_environments_that_agree_with_each_other_but_not_with_the_run_are_refused(name, first, second):
    """One of them has other spaces than the environment that was looked at before the run."""
    options: ClassicOptions | SyntheticOptions
    if name == "classic":
        name, other, options = "CartPole-v1", "synthetic_identity", ClassicOptions(**first)
        expected = make_batch_env(other, None, [EnvContext()]).spec
    else:
        options = SyntheticOptions(**second)
        expected = make_batch_env(name, SyntheticOptions(**first), [EnvContext()]).spec
    contexts = [EnvContext(env_id=6 + i) for i in range(2)]
    own = make_batch_env(name, options, contexts)
    assert make_batch_env(name, options, contexts, spec=own.spec).spec == own.spec
    message = f"environment 6 of {name} .* failed in make: its spaces differ"
    with pytest.raises(DifferentSpecError, match=message) as caught:
        make_batch_env(name, options, contexts, spec=expected)
    assert not caught.value.retryable and str(caught.value).count("[observations: ") == 2


def test_what_makes_two_specs_differ_is_told():
    leaf, action = (
        ObservationLeaf("obs", (2,), "float32", "vector"),
        ActionLeaf("continuous", 2, (-1.0, -2.0), (1.0, 2.0)),
    )
    spec = EnvSpec((leaf,), (action,), 1)
    others = [
        spec._replace(observations=(leaf._replace(shape=(3,)),)),
        spec._replace(observations=(leaf._replace(dtype="int8"),)),
        spec._replace(observations=(leaf._replace(kind="categorical", num_categories=4),)),
        spec._replace(actions=(action._replace(high=(1.0, 3.0)),)),
        spec._replace(actions=(ActionLeaf("discrete", 2),)),
        spec._replace(agents_per_env=2),
        spec._replace(reports_true_reward=True),
    ]
    assert len({in_words(one) for one in [spec, *others]}) == 1 + len(others)
    for other in others:
        with pytest.raises(DifferentSpecError, match="all environments of a run must have the same spaces"):
            require_spec(other, spec, 0, EnvContext())


def test_specs_that_exchange_the_same_do_not_differ():
    leaf = ObservationLeaf("obs", (3, 8, 8), "uint8", "image")
    spec = EnvSpec((leaf,), (ActionLeaf("discrete", 2),), 1, reward_shaping=(("kill", 1.0),))
    require_spec(spec._replace(channels_last=("obs",)), spec, 0, EnvContext())
    require_spec(spec._replace(reward_shaping=(("kill", 2.0),)), spec, 0, EnvContext())
    with pytest.raises(DifferentSpecError):
        require_spec(spec._replace(reward_shaping=(("hit", 1.0),)), spec, 0, EnvContext())


@pytest.mark.parametrize(
    "no_env, message",
    [(SimpleNamespace(), "return a gymnasium.Env"), (SimpleNamespace(agent_iter=1), "aec_to_parallel")],
)
def test_what_is_no_environment_is_refused(no_env, message):
    with pytest.raises(ConfigError, match=message):
        batch_of(no_env)


def test_optional_abilities_are_found_below_wrappers():
    class Able(Scripted):
        def __init__(self):
            super().__init__(CONTINUES)
            self.weights, self.progress = {"kill": 1.0}, None

        def get_reward_shaping(self):
            return self.weights

        def set_reward_shaping(self, weights):
            self.weights = weights

        def set_training_progress(self, env_frames):
            self.progress = env_frames

    envs = [Able(), Able()]
    batch = batch_of(*(gymnasium.wrappers.TimeLimit(env, 5) for env in envs))
    assert batch.spec.reward_shaping == (("kill", 1.0),)
    batch.shape_rewards(1, [{"kill": 2.0}])
    batch.set_training_progress(1000)
    assert [(env.weights, env.progress) for env in envs] == [({"kill": 1.0}, 1000), ({"kill": 2.0}, 1000)]

    unable = batch_of(Scripted(CONTINUES))
    unable.shape_rewards(0, [{"kill": 2.0}])
    unable.set_training_progress(1)
    assert unable.spec.reward_shaping == ()


def test_an_episode_is_cut_after_its_next_step_unless_it_ends_there():
    batch = batch_of(Scripted(CONTINUES), Scripted(CONTINUES, TERMINATES), Scripted(CONTINUES))
    out = step_arrays(batch.spec, batch.num_envs)
    batch.reset(out)
    batch.step(np.zeros((3, 1)), out)
    assert batch.cut(np.array([0, 1])) == [0, 1]
    batch.step(np.zeros((3, 1)), out)
    assert out.truncated.tolist() == [1, 0, 0] and out.terminated.tolist() == [0, 1, 0]
    assert out.is_last.tolist() == [1, 0, 0] and out.observations["obs"][0].tolist() == [1.0, 2.0]
    for _ in range(3):
        batch.step(np.zeros((3, 1)), out)
        assert not out.truncated.any()
    assert out.observations["obs"][:, 0].tolist() == [2.0, 3.0, 1.0]


class Number(Scripted):
    """Observes the step as a number, each time of another type."""

    observation_space = spaces.Discrete(100)

    def _observation(self):
        kinds: list[Any] = [int, np.int64, np.array, np.int32]
        return kinds[self.time % len(kinds)](self.time)


def test_observations_that_are_single_numbers_may_come_in_any_type():
    steps = after_steps(batch_of(Number(CONTINUES), Number(CONTINUES, CONTINUES, TERMINATES)), 6)
    assert history(steps, "obs") == [[0], [1], [2], [3], [4], [5], [6]]
    assert history(steps, "obs", row=1) == [[0], [1], [2], [0], [1], [2], [0]]
    assert history(steps[1:], "terminated", row=1) == [0, 0, 1, 0, 0, 1]


def test_environments_are_freed_with_their_batch():
    """And not when Python next looks for cycles: a simulator may hold much."""
    envs = [Scripted(CONTINUES, TERMINATES, IS_TRUNCATED) for _ in range(2)]
    gone = [weakref.ref(env) for env in envs]
    gc.collect()
    gc.disable()
    try:
        batch = batch_of(*envs)
        after_steps(batch, 6)
        batch.close()
        del envs, batch
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
