"""The policy's memory between observations and heads: none, GRU or LSTM, of any number of layers.

The state of all layers is one tensor [N, H], which a caller can store without knowing what is in it. For each layer in
turn it holds h, and with an LSTM then c.

Shape letters:  T = time steps,  N = agent rows,  F = features in,  H = state_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from appo.algorithms.models.activations import tanh
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.device_choices import choices_for
from appo.algorithms.models.episode_sequences import Parts, cut, unroll_gru, unroll_lstm
from appo.algorithms.models.layers import initialize
from appo.algorithms.models.sequences import GruSequence, LstmSequence

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Features [N, F] and a state -> features of the next layer, and the state after."""


class FeedForwardCore(nn.Module):
    """No memory: features pass through, the state has no numbers."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.output_size = inputs
        self.state_size = 0

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[N, F], [N, 0] -> the same."""
        return x, state

    def unroll(self, x: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
        """[T, N, F], [N, 0], [T, N] -> [T, N, F]."""
        return x


class _RecurrentLayer(nn.Module):
    """Weights of one layer, shaped as in `torch.nn.GRU` and `torch.nn.LSTM`."""

    state_size: int

    def __init__(self, inputs: int, config: ModelConfig, num_gates: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.size = size
        self.input_weight = nn.Parameter(torch.empty(num_gates * size, inputs))
        self.recurrent_weight = nn.Parameter(torch.empty(num_gates * size, size))
        self.dtype = torch.float32  # what matrices are multiplied in
        self.input_bias = nn.Parameter(torch.zeros(num_gates * size))
        self.recurrent_bias = nn.Parameter(torch.zeros(num_gates * size))
        for weight in (self.input_weight, self.recurrent_weight):
            for gate in weight.data.split(size):
                initialize(gate, config)

    def _weights(self) -> list[Tensor]:
        return [self.input_weight, self.recurrent_weight, self.input_bias, self.recurrent_bias]


class GruLayer(_RecurrentLayer):
    """One layer of GRU; its state is h [N, size]."""

    def __init__(self, inputs: int, config: ModelConfig) -> None:
        super().__init__(inputs, config, num_gates=3)
        self.state_size = self.size
        if config.rnn_chrono_init:
            self.input_bias.data[self.size : 2 * self.size] = _chrono_bias(self.size, config.rnn_chrono_init)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Step`."""
        projected = nn.functional.linear(x, self.input_weight, self.input_bias).float()
        recurrent = nn.functional.linear(state, self.recurrent_weight, self.recurrent_bias).float()
        return self.advance(projected, recurrent, state)

    def advance(self, projected: Tensor, recurrent: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Both products [N, 3 * size], with their biases, and the state [N, size] -> h, twice."""
        gates = (2 * self.size, self.size)
        (projected_gates, projected_n), (gates_before, n_before) = projected.split(gates, 1), recurrent.split(gates, 1)
        r, z = (projected_gates + gates_before).sigmoid_().chunk(2, 1)
        n = tanh(torch.addcmul(projected_n, r, n_before), in_place=True)
        h = torch.lerp(n, state, z)
        return h, h

    def unroll(self, x: Tensor, state: Tensor, begins: Tensor) -> Tensor:
        """[T, N, F], [N, size] and [T, N, 1] bool, an episode begins -> [T, N, size]."""
        projected = nn.functional.linear(x, self.input_weight, self.input_bias).float()
        return GruSequence.apply(projected, state, begins, self.recurrent_weight, self.recurrent_bias, self.dtype)

    def unroll_episodes(self, x: Tensor, state: Tensor, parts: Parts) -> Tensor:
        """`unroll`, by the device's library."""
        return unroll_gru(x, state, parts, self._weights())


class LstmLayer(_RecurrentLayer):
    """One layer of LSTM; its state is h and c, [N, 2 * size]."""

    def __init__(self, inputs: int, config: ModelConfig) -> None:
        super().__init__(inputs, config, num_gates=4)
        self.state_size = 2 * self.size
        # Remember by default: a forget gate that starts half shut loses a cue within a few steps.
        self.input_bias.data[self.size : 2 * self.size] = 1.0
        if config.rnn_chrono_init:
            forget = _chrono_bias(self.size, config.rnn_chrono_init)
            self.input_bias.data[: 2 * self.size] = torch.cat((-forget, forget))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Step`."""
        h, c = state.chunk(2, 1)
        gates = nn.functional.linear(x, self.input_weight, self.input_bias + self.recurrent_bias).float()
        gates += nn.functional.linear(h, self.recurrent_weight)
        return self.advance(gates, c)

    def advance(self, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of both products [N, 4 * size], and c [N, size] -> h, and h beside c."""
        i, f, g, o = gates.chunk(4, 1)
        c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), tanh(g))
        h = o.sigmoid() * tanh(c)
        return h, torch.cat((h, c), 1)

    def unroll(self, x: Tensor, state: Tensor, begins: Tensor) -> Tensor:
        """[T, N, F], [N, 2 * size] and [T, N, 1] bool, an episode begins -> [T, N, size]."""
        h, c = state.chunk(2, 1)
        projected = nn.functional.linear(x, self.input_weight, self.input_bias + self.recurrent_bias).float()
        return LstmSequence.apply(projected, h, c, begins, self.recurrent_weight, self.dtype)

    def unroll_episodes(self, x: Tensor, state: Tensor, parts: Parts) -> Tensor:
        """`unroll`, by the device's library."""
        h, c = state.chunk(2, 1)
        return unroll_lstm(x, h, c, parts, self._weights())


