"""A split: environments that step together, and the blocks that they write their rollouts into.

While one split waits for its actions, the actor steps another. All agent rows of a split advance together, so one
step index serves them all, and every operation here is on whole slabs.

Order of events in `advance`: actions are read from row t; the environments write row t + 1; when the rollout is full
the block is handed over and row T is carried into row 0 of the next; then actions for the new row are asked for.

Where an environment failed in the step from row t, nothing is known of what the action at row t led to. Row t becomes
the final row of an episode that was cut there: it is no decision, and the row before it bootstraps with its value.
(When t is 0, it is row T of the block before as well, where every row bootstraps and none is a decision.)

Environments do not tell how long an episode has lasted. Where the critic is to know, a split counts: 0 at a fresh row,
one more at each row after it, the final one and those of an agent that takes no part included.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.blocks import Scratch, SplitBlocks
from appo.algorithms.messages import EpisodeFinished, MatchFinished
from appo.algorithms.sampling.episode_stats import EpisodeStats
from appo.algorithms.sampling.match_results import SplitMatches
from appo.algorithms.sampling.policy_assignment import PolicyAssignment
from appo.algorithms.sampling.reward_shaping import RewardShaper
from appo.envs.api import BatchEnv, Cuttable, Decorrelating, Decorrelation, StepArrays


class Requests(Protocol):
    """Source of a split's actions."""

    num_policies: int  # those with a higher number are not asked

    def ask(self, block: int, step: int, policies: NDArray[np.int32] | None = None) -> None:
        """Row `step` of `block` is complete and needs actions; from some policies, or from all."""

    def is_answered(self) -> bool:
        """The actions that were asked for last are there."""


