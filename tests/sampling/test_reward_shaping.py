"""Environments are told the reward weights of the policy that plays them, when an episode begins and then only."""

import numpy as np

from appo.algorithms.memory.settings import write_setting
from appo.algorithms.messages import SetRewardShaping
from appo.algorithms.sampling.reward_shaping import RewardShaper
from appo.envs.wrappers import shape_rewards
from tests.memory.memory_cases import shared

NAMES = (("kill", 1.0), ("step", -0.1))


class Told:
    def __init__(self):
        self.calls = []

    def shape_rewards(self, index, weights):
        self.calls.append((index, weights))

    def pop(self):
        calls, self.calls = self.calls, []
        return calls


def shaper(agents=1):
    arrays, told = shared(policies=2, reward_shaping=NAMES), Told()
    arrays["reward_shaping"][:] = [[1.0, -0.1], [2.0, -0.2]]
    return arrays, told, RewardShaper(told, NAMES, arrays["reward_shaping"], agents)


def follow(shaper, is_first, policies):
    shaper.follow(np.array(is_first, np.uint8), np.array(policies, np.int32))


FIRST, SECOND = {"kill": 1.0, "step": -0.1}, {"kill": 2.0, "step": -0.2}


def test_each_environment_has_the_weights_of_the_policy_that_plays_its_episode():
    _, told, shapes = shaper()
    follow(shapes, [1, 1, 1], [0, 1, 0])
    assert told.pop() == [(1, [SECOND])], "the others have these weights from the start"
    follow(shapes, [1, 0, 1], [1, 0, 0])
    assert told.pop() == [(0, [SECOND])], "the second goes on"


def test_other_weights_come_with_the_next_episode():
    arrays, told, shapes = shaper()
    follow(shapes, [1, 1], [0, 1])
    told.pop()
    write_setting(arrays, SetRewardShaping(1, {"kill": 5.0, "unknown": 3.0}))
    assert arrays["reward_shaping"].tolist() == [[1.0, -0.1], [5.0, -0.2]]
    follow(shapes, [1, 0], [0, 1])
    assert told.pop() == []
    follow(shapes, [0, 1], [0, 1])
    assert told.pop() == [(1, [{"kill": 5.0, "step": -0.2}])]


def test_agents_that_share_an_environment_have_the_weights_of_their_own_policies():
    _, told, shapes = shaper(agents=2)
    follow(shapes, [1, 1, 0, 1], [0, 1, 1, 1])
    assert told.pop() == [(0, [FIRST, SECOND])], "an agent that joins later begins no episode of all"
    follow(shapes, [0, 0, 1, 1], [0, 1, 1, 1])
    assert told.pop() == [(1, [SECOND, SECOND])]


def test_an_environment_takes_weights_for_each_agent_or_those_of_the_first():
    class Common:
        def get_reward_shaping(self):
            return {}

        def set_reward_shaping(self, weights):
            heard.append(weights)

    class OfEach(Common):
        def set_agent_reward_shaping(self, agent, weights):
            heard.append((agent, weights))

    heard: list[object] = []
    shape_rewards(Common(), [FIRST, SECOND])
    shape_rewards(OfEach(), [FIRST, SECOND])
    shape_rewards(object(), [FIRST, SECOND])
    assert heard == [FIRST, (0, FIRST), (1, SECOND)]
