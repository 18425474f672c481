"""`ActorCritic.act` and `decide` for a CPU, prepared once for many batches.

Shape letters:  N = agent rows,  H = size of the recurrent state,  F = features.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from appo.algorithms.models.actor_critic import ActorCritic, Trunk
from appo.algorithms.models.api import StepOutput
from appo.algorithms.models.cpu_inference.calls import CallFinder, through
from appo.algorithms.models.cpu_inference.packing import can_pack


class ActingStep:
    """`ActorCritic.act` and `decide`, prepared: hold until the weights change."""

    def __init__(self, model: ActorCritic) -> None:
        """For the weights as they are now."""
        finder = CallFinder(model.dtype, packs=can_pack(torch.device("cpu"), model.dtype))
        leaves = model.preprocessor.by_leaf()
        self._leaves = [(name, [convert, *finder.calls_of(normalizer)]) for name, convert, normalizer in leaves]
        self._mask = model.mask_of
        with torch.no_grad():
            self._trunks = [_TrunkCalls(trunk, finder) for trunk in model.trunks]
            self._heads = model.joined_heads(in_reward_units=True) if len(self._trunks) == 1 else None
        self._state_sizes = [trunk.state_size for trunk in model.trunks]
        needs_autocast = finder.has_met_unknown or _leaves_products_to_autocast(model, finder.packed)
        self._autocast = model.autocast if needs_autocast and model.dtype != torch.float32 else None
        self._policy_head, self._value_head = model.policy_head, model.value_head
        self._denormalize = model.returns_normalizer.denormalize if model.returns_normalizer is not None else None
        self.packed = frozenset(finder.packed)
        """The layers whose own weights are not read."""

    def act(self, observations: Mapping[str, Tensor], state: Tensor) -> StepOutput:
        """See `ActorCritic.act`."""
        outputs = self._through_trunks(self._trunks, observations, state)
        mask = self._mask(observations)
        features, after = outputs[0]
        if self._heads is not None:
            return StepOutput(*self._heads(features, mask), after)
        values = self._value_head(outputs[-1][0])
        if self._denormalize is not None:
            values = self._denormalize(values)
        return StepOutput(self._policy_head(features, mask), values, torch.cat([part for _, part in outputs], 1))

    def decide(self, observations: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """See `ActorCritic.decide`."""
        ((features, after),) = self._through_trunks(self._trunks[:1], observations, state)
        if after.shape[1] < state.shape[1]:
            after = torch.cat((after, state[:, after.shape[1] :]), 1)
        return self._policy_head(features, self._mask(observations)), after

    def _through_trunks(
        self, trunks: list[_TrunkCalls], observations: Mapping[str, Tensor], state: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Features, float32, and the state after, of the first trunks."""
        prepared = [through(calls, observations[name]) for name, calls in self._leaves[: trunks[-1].num_leaves]]
        parts = [state] if len(self._trunks) == 1 else state.split(self._state_sizes, 1)
        with nullcontext() if self._autocast is None else self._autocast(state.device):
            return [trunk(prepared, part) for trunk, part in zip(trunks, parts, strict=False)]


class _TrunkCalls:
    """Encoders and core of one trunk."""

    def __init__(self, trunk: Trunk, finder: CallFinder) -> None:
        self._encoders = [finder.calls_of(encoder) for encoder in trunk.encoder.encoders]
        self._layers = finder.calls_of(trunk.encoder.layers)
        self._step = finder.step_of(trunk.core)
        self.num_leaves = len(self._encoders)

    def __call__(self, prepared: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """[N, ...] per leaf, this trunk's first, and [N, H] -> features [N, F] and the state after."""
        own = prepared[: self.num_leaves]
        features = [through(calls, x) for calls, x in zip(self._encoders, own, strict=True)]
        x = through(self._layers, features[0] if len(features) == 1 else torch.cat(features, -1))
        x, state = self._step(x, state)
        return x.float(), state


def _leaves_products_to_autocast(model: ActorCritic, packed: set[nn.Module]) -> bool:
    """Some layer holds float32 weights, which would be multiplied as they are."""

    def is_left(layer: nn.Module) -> bool:
        return layer not in packed and any(parameter.dim() > 1 for parameter in layer.parameters(recurse=False))

    return any(is_left(layer) for trunk in model.trunks for layer in trunk.modules())