def _chrono_bias(units: int, longest: int) -> Tensor:
    """[units] biases with which a gate keeps a state for times drawn evenly from 1 to `longest` steps.

    Source: Tallec and Ollivier, "Can recurrent neural networks warp time?", 2018, arXiv:1804.11188, section 2. A gate
    that keeps sigmoid(b) of the state in each step forgets over 1 + e^b steps.
    """
    return torch.empty(units).uniform_(1.0, max(2.0, float(longest) - 1.0)).log()


class RecurrentCore(nn.Module):
    """Layers of GRU or LSTM."""

    def __init__(self, inputs: int, config: ModelConfig) -> None:
        super().__init__()
        layer_type: type[GruLayer | LstmLayer] = GruLayer if config.rnn_type == "gru" else LstmLayer
        sizes = [inputs] + [config.hidden_size] * (config.rnn_num_layers - 1)
        layers: list[GruLayer | LstmLayer] = [layer_type(size, config) for size in sizes]
        self._layers = nn.ModuleList(layers)
        self._state_sizes = [layer.state_size for layer in layers]
        self.output_size = config.hidden_size
        self.state_size = sum(self._state_sizes)
        self.loops_over_steps: bool | None = None
        """Whether `unroll` does the same whatever the trajectories hold; None: as is fastest on the device."""

    def compute_with(self, dtype: torch.dtype) -> None:
        """Multiply matrices in this dtype."""
        for layer in self.layers:
            layer.dtype = dtype

    @property
    def layers(self) -> Sequence[GruLayer | LstmLayer]:
        """From the features to the heads."""
        return cast("Sequence[GruLayer | LstmLayer]", self._layers)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One observation: [N, F], [N, H] already zero where an episode begins -> [N, output_size], [N, H]."""
        return self.step_by([layer.step for layer in self.layers], x, state)

    def step_by(self, steps: Sequence[Step], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`step`, with another function in place of each layer's own."""
        states = []
        for step, layer_state in zip(steps, self._split(state), strict=True):
            x, after = step(x, layer_state)
            states.append(after)
        return x, states[0] if len(states) == 1 else torch.cat(states, 1)

    def unroll(self, x: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
        """Trajectories, with the same result as `step` after `step`.

        Args:
            x: [T, N, F].
            state: [N, H] before the first step.
            is_first: [T, N] not 0 where an episode begins: the state is zero there.

        Returns:
            [T, N, output_size].
        """
        begins = (is_first != 0).unsqueeze(-1)
        loops = choices_for(x.device).loops_over_steps if self.loops_over_steps is None else self.loops_over_steps
        # Cut once for all layers: it waits for the device.
        parts = None if loops else cut(begins)
        for layer, layer_state in zip(self.layers, self._split(state), strict=True):
            if parts is None:
                x = layer.unroll(x, layer_state, begins)
            else:
                x = layer.unroll_episodes(x, layer_state, parts)
        return x

    def _split(self, state: Tensor) -> Iterable[Tensor]:
        """[N, H] -> the state of each layer."""
        if state.shape[-1] != self.state_size:
            raise ValueError(f"state is {tuple(state.shape)}; the recurrent core keeps {self.state_size} numbers a row")
        return state.split(self._state_sizes, -1)


def build_core(inputs: int, config: ModelConfig) -> FeedForwardCore | RecurrentCore:
    """The core of the options."""
    return RecurrentCore(inputs, config) if config.use_rnn else FeedForwardCore(inputs)
