"""THE table: every shared array with its shape, dtype, its writer and its readers.

Weights and snapshots lie in buffers of their own (`memory.weights`), each written by the learner of its policy.

Every cell has exactly one writer, so no lock is needed. The writer of a sequence number writes it last, after the
data that it announces; its reader reads it first.

Letters:  A = actors,  S = splits of an actor,  K = blocks of a split,  T = rollout length,  E = agent rows of a split,
C = recurrent states in a block = T / recurrence,  H = size of a recurrent state,  N = processes,
P = acting policies,  L = learning policies, the first L of the acting ones,  F = frozen ones, the others,
J = scripted players,  R = weights of a reward,
W = numbers that store an action,  Q = numbers that describe its distribution.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.specs import ActionSpec, TensorSpec
from appo.utils.segment import Segment, aligned

OBSERVATION = "obs/"  # prefix of the arrays that hold observations
NUM_TIMERS = 32
NUM_EVENT_COUNTERS = 24


class Sizes(NamedTuple):
    """Everything that decides how large the shared arrays are."""

    actors: int  # A
    splits: int  # S
    blocks: int  # K
    rollout: int  # T
    recurrence: int
    rows: int  # E
    acting_policies: int  # P: those that learn, then frozen ones
    learning_policies: int  # L: those that have a learner
    processes: int  # N: actors, policy workers, learners
    state_size: int  # H
    observations: dict[str, TensorSpec]
    actions: ActionSpec
    reward_shaping: tuple[tuple[str, float], ...] = ()  # R: name and first value of each weight of a reward
    scripted_players: int = 0  # J: numbered after the acting policies

    @property
    def frozen_policies(self) -> int:
        """F."""
        return self.acting_policies - self.learning_policies

    @property
    def players(self) -> int:
        """Everything that can have a seat: acting policies, then scripted players."""
        return self.acting_policies + self.scripted_players

    @property
    def answer_width(self) -> int:
        """Numbers in a policy worker's answer for one agent row."""
        return self.actions.width + 2 + self.actions.num_parameters

    @property
    def trajectories(self) -> int:
        """Columns of all blocks that can be filled at one time: one block of every split."""
        return self.actors * self.splits * self.rows


