"""A trained policy in a program of one's own.

    from appo.algorithms.evaluation import load_policy

    policy = load_policy("train_dir/first")
    observation, info = env.reset()
    policy.reset()
    action = policy.act(observation)

Observations are normalised, actions masked and the recurrent state carried along as in training.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from appo.algorithms.checkpoints import Checkpoint, why_no_best
from appo.algorithms.evaluation.loading import restore_policy
from appo.algorithms.models.actor_critic import ActorCritic
from appo.algorithms.models.inference import PolicyInference
from appo.envs.action_layout import ActionLayout
from appo.envs.api import ACTION_MASK, EnvSpec, MisfitError
from appo.envs.contract import describe, fitting_mask, outline
from appo.envs.observation_layout import ObservationLayout
from appo.envs.vector.shared_rows import observation_zeros
from appo.utils.options import ConfigError

log = logging.getLogger(__name__)


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
        deterministic: bool = False,
        seed: int = 0,
        num_threads: int | None = 1,
    ) -> None:
        """Over a network that is restored, on its device; see `load_policy`.

        Raises:
            ConfigError: there is no such number of threads.
        """
        is_count = isinstance(num_threads, int) and not isinstance(num_threads, bool) and num_threads > 0
        if num_threads is not None and not is_count:
            raise ConfigError(f"num_threads={num_threads!r} has to be a whole number of at least 1, or None")
        self.observation_space, self.action_space = spaces
        self.spec, self.checkpoint = spec, checkpoint
        self.deterministic = deterministic
        self._num_threads = num_threads
        self._inference = PolicyInference(model, 1, next(model.parameters()).device, seed)
        self._layout, self._actions = ObservationLayout(spaces[0]), ActionLayout(spaces[1])
        self._is_first = np.ones(1, np.bool_)
        self._batch_size: int | None = None  # that `act` has seen since everything began

    def reset(self, rows: Any = None) -> None:
        """An episode begins, in some rows of a batch, by number or as a mask, or in all of them.

        Raises:
            ValueError: these are no rows of the batch that `act` has seen; `reset()` lets one of another size begin.
        """
        if rows is None:
            self._is_first[:] = True
            self._batch_size = None
            return
        numbers = self._row_numbers(rows)
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
            MisfitError: it is no observation of this space, or the mask does not fit or allows no choice.
        """
        if isinstance(observation, tuple) and observation and isinstance(observation[-1], dict):
            raise MisfitError("observation", "the first entry of what reset() and step() give", outline(observation))
        size = self._layout.batch_size(observation)
        is_batch, number = size is not None, 1 if size is None else size
        arrays = {leaf.name: observation_zeros(leaf, self.spec, number) for leaf in self.spec.observations}
        self._layout.write(self._layout.views(arrays), slice(None) if is_batch else 0, observation)
        self._layout.check_range(observation)
        self._write_masks(arrays, action_mask, is_batch=is_batch)
        self._resize(number)
        self._batch_size = number
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
        seen = {name: _tensor(array) for name, array in observations.items()}
        first = torch.from_numpy(np.asarray(is_first, np.uint8))
        callers = torch.get_num_threads()
        own = callers if self._num_threads is None else self._num_threads
        if own != callers:
            torch.set_num_threads(own)  # with the line below 1 us
        try:
            chosen = self._inference.choose(torch.from_numpy(rows), seen, first, deterministic)
        finally:
            if own != callers:
                torch.set_num_threads(callers)
        actions: NDArray[np.float32] = chosen.numpy()
        return actions

    def _row_numbers(self, rows: Any) -> NDArray[Any]:
        numbers, size = np.asarray(rows), self._batch_size
        of_batch = "" if size is None else f" of a batch of {size}; reset() lets one of another size begin"
        if numbers.dtype == np.bool_:
            if size is not None and numbers.shape != (size,):
                raise ValueError(f"a mask of shape {numbers.shape} names no rows{of_batch}")
            return np.flatnonzero(numbers)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise ValueError(f"reset({rows!r}): rows are whole numbers or a mask")
        outside = (numbers < 0) | (False if size is None else numbers >= size)
        if outside.any():
            raise ValueError(f"reset({rows!r}): there is no row {numbers[outside].flat[0]}{of_batch}")
        return numbers

    def _write_masks(self, arrays: Mapping[str, NDArray[Any]], given: Any, *, is_batch: bool) -> None:
        """Write what a caller gave into the masks [n, M], else leave those of the observations, or allow everything."""
        masks = arrays.get(ACTION_MASK)
        if masks is None:
            if given is not None:
                raise MisfitError(ACTION_MASK, "left out, as this environment tells no masks", describe(given))
            return
        if given is not None:
            rows = given if is_batch else [given]
            is_sequence = isinstance(rows, list | tuple) or getattr(rows, "ndim", 0) > 0
            if not is_sequence or len(rows) != len(masks):
                raise MisfitError(ACTION_MASK, f"one mask for each of {len(masks)} observations", describe(given))
            masks[:] = [fitting_mask(mask, masks.shape[1]) for mask in rows]
        elif all(leaf.name != ACTION_MASK for leaf in self._layout.leaves):
            masks[:] = 1
        has_choice = masks.any(axis=1)
        if not has_choice.all():
            row = f" in row {int(has_choice.argmin())}" if is_batch else ""
            raise MisfitError(ACTION_MASK, "1 for at least one choice", f"0 for all{row}")

    def _resize(self, number: int) -> None:
        """As many rows as that: of those that there were, the states stay."""
        if number == len(self._is_first):
            return
        self._inference.resize(number)
        kept = self._is_first[:number]
        self._is_first = np.ones(number, np.bool_)
        self._is_first[: len(kept)] = kept


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The same memory in the same order, which networks read images in; tensors have no strides below zero."""
    return torch.from_numpy(array if min(array.strides, default=0) >= 0 else np.ascontiguousarray(array))


def load_policy(
    folder: str | Path,
    *,
    policy: int = 0,
    kind: str = "latest",
    device: str = "cpu",
    deterministic: bool = False,
    seed: int = 0,
    num_threads: int | None = 1,
) -> LoadedPolicy:
    """Load a trained policy from the folder of its experiment.

    Args:
        folder: of the experiment, for example "train_dir/first"; "~" is the home folder.
        policy: which of several.
        kind: "latest" or "best" checkpoint.
        device: as --device has it: "cpu", "gpu", "cuda:1", or "auto".
        deterministic: take the most likely action instead of drawing one.
        seed: of drawn actions.
        num_threads: of torch while this policy computes; afterwards it has as many as before. One is fastest for small
            batches, above all beside the processes of environments. None: as many as torch has.

    Raises:
        ConfigError: there is no such experiment, kind or device, no checkpoint of this kind that can be read, no such
            number of threads, or its environment is not installed.
        EnvError: the environment, which is built to see its spaces, fails.
    """
    restored = restore_policy(Path(folder), policy=policy, kind=kind, device=device)
    model, spaces, spec, checkpoint, _ = restored
    if kind == "best" and not checkpoint.path.name.startswith("best_"):
        raise ConfigError(f"{why_no_best(checkpoint.path.parent)}; kind='latest' loads {checkpoint.path.name}")
    for warning in checkpoint.warnings:
        log.warning("%s", warning)
    return LoadedPolicy(
        model, spaces, spec, checkpoint, deterministic=deterministic, seed=seed, num_threads=num_threads
    )
