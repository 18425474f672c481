"""Scripts that an environment offers: named, tried before the start, checked while they play."""

from typing import Any

import numpy as np
import pytest

from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext, EnvError
from appo.envs.preflight import check_environment
from appo.envs.registry import make_batch_env, register_env, resolve
from appo.utils.options import ConfigError
from tests.envs.test_padded_agents import Uneven as Agents


class Scripted(Agents):
    def __init__(self, names=("up",), action=1):
        super().__init__()
        self.scripted_players, self.action = names, action

    def observation_space(self, agent):
        return super().observation_space("a")

    def action_space(self, agent):
        return super().action_space("a")

    def _observe(self):
        return {agent: np.zeros(1, np.float32) for agent in self.possible_agents}

    def scripted_action(self, name, agent):
        if isinstance(self.action, Exception):
            raise self.action
        return self.action


def batch_of(**options):
    register_env("scripted", lambda: Scripted(**options))
    return make_batch_env("scripted", None, [EnvContext(seed=1)])


def test_a_script_acts_in_the_place_of_its_agent_until_it_is_told_otherwise():
    batch = batch_of()
    assert batch.spec.scripted_players == ("up",) and batch.spec.agents == ("a", "b", "c")
    out = step_arrays(batch.spec, 1)
    batch.reset(out)
    heard = []
    for scripts in (["", "up", ""], ["", "", ""]):
        batch.play_scripts(0, scripts)
        batch.step(np.zeros((3, 1), np.float32), out)
        heard.append([int(batch.envs[0].heard[agent]) for agent in "abc"])
    assert heard == [[0, 1, 0], [0, 0, 0]]
    batch.close()


@pytest.mark.parametrize("action", [7, None, ValueError("no idea")])
def test_what_is_no_action_is_refused_before_the_start_and_fails_while_it_plays(action):
    register_env("scripted", lambda: Scripted(action=action))
    with pytest.raises((ConfigError, EnvError), match=r"scripted_action\('up', 'a'\)"):
        check_environment(resolve("scripted"), None, False)
    batch: Any = make_batch_env("scripted", None, [EnvContext(seed=1)])
    out = step_arrays(batch.spec, 1)
    batch.reset(out)
    batch.play_scripts(0, ["up", "", ""])
    with pytest.raises(EnvError, match=r"scripted_action\('up', 'a'\)"):
        batch.step(np.zeros((3, 1), np.float32), out)


def test_one_name_is_one_script_and_the_name_of_the_random_player_is_taken():
    assert batch_of(names="greedy").spec.scripted_players == ("greedy",)
    for names in (("random",), ("two words",), (3,)):
        with pytest.raises(ConfigError, match="should be a word, and not random"):
            batch_of(names=names)
