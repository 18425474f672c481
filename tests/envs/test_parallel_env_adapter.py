"""Several agents in one environment: which agents act when, and that every end of a row is seen exactly once."""

import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.adapters import step_arrays
from appo.envs.api import Decorrelating, Decorrelation, EnvContext, EnvError, UnsupportedSpaceError
from appo.envs.registry import make_batch_env
from appo.envs.vector.serial import SerialVecEnv

SPACE = spaces.Box(-99, 99, (1,), np.float32)


class ScriptedParallel:
    """`script[t]`: agent -> "T" (terminates), "C" (is cut), "TC" (both), "+" (arrives), "gone" at step t of an episode.

    Observes 100 * episode + 10 * agent + step.
    """

    possible_agents = ("a", "b", "c")
    action_mask_in_info = False

    def __init__(self, *script, absent=(), infos=None, keeps_all=False):
        self.script, self.absent, self.infos, self.keeps_all = script, absent, infos or {}, keeps_all
        self.episode, self.sent = 0, []

    def observation_space(self, agent):
        return spaces.Box(-999, 999, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _observe(self, agents):
        return {agent: np.array([100 * self.episode + 10 * "abc".index(agent) + self.time]) for agent in agents}

    def reset(self, seed=None, options=None):
        self.episode, self.time = self.episode + 1, 0
        self.agents = [agent for agent in self.possible_agents if agent not in self.absent]
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.sent.append(dict(actions))
        acting, events = list(self.agents), self.script[self.time] if self.time < len(self.script) else {}
        self.time += 1
        arrived = [agent for agent, event in events.items() if event == "+"]
        vanished = [agent for agent, event in events.items() if event == "gone"]
        flagged = [agent for agent in acting if agent not in vanished]
        terminated = {agent: "T" in events.get(agent, "") for agent in flagged}
        truncated = {agent: "C" in events.get(agent, "") for agent in flagged}
        stays = {"", "+"} | ({"T", "C", "TC"} if self.keeps_all else set())
        self.agents = [agent for agent in (*acting, *arrived) if events.get(agent, "") in stays]
        observations = self._observe([*flagged, *arrived])
        infos = {agent: dict(self.infos.get((self.time, agent), {})) for agent in flagged}
        return observations, dict.fromkeys(flagged, float(self.time)), terminated, truncated, infos

    def close(self):
        pass


def table(env, count):
    """Of each step: name -> the three agents' entries; observations are those after it."""
    batch = SerialVecEnv([env], [EnvContext()])
    rows = []
    for number in range(count + 1):
        out = step_arrays(batch.spec, 1)
        for array in [*out.observations.values(), *out[1:-1]]:
            array.fill(77)
        infos = {}
        if number == 0:
            batch.reset(out)
        else:
            infos = batch.step(np.array([[0], [1], [0]], np.float32), out)
        fields = {name: getattr(out, name).tolist() for name in out._fields[1:-1]}
        rows.append(fields | {"obs": out.observations["obs"][:, 0].tolist(), "infos": infos})
    return rows


def column(rows, name, start=0):
    return [row[name] for row in rows[start:]]


def test_agents_that_terminate_early_are_inactive_until_all_are_gone():
    env = ScriptedParallel({"b": "T"}, {}, {"a": "T", "c": "T"})
    rows = table(env, 4)
    assert column(rows, "obs") == [[100, 110, 120], [101, 0, 121], [102, 0, 122], [200, 210, 220], [201, 0, 221]]
    assert column(rows, "active") == [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 1, 1], [1, 0, 1]]
    assert column(rows, "is_first") == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert column(rows, "is_last") == [[0, 0, 0]] * 5
    assert column(rows, "terminated", 1) == [[0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]]
    assert column(rows, "truncated", 1) == [[0, 0, 0]] * 4
    assert column(rows, "rewards", 1) == [[1, 1, 1], [2, 0, 2], [3, 0, 3], [1, 1, 1]]
    assert column(rows, "frames", 1) == [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 1, 1]]
    assert env.sent[0] == {"a": 0, "b": 1, "c": 0} and env.sent[1] == {"a": 0, "c": 0}


