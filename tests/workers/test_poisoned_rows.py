"""Masked values are poisoned in the environment, and nothing that is learned or reported changes by a bit.

Masked rows hold what an environment happens to put there: the reward, infos and flags of the step in which a vectorised
environment starts anew, the observation of a terminated step, all that is said of an agent that has left. Clean and
poisoned environments are played side by side by the same networks, which learn from them.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from appo.algorithms.workers.actor_worker import build_split
from appo.envs.faults import FaultPolicy
from appo.envs.registry import register_env
from tests.workers.core_cases import ACTORS, SPLITS, Case, Turns

ITERATIONS = 5
POISONS = [np.nan, np.inf, -1e30]


def said(poison):
    """An info in which everything is wrong."""
    return {"true_reward": poison, "num_frames": -88, "episode_extra_stats": {"luck": poison, "more": "text"}}


class Task(gymnasium.Env):
    """Random observations and rewards; episodes of random lengths that end in either way."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(3)
    action_mask_in_info = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 9))
        return self.np_random.normal(size=3), {}

    def step(self, action):
        self.left -= 1
        has_ended, is_cut = self.left == 0, bool(self.np_random.integers(2))
        info: dict[str, Any] = {"num_frames": int(self.np_random.integers(1, 4))}
        if has_ended:
            info |= {"true_reward": float(self.np_random.normal()), "episode_extra_stats": {"luck": 1.0}}
        observation, reward = self.np_random.normal(size=3), float(self.np_random.normal() + action)
        return observation, reward, has_ended and not is_cut, has_ended and is_cut, info


class PoisonedSingle(gymnasium.Wrapper):
    """Observations of terminated steps, and what infos of resets say of a step."""

    action_mask_in_info = False

    def __init__(self, poison):
        super().__init__(Task())
        self.poison = poison

    def reset(self, **keywords):
        observation, info = self.env.reset(**keywords)
        return observation, info if self.poison is None else info | said(self.poison)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated and self.poison is not None:
            observation = np.full(3, self.poison)
        return observation, reward, terminated, truncated, info


class PoisonedVector(SyncVectorEnv):
    """The step that starts an episode, and observations of terminated steps."""

    action_mask_in_info = False

    def __init__(self, poison, number):
        super().__init__([Task for _ in range(number)])
        self.poison, self.ended = poison, np.zeros(number, bool)

    def step(self, actions):
        starts = self.ended
        observations, rewards, terminated, truncated, infos = super().step(actions)
        self.ended = terminated | truncated
        if self.poison is not None:
            observations, rewards, infos = observations.copy(), rewards.copy(), dict(infos)
            observations[terminated] = self.poison
            rewards[starts] = self.poison
            for key, value in said(self.poison).items():
                own, has = infos.get(key), infos.get(f"_{key}", np.zeros(self.num_envs, bool))
                rows = [value if starts[row] else _of_row(own, row) if has[row] else None for row in range(len(starts))]
                infos[key], infos[f"_{key}"] = np.array(rows, object), has | starts
        return observations, rewards, terminated, truncated, infos


def _of_row(values, row):
    return (
        {name: _of_row(value, row) for name, value in values.items() if name[0] != "_"}
        if isinstance(values, dict)
        else values[row]
    )


class PoisonedPair:
    """A parallel environment of two agents, of which the first leaves earlier; it is spoken of all the same."""

    metadata: dict = {}  # noqa: RUF012 - PettingZoo's own way to declare it
    possible_agents = ["first", "second"]  # noqa: RUF012
    action_mask_in_info = False
    rng: np.random.Generator

    def __init__(self, poison):
        self.poison = poison

    def observation_space(self, agent):
        return Task.observation_space

    def action_space(self, agent):
        return Task.action_space

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed) if seed is not None else self.rng
        self.time, self.agents = 0, list(self.possible_agents)
        infos = {agent: {} if self.poison is None else said(self.poison) for agent in self.agents}
        return {agent: self.rng.normal(size=3) for agent in self.agents}, infos

    def step(self, actions):
        self.time += 1
        ends = {agent: self.time == end for agent, end in zip(self.possible_agents, (3, 7), strict=True)}
        drawn = {agent: (self.rng.normal(size=3), float(self.rng.normal())) for agent in self.possible_agents}
        observations, rewards, infos = {}, {}, {}
        for agent, (observation, reward) in drawn.items():
            if agent in self.agents:
                observations[agent], rewards[agent], infos[agent] = observation, reward, {"num_frames": 2}
                if ends[agent] and self.poison is not None:
                    observations[agent] = np.full(3, self.poison)
            elif self.poison is not None:
                observations[agent], rewards[agent], infos[agent] = (
                    np.full(3, self.poison),
                    self.poison,
                    said(self.poison),
                )
        self.agents = [agent for agent in self.agents if not ends[agent]]
        return observations, rewards, ends, dict.fromkeys(ends, False), infos

    def close(self):
        pass


