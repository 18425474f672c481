"""A trained policy as one function of plain tensors in the environment's own shapes: what an exported file holds.

Inputs by name:   each observation, as the environment shows it; `action_mask` where there is one; `recurrent_state` of
                  a policy with memory.
Outputs by name:  `action`, the most likely one, as `env.step` takes it, or `action/<key>` for each part of a Tuple or
                  Dict; `distribution`, the numbers that describe it; `value` where the critic reads the features of the
                  policy; `next_recurrent_state`.

A critic with a network of its own is left out, with its memory: it would double the work and decides nothing.

Shape letters:  N = agent rows,  H = size of the recurrent state of the policy,  P = numbers that describe an action
distribution,  W = numbers that store one action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from appo.algorithms.models.actor_critic import ActorCritic
from appo.algorithms.models.normalization import ObservationNormalizer
from appo.envs.action_layout import ActionLayout
from appo.envs.api import ACTION_MASK, ActionLeaf, EnvSpec
from appo.envs.observation_layout import ObservationLayout, ObservationPart
from appo.utils.options import ConfigError

RECURRENT_STATE, NEXT_RECURRENT_STATE = "recurrent_state", "next_recurrent_state"
ACTION, DISTRIBUTION, VALUE = "action", "distribution", "value"
_STATE_SPREAD = 0.5  # of random recurrent states, whose numbers lie in [-1, 1]


class Port(NamedTuple):
    """One input or output of an exported policy."""

    name: str
    shape: tuple[int, ...]  # of one agent row; the array has a first axis more, of any size
    dtype: str  # numpy's name of it
    path: tuple[Any, ...] = ()  # keys from an observation or action of the environment down to this array
    meaning: str = ""
    origin: Any = 0  # what categories count from, a number or a list of them


class ExportedPolicy(nn.Module):
    """`forward` is the whole policy: normalisers, encoders, memory, heads, and the choice of the action."""

    def __init__(self, model: ActorCritic, both_spaces: tuple[Any, Any], spec: EnvSpec) -> None:
        """Of a network that it takes over: it computes in float32 from now on.

        Raises:
            ConfigError: an observation has the name of another input.
        """
        super().__init__()
        model.compute_with(torch.float32)
        self.trunk, self.policy_head, self.distribution = model.trunks[0], model.policy_head, model.distribution
        self.preprocessor = model.preprocessor
        self.action_space = both_spaces[1]
        shares_features = len(model.trunks) == 1
        self.value_head = model.value_head if shares_features else None
        self.returns_normalizer = model.returns_normalizer if shares_features else None
        self._num_leaves = len(self.trunk.encoder.encoders)  # the first ones; the critic alone reads what follows
        self._observations = nn.ModuleList(_StoredObservation(part) for part in ObservationLayout(both_spaces[0]).parts)
        self._actions = nn.ModuleList(_actions_of(both_spaces[1]))
        self._has_info_mask = model.has_action_mask and ACTION_MASK not in (
            part.name for part in self.observation_parts
        )
        self.inputs = self._input_ports(spec)
        self.outputs = self._output_ports()
        names = [port.name for port in self.inputs]
        if len(set(names)) < len(names):
            raise ConfigError(f"the observation {RECURRENT_STATE!r} has the name of the memory's input; rename its key")
        self.eval().requires_grad_(False)

    @property
    def observation_parts(self) -> list[_StoredObservation]:
        """One for each observation of the environment."""
        return list(self._observations)  # type: ignore[arg-type]  # of the list's own kind

    @property
    def action_parts(self) -> list[_Choices | _Numbers]:
        """One for each part of the action space."""
        return list(self._actions)  # type: ignore[arg-type]

    @property
    def state_size(self) -> int:
        """H, 0 without memory."""
        return self.trunk.state_size

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Name -> [N, ...] of each of `inputs`, to the same of each of `outputs`."""
        observations = {part.name: part(inputs[part.name]) for part in self.observation_parts}
        if self._has_info_mask:
            observations[ACTION_MASK] = inputs[ACTION_MASK]
        leaves = self.preprocessor.by_leaf()[: self._num_leaves]
        prepared = [normalizer(convert(observations[name])) for name, convert, normalizer in leaves]
        state = inputs[RECURRENT_STATE] if self.state_size else prepared[0].new_zeros(prepared[0].shape[0], 0)
        features, after = self.trunk.step(prepared, state)
        parameters = self.policy_head(features, observations.get(ACTION_MASK))
        stored = self.distribution.mode(parameters)
        outputs = {part.name: part(stored) for part in self.action_parts} | {DISTRIBUTION: parameters}
        if self.value_head is not None:
            values = self.value_head(features)
            normalizer = self.returns_normalizer
            outputs[VALUE] = values if normalizer is None else normalizer.denormalize(values)
        return outputs | ({NEXT_RECURRENT_STATE: after} if self.state_size else {})

    def random_inputs(self, rows: int, both_spaces: tuple[Any, Any], seed: int = 0) -> dict[str, NDArray[Any]]:
        """Each input [rows, ...]: observations within their space, as spread as those that were learned from."""
        rng = np.random.default_rng(seed)
        usual = {
            leaf.name: normalizer
            for leaf, normalizer in zip(self.preprocessor.leaves, self.preprocessor.normalizers, strict=True)
            if isinstance(normalizer, ObservationNormalizer)
        }
        arrays: dict[str, NDArray[Any]] = {}
        for part in self.observation_parts:
            space = value_at(both_spaces[0], part.path)
            space.seed(seed)
            arrays[part.name] = _random_values(space, rows, rng, usual.get(part.name)).astype(part.dtype)
        for port in self.inputs[len(arrays) :]:
            is_mask = port.name == ACTION_MASK
            shape = (rows, *port.shape)
            values = rng.integers(0, 2, shape) if is_mask else rng.normal(0.0, _STATE_SPREAD, shape)
            arrays[port.name] = values.astype(port.dtype)
        return arrays

    def _input_ports(self, spec: EnvSpec) -> tuple[Port, ...]:
        ports = [
            Port(part.name, part.shape, part.dtype, part.path, part.meaning, part.origin)
            for part in self.observation_parts
        ]
        if self._has_info_mask:
            (mask,) = [leaf for leaf in spec.observations if leaf.name == ACTION_MASK]
            ports.append(
                Port(ACTION_MASK, mask.shape, mask.dtype, meaning="of the infos: 1 for each choice that is allowed")
            )
        if self.state_size:
            meaning = "zero where an episode begins, else the output of the step before"
            ports.append(Port(RECURRENT_STATE, (self.state_size,), "float32", meaning=meaning))
        return tuple(ports)

    def _output_ports(self) -> tuple[Port, ...]:
        ports = [
            Port(part.name, part.shape, part.dtype, part.path, "the most likely one") for part in self.action_parts
        ]
        numbers = self.distribution.spec.num_parameters
        ports.append(Port(DISTRIBUTION, (numbers,), "float32", meaning=_layout_of(self.distribution.spec.leaves)))
        if self.value_head is not None:
            ports.append(Port(VALUE, (), "float32", meaning="the return that the critic expects"))
        if self.state_size:
            ports.append(Port(NEXT_RECURRENT_STATE, (self.state_size,), "float32", meaning="for the next step"))
        return tuple(ports)