class ArraySpec(NamedTuple):
    """One shared array."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    writer: str
    reader: str
    meaning: str
    channels_last: bool = False
    """The last three axes, channels, height and width, lie in memory as height, width, channels: convolutions are
    several times faster in that order, and rearranging an image costs more than one of its convolutions."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the order of memory."""
        if not self.channels_last:
            return self.shape
        *leading, channels, height, width = self.shape
        return (*leading, height, width, channels)

    def as_declared(self, stored: NDArray[Any]) -> NDArray[Any]:
        """A view with the axes of `shape` of an array with those of `stored_shape`, whatever its leading axes."""
        return np.moveaxis(stored, -1, -3) if self.channels_last else stored

    @property
    def nbytes(self) -> int:
        """Size without padding."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def block_arrays(sizes: Sizes) -> list[ArraySpec]:
    """The rollouts: one slab `[E, ...]` per row of a block, time-major."""
    block = (sizes.actors, sizes.splits, sizes.blocks)
    row, step = (*block, sizes.rollout + 1, sizes.rows), (*block, sizes.rollout, sizes.rows)
    states = (*block, sizes.rollout // sizes.recurrence, sizes.rows, sizes.state_size)
    observations = [
        ArraySpec(
            OBSERVATION + name,
            row + spec.shape,
            spec.dtype,
            "actor",
            "policy, learner",
            "what the agent saw",
            channels_last=spec.is_image,
        )
        for name, spec in sizes.observations.items()
    ]
    return [
        *observations,
        ArraySpec("is_first", row, "u1", "actor", "policy, learner", "1: first observation of an episode"),
        ArraySpec("is_last", row, "u1", "actor", "learner", "1: observation after a truncation, its action is ignored"),
        ArraySpec("active", row, "u1", "actor", "learner", "0: the agent does not act on this row"),
        ArraySpec("policy_id", row, "i4", "actor", "policy, learner", "who plays the row"),
        ArraySpec("rewards", step, "f4", "actor", "learner", "raw reward after the action"),
        ArraySpec("terminated", step, "u1", "actor", "learner", "1: the task ended the episode after this action"),
        ArraySpec("truncated", step, "u1", "actor", "actor", "1: a limit cut the episode after this action"),
        ArraySpec("answers", (*step, sizes.answer_width), "f4", "policy", "actor, learner", "see AnswerColumns"),
        ArraySpec("policy_version", step, "i8", "policy", "learner", "optimizer steps behind the weights that acted"),
        ArraySpec("recurrent_state", states, "f4", "policy", "learner", "state before rows 0, recurrence, ..."),
    ]


def batch_arrays(sizes: Sizes) -> list[ArraySpec]:
    """The part of the rollouts that a learner reads."""
    return [spec for spec in block_arrays(sizes) if "learner" in spec.reader]


def header_arrays(sizes: Sizes) -> list[ArraySpec]:
    """Who has which block. See `blocks.py` for how a block's state follows from these numbers."""
    block = (sizes.actors, sizes.splits, sizes.blocks)
    of_policy = (sizes.learning_policies, *block)
    return [
        ArraySpec("filling_sequence", block, "i8", "actor", "learner, driver", "rollout that the block was begun for"),
        ArraySpec("ready_sequence", block, "i8", "actor", "all others", "rollout that the block holds completely"),
        ArraySpec("taking_sequence", of_policy, "i8", "learner", "driver", "rollout whose columns are being taken"),
        ArraySpec("taken_sequence", of_policy, "i8", "learner", "all others", "rollout that is no longer needed"),
        ArraySpec(
            "unplayed_sequence", of_policy, "i8", "actor", "all others", "rollout in which the policy has no row"
        ),
    ]


def request_arrays(sizes: Sizes) -> list[ArraySpec]:
    """One row per split: which slab of which block waits for actions."""
    split = (sizes.actors, sizes.splits)
    of_policy = (sizes.acting_policies, *split)
    return [
        ArraySpec("request_block", split, "i4", "actor", "policy", "block of the slab that waits"),
        ArraySpec("request_step", split, "i4", "actor", "policy", "row of the slab that waits"),
        ArraySpec("asked", split, "i8", "actor", "policy", "number of requests made; announces the two above"),
        ArraySpec("unasked", of_policy, "i8", "actor", "policy", "newest request that is not for the policy"),
        ArraySpec("answered", of_policy, "i8", "policy", "actor", "number of requests answered"),
    ]


