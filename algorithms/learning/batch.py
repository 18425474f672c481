"""What a learner consumes: trajectories side by side, time-major, with what acted and what the actor saw.

Letters:  T = rollout length,  B = trajectories,  W = numbers that store an action,  P = numbers that describe its
distribution,  H = size of the recurrent state (0 without one),  C = chunks in a trajectory = T / recurrence.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Trajectories as the blocks hold them, moved to the learner's device. Nothing here carries a gradient.

    Row t is a decision: observation t, the action taken on it, and what followed. Row T is the observation after the
    last action: it only bootstraps.
    """

    observations: dict[str, Tensor]  # [T+1, B, ...] in the environment's own dtypes
    is_first: Tensor  # [T+1, B] uint8, 1: the observation is the first of an episode, the recurrent state is zero there
    is_last: Tensor  # [T+1, B] uint8, 1: the observation after a truncation; its action was ignored
    active: Tensor  # [T+1, B] uint8, 0: the agent did not act on this row
    own: Tensor  # [T+1, B] bool, this learner's policy played the row
    recurrent_state: Tensor  # [C, B, H] before rows 0, recurrence, 2 * recurrence, ...; already zero where `is_first`
    actions: Tensor  # [T, B, W] float32
    behaviour_log_prob: Tensor  # [T, B] of the joint action
    behaviour_parameters: Tensor  # [T, B, P]
    behaviour_value: Tensor  # [T, B] in units of (scaled, clipped) reward
    policy_version: Tensor  # [T, B] int64, of the weights that acted
    rewards: Tensor  # [T, B] raw
    terminated: Tensor  # [T, B] uint8