KINDS: dict[str, Callable[[Any], Any]] = {
    "single": PoisonedSingle,
    "native": lambda poison: lambda vector_size: PoisonedVector(poison, vector_size),
    "parallel": PoisonedPair,
}


def learned(kind, poison, folder, monkeypatch):
    """Everything that comes of a few iterations: weights and normaliser, episodes, counters, metrics."""
    name = f"poisoned-{kind}"
    register_env(name, KINDS[kind](poison) if kind == "native" else lambda: KINDS[kind](poison))
    case = Case(name, use_rnn=True, rnn_type="gru", normalize_input=True, normalize_returns=True)
    turns = Turns(case, folder, seed=3, with_splits=False)
    cells = [(actor, split) for actor in range(ACTORS) for split in range(SPLITS)]
    turns.splits = [
        build_split(turns.arrays, turns.actor_job(actor), split, 0, FaultPolicy(10)) for actor, split in cells
    ]
    episodes: list[Any] = []
    for split in turns.splits:
        monkeypatch.setattr(split, "advance", _recording(split.advance, episodes))
        split.start()
    metrics = []
    for _ in range(ITERATIONS):
        while not turns.assemblers[0].fill(turns.stagings[0]):
            turns.turn()
        metrics.append(turns.learners[0].train(turns.stagings[0]).metrics)
    counters = [turns.arrays[name].tolist() for name in ("env_frames", "agent_steps")]
    turns.close()
    weights = {name: value.clone() for name, value in turns.learners[0]._model.state_dict().items()}
    return weights, [repr(episode) for episode in episodes], counters, metrics


def _recording(advance, episodes):
    def record():
        finished = advance()
        episodes.extend(finished)
        return finished

    return record


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", KINDS)
def test_poison_in_rows_that_are_masked_changes_nothing(kind, tmp_path, monkeypatch):
    weights, episodes, counters, metrics = learned(kind, None, tmp_path / "clean", monkeypatch)
    assert len(episodes) > 20 and sum(counters[0][0]) > 100
    assert len({one["loss"] for one in metrics}) == ITERATIONS, "it learns"
    for number, poison in enumerate(POISONS):
        others, *rest = learned(kind, poison, tmp_path / str(number), monkeypatch)
        assert rest == [episodes, counters, metrics], poison
        assert all(torch.equal(others[name], value) for name, value in weights.items()), poison


def test_the_poison_is_there(tmp_path):
    """Otherwise the test above would prove nothing."""
    single, vector, pair = PoisonedSingle(np.nan), PoisonedVector(np.nan, 8), PoisonedPair(np.nan)
    seen = {"single": 0, "native": 0, "parallel": 0}
    single.reset(seed=1)
    vector.reset(seed=1)
    pair.reset(seed=1)
    for _ in range(40):
        observation, _, terminated, truncated, _ = single.step(0)
        seen["single"] += bool(np.isnan(observation).any())
        if terminated or truncated:
            seen["single"] += single.reset()[1]["num_frames"] == -88
        observations, rewards, *_, infos = vector.step(np.zeros(8, int))
        seen["native"] += int(np.isnan(rewards).sum() + np.isnan(observations).any(axis=1).sum())
        seen["native"] += int((infos["num_frames"] == -88).sum())
        _, rewards, *_ = pair.step({})
        seen["parallel"] += int(np.isnan(rewards.get("first", 0.0)))
        if not pair.agents:
            pair.reset()
    assert min(seen.values()) > 10