def counter_arrays(sizes: Sizes) -> list[ArraySpec]:
    """What changes with every step and is only ever read as a whole."""
    actor_policy, learning = (sizes.actors, sizes.learning_policies), (sizes.learning_policies,)
    process = (sizes.processes,)
    return [
        ArraySpec("env_frames", actor_policy, "i8", "actor", "driver", "simulator frames since this run began"),
        ArraySpec("agent_steps", actor_policy, "i8", "actor", "driver", "decisions since this run began"),
        ArraySpec("train_steps", learning, "i8", "learner", "driver", "optimizer steps, over all runs"),
        ArraySpec("progress", learning, "f8", "driver", "learner", "share of the frame or time budget that is spent"),
        ArraySpec(
            "reward_shaping",
            (sizes.players, len(sizes.reward_shaping)),
            "f8",
            "driver",
            "actor",
            "weights of the reward, in the order of `Sizes.reward_shaping`",
        ),
        ArraySpec("run_env_frames", (1,), "i8", "driver", "actor", "frames of the whole experiment, for curricula"),
        ArraySpec("heartbeat", process, "f8", "each", "driver", "monotonic clock at the last sign of life"),
        ArraySpec("memory_mb", process, "f4", "driver", "driver", "resident memory, shared pages included"),
        ArraySpec("phase", process, "i4", "each", "driver", "what the worker is doing, see counters.Phase"),
        ArraySpec("stop", process, "i4", "driver", "each; learners", "1: end after this step; actors': train no more"),
        ArraySpec("commands_sent", process, "i8", "driver", "each", "commands put into the worker's queue, in records"),
        ArraySpec("reports_sent", process, "i8", "each", "driver", "reports put into the driver's queue, in records"),
        ArraySpec("worker_in_queue", (*process, 2), "u1", "each", "driver", "1: inside its report, its command queue"),
        ArraySpec("driver_in_queue", (*process, 2), "u1", "driver", "each", "1: the driver is inside that queue"),
        ArraySpec("restarts", process, "i8", "driver", "driver", "how often the worker was replaced"),
        ArraySpec("quarantined", process, "u1", "driver", "learner", "1: the worker is not replaced any more"),
        ArraySpec("policy_begun", learning, "u1", "driver", "learner", "1: the driver knows where it began"),
        ArraySpec("timers", (sizes.processes, NUM_TIMERS), "f8", "each", "all others", "seconds per stage"),
        ArraySpec("laps", (sizes.processes, NUM_TIMERS), "i8", "each", "driver", "how often these were added to"),
        ArraySpec("event_counts", (sizes.processes, NUM_EVENT_COUNTERS), "i8", "each", "driver", "events per kind"),
    ]


def opponent_arrays(sizes: Sizes) -> list[ArraySpec]:
    """Who plays against the policies that learn."""
    frozen = (sizes.frozen_policies,)
    shares = (sizes.learning_policies, sizes.frozen_policies + sizes.scripted_players)
    return [
        ArraySpec(
            "opponents",
            (*frozen, 3),
            "i8",
            "driver",
            "opponent worker, actor",
            "past self that a frozen policy is to be: its number, train step, frames; the number is written last",
        ),
        ArraySpec("opponents_loaded", frozen, "i8", "opponent worker", "actor", "number of the past self that it is"),
        ArraySpec("opponent_shares", shares, "f8", "driver", "actor", "share of a policy's opponents that each is"),
    ]


def all_arrays(sizes: Sizes) -> list[ArraySpec]:
    """The whole table."""
    return [
        *block_arrays(sizes),
        *header_arrays(sizes),
        *request_arrays(sizes),
        *counter_arrays(sizes),
        *opponent_arrays(sizes),
    ]


def total_bytes(sizes: Sizes) -> int:
    """Memory that the table takes."""
    return sum(aligned(spec.nbytes) for spec in all_arrays(sizes)) or 1


class SharedArrays:
    """Every array of the table, mapped."""

    def __init__(self, sizes: Sizes, segment: Segment) -> None:
        """Lay the table over a segment of `total_bytes(sizes)`."""
        self.sizes = sizes
        self.segment = segment
        self._arrays: dict[str, NDArray[Any]] = {}
        offset = 0
        for spec in all_arrays(sizes):
            self._arrays[spec.name] = spec.as_declared(segment.array(offset, spec.stored_shape, spec.dtype))
            offset += aligned(spec.nbytes)

    @classmethod
    def create(cls, sizes: Sizes) -> SharedArrays:
        """Allocate the table, all zeros."""
        return cls(sizes, Segment.create("appo", total_bytes(sizes)))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def observations(self) -> dict[str, NDArray[Any]]:
        """Observation name -> [A, S, K, T+1, E, ...]."""
        return {name: self._arrays[OBSERVATION + name] for name in self.sizes.observations}


class AnswerColumns(NamedTuple):
    """Where the parts of a policy worker's answer lie in the last axis of `answers`."""

    actions: slice
    log_prob: int
    value: int
    parameters: slice

    @classmethod
    def of(cls, actions: ActionSpec) -> AnswerColumns:
        """Action, then its log-probability, the value, and the parameters of the distribution."""
        width = actions.width
        return cls(slice(0, width), width, width + 1, slice(width + 2, width + 2 + actions.num_parameters))
