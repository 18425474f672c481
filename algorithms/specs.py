"""Sizes derived from an environment's spaces; plain numbers, so that no process needs a library to know them.

Letters:  W = numbers that store one action,  P = numbers that describe its distribution.
"""

from __future__ import annotations

from typing import NamedTuple

from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf

ELAPSED_STEPS = ObservationLeaf("critic:elapsed_steps", (1,), "float32", "vector")
"""Steps since the episode began, which the critic alone sees, with `critic_sees_time`."""


class ActionSpec(NamedTuple):
    """The layout of an action and of its distribution, leaf after leaf."""

    leaves: tuple[ActionLeaf, ...]

    @property
    def width(self) -> int:
        """W: a discrete leaf is stored as one float32 holding its index, a continuous one as its numbers."""
        return sum(1 if leaf.kind == "discrete" else leaf.size for leaf in self.leaves)

    @property
    def num_parameters(self) -> int:
        """P: logits of a discrete leaf, means and then log standard deviations of a continuous one."""
        return sum(leaf.size if leaf.kind == "discrete" else 2 * leaf.size for leaf in self.leaves)

    @property
    def mask_width(self) -> int:
        """Entries of an action mask: the choices of every discrete leaf, one after the other."""
        return sum(leaf.size for leaf in self.leaves if leaf.kind == "discrete")


class TensorSpec(NamedTuple):
    """Shape and dtype of one array per agent row."""

    shape: tuple[int, ...]
    dtype: str
    is_image: bool = False  # channels, height, width


def action_spec(spec: EnvSpec) -> ActionSpec:
    """The action layout of an environment."""
    return ActionSpec(spec.actions)


def observed(spec: EnvSpec, critic_sees_time: bool) -> tuple[ObservationLeaf, ...]:
    """Everything that a network is given: what the environment shows, and maybe what only the critic sees."""
    return (*spec.observations, ELAPSED_STEPS) if critic_sees_time else spec.observations


def observation_tensors(leaves: tuple[ObservationLeaf, ...]) -> dict[str, TensorSpec]:
    """name -> shape and dtype of each observation array, per agent row."""
    return {leaf.name: TensorSpec(leaf.shape, leaf.dtype, leaf.kind == "image") for leaf in leaves}