class _StoredObservation(nn.Module):
    """One observation, as the environment shows it -> as networks read it."""

    offset: Tensor | None

    def __init__(self, part: ObservationPart) -> None:
        super().__init__()
        leaf = part.leaf
        self.name, self.path, self.shape, self.dtype = leaf.name, part.path, part.native_shape, leaf.dtype
        self.meaning = "1 for each choice that is allowed" if leaf.kind == "mask" else leaf.kind
        self._stored_shape, self._channels_last = leaf.shape, part.channels_last
        self.origin = 0 if part.offset is None else np.asarray(part.offset).tolist()
        offset = None if part.offset is None else torch.as_tensor(part.offset, dtype=getattr(torch, leaf.dtype))
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, *shape] -> [N, *the leaf's shape]."""
        if self.offset is not None:
            x = x - self.offset
        if self._channels_last:
            x = x.movedim(-1, -3)
        return x.reshape(-1, *self._stored_shape)


class _Choices(nn.Module):
    """The columns of one Discrete, MultiDiscrete or MultiBinary in stored actions -> whole numbers."""

    start: Tensor

    def __init__(self, name: str, path: tuple[Any, ...], space: Any, column: int) -> None:
        super().__init__()
        self.name, self.path, self.shape = name, path, tuple(space.shape)
        self.dtype = "int64" if isinstance(space, spaces.Discrete) else space.dtype.name
        self.width = ActionLayout(space).width
        self._column = column
        start = np.broadcast_to(getattr(space, "start", 0), self.shape)
        self.register_buffer("start", torch.tensor(start.tolist(), dtype=torch.int64), persistent=False)

    def forward(self, actions: Tensor) -> Tensor:
        """[N, W] -> [N, *shape]."""
        chosen = actions[:, self._column : self._column + self.width].to(torch.int64)
        return (chosen.reshape(-1, *self.shape) + self.start).to(getattr(torch, self.dtype))


class _Numbers(nn.Module):
    """The columns of one Box in stored actions, in policy units -> numbers within its bounds."""

    lowest: Tensor
    highest: Tensor
    scale: Tensor
    centre: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, name: str, path: tuple[Any, ...], space: spaces.Box, column: int) -> None:
        super().__init__()
        self.name, self.path, self.shape, self.dtype = name, path, tuple(space.shape), space.dtype.name
        (leaf,) = ActionLayout(space).leaves
        self.width = leaf.size
        self._column = column
        low, high = np.asarray(leaf.low), np.asarray(leaf.high)
        is_bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):  # inf - inf, in entries that are not stretched
            constants = {
                "lowest": np.where(is_bounded, -1.0, low),
                "highest": np.where(is_bounded, 1.0, high),
                "scale": np.where(is_bounded, (high - low) / 2, 1.0),
                "centre": np.where(is_bounded, (high + low) / 2, 0.0),
                "low": space.low.reshape(-1),
                "high": space.high.reshape(-1),
            }
        for key, value in constants.items():
            self.register_buffer(key, torch.tensor(value, dtype=getattr(torch, self.dtype)), persistent=False)

    def forward(self, actions: Tensor) -> Tensor:
        """[N, W] -> [N, *shape]."""
        numbers = actions[:, self._column : self._column + self.width].to(self.scale.dtype)
        numbers = torch.clamp(numbers, self.lowest, self.highest) * self.scale + self.centre
        numbers = torch.clamp(numbers, self.low, self.high)  # rounding may have left the bounds
        return numbers.reshape(-1, *self.shape)


