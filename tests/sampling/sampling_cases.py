"""Scripted environments, a slow plain account of what their blocks must hold, and a fake policy worker and learner."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from appo.algorithms.memory.blocks import LearnerBlocks, SplitBlocks
from appo.algorithms.memory.layout import SharedArrays, Sizes, block_arrays
from appo.algorithms.memory.request_table import PolicyRequests, SplitRequests
from appo.algorithms.sampling.env_split import EnvSplit
from appo.algorithms.sampling.matchmaking import MatchAssignment
from appo.algorithms.sampling.policy_assignment import PolicyAssignment
from appo.algorithms.specs import action_spec, observation_tensors, observed

CONTINUES, TERMINATES, IS_TRUNCATED = (False, False), (True, False), (False, True)
CRASHES = "crashes"


class Scripted(gymnasium.Env[Any, Any]):
    """Ends its steps as the script says, again and again. Observes [episode, time, action], rewards their mixture."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(3)
    action_mask_in_info = False

    def __init__(self, script, *, frames: int = 1, says_more: bool = False) -> None:
        self.script, self.frames, self.says_more = script, frames, says_more
        self.episode = self.time = self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.time = self.episode + 1, 0
        return np.array([self.episode, 0, -1], np.float64), {}

    def step(self, action):
        planned = self.script[self.steps % len(self.script)]
        self.steps += 1
        if planned == CRASHES:
            raise ArithmeticError("the script says so")
        terminated, truncated = planned
        self.time += 1
        info: dict[str, Any] = {} if self.frames == 1 else {"num_frames": self.frames + self.time % 2}
        if self.says_more and (terminated or truncated):
            info |= {"true_reward": -self.episode, "episode_extra_stats": {"last_action": int(action)}}
        elif self.says_more and self.time == 1:
            info |= {"episode_extra_stats": {"first_action": int(action)}}
        reward = 10.0 * self.episode + self.time + 0.25 * int(action)
        return np.array([self.episode, self.time, action], np.float64), reward, terminated, truncated, info


class PlainRow(NamedTuple):
    """What an agent sees, and what followed its decision; None where nothing was decided yet."""

    observation: Any
    is_first: int
    is_last: int
    active: int
    reward: float | None = None
    terminated: int | None = None
    truncated: int | None = None
    frames: int | None = None
    info: Any = None


def single_stream(env: Any, actions: list[int]) -> list[PlainRow]:
    """The life of one single-agent environment, one step at a time; one row more than actions."""
    rows, row = [], PlainRow(env.reset()[0], 1, 0, 1)
    for action in actions:
        if row.is_last:
            rows.append(row._replace(reward=0.0, terminated=0, truncated=0, frames=0, info={}))
            row = PlainRow(env.reset()[0], 1, 0, 1)
            continue
        try:
            observation, reward, terminated, truncated, info = env.step(action)
        except ArithmeticError:  # nothing is known of what the action led to: the episode was cut before it
            rows.append(row._replace(is_last=1, reward=0.0, terminated=0, truncated=0, frames=0, info={"lost": True}))
            row = PlainRow(env.reset()[0], 1, 0, 1)
            continue
        frames = info.get("num_frames", 1)
        cut = int(truncated and not terminated)
        rows.append(row._replace(reward=reward, terminated=int(terminated), truncated=cut, frames=frames, info=info))
        row = PlainRow(env.reset()[0], 1, 0, 1) if terminated else PlainRow(observation, 0, cut, 1)
    return [*rows, row]


