"""A trained policy in a program of one's own.

    from appo.algorithms.evaluation import load_policy

    policy = load_policy("train_dir/first")
    observation, info = env.reset()
    policy.reset()
    action = policy.act(observation)

Observations are normalised, actions masked and the recurrent state carried along as in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from appo.algorithms.checkpoints import Checkpoint
from appo.algorithms.evaluation.loading import restore_policy
from appo.algorithms.models.actor_critic import ActorCritic
from appo.algorithms.models.inference import PolicyInference
from appo.envs.api import ACTION_MASK, EnvSpec
from appo.envs.contract import fitting_mask
from appo.envs.spaces import ActionLayout, ObservationLayout


class LoadedPolicy:
    """Acts for single observations and for batches of them, whose size may change with `reset`.

    It is a `SamplerPolicy` as well, for a `RolloutSampler`.
    """

    def __init__(
        self,
        model: ActorCritic,
        spaces: tuple[Any, Any],
        spec: EnvSpec,
        checkpoint: Checkpoint,
        *,
        device: str = "cpu",
        deterministic: bool = False,
        seed: int = 0,
    ) -> None:
        """Over a network that is restored; see `load_policy`."""
        self.observation_space, self.action_space = spaces
        self.spec, self.checkpoint = spec, checkpoint
        self.deterministic = deterministic
        self._inference = PolicyInference(model, 1, device, seed)
        self._layout, self._actions = ObservationLayout(spaces[0]), ActionLayout(spaces[1])
        self._is_first = np.ones(1, np.bool_)

    def reset(self, rows: Any = None) -> None:
        """An episode begins, in some rows of a batch, by number or as a mask, or in all of them."""
        if rows is None:
            self._is_first[:] = True
            return
        numbers = np.asarray(rows)
        if numbers.dtype == np.bool_:
            numbers = np.flatnonzero(numbers)
        if not numbers.size:
            return
        self._resize(max(len(self._is_first), int(numbers.max()) + 1))
        self._is_first[numbers] = True

    def act(self, observation: Any, *, action_mask: Any = None, deterministic: bool | None = None) -> Any:
        """The action for an observation of the environment's space, or one for each of a batch.

        Args:
            observation: as `env.step` gives it, or a batch: the same with one more axis in front.
            action_mask: 1 for each choice that is allowed, where the environment tells them in its infos.
            deterministic: take the most likely action; None: as was said when the policy was loaded.

        Raises:
            MisfitError: it is no observation of this space.
        """
        size = self._layout.batch_size(observation)
        is_batch, number = size is not None, 1 if size is None else size
        arrays = {leaf.name: np.zeros((number, *leaf.shape), leaf.dtype) for leaf in self.spec.observations}
        views = self._layout.views(arrays)
        self._layout.write(views, slice(None) if is_batch else 0, observation)
        if ACTION_MASK in arrays and action_mask is not None:
            width = arrays[ACTION_MASK].shape[1]
            masks = action_mask if is_batch else [action_mask]
            arrays[ACTION_MASK][:] = [fitting_mask(mask, width) for mask in masks]
        elif not any(leaf.name == ACTION_MASK for leaf in self._layout.leaves) and ACTION_MASK in arrays:
            arrays[ACTION_MASK][:] = 1
        self._resize(number)
        chosen = self.deterministic if deterministic is None else deterministic
        rows = self._decide(np.arange(number), arrays, self._is_first, chosen)
        self._is_first[:] = False
        return self._actions.batched(rows) if is_batch else next(iter(self._actions.rows(rows)))

    def act_rows(
        self, rows: NDArray[np.int64], observations: Mapping[str, NDArray[Any]], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """See `SamplerPolicy`."""
        self._resize(max(len(self._is_first), int(rows.max(initial=-1)) + 1))
        return self._decide(rows, observations, is_first, self.deterministic)

    def _decide(
        self, rows: NDArray[np.int64], observations: Mapping[str, NDArray[Any]], is_first: Any, deterministic: bool
    ) -> NDArray[np.float32]:
        seen = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in observations.items()}
        first = torch.from_numpy(np.asarray(is_first, np.uint8))
        chosen = self._inference.choose(torch.from_numpy(rows), seen, first, deterministic)
        actions: NDArray[np.float32] = chosen.numpy()
        return actions

    def _resize(self, number: int) -> None:
        """As many rows as that: of those that there were, the states stay."""
        if number == len(self._is_first):
            return
        self._inference.resize(number)
        kept = self._is_first[:number]
        self._is_first = np.ones(number, np.bool_)
        self._is_first[: len(kept)] = kept


def load_policy(
    folder: str | Path,
    *,
    policy: int = 0,
    kind: str = "latest",
    device: str = "cpu",
    deterministic: bool = False,
    seed: int = 0,
) -> LoadedPolicy:
    """Load a trained policy from the folder of its experiment.

    Args:
        folder: of the experiment, for example "train_dir/first"; "~" is the home folder.
        policy: which of several.
        kind: "latest" or "best" checkpoint.
        device: as torch names it.
        deterministic: take the most likely action instead of drawing one.
        seed: of drawn actions.

    Raises:
        ConfigError: there is no such experiment or kind, no checkpoint that can be read, or its environment is not
            installed.
        EnvError: the environment, which is built to see its spaces, fails.
    """
    restored = restore_policy(Path(folder), policy=policy, kind=kind, device=device)
    model, spaces, spec, checkpoint, _ = restored
    return LoadedPolicy(model, spaces, spec, checkpoint, device=device, deterministic=deterministic, seed=seed)
