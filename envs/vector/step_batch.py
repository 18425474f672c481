"""What a `VecEnv` gives: the results of some environments, and what kind of result each is.

Letters:  n = environments of a batch,  A = agents of each. Arrays are [n, ...], or [n, A, ...] with several agents.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.envs.vector.shared_rows import FLAGS

# Kinds of rows, imported from here: `from appo.envs.vector.step_batch import KIND_STEP, KIND_RESET, KIND_RESTARTED`.
KIND_STEP, KIND_RESET, KIND_RESTARTED = 0, 1, 2


class StepBatch(NamedTuple):
    """Results of some environments.

    `obs`, `rewards` and `final_obs` belong to the caller, unless the environments were made with `copy=False`: then
    they may show the memory that the environments write, and hold until the next `send` or `reset` to them. The other
    arrays may be those of other batches, too, and are not to be written to.

    `final_obs` is {} in a step in which no episode has ended. Otherwise it has as many rows as `obs`, of which those
    where `terminated | truncated` are last observations of episodes; what the others hold means nothing:

        ended = batch.terminated | batch.truncated
        if ended.any():
            last = batch.final_obs["obs"][ended]

    `infos` has an entry for each row whose info held `true_reward` or `episode_extra_stats`, and these keys alone. A
    row is a place in the batch, with several agents place * A + agent: its environment is `env_ids[row // A]`.

    Images are [C, H, W] in `obs`, whatever their order in memory: where the environment draws [H, W, C], strides are of
    that order, and `view` or a pointer to the data needs `np.ascontiguousarray` before.
    """

    env_ids: NDArray[np.int64]  # [n] ascending
    obs: dict[str, NDArray[Any]]  # by name, "obs" where the space is no Dict; as training has them: images [C, H, W]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: dict[str, NDArray[Any]]  # as `obs`, where `terminated | truncated`. {}: no episode has ended
    infos: dict[int, dict[str, Any]]  # by row of the batch, no env_id; of an info `true_reward`, `episode_extra_stats`
    is_first: NDArray[np.bool_]  # `obs` is the first observation of an episode
    is_active: NDArray[np.bool_]
    frames: NDArray[np.int32]  # simulator frames of the step
    episode_id: NDArray[np.int64]  # [n] number of the episode that `obs` belongs to, counted from 0 in each environment
    kind: NDArray[np.uint8]  # [n] KIND_STEP, KIND_RESET or KIND_RESTARTED


class OrdinaryStep(NamedTuple):
    """What every step says in which no episode begins or ends and nothing fails: made once, and shared."""

    flags: bytes  # [FLAGS, n * A]
    is_first: NDArray[np.bool_]
    is_active: NDArray[np.bool_]
    is_end: NDArray[np.bool_]  # neither `terminated` nor `truncated`
    frames: NDArray[np.int32]
    kind: NDArray[np.uint8]


@functools.cache
def ordinary_step(number: int, agents: int) -> OrdinaryStep:
    """The shared arrays of an ordinary step of `number` environments."""
    flags = b"".join(bytes([name == "active"]) * number * agents for name in FLAGS)
    shape = (number,) if agents == 1 else (number, agents)
    never, always = np.broadcast_to(np.False_, shape).copy(), np.broadcast_to(np.True_, shape).copy()
    frames, kind = np.ones(shape, np.int32), np.full(number, KIND_STEP, np.uint8)
    for array in (never, always, frames, kind):
        array.flags.writeable = False
    return OrdinaryStep(flags, never, always, never, frames, kind)


def ends_alone(told: bytes, ordinary: OrdinaryStep) -> NDArray[np.bool_] | None:
    """Where episodes ended by termination and the next ones began, read-only; None: other flags say something, too."""
    rows = len(told) // len(FLAGS)
    begins = told[:rows]
    if told != b"".join((begins, ordinary.flags[rows : 3 * rows], begins, ordinary.flags[4 * rows :])):
        return None
    ends = np.frombuffer(begins, np.bool_)
    return ends if ordinary.is_end.ndim == 1 else ends.reshape(ordinary.is_end.shape)


def parts_of(told: bytes, ordinary: OrdinaryStep) -> tuple[list[NDArray[np.bool_]], NDArray[np.bool_]]:
    """What the flags of a step say, with as few calls of numpy as possible.

    Returns:
        The flags, in their order, read-only, those that say what they always say shared; where an episode ended.
    """
    rows, shape, never, always = len(told) // len(FLAGS), ordinary.is_end.shape, ordinary.is_end, ordinary.is_active
    if (ends := ends_alone(told, ordinary)) is not None:
        return [ends, never, always, ends, never, never], ends
    parts: list[NDArray[np.bool_]] = []
    for first in range(0, len(told), rows):
        part, usual = told[first : first + rows], ordinary.flags[first : first + rows]
        if part == usual:
            parts.append(always if usual[0] else never)
        else:
            parts.append(np.frombuffer(part, np.bool_).reshape(shape))
    terminated, truncated = parts[FLAGS.index("terminated")], parts[FLAGS.index("truncated")]
    if truncated is never:
        return parts, terminated
    return parts, truncated if terminated is never else terminated | truncated


def kinds_of(
    ends: NDArray[np.bool_], is_first: NDArray[np.bool_], crashed: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """[n] kinds of rows, and [n] whether an episode begins in each environment."""
    if ends.ndim > 1:
        # One that comes late begins alone; an episode of the environment begins for all.
        ends, is_first, crashed = (np.asarray(each) for each in (ends.any(1), is_first.all(1), crashed.any(1)))
    kind = (is_first & ~ends).view(np.uint8) * KIND_RESET
    kind[crashed] = KIND_RESTARTED
    return kind, is_first
