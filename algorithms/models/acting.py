"""One step of a network as a list of calls, for a policy worker that takes it again and again.

Between two batches of a policy worker, learner and engines push Python and torch out of the caches of its core. Then
every module, context and attribute on the way to a product costs several times what it costs in a loop: of 3.0 ms for 8
rows of doom_basic right after an engine had the core, 1.7 did not depend on the number of rows.

Shape letters:  N = agent rows,  H = size of the recurrent state,  F = features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from appo.algorithms.models.api import StepOutput
from appo.algorithms.models.packing import Call, Packable

if TYPE_CHECKING:
    from appo.algorithms.models.actor_critic import ActorCritic, Trunk


@runtime_checkable
class Flat(Protocol):
    """A module around others that is no more than their calls, one after the other.

    A subclass with a `forward` of its own is one again when it has `calls` of its own.
    """

    def calls(self) -> list[Call]:
        """What `forward` does to one tensor."""


def calls_of(module: nn.Module) -> list[Call]:
    """What a module does to one tensor, without the modules in between where it tells of them and nobody hooks in."""
    kind = type(module)
    if module._forward_hooks or module._forward_pre_hooks:
        return [module]
    if kind is nn.Identity:
        return []
    if isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward:
        return [call for layer in module for call in calls_of(layer)]
    if isinstance(module, Flat) and issubclass(_definer(kind, "calls"), _definer(kind, "forward")):
        return module.calls()
    return [module.forward]


def _definer(kind: type, name: str) -> type:
    return next(base for base in kind.__mro__ if name in vars(base))


class ActingStep:
    """`ActorCritic.act`, prepared: holds until the weights change or are packed anew."""

    def __init__(self, model: ActorCritic) -> None:
        """For the weights as they are now."""
        self._leaves = model.preprocessor.calls()
        self._mask = model.mask_of
        self._trunks = [_TrunkCalls(trunk) for trunk in model.trunks]
        self._state_sizes = [trunk.state_size for trunk in model.trunks]
        self._autocast = model.autocast if _leaves_products_to_autocast(model) else None
        with torch.no_grad():
            self._heads = model.joined_heads(in_reward_units=True) if len(self._trunks) == 1 else None
        self._policy_head, self._value_head = model.policy_head, model.value_head
        self._denormalize = model.returns_normalizer.denormalize if model.returns_normalizer is not None else None

    def __call__(self, observations: Mapping[str, Tensor], state: Tensor) -> StepOutput:
        """See `ActorCritic.act`."""
        prepared = [through(calls, observations[name]) for name, calls in self._leaves]
        if self._autocast is None:
            outputs = self._through_trunks(prepared, state)
        else:
            with self._autocast(state.device):
                outputs = self._through_trunks(prepared, state)
        mask = self._mask(observations)
        features, after = outputs[0]
        if self._heads is not None:
            return StepOutput(*self._heads(features, mask), after)
        values = self._value_head(outputs[-1][0])
        if self._denormalize is not None:
            values = self._denormalize(values)
        return StepOutput(self._policy_head(features, mask), values, torch.cat([part for _, part in outputs], 1))

    def _through_trunks(self, prepared: list[Tensor], state: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Features, float32, and the state after, of each trunk."""
        if len(self._trunks) == 1:
            return [self._trunks[0](prepared, state)]
        parts = state.split(self._state_sizes, 1)
        return [trunk(prepared, part) for trunk, part in zip(self._trunks, parts, strict=True)]


class _TrunkCalls:
    """Encoders and core of one trunk."""

    def __init__(self, trunk: Trunk) -> None:
        self._encoders = [calls_of(encoder) for encoder in trunk.encoder.encoders]
        self._layers = calls_of(trunk.encoder.layers)
        self._step = trunk.core.step

    def __call__(self, prepared: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """[N, ...] per leaf, this trunk's first, and [N, H] -> features [N, F] and the state after."""
        own = prepared[: len(self._encoders)]
        features = [through(calls, x) for calls, x in zip(self._encoders, own, strict=True)]
        x = through(self._layers, features[0] if len(features) == 1 else torch.cat(features, -1))
        x, state = self._step(x, state)
        return x.float(), state


def through(calls: Sequence[Call], x: Tensor) -> Tensor:
    """What the calls make of x, one after the other."""
    for call in calls:
        x = call(x)
    return x


def _leaves_products_to_autocast(model: ActorCritic) -> bool:
    """Some layer holds float32 weights and is to multiply in less."""
    if model.dtype == torch.float32:
        return False

    def is_left(layer: nn.Module) -> bool:
        has_matrix = any(parameter.dim() > 1 for parameter in layer.parameters(recurse=False))
        return has_matrix and not (isinstance(layer, Packable) and layer.is_packed)

    return any(is_left(layer) for trunk in model.trunks for layer in trunk.modules())