class EnvSplit:
    """One split of one actor, without processes."""

    def __init__(
        self,
        env: BatchEnv,
        blocks: SplitBlocks,
        requests: Requests,
        assignment: PolicyAssignment,
        counted: tuple[NDArray[np.int64], NDArray[np.int64]],
        shaper: RewardShaper | None = None,
        matches: SplitMatches | None = None,
    ) -> None:
        """For one split.

        Args:
            env: its environments.
            blocks: its blocks.
            requests: its row of the request table, or what answers instead.
            assignment: chooses players.
            counted: [L] environment frames and [L] agent steps of this actor, both added to here.
            shaper: where rewards have weights.
            matches: with self-play.
        """
        self.env = env
        self._blocks = blocks
        self._requests = requests
        self.assignment = assignment
        self._shaper, self._matches = shaper, matches
        self._env_frames, self._agent_steps = counted
        agents = env.spec.agents_per_env
        rows = env.num_envs * agents
        self._scratch = Scratch.of(rows)
        self._frames = self._scratch.frames
        self._shared = SharedFrames(env.num_envs, agents) if agents > 1 else None
        self._steps = blocks.step_arrays(self._scratch)
        self._stats = EpisodeStats(rows)
        self._block = 0
        self._row = 0
        self.simulated_s = 0.0
        """Seconds of the last `advance` inside of the environments."""
        self.completed = 0  # rollouts handed over
        self.players = np.zeros(1, np.int32)
        """Policies that play a row now."""
        self.completed_by = self.players
        """Policies that played a row of the newest rollout that was handed over."""
        self._in_rollout = self.players
        self._learning = assignment.num_policies
        self._several = assignment.num_policies > 1 or matches is not None
        self.waits_for_block = True
        self.has_started = False
        self._decorrelation: Decorrelation | None = None
        self._elapsed_steps = blocks.elapsed_steps

    def start(self, decorrelation: Decorrelation | None = None) -> bool:
        """Reset every environment into row 0 of the first block and ask for actions.

        Args:
            decorrelation: when given, environments are first moved so far into their episodes that these do not run in
                step.

        Returns:
            False: every block still holds a rollout of a predecessor that no learner has taken; `try_next_block` starts
            the split when one has.

        Raises:
            EnvError: an environment failed to reset.
        """
        self._decorrelation = decorrelation
        if not self._blocks.begin_next():
            return False
        self.has_started = True
        self._block = self._blocks.block
        self._row = 0
        first_row = self._blocks.reset_arrays(self._scratch)
        elapsed = np.zeros(len(first_row.is_first), np.int64)
        if decorrelation is not None and isinstance(self.env, Decorrelating):
            elapsed = self.env.decorrelate(decorrelation, first_row)
            self._stats.begin_in_the_middle()
        else:
            self.env.reset(first_row)
        if self._elapsed_steps is not None:
            self._elapsed_steps[self._block, 0, :, 0] = elapsed
        self.assignment.draw(self._blocks.policy_id[self._block, 0])
        self.waits_for_block = False
        if self._shaper is not None:
            self._shaper.follow(np.ones(len(elapsed), np.uint8), self._blocks.policy_id[self._block, 0])
        if self._several:
            self._find_players(self._blocks.policy_id[self._block, 0])
            self._blocks.play(self._in_rollout)
        if self._matches is not None:
            is_whole = decorrelation is None or not isinstance(self.env, Decorrelating)
            self._matches.begin(range(self.env.num_envs), self._blocks.policy_id[self._block, 0], is_whole=is_whole)
        # To all policies: one that was asked by a dead predecessor is heard before its rows are written again.
        self._requests.ask(self._block, 0)
        return True

    def is_answered(self) -> bool:
        """The actions of the newest row are there."""
        return not self.waits_for_block and self._requests.is_answered()

    def advance(self) -> list[EpisodeFinished]:
        """One environment step for every agent row; the episodes that it ended.

        Raises:
            EnvError: an environment failed.
        """
        block, row = self._block, self._row
        step = self._steps[block][row]
        policies = self._blocks.policy_id[block]
        actions = self._blocks.actions[block, row]
        if self._matches is not None:
            actions = self._matches.actions(actions, policies[row], self._blocks.observations(block, row))
        began = time.perf_counter()
        infos = self.env.step(actions, step)
        self.simulated_s = time.perf_counter() - began
        finished = self._stats.add(step, infos, policies[row])
        if 1 in step.crashed.tobytes():  # ten times quicker than to ask numpy
            self._lose_step(step)
        self._count(policies[row])
        if self.assignment.carry(policies[row], policies[row + 1], step.is_first):
            self._change_players(policies[row + 1], is_in_rollout=row + 1 < self._blocks.rollout)
        if self._matches is not None:
            finished = self._matches.follow(self._stats.ended_rows, finished, step, policies[row + 1])
        if self._shaper is not None and 1 in step.is_first.tobytes():
            self._shaper.follow(step.is_first, policies[row + 1])
        if self._elapsed_steps is not None:
            np.add(self._elapsed_steps[block, row], 1.0, out=self._elapsed_steps[block, row + 1])
            self._elapsed_steps[block, row + 1, step.is_first == 1] = 0.0
            # The critic is never trained at the time of a time limit, only asked for the value to bootstrap from. Where
            # all episodes end at that time, V(t) + c / gamma^t satisfies the Bellman equation for every c. At half of
            # the time it is trained.
            if 1 in step.is_last.tobytes():
                self._elapsed_steps[block, row + 1, step.is_last == 1] *= 0.5
        self._row = row + 1
        if self._row == self._blocks.rollout:
            self._blocks.complete()
            self.completed += 1
            self.completed_by = self._in_rollout
            self.waits_for_block = True
            self.try_next_block()
        else:
            self._ask()
        return finished

    def try_next_block(self) -> bool:
        """Go on in the next block, if it is free."""
        if not self.has_started:
            return self.start(self._decorrelation)
        if not self._blocks.begin_next():
            return False
        previous, self._block = self._block, self._blocks.block
        self._blocks.carry_over(previous)
        self._row = 0
        self.waits_for_block = False
        self.assignment.begin_rollout(self.completed)
        if self._several:
            self._in_rollout = self.players
            self._blocks.play(self._in_rollout)
            overdue = self.assignment.overdue()
            if len(overdue) and isinstance(self.env, Cuttable):
                self._stats.leave_out(self.env.cut(overdue))
        self._ask()
        return True

    def _ask(self) -> None:
        self._requests.ask(self._block, self._row, self.players if self._several else None)

    def _find_players(self, policies: NDArray[np.int32]) -> None:
        self.players = self._asked(policies)
        self._in_rollout = self.players

    def _asked(self, players: NDArray[np.int32]) -> NDArray[np.int32]:
        """Those who are asked for actions: not the scripted ones."""
        found = np.unique(players)
        return found if self._matches is None else found[found < self._requests.num_policies]

    def pop_matches(self) -> list[MatchFinished]:
        """Return the matches that ended since the last call."""
        return [] if self._matches is None else self._matches.pop()

    @property
    def random_state(self) -> dict[str, Any]:
        """Where the random numbers of matchmaking and of scripts stand, as plain values."""
        scripts = None if self._matches is None else self._matches.random_state
        return {"players": self.assignment.random_state, "scripts": scripts}

    @random_state.setter
    def random_state(self, state: dict[str, Any]) -> None:
        self.assignment.random_state = state["players"]
        if self._matches is not None:
            self._matches.random_state = state["scripts"]

    def _change_players(self, policies: NDArray[np.int32], *, is_in_rollout: bool) -> None:
        """Episodes have begun. The observation after a rollout belongs to the next one, too."""
        self.players = self._asked(policies)
        if is_in_rollout:
            together = np.union1d(self._in_rollout, self.players)
            if len(together) > len(self._in_rollout):
                self._in_rollout = together
                self._blocks.play(together)

    def close(self) -> None:
        """Close every environment."""
        self.env.close()

    def _lose_step(self, step: StepArrays) -> None:
        crashed = np.flatnonzero(step.crashed)
        self._blocks.is_last[self._block, self._row, crashed] = 1
        self._stats.forget(crashed)

    def _count(self, policy_id: NDArray[np.int32]) -> None:
        seen = self._frames
        if self._matches is not None:
            seen = np.where(policy_id < self._learning, seen, 0)  # what others see of a frame is not learned from
        frames = seen if self._shared is None else self._shared.of_rows(seen)
        if not self._several:
            self._env_frames[0] += int(frames.sum())
            self._agent_steps[0] += int(np.count_nonzero(self._frames))
            return
        policies = self._learning
        self._env_frames += np.bincount(policy_id, frames, policies)[:policies].astype(np.int64)
        self._agent_steps += np.bincount(policy_id, seen > 0, policies)[:policies].astype(np.int64)


class SharedFrames:
    """Counts a simulator's frame once, whichever number of agents sees it.

    The frames of each environment are dealt to the agents that take part, one by one in turn. So the policies that play
    them get their shares, and all shares together are what the simulator has done.
    """

    def __init__(self, num_envs: int, agents_per_env: int) -> None:
        self._shape = (num_envs, agents_per_env)
        self._dealt = np.zeros((num_envs, 1), np.int64)

    def of_rows(self, frames: NDArray[np.int32]) -> NDArray[np.int64]:
        """[E] frames that each agent row saw in a step -> [E] those that are counted for it."""
        seen = frames.reshape(self._shape)
        takes_part = seen > 0
        number = np.maximum(takes_part.sum(axis=1, keepdims=True), 1)
        place = np.cumsum(takes_part, axis=1) - 1  # among those that take part; frame n goes to place n modulo number
        before = self._dealt
        self._dealt = before + seen.max(axis=1, keepdims=True)
        share = (self._dealt - place - 1) // number - (before - place - 1) // number
        return (share * takes_part).ravel()