def test_a_cut_for_all_shows_every_last_observation_before_the_next_episode():
    env = ScriptedParallel({}, {"a": "C", "b": "C", "c": "C"})
    rows = table(env, 4)
    assert column(rows, "obs") == [[100, 110, 120], [101, 111, 121], [102, 112, 122], [200, 210, 220], [201, 211, 221]]
    assert column(rows, "is_last") == [[0] * 3, [0] * 3, [1] * 3, [0] * 3, [0] * 3]
    assert column(rows, "is_first") == [[1] * 3, [0] * 3, [0] * 3, [1] * 3, [0] * 3]
    assert column(rows, "truncated", 1) == [[0] * 3, [1] * 3, [0] * 3, [0] * 3]
    assert column(rows, "rewards", 1) == [[1] * 3, [2] * 3, [0] * 3, [1] * 3]
    assert column(rows, "frames", 1) == [[1] * 3, [1] * 3, [0] * 3, [1] * 3]
    assert column(rows, "active") == [[1] * 3] * 5
    assert len(env.sent) == 3


def test_a_last_step_that_terminates_some_and_cuts_others_waits_for_the_cut_ones():
    rows = table(ScriptedParallel({"a": "T", "b": "C", "c": "T"}), 2)
    assert column(rows, "terminated", 1) == [[1, 0, 1], [0, 0, 0]]
    assert column(rows, "truncated", 1) == [[0, 1, 0], [0, 0, 0]]
    assert column(rows, "obs") == [[100, 110, 120], [0, 111, 0], [200, 210, 220]]
    assert column(rows, "is_last") == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert column(rows, "active") == [[1, 1, 1], [0, 1, 0], [1, 1, 1]]
    assert column(rows, "is_first") == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]


def test_an_agent_that_is_cut_early_shows_its_last_observation_and_then_rests():
    rows = table(ScriptedParallel({"c": "C"}, {}, {"a": "T", "b": "T"}), 3)
    assert column(rows, "obs") == [[100, 110, 120], [101, 111, 121], [102, 112, 0], [200, 210, 220]]
    assert column(rows, "is_last") == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert column(rows, "active") == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]]
    assert column(rows, "truncated", 1) == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert column(rows, "terminated", 1) == [[0, 0, 0], [0, 0, 0], [1, 1, 0]]


def test_an_agent_that_comes_late_starts_fresh_when_it_comes():
    rows = table(ScriptedParallel({}, {"c": "+"}, {}, absent=("c",)), 3)
    assert column(rows, "active") == [[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert column(rows, "is_first", 1) == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert column(rows, "obs")[1:3] == [[101, 111, 0], [102, 112, 122]]
    assert column(rows, "frames", 1) == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]


def test_an_agent_that_came_late_may_come_late_again_in_the_next_episode():
    everybody = {"a": "T", "b": "T", "c": "T"}
    rows = table(ScriptedParallel({"c": "+"}, everybody, absent=("c",)), 3)
    assert column(rows, "active") == [[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]]
    assert column(rows, "terminated", 1) == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]


def test_an_agent_that_ended_does_not_come_back_though_the_environment_still_lists_it():
    rows = table(ScriptedParallel({"b": "T"}, {}, {"a": "T", "c": "T"}, keeps_all=True), 3)
    assert column(rows, "active") == [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 1, 1]]
    assert column(rows, "terminated", 1) == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]


def test_an_agent_that_ends_in_both_ways_is_terminated():
    rows = table(ScriptedParallel({"b": "TC"}), 1)
    assert column(rows, "terminated", 1) == [[0, 1, 0]] and column(rows, "truncated", 1) == [[0, 0, 0]]
    assert column(rows, "is_last") == [[0, 0, 0]] * 2 and column(rows, "active")[1] == [1, 0, 1]


def test_an_agent_that_vanishes_without_a_word_counts_as_terminated():
    rows = table(ScriptedParallel({"b": "gone"}, {}), 2)
    assert column(rows, "terminated", 1) == [[0, 1, 0], [0, 0, 0]]
    assert column(rows, "active") == [[1, 1, 1], [1, 0, 1], [1, 0, 1]]


def test_infos_are_read_agent_by_agent():
    stats = {"episode_extra_stats": {"x": 1.0}, "num_frames": 4}
    rows = table(ScriptedParallel({}, {"b": "T"}, infos={(1, "a"): {"is_active": False}, (2, "b"): stats}), 2)
    assert column(rows, "active")[1] == [0, 1, 1]
    assert column(rows, "frames", 1) == [[1, 1, 1], [1, 4, 1]]
    assert column(rows, "infos") == [{}, {}, {1: stats}]


def test_masks_in_infos_are_zero_for_agents_that_do_not_act():
    env = ScriptedParallel({"b": "T"}, infos={(1, "a"): {"action_mask": [0, 1]}})
    env.action_mask_in_info = True
    batch = SerialVecEnv([env], [EnvContext()])
    out = step_arrays(batch.spec, 1)
    batch.reset(out)
    batch.step(np.zeros((3, 1), np.float32), out)
    assert out.observations["action_mask"].tolist() == [[0, 1], [0, 0], [1, 1]]