def parallel_streams(env: Any, seed: int, actions: list[list[int]]) -> list[list[PlainRow]]:
    """The same for a parallel environment whose agents only terminate; actions [step][agent] -> [agent][row]."""
    agents = env.possible_agents
    seen, _ = env.reset(seed=seed)
    streams: list[list[PlainRow]] = [[] for _ in agents]
    now = [PlainRow(seen[agent], 1, 0, 1) for agent in agents]
    for step in actions:
        alive = list(env.agents)
        seen, rewards, terminated, _, infos = env.step({agent: step[agents.index(agent)] for agent in alive})
        over = not env.agents
        if over:
            again, _ = env.reset()
        for i, agent in enumerate(agents):
            info = infos.get(agent, {})
            streams[i].append(
                now[i]._replace(
                    reward=rewards.get(agent, 0.0),
                    terminated=int(terminated.get(agent, False)),
                    truncated=0,
                    frames=info.get("num_frames", 1) if agent in alive else 0,
                    info=info,
                )
            )
            if over:
                now[i] = PlainRow(again[agent], 1, 0, 1)
            elif agent in alive and not terminated[agent]:
                now[i] = PlainRow(seen[agent], 0, 0, 1)
            else:
                now[i] = PlainRow(0, 0, 0, 0)
    return [[*stream, row] for stream, row in zip(streams, now, strict=True)]


class Played:
    """A split that is played by random actions: every request, every block and every episode is written down."""

    def __init__(
        self,
        env: Any,
        *,
        rollout: int = 4,
        blocks: int = 2,
        policies: int = 1,
        seed: int = 0,
        timed: bool = False,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        rows = env.num_envs * env.spec.agents_per_env
        sizes = Sizes(
            actors=2,
            splits=2,
            blocks=blocks,
            rollout=rollout,
            recurrence=rollout,
            rows=rows,
            acting_policies=policies,
            learning_policies=policies,
            processes=1,
            state_size=0,
            observations=observation_tensors(observed(env.spec, critic_sees_time=timed)),
            actions=action_spec(env.spec),
        )
        self.arrays = SharedArrays.create(sizes)
        self.cell = (1, 0)  # neither the first actor nor the last split
        self.counted = (self.arrays["env_frames"][1], self.arrays["agent_steps"][1])
        assignment = assignment or MatchAssignment(policies, np.random.SeedSequence(seed))
        self.requests = [PolicyRequests(self.arrays, policy, 0, 1) for policy in range(policies)]
        self.learners = [LearnerBlocks(self.arrays, policy) for policy in range(policies)]
        blocks_of_split, requests = SplitBlocks(self.arrays, *self.cell), SplitRequests(self.arrays, *self.cell)
        self.split = EnvSplit(env, blocks_of_split, requests, assignment, self.counted)
        self.names = [spec.name for spec in block_arrays(sizes)]
        self.rng = np.random.default_rng(seed)
        self.rollouts: list[dict[str, np.ndarray]] = []
        self.asked: list[tuple[int, int]] = []  # block and step of every request
        self.actions: list[list[int]] = []  # [step][row]
        self.episodes: list[tuple[int, Any]] = []  # step in which it ended, and what was said of it

    def answer(self) -> None:
        """Random actions for the slab that waits."""
        is_told = False
        for requests in self.requests:
            slabs = requests.open()
            if len(slabs) and not is_told:
                is_told = True
                [(block, step)] = list(zip(slabs.block.tolist(), slabs.step.tolist(), strict=True))
                self.asked.append((block, step))
                chosen = self.rng.integers(0, 3, self.arrays.sizes.rows)
                self.arrays["answers"][(*self.cell, block, step)][:, 0] = chosen
                self.actions.append(chosen.tolist())
            requests.answer(slabs)

    def step(self) -> None:
        """Answer, advance, and write down a rollout that this completed."""
        self.answer()
        assert self.split.is_answered()
        completed = self.split.completed
        self.episodes += [(len(self.actions) - 1, episode) for episode in self.split.advance()]
        if self.split.completed > completed:
            block = completed % self.arrays.sizes.blocks
            self.rollouts.append({name: self.arrays[name][(*self.cell, block)].copy() for name in self.names})

    def learn(self) -> int:
        """Give back what is complete; how many blocks."""
        ready = [address for learner in self.learners for address in learner.ready()]
        for learner in self.learners:
            for address in learner.ready():
                learner.take(address)
                learner.release(address)
        return len(ready)

    def play(self, rollouts: int) -> None:
        """Until as many rollouts are complete."""
        while self.split.completed < rollouts:
            if self.split.waits_for_block:
                assert self.split.try_next_block()
            self.step()
            self.learn()
