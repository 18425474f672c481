"""The policy worker's half of a policy: weights that can be replaced, and the memory of every agent row.

Shape letters:  N = agent rows of one request,  W = numbers that store an action,  P = numbers that describe its
distribution,  H = size of the recurrent state (0 without one).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from appo.algorithms.cuda_graphs import CannotBeCapturedError
from appo.algorithms.models.actor_critic import ActorCritic
from appo.algorithms.models.cpu_inference.acting import ActingStep
from appo.algorithms.models.device_choices import choices_for
from appo.algorithms.models.graphed_acting import GraphedActing
from appo.algorithms.models.layers import input_weights
from appo.algorithms.models.parameters import flatten
from appo.algorithms.specs import ELAPSED_STEPS

log = logging.getLogger(__name__)
_WORTH_CONVERTING = 16_384  # numbers in a weight


class InferenceResult(NamedTuple):
    """What goes into the block for one decision of each row; float32 on the CPU."""

    actions: Tensor  # [N, W]
    log_prob: Tensor  # [N] of the joint action
    parameters: Tensor  # [N, P]
    values: Tensor  # [N] in units of reward
    state_before: Tensor  # [N, H] that the decision started from: zero where `is_first`


class PolicyInference:
    """Acts for up to `num_rows` agents, each with a recurrent state of its own, which is kept on the device.

    Args:
        model: Taken over: moved to the device, its weights laid out flat.
        num_rows: How many agent rows there are; rows are numbered from 0.
        device: Where the network runs.
        seed: Of the sampled actions.
    """

    _graphed: GraphedActing | None
    _num_rows: int

    def __init__(self, model: ActorCritic, num_rows: int, device: torch.device | str, seed: int) -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()
        self._flat = flatten(self.model)
        self._is_on_cpu = self.device.type == "cpu"
        self.received = self._flat if self._is_on_cpu else torch.empty(self._flat.shape, pin_memory=True)
        """[n] float32 on the CPU: where new weights are written, between two calls of `act`."""
        self._acting, packed = prepare_acting(self.model, self.device)
        self._converted = _convert_large_weights(self.model, packed)
        if self._converted:
            self._prepare()
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._uses_cuda_graphs = model.uses_cuda_graphs
        self._resize(torch.zeros(0, model.state_size, device=self.device), num_rows)
        self._needs_elapsed_steps = ELAPSED_STEPS in model.preprocessor.leaves

    @torch.inference_mode()
    def act(
        self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor, deterministic: bool = False
    ) -> InferenceResult:
        """Decide for some rows, and remember their state after it.

        Args:
            rows: [N] int64, no row twice.
            observations: name -> [N, ...] on the CPU, in the environment's dtypes. Without `ELAPSED_STEPS`, as in
                evaluation, values are those of an episode's first step.
            is_first: [N] uint8, 1: the observation is the first of an episode.
            deterministic: Take the most likely action instead of sampling.
        """
        if self._needs_elapsed_steps and ELAPSED_STEPS.name not in observations:
            observations = {**observations, ELAPSED_STEPS.name: torch.zeros(len(rows), *ELAPSED_STEPS.shape)}
        if self._uses_cuda_graphs and not deterministic:
            if self._graphed is None:
                self._graphed = GraphedActing(self._num_rows, self.device, self._generator)
            try:
                return self._unpacked(self._graphed.act(self._decide_packed, rows, observations, is_first))
            except CannotBeCapturedError as error:
                log.warning("%s: decisions are computed without CUDA graphs, as by --cuda_graphs=False", error)
                self._uses_cuda_graphs, self._graphed = False, None
        result = self._decide(*self._on_device(rows, observations, is_first), deterministic=deterministic)
        # One transfer instead of five: each waits for the device.
        return result if self._is_on_cpu else self._unpacked(_packed(result).cpu())

    @torch.inference_mode()
    def choose(
        self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor, deterministic: bool = False
    ) -> Tensor:
        """The actions [N, W] of `act` alone, float32 on the CPU: half its work.

        The random numbers are those of `act`, but where that is a CUDA graph. A memory of the critic's own stands
        still; so rows are either chosen for or acted for, from their first step.
        """
        rows, observations, is_first = self._on_device(rows, observations, is_first)
        parameters, after = self._acting.decide(observations, self._states_before(rows, is_first))
        if self.model.state_size:
            self._state.index_copy_(0, rows, after)
        distribution = self.model.distribution
        actions = distribution.mode(parameters) if deterministic else distribution.sample(parameters, self._generator)
        return actions.cpu()

    @torch.no_grad()
    def adopt_received(self) -> None:
        """Use from now on what was written into `received`. States that are not finite become zero."""
        if self.received is not self._flat:
            self._flat.copy_(self.received)
        # What former weights made of a state would stay until its episode ends, whatever the weights are by then.
        self._state.nan_to_num_(0.0, 0.0, 0.0)
        self._prepare()

    def upload_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """[all agent rows, *shape] that the device copies from at once; None where it reads any memory, as a CPU does.

        What is given to `act` from there has been copied when it returns.
        """
        if self.device.type != "cuda":
            return None
        return torch.empty((self._num_rows, *shape), dtype=dtype, pin_memory=True)

    def set_states(self, rows: Tensor, states: Tensor) -> None:
        """Give some rows [N] the recurrent states [N, H]."""
        self._state.index_copy_(0, rows.to(self.device), states.to(self.device))

    def resize(self, num_rows: int) -> None:
        """Act for another number of rows; those that there were keep their states."""
        self._resize(self._state[: min(num_rows, self._num_rows)], num_rows)

    @property
    def random_state(self) -> Tensor:
        """Where the random numbers of sampled actions stand."""
        return self._generator.get_state()

    @random_state.setter
    def random_state(self, state: Tensor) -> None:
        self._generator.set_state(state)

    def _resize(self, kept: Tensor, num_rows: int) -> None:
        self._num_rows = num_rows
        # The last row is nobody's: CUDA graphs pad batches with it.
        self._state = kept.new_zeros(num_rows + 1, self.model.state_size)
        self._state[: len(kept)] = kept
        self._graphed = None

    def _decide(
        self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor, *, deterministic: bool
    ) -> InferenceResult:
        """`act`, with everything on the device."""
        before = self._states_before(rows, is_first)
        parameters, values, after = self._acting.act(observations, before)
        if self.model.state_size:
            self._state.index_copy_(0, rows, after)
        distribution = self.model.distribution
        if deterministic:
            actions = distribution.mode(parameters)
            log_prob = distribution.log_prob(parameters, actions)
        else:
            actions, log_prob = distribution.sample_with_log_prob(parameters, self._generator)
        return InferenceResult(actions, log_prob, parameters, values, before)

    def _decide_packed(self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor) -> Tensor:
        return _packed(self._decide(rows, observations, is_first, deterministic=False))

    @torch.no_grad()
    def _prepare(self) -> None:
        for weight, source in self._converted:
            weight.copy_(source)
        self._acting, _ = prepare_acting(self.model, self.device)

    def _on_device(
        self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor], Tensor]:
        if self._is_on_cpu:
            return rows, observations, is_first
        moved = {name: value.to(self.device, non_blocking=True) for name, value in observations.items()}
        return rows.to(self.device), moved, is_first.to(self.device)

    def _states_before(self, rows: Tensor, is_first: Tensor) -> Tensor:
        """[N, H], zero where `is_first`."""
        if not self.model.state_size:
            return self._state.new_empty(len(rows), 0)
        # Not a product with zero, which a state that is not finite would survive.
        return self._state.index_select(0, rows).masked_fill_((is_first != 0).unsqueeze(1), 0.0)

    def _unpacked(self, packed: Tensor) -> InferenceResult:
        """Undo `_packed`."""
        spec = self.model.distribution.spec
        widths = [spec.width, 1, spec.num_parameters, 1, self.model.state_size]
        actions, log_prob, parameters, values, before = packed.split(widths, 1)
        return InferenceResult(actions, log_prob.squeeze(1), parameters, values.squeeze(1), before)


def _packed(result: InferenceResult) -> Tensor:
    """All numbers of a result side by side, [N, W + P + H + 2]."""
    return torch.cat([field.reshape(len(field), -1) for field in result], 1)


def prepare_acting(model: ActorCritic, device: torch.device) -> tuple[ActorCritic | ActingStep, Collection[nn.Module]]:
    """`act` and `decide` of a model as they are fastest on a device, for the weights as they are now.

    Returns:
        What has both, and the layers of which it holds copies, so that it does not read their own weights.
    """
    if not choices_for(device).packs_weights:
        return model, ()
    step = ActingStep(model)
    return step, step.packed


def _convert_large_weights(model: ActorCritic, packed: Collection[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Let layers that are not packed hold what they multiply with in its dtype, converted once for many small batches.

    Returns:
        (weight, its float32 source) of each, yet to be filled.
    """
    converted: list[tuple[Tensor, Tensor]] = []
    left_out = input_weights(model)
    for layer in packed:
        left_out.update(layer.parameters(recurse=False))
    for name, weight in model.named_parameters():
        # Heads compute in float32; a spectral norm is computed from the weight itself.
        if weight.numel() < _WORTH_CONVERTING or any(part in name for part in ("head", "parametrizations")):
            continue
        if model.dtype != torch.float32 and weight not in left_out:
            source = weight.data
            weight.data = torch.empty_like(source, dtype=model.dtype)
            converted.append((weight.data, source))
    return converted
