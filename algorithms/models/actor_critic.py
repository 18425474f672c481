"""The network of a policy: observations and memory to an action distribution and a value.

`act` is one step for the policy worker, `unroll` the same function over trajectories for the learner. With equal
weights both give equal numbers, to the rounding of float32: a test demands it for every encoder, core and action
space.

Shape letters:  T = time steps,  N = agent rows,  H = state_size,  P = numbers that describe an action distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from appo.algorithms.models.action_distributions import ActionDistribution
from appo.algorithms.models.api import StepOutput, UnrollOutput
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.cores import RecurrentCore, build_core
from appo.algorithms.models.heads import JoinedHeads, PolicyHead, ValueHead
from appo.algorithms.models.layers import input_weights, refresh_spectral_norms
from appo.algorithms.models.normalization import ReturnsNormalizer
from appo.algorithms.models.observation_encoder import ObservationEncoder, Preprocessor, encoded_leaves
from appo.algorithms.models.precision import compute_dtype, set_gpu_float32
from appo.algorithms.specs import action_spec, observed
from appo.envs.api import ACTION_MASK, EnvSpec, ObservationLeaf
from appo.utils.options import ConfigError


def build_actor_critic(config: ModelConfig, spec: EnvSpec, device: torch.device | str = "cpu") -> ActorCritic:
    """The network for an environment on a device, with new weights drawn from torch's global generator.

    Raises:
        ConfigError: the options do not suit the environment.
    """
    if torch.device(device).type == "cuda":
        set_gpu_float32(config.precision)
    model = ActorCritic(config, spec).to(device)
    if config.cuda_graphs and torch.device(device).type == "cuda":
        model.use_cuda_graphs()
    model.compute_with(compute_dtype(config.precision, torch.device(device), model.reads_images, model.largest_matrix))
    return model


class ActorCritic(nn.Module):
    """Policy and value; one trunk for both, or one each.

    Buffers change only in `update_observation_normalizer` and `update_returns_normalizer`, which belong to the learner.
    """

    distribution: ActionDistribution
    state_size: int
    """H of all trunks together, 0 without a recurrent core."""
    returns_normalizer: ReturnsNormalizer | None
    policy_head: PolicyHead
    value_head: ValueHead

    def __init__(self, config: ModelConfig, spec: EnvSpec) -> None:
        super().__init__()
        trunks, actions = build_trunks(config, spec), action_spec(spec)
        self.reads_images = any(leaf.kind == "image" for leaf in spec.observations)
        self._dtype = torch.float32
        self.uses_cuda_graphs = False
        """Whoever acts or learns with it on a GPU does so with CUDA graphs."""
        self.has_action_mask = _has_action_mask(spec.observations, actions.mask_width)
        self.distribution = ActionDistribution(actions)
        self.preprocessor = Preprocessor(encoded_leaves(observed(spec, config.critic_sees_time)), config)
        self._trunks = nn.ModuleList(trunks)
        self._state_sizes = [trunk.state_size for trunk in trunks]
        self.state_size = sum(self._state_sizes)
        self.policy_head = PolicyHead(trunks[0].output_size, actions, config)
        self.value_head = ValueHead(trunks[-1].output_size, config)
        self.returns_normalizer = ReturnsNormalizer() if config.normalize_returns else None

    def compute_with(self, dtype: torch.dtype) -> None:
        """Let encoders and cores multiply in this dtype. Weights, heads and what comes out stay float32."""
        self._dtype = dtype
        self.preprocessor.image_dtype = dtype
        for trunk in self.trunks:
            if isinstance(trunk.core, RecurrentCore):
                trunk.core.compute_with(dtype)

    def use_cuda_graphs(self) -> None:
        """Compute in ways that are the same for all numbers, as CUDA graphs demand."""
        self.uses_cuda_graphs = True
        for trunk in self.trunks:
            if isinstance(trunk.core, RecurrentCore):
                trunk.core.loops_over_steps = True

    @property
    def trunks(self) -> Sequence[Trunk]:
        """The actor's first."""
        return cast("Sequence[Trunk]", self._trunks)

    @property
    def largest_matrix(self) -> int:
        """Numbers in the largest matrix that is multiplied in `dtype`; 0 without any."""
        exact = input_weights(self)
        return max((w.numel() for w in self._trunks.parameters() if w.dim() == 2 and w not in exact), default=0)

    @property
    def dtype(self) -> torch.dtype:
        """What encoders and cores multiply in."""
        return self._dtype

    def act(self, observations: Mapping[str, Tensor], state: Tensor) -> StepOutput:
        """Decide one step.

        Args:
            observations: name -> [N, ...] in the environment's dtypes.
            state: [N, H] after the observation before; zero where an episode begins.
        """
        prepared = self.preprocessor(observations)
        with self.autocast(state.device):
            outputs = [trunk.step(prepared, part) for trunk, part in self._with_states(state)]
        parameters = self.policy_head(outputs[0][0], self.mask_of(observations))
        values = self.value_head(outputs[-1][0])
        if self.returns_normalizer is not None:
            values = self.returns_normalizer.denormalize(values)
        return StepOutput(parameters, values, torch.cat([after for _, after in outputs], 1))

    def decide(self, observations: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """`act` without the critic.

        Returns:
            parameters [N, P], and the state after, [N, H], in which a memory that only the critic has stays as it was.
        """
        actor = self.trunks[0]
        prepared = self.preprocessor(observations, len(actor.encoder.encoders))
        with self.autocast(state.device):
            features, after = actor.step(prepared, state[:, : actor.state_size])
        parameters = self.policy_head(features, self.mask_of(observations))
        return parameters, torch.cat((after, state[:, actor.state_size :]), 1)

    def unroll(self, observations: Mapping[str, Tensor], state: Tensor, is_first: Tensor) -> UnrollOutput:
        """Decide every step of trajectories at once.

        Args:
            observations: name -> [T, N, ...], T at least 1.
            state: [N, H] before the first observation.
            is_first: [T, N] not 0 where the observation is the first of an episode: the state is zero there.

        Raises:
            ValueError: the shapes do not agree.
        """
        _require_trajectories(observations, state, is_first)
        prepared = self.preprocessor({name: value.flatten(0, 1) for name, value in observations.items()})
        with self.autocast(state.device):
            features = [trunk.unroll(prepared, part, is_first) for trunk, part in self._with_states(state)]
        mask = self.mask_of(observations)
        if len(features) == 1:
            return UnrollOutput(*self.joined_heads()(features[0], mask))
        return UnrollOutput(self.policy_head(features[0], mask), self.value_head(features[1]))

    def joined_heads(self, *, in_reward_units: bool = False) -> JoinedHeads:
        """Both heads as one layer, of the weights as they are now, where they read the same features.

        Args:
            in_reward_units: values as `act` gives them, not as `unroll` does.
        """
        weight: Tensor = self.value_head.layer.weight
        bias: Tensor = self.value_head.layer.bias
        if in_reward_units and self.returns_normalizer is not None:
            scale, shift = self.returns_normalizer.scale_and_shift()
            weight, bias = weight * scale, bias * scale + shift
        return JoinedHeads.of(self.policy_head, weight, bias)

    def update_observation_normalizer(self, observations: Mapping[str, Tensor], mask: Tensor) -> None:
        """Follow the data once per training iteration, after its last gradient step.

        Spectral norms follow their weights here too, for the same reason: within an iteration nothing moves but the
        weights.

        Args:
            observations: name -> [T, N, ...].
            mask: [T, N] bool, the rows that count.
        """
        self.preprocessor.update(observations, mask)
        refresh_spectral_norms(self)

    def update_returns_normalizer(self, returns: Tensor, mask: Tensor) -> None:
        """Follow the returns [T, N] whose mask is set, in units of reward; values stay, but for the first time."""
        if self.returns_normalizer is not None:
            self.returns_normalizer.update_preserving(self.value_head.layer, returns, mask)

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Where encoders and cores multiply in `dtype`."""
        return nullcontext() if self._dtype == torch.float32 else torch.autocast(device.type, self._dtype)

    def mask_of(self, observations: Mapping[str, Tensor]) -> Tensor | None:
        """The action mask among these observations."""
        return observations[ACTION_MASK] if self.has_action_mask else None

    def _with_states(self, state: Tensor) -> Iterable[tuple[Trunk, Tensor]]:
        """Each trunk, the actor's first, with its part of [N, H]."""
        parts = (state,) if len(self._state_sizes) == 1 else state.split(self._state_sizes, -1)
        return zip(self.trunks, parts, strict=True)


class Trunk(nn.Module):
    """Encoders and core: prepared observations to the features that a head reads."""

    def __init__(self, leaves: tuple[ObservationLeaf, ...], config: ModelConfig) -> None:
        super().__init__()
        self.encoder = ObservationEncoder(leaves, config)
        self.core = build_core(self.encoder.output_size, config)
        self.output_size = self.core.output_size
        self.state_size = self.core.state_size

    def step(self, prepared: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """[N, ...] per leaf, this trunk's first, and [N, H] -> features [N, F] and the state after."""
        features, after = self.core.step(self.encoder(prepared[: len(self.encoder.encoders)]), state)
        return features.float(), after

    def unroll(self, prepared: list[Tensor], state: Tensor, is_first: Tensor) -> Tensor:
        """[T * N, ...] per leaf, this trunk's first, [N, H] and [T, N] -> features [T, N, F]."""
        features = self.encoder(prepared[: len(self.encoder.encoders)])
        return self.core.unroll(features.unflatten(0, is_first.shape), state, is_first).float()


def build_trunks(config: ModelConfig, spec: EnvSpec) -> list[Trunk]:
    """The actor's, and the critic's where it has one of its own.

    Raises:
        ConfigError: the options do not suit the environment.
    """
    trunks = [Trunk(encoded_leaves(spec.observations), config)]
    if not config.actor_critic_share_weights:
        trunks.append(Trunk(encoded_leaves(observed(spec, config.critic_sees_time)), config))
    return trunks


def _has_action_mask(leaves: tuple[ObservationLeaf, ...], width: int) -> bool:
    masks = [leaf for leaf in leaves if leaf.kind == "mask"]
    for leaf in masks:
        if leaf.name != ACTION_MASK or leaf.shape != (width,):
            raise ConfigError(
                f"observation {leaf.name!r} of shape {leaf.shape} is an action mask; it must be called "
                f"{ACTION_MASK!r} and have one entry per discrete choice, shape ({width},)"
            )
    return bool(masks)


def _require_trajectories(observations: Mapping[str, Tensor], state: Tensor, is_first: Tensor) -> None:
    if is_first.dim() != 2 or not len(is_first):
        raise ValueError(f"is_first is {tuple(is_first.shape)}; expected [T, N] with at least one step")
    if state.shape[0] != is_first.shape[1]:
        raise ValueError(f"state is {tuple(state.shape)}; one row for each of the {is_first.shape[1]} trajectories")
    for name, value in observations.items():
        if value.shape[:2] != is_first.shape:
            raise ValueError(f"observation {name!r} is {tuple(value.shape)}; it starts with {tuple(is_first.shape)}")
