"""Agents with different spaces are brought to one, and each is played by the policy that the map says."""

import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext
from appo.envs.parallel_adapter import scripted_action
from appo.envs.preflight import check_environment
from appo.envs.registry import make_batch_env, register_env, resolve
from appo.envs.simulators.padded_agents import PaddedAgents, can_be_padded, differ


class Uneven:
    """Three agents see 1, 2 and 3 numbers and have 2, 3 and 4 choices; or as many real numbers."""

    metadata: dict[str, list[str]] = {}  # noqa: RUF012

    def __init__(self, has_choices=True, masked=False):
        self.possible_agents, self.agents = ["a", "b", "c"], []
        self.has_choices, self.masked, self.heard = has_choices, masked, {}

    def observation_space(self, agent):
        return spaces.Box(-2.0, 5.0, (1 + self.possible_agents.index(agent),), np.float32)

    def action_space(self, agent):
        size = 2 + self.possible_agents.index(agent)
        return spaces.Discrete(size) if self.has_choices else spaces.Box(-1.0, 1.0, (size,), np.float32)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self._observe(), self._infos()

    def step(self, actions):
        self.heard = actions
        flags = dict.fromkeys(self.agents, False)
        return self._observe(), dict.fromkeys(self.agents, 1.0), flags, flags, self._infos()

    def _observe(self):
        return {agent: np.full(1 + i, 4.0, np.float32) for i, agent in enumerate(self.possible_agents)}

    def _infos(self):
        mask = np.array([0, 1], np.int8)
        return {agent: {"action_mask": mask} if self.masked and agent == "a" else {} for agent in self.possible_agents}

    def close(self):
        pass


def test_shorter_vectors_end_in_zeros_and_missing_choices_are_masked():
    env = PaddedAgents(Uneven())
    expected = spaces.Box(np.array([-2, -2, -2]), np.array([5, 5, 5]), dtype=np.float32)
    assert all(env.observation_space(agent) == expected for agent in env.possible_agents)
    assert all(env.action_space(agent) == spaces.Discrete(4) for agent in env.possible_agents)
    observations, infos = env.reset()
    assert [observations[agent].tolist() for agent in "abc"] == [[4, 0, 0], [4, 4, 0], [4, 4, 4]]
    assert [infos[agent]["action_mask"].tolist() for agent in "abc"] == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_an_environment_s_own_mask_is_kept():
    _, infos = PaddedAgents(Uneven(masked=True)).reset()
    assert infos["a"]["action_mask"].tolist() == [0, 1, 0, 0] and infos["b"]["action_mask"].tolist() == [1, 1, 1, 0]


def test_real_numbers_that_an_agent_does_not_have_are_cut_off():
    env = PaddedAgents(Uneven(has_choices=False))
    env.reset()
    env.step({agent: np.array([0.1, 0.2, 0.3, 0.4], np.float32) for agent in "abc"})
    assert [len(env.env.heard[agent]) for agent in "abc"] == [2, 3, 4]


def test_each_agent_s_own_bounds_hold():
    class Narrow(Uneven):
        def action_space(self, agent):
            return spaces.Box(-1.0, float(1 + self.possible_agents.index(agent)), (2,), np.float32)

    env = PaddedAgents(Narrow())
    env.reset()
    assert env.action_space("a").high.tolist() == [3.0, 3.0]
    env.step({agent: np.array([3.0, -1.0], np.float32) for agent in "abc"})
    assert [env.env.heard[agent].tolist() for agent in "abc"] == [[1, -1], [2, -1], [3, -1]]


@pytest.mark.parametrize("has_choices", [True, False])
def test_scripts_of_agents_with_shorter_actions_play(has_choices):
    class Scripted(Uneven):
        scripted_players = ("still",)

        def scripted_action(self, name, agent):
            space = self.action_space(agent)
            return space.n - 1 if self.has_choices else np.full(space.shape, 0.5, np.float32)

    register_env("uneven", lambda: PaddedAgents(Scripted(has_choices)))
    assert check_environment(resolve("uneven"), None, False).spec.scripted_players == ("still",)
    env = PaddedAgents(Scripted(has_choices))
    actions = [scripted_action(env, "still", agent, env) for agent in "abc"]
    if has_choices:
        assert actions == [1, 2, 3]
    else:
        assert [action.tolist() for action in actions[:2]] == [[0.5, 0.5, 0, 0], [0.5, 0.5, 0.5, 0]]


def test_only_vectors_and_choices_can_be_padded():
    env = Uneven()
    assert differ(env) and can_be_padded(env)
    vars(env)["observation_space"] = lambda agent: spaces.Box(0, 1, (2, 2 + (agent == "a")))
    assert not can_be_padded(env)
    env = Uneven()
    vars(env)["action_space"] = lambda agent: spaces.Discrete(2, start=int(agent == "a"))
    assert not can_be_padded(env)
    env.possible_agents = ["a"]
    assert not differ(env)


@pytest.mark.parametrize("has_choices", [True, False])
def test_a_batch_of_them_is_stepped_with_allowed_actions(has_choices):
    register_env("uneven", lambda: PaddedAgents(Uneven(has_choices)))
    batch = make_batch_env("uneven", None, [EnvContext(seed=1), EnvContext(seed=2, env_id=1)])
    out = step_arrays(batch.spec, 2)
    batch.reset(out)
    assert batch.spec.agents == ("a", "b", "c")
    assert ("action_mask" in out.observations) == has_choices
    batch.step(np.zeros((6, 1 if has_choices else 4), np.float32), out)
    assert out.rewards.tolist() == [1.0] * 6
    batch.close()
