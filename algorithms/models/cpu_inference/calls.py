"""What modules do to one tensor, as a list of calls, with packed weights where a layer is worth it.

Between two batches of a policy worker, learner and engines push Python and torch out of the caches of its core. Then
every module, context and attribute on the way to a product costs several times what it costs in a loop: of 3.0 ms for 8
rows of doom_basic right after an engine had the core, 1.7 did not depend on the number of rows.

The modules stay as they are; a module that no rule knows is called as a whole, with its layers packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from appo.algorithms.models.convolutions import PixelConv
from appo.algorithms.models.cores import FeedForwardCore, GruLayer, LstmLayer, RecurrentCore, Step
from appo.algorithms.models.cpu_inference.packing import PackedKernel, PackedMatrix
from appo.algorithms.models.encoders import mlp, resnet_impala
from appo.algorithms.models.layers import ConvStack, InputLinear
from appo.algorithms.models.normalization import ObservationNormalizer
from appo.algorithms.models.observation_encoder import CategoryEncoder

Call = Callable[[Tensor], Tensor]
_Rule = Callable[["CallFinder", Any], list[Call]]

WORTH_PACKING = 16_384  # numbers in a matrix


def through(calls: Sequence[Call], x: Tensor) -> Tensor:
    """What the calls make of x, one after the other."""
    for call in calls:
        x = call(x)
    return x


class CallFinder:
    """Finds the calls of modules, for their weights as they are now."""

    def __init__(self, dtype: torch.dtype, *, packs: bool) -> None:
        """`dtype`: what the network multiplies in. `packs`: see `packing.can_pack`."""
        self._dtype = dtype
        self._packs = packs
        self.packed: set[nn.Module] = set()
        """The layers met so far whose weights were packed."""
        self.has_met_unknown = False
        """A module with weights or buffers was met that no rule knows: it may multiply in any dtype."""

    def calls_of(self, module: nn.Module) -> list[Call]:
        """What a module does to one tensor, without the modules in between, but for those that have hooks."""
        if _has_hooks(module):
            self.has_met_unknown = True
            return [module]
        packed = self._packed_form(module)
        if packed is not None:
            return [packed]
        rule = _RULES.get(_definer_of_forward(module))
        if rule is not None:
            return rule(self, module)
        self.has_met_unknown |= any(True for _ in (*module.parameters(), *module.buffers()))
        return [self._with_packed_layers(module).forward]

    def step_of(self, core: FeedForwardCore | RecurrentCore) -> Step:
        """What a core does to features and state."""
        if not self._packs or isinstance(core, FeedForwardCore):
            return core.step
        return partial(core.step_by, [self._packed_step(layer) for layer in core.layers])

    def _packed_form(self, module: nn.Module) -> Call | None:
        """The layer as a call with packed weights; None for what is no layer, too small, or of a kind not packed."""
        # A hook may make the weights anew for each pass, as `torch.nn.utils.spectral_norm` does.
        packs = self._packs and not _has_hooks(module)
        pack = _PACKED_FORMS.get(_definer_of_forward(module)) if packs else None
        packed = pack and pack(module, self._dtype)
        if packed is not None:
            self.packed.add(module)
        return packed

    def _with_packed_layers(self, module: nn.Module) -> nn.Module:
        """A view of a module that shares all it has but its children, whose layers are packed; itself without such."""
        packed = self._packed_form(module)
        if packed is not None:
            return _viewed(module, forward=packed)
        children = {name: child and self._with_packed_layers(child) for name, child in module._modules.items()}
        if all(children[name] is child for name, child in module._modules.items()):
            return module
        return _viewed(module, _modules=children)

    def _packed_step(self, layer: GruLayer | LstmLayer) -> Step:
        self.packed.add(layer)
        if isinstance(layer, GruLayer):
            return _PackedGru(layer, self._dtype)
        return _PackedLstm(layer, self._dtype)


class _PackedGru:
    def __init__(self, layer: GruLayer, dtype: torch.dtype) -> None:
        self._input = PackedMatrix(layer.input_weight, layer.input_bias, dtype)
        self._recurrent = PackedMatrix(layer.recurrent_weight, layer.recurrent_bias, dtype)
        self._advance = layer.advance

    def __call__(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self._advance(self._input(x).float(), self._recurrent(state).float(), state)


class _PackedLstm:
    def __init__(self, layer: LstmLayer, dtype: torch.dtype) -> None:
        self._input = PackedMatrix(layer.input_weight, layer.input_bias + layer.recurrent_bias, dtype)
        self._recurrent = PackedMatrix(layer.recurrent_weight, None, dtype)
        self._advance = layer.advance

    def __call__(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = state.chunk(2, 1)
        gates = self._input(x).float()
        gates += self._recurrent(h)
        return self._advance(gates, c)


def _viewed(module: nn.Module, **changed: Any) -> nn.Module:
    """Another module with the same attributes, but for these."""
    view: nn.Module = object.__new__(type(module))
    view.__dict__.update(module.__dict__ | changed)
    return view


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _definer_of_forward(module: nn.Module) -> type:
    """The class whose `forward` is called: what a subclass changes besides does not matter."""
    return next(kind for kind in type(module).__mro__ if "forward" in vars(kind))


def _packed_linear(layer: nn.Linear, dtype: torch.dtype) -> PackedMatrix | None:
    if layer.weight.numel() < WORTH_PACKING:
        return None
    is_input = isinstance(layer, InputLinear)
    return PackedMatrix(layer.weight, layer.bias, torch.float32 if is_input else dtype, dtype)


def _packed_conv(layer: nn.Conv2d, dtype: torch.dtype) -> PackedKernel | None:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    return PackedKernel(layer, layer.scaled_weight() if isinstance(layer, PixelConv) else layer.weight, dtype)


_PACKED_FORMS: dict[type, Callable[[Any, torch.dtype], Call | None]] = {
    nn.Linear: _packed_linear,
    InputLinear: _packed_linear,
    nn.Conv2d: _packed_conv,
    PixelConv: _packed_conv,
}


def _sequential(find: CallFinder, module: nn.Sequential) -> list[Call]:
    return [call for layer in module for call in find.calls_of(layer)]


def _layers(find: CallFinder, module: Any) -> list[Call]:
    return find.calls_of(module.layers)


def _residual(find: CallFinder, block: resnet_impala.ResidualBlock) -> list[Call]:
    calls = find.calls_of(block.layers)
    return [lambda x: x + through(calls, x)]


def _categories(find: CallFinder, encoder: CategoryEncoder) -> list[Call]:
    return [encoder.vectors, *find.calls_of(encoder.encoder)]  # type: ignore[arg-type]


def _linear(find: CallFinder, layer: nn.Linear) -> list[Call]:
    bias = None if layer.bias is None else layer.bias.detach()
    return [partial(nn.functional.linear, weight=layer.weight.detach(), bias=bias)]


def _input_linear(find: CallFinder, layer: InputLinear) -> list[Call]:
    (call,), kind = _linear(find, layer), layer.weight.device.type
    return [lambda x: layer.forward(x) if torch.is_autocast_enabled(kind) else call(x)]


def _normalizer(find: CallFinder, normalizer: ObservationNormalizer) -> list[Call]:
    return [normalizer.prepared()]


_RULES: dict[type, _Rule] = {
    nn.Identity: lambda find, module: [],
    nn.Sequential: _sequential,
    nn.Linear: _linear,
    InputLinear: _input_linear,
    ConvStack: _layers,
    mlp.Encoder: _layers,
    resnet_impala.Encoder: _layers,
    resnet_impala.ResidualBlock: _residual,
    CategoryEncoder: _categories,
    ObservationNormalizer: _normalizer,
}
