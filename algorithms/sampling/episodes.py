"""Episodes as they were collected: whole, or in fragments, and how a set of them is kept in a file.

Letters:  L = steps of an episode,  A = agents (no axis where there is one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.utils.options import ConfigError

FIRST, MID, TERMINAL, TIMEOUT = 0, 1, 2, 3  # kinds of steps
PER_STEP = ("rewards", "terminated", "truncated", "is_active", "versions", "frames")  # fields of an episode, [L, ...]


@dataclass(frozen=True, eq=False)
class Episode:
    """What happened in one environment during an episode, or a fragment of one; [L, A] where several agents play.

    An agent of several whose episode ended before those of the others has `is_active` False from then on, and zeros for
    observations; what stands for its actions means nothing.
    """

    env_id: int
    number: int  # of the environment's episodes, counted from 0
    observations: dict[str, NDArray[Any]]  # [L + 1, ...] by name, the last one included
    actions: Any  # [L, ...] a batch of the action space; [L, A, W] in policy units where there are several agents
    rewards: NDArray[np.float32]  # [L]
    terminated: NDArray[np.bool_]  # [L]
    truncated: NDArray[np.bool_]  # [L] also where a limit of the sampler cut it
    is_active: NDArray[np.bool_]  # [L] the agent acted in this step
    versions: NDArray[np.int64]  # [L] of the policy that chose each action; one for all agents
    frames: NDArray[np.int32]  # [L]; one for all agents
    info: dict[str, Any]  # what the environment told with the last step; of several agents by name, what each told last
    infos: dict[str, NDArray[np.float64]]  # [L] by name, such as "true_reward": what it told with each step, or nan
    start: int = 0  # steps of the episode before the first of these
    ends: bool = True  # the episode is over with the last of these

    def __len__(self) -> int:
        """Steps."""
        return len(self.rewards)

    @property
    def begins(self) -> bool:
        """The episode begins with the first of these steps: recurrent state of the one before is to be forgotten."""
        return self.start == 0

    @property
    def total_reward(self) -> float:
        """Return, of all agents together."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def step_types(self) -> NDArray[np.uint8]:
        """[L] FIRST, MID, TERMINAL or TIMEOUT, of the environment: an episode is over when it is for all agents.

        What is no whole episode has FIRST only where it `begins`, and TERMINAL or TIMEOUT only where it `ends`. The
        only step of an episode is TERMINAL or TIMEOUT.
        """
        types = np.full(len(self), MID, np.uint8)
        if self.begins:
            types[:1] = FIRST
        if self.ends:
            is_terminal = self.terminated[-1:].any() and not self.truncated[-1:].any()
            types[-1:] = TERMINAL if is_terminal else TIMEOUT
        return types


@dataclass(frozen=True)
class EpisodeBatch(Sequence[Episode]):
    """Episodes in the order that the call promises, and what is to be known about how they were collected."""

    episodes: tuple[Episode, ...]
    discarded: int = 0  # steps that are left out, of versions that were too old
    aborted: int = 0  # episodes that were lost with their environment, and played again
    frames: int = 0  # of simulators, all that was played

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, index: Any) -> Any:
        return self.episodes[index]

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[n] steps of each episode."""
        return np.array([len(episode) for episode in self.episodes], np.int64)

    @property
    def returns(self) -> NDArray[np.float64]:
        """[n] sum of the rewards of each episode, of all agents together."""
        return np.array([episode.total_reward for episode in self.episodes], np.float64)

    @property
    def env_ids(self) -> NDArray[np.int64]:
        """[n] the environment of each episode."""
        return np.array([episode.env_id for episode in self.episodes], np.int64)

    @property
    def num_steps(self) -> int:
        """Of all episodes."""
        return int(self.lengths.sum())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All steps one after the other: `observations/<name>`, `next_observations/<name>`, `actions`, `rewards`,
        `terminated`, `truncated`, `is_active`, `versions`, `frames`, `infos/<name>` [steps, ...], and `lengths`,
        `env_ids`, `starts`, `ends` [episodes]."""
        if not self.episodes:
            return {}
        found: dict[str, NDArray[Any]] = {}
        for name in self.episodes[0].observations:
            found[f"observations/{name}"] = np.concatenate([each.observations[name][:-1] for each in self.episodes])
            found[f"next_observations/{name}"] = np.concatenate([each.observations[name][1:] for each in self.episodes])
        for name, parts in _flat_actions(self.episodes):
            found[name] = np.concatenate(parts)
        for name in PER_STEP:
            found[name] = np.concatenate([getattr(episode, name) for episode in self.episodes])
        for name in sorted({name for episode in self.episodes for name in episode.infos}):
            told = [each.infos.get(name, np.full(each.rewards.shape, np.nan)) for each in self.episodes]
            found[f"infos/{name}"] = np.concatenate(told)
        starts = np.array([episode.start for episode in self.episodes], np.int64)
        ends = np.array([episode.ends for episode in self.episodes], np.bool_)
        return found | {"lengths": self.lengths, "env_ids": self.env_ids, "starts": starts, "ends": ends}

    def save(self, path: Path | str) -> Path:
        """Write `arrays` into an `.npz` file, which is added to a name without; the file's path."""
        path = Path(path)
        path = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: Mapping[str, Any] = self.arrays()
        np.savez_compressed(path, **arrays)
        return path

    def save_minari(
        self,
        dataset_id: str,
        spaces: tuple[Any, Any],
        restored: Callable[[dict[str, NDArray[Any]]], Any],
        **metadata: Any,
    ) -> Any:
        """Make a Minari data set of these episodes, of environments with a single agent.

        Args:
            dataset_id: for example "cartpole/mine-v0".
            spaces: observation and action space.
            restored: turns arrays by name into a batch of the observation space, see `SpaceRows.restored`.
            metadata: for `minari.create_dataset_from_buffers`.

        Raises:
            ConfigError: Minari is not installed, there are several agents, or episodes are not whole.
        """
        if not all(episode.begins and episode.ends for episode in self.episodes):
            raise ConfigError("a Minari data set has whole episodes; these are fragments, see `save`")
        if self.episodes and self.episodes[0].rewards.ndim > 1:
            raise ConfigError("a Minari data set has one agent; these episodes have several, see `save`")
        try:
            import minari
            from minari.data_collector import EpisodeBuffer
        except ImportError:
            raise ConfigError("Minari is not installed: pip install minari") from None
        buffers = [
            EpisodeBuffer(
                id=number,
                observations=restored(episode.observations),
                actions=episode.actions,
                rewards=episode.rewards.tolist(),
                terminations=episode.terminated.tolist(),
                truncations=episode.truncated.tolist(),
                infos=None,
            )
            for number, episode in enumerate(self.episodes)
        ]
        return minari.create_dataset_from_buffers(
            dataset_id, buffers, observation_space=spaces[0], action_space=spaces[1], **metadata
        )


def _flat_actions(episodes: Sequence[Episode]) -> Iterator[tuple[str, list[NDArray[Any]]]]:
    """The parts of actions by name, each of all episodes."""

    def parts(value: Any, name: str) -> Iterator[tuple[str, NDArray[Any]]]:
        if isinstance(value, dict | tuple):
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in entries:
                yield from parts(part, f"{name}/{key}")
        else:
            yield name, np.asarray(value)

    of_each = [dict(parts(episode.actions, "actions")) for episode in episodes]
    for name in of_each[0]:
        yield name, [each[name] for each in of_each]