def test_the_second_environment_writes_the_rows_after_the_first():
    envs = [ScriptedParallel({}), ScriptedParallel({"a": "T"})]
    batch = SerialVecEnv(envs, [EnvContext(), EnvContext(env_id=1)])
    out = step_arrays(batch.spec, 2)
    batch.reset(out)
    batch.step(np.array([[0], [1], [0], [1], [1], [0]], np.float32), out)
    assert envs[1].sent == [{"a": 1, "b": 1, "c": 0}]
    assert out.terminated.tolist() == [0, 0, 0, 1, 0, 0] and out.active.tolist() == [1, 1, 1, 0, 1, 1]


def test_a_failure_names_the_environment_not_the_agent_row():
    envs = [ScriptedParallel({}), ScriptedParallel({})]
    batch = SerialVecEnv(envs, [EnvContext(), EnvContext(env_id=1)])
    out = step_arrays(batch.spec, 2)
    batch.reset(out)
    envs[1].script = None  # type: ignore[assignment]  # its next step fails
    with pytest.raises(EnvError, match=r"environment 1 .*failed in step: TypeError"):
        batch.step(np.zeros((6, 1), np.float32), out)


def test_agents_with_different_spaces_are_refused(monkeypatch):
    env = ScriptedParallel({})
    monkeypatch.setattr(env, "action_space", lambda agent: spaces.Discrete(2 + (agent == "c")))
    with pytest.raises(UnsupportedSpaceError, match=r"'a' and 'c' have different action spaces.*pad_action_space"):
        SerialVecEnv([env], [EnvContext()])


def test_decorrelated_agents_that_left_take_no_part():
    batch = make_batch_env("synthetic_multi", None, [EnvContext(env_id=i, seed=1) for i in range(6)])
    assert isinstance(batch, Decorrelating)
    out = step_arrays(batch.spec, 6)
    batch.decorrelate(Decorrelation(np.random.default_rng(0), 40), out)
    active = out.active.reshape(6, 3)
    assert active[:, 2].all(), "the last agent lives to the end"
    assert 0 < active[:, 0].sum() < 6, "otherwise nobody has left, or everybody"
    assert (out.observations["obs"][out.active == 0] == 0).all() and not out.is_last.any()


def test_an_agent_cut_by_the_last_step_of_decorrelation_takes_no_part():
    batch = SerialVecEnv([ScriptedParallel({"c": "C"}) for _ in range(8)], [EnvContext()] * 8)
    out = step_arrays(batch.spec, 8)
    elapsed = batch.decorrelate(Decorrelation(np.random.default_rng(0), 1), out)
    has_stepped = out.observations["obs"][::3, 0] == 101
    assert has_stepped.any() and not has_stepped.all()
    assert elapsed.tolist() == has_stepped.repeat(3).tolist()
    assert out.active[2::3].tolist() == (~has_stepped).astype(int).tolist() and not out.is_last.any()


def test_an_environment_of_pettingzoo_plays_its_episodes_to_the_end():
    import pettingzoo

    class Duel(pettingzoo.ParallelEnv):
        metadata = {"name": "duel"}  # noqa: RUF012
        possible_agents = ["left", "right"]  # noqa: RUF012

        def observation_space(self, agent):
            return SPACE

        def action_space(self, agent):
            return spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            self.agents, self.time = list(self.possible_agents), 0
            return {agent: np.zeros(1) for agent in self.agents}, {agent: {} for agent in self.agents}

        def step(self, actions):
            self.time += 1
            acting, is_over = self.agents, self.time == 3
            self.agents = [] if is_over else acting
            zeros = dict.fromkeys(acting, 0.0)
            ends = dict.fromkeys(acting, is_over)
            observations = {agent: np.full(1, self.time) for agent in acting}
            return observations, zeros, ends, dict.fromkeys(acting, False), {agent: {} for agent in acting}

    batch = SerialVecEnv([Duel()], [EnvContext()])
    out = step_arrays(batch.spec, 1)
    batch.reset(out)
    ends = 0
    for _ in range(9):
        batch.step(np.zeros((2, 1), np.float32), out)
        ends += int(out.terminated.sum())
    assert ends == 6


def test_an_environment_of_agents_is_not_cut_from_outside():
    batch = SerialVecEnv([ScriptedParallel({}, {}, {})], [EnvContext()])
    out = step_arrays(batch.spec, 1)
    batch.reset(out)
    assert batch.cut(np.array([0, 1])) == []
    batch.step(np.zeros((3, 1)), out)
    assert not out.truncated.any() and not out.is_last.any()