def _action_spaces(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each part of an action space that is no Tuple or Dict, with the keys that lead to it, in the order of columns."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        keyed = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, sub_space in keyed:
            yield from _action_spaces(sub_space, (*path, key))
    else:
        yield path, space


def value_at(value: Any, path: tuple[Any, ...]) -> Any:
    """What lies within a nested value, or a nested space, at the end of these keys."""
    for key in path:
        value = value[key]
    return value


def _actions_of(space: Any) -> Iterator[_Choices | _Numbers]:
    column = 0
    for path, part in _action_spaces(space):
        kind = _Numbers if isinstance(part, spaces.Box) else _Choices
        made = kind("/".join([ACTION, *map(str, path)]), path, part, column)
        column += made.width
        yield made


def _random_values(
    space: Any, rows: int, rng: np.random.Generator, usual: ObservationNormalizer | None
) -> NDArray[Any]:
    """[rows, ...] values of a space."""
    if not (isinstance(space, spaces.Box) and space.dtype.kind == "f"):
        return np.stack([np.asarray(space.sample()) for _ in range(rows)])
    centre, spread = np.zeros(space.shape), np.ones(space.shape)
    if usual is not None:
        centre, spread = (part.numpy().reshape(space.shape) for part in (usual.mean, usual.variance.sqrt()))
    return np.clip(rng.normal(centre, spread, (rows, *space.shape)), space.low, space.high)


def _layout_of(leaves: Sequence[ActionLeaf]) -> str:
    """What the columns of `distribution` are."""
    words, column = [], 0
    for leaf in leaves:
        if leaf.kind == "discrete":
            words.append(f"{_columns(column, leaf.size)} logits of {leaf.size} choices")
            column += leaf.size
        else:
            words.append(f"{_columns(column, leaf.size)} means")
            words.append(f"{_columns(column + leaf.size, leaf.size)} logarithms of standard deviations")
            column += 2 * leaf.size
    return ", ".join(words)


def _columns(first: int, count: int) -> str:
    return f"{first}:" if count == 1 else f"{first} to {first + count - 1}:"
