"""Tournaments: matches between all pairs of an experiment's checkpoints and scripted players.

As in scoring, which matches count is decided before the first one is played: each environment plays a fixed number for
each pair. The two players have half of the seats each, and change seats after every match.

Letters:  E = agent rows = environments * agents per environment,  W = numbers that store an action.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from appo.algorithms.checkpoint_names import OPPONENT, list_named
from appo.algorithms.checkpoints import CheckpointError, load
from appo.algorithms.evaluation.loading import find_checkpoint, restore_model
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.population.ratings import SELF_PLAY, WinMatrix, elo_ratings
from appo.algorithms.sampling.config import RANDOM
from appo.algorithms.sampling.episode_stats import EpisodeStats
from appo.algorithms.sampling.match_results import MatchBook
from appo.algorithms.sampling.scripted_seats import ScriptedSeats
from appo.algorithms.specs import action_spec
from appo.envs.adapters import step_arrays
from appo.envs.api import BatchEnv, EnvSpec
from appo.utils.options import ConfigError

TOURNAMENT = "tournament.json"
MATCHES = 100  # of each pair, unless the user says how many
MAX_ENVS = 16  # half of the rows are one player's: a forward pass for 8 costs little more than for one

_MILESTONE = "@milestone_"

log = logging.getLogger(__name__)


class Entrants(NamedTuple):
    """The players of a tournament."""

    checkpoints: dict[str, Path]  # by name
    scripts: tuple[str, ...]


def find_entrants(
    folders: Sequence[Path],
    kind: str,
    best_metric: str,
    scripts: Sequence[str],
    wanted: str = "",
    pool: Collection[str] | None = None,
) -> Entrants:
    """The newest checkpoint of each policy, its past selves, its milestones, and scripted players.

    Args:
        folders: of the checkpoints of each policy.
        kind: "latest" or "best", of the newest ones.
        best_metric: by which the best was picked.
        scripts: that the environment offers.
        wanted: patterns of names, separated by commas; empty: all but past selves outside of the pool.
        pool: names of the past selves that the run could meet last; others lie there as long as a checkpoint of that
            time does. None: not known, so all.

    Raises:
        ConfigError: fewer than two take part, or a pattern fits nobody.
    """
    patterns = [pattern.strip() for pattern in wanted.split(",") if pattern.strip()]

    def takes_part(name: str) -> bool:
        return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    def has_left(name: str) -> bool:
        return not patterns and pool is not None and _MILESTONE not in name and name not in pool

    newest = [f"policy_{policy}" for policy in range(len(folders))]
    earlier = [_earlier(policy, folder) for policy, folder in enumerate(folders)]
    everybody = [*newest, RANDOM, *scripts, *(name for names in earlier for name in names)]
    for pattern in patterns:
        if not fnmatch.filter(everybody, pattern):
            raise ConfigError(f"tournament_players={pattern!r} fits no player; there are {', '.join(everybody)}")
    found: dict[str, Path] = {}
    for name, folder, names in zip(newest, folders, earlier, strict=True):
        if takes_part(name):
            found[name] = _newest(folder, kind, best_metric)
        found |= {name: path for name, path in names.items() if takes_part(name) and not has_left(name)}
    chosen = tuple(name for name in (RANDOM, *scripts) if takes_part(name))
    if len(found) + len(chosen) < 2:
        raise ConfigError(f"a tournament needs two players; there are {', '.join(everybody)}")
    return Entrants(found, chosen)


def read_pool(folder: Path) -> list[str] | None:
    """The players that self-play in this experiment's folder knew last; None: nothing tells."""
    try:
        players: list[str] = json.loads((folder / SELF_PLAY).read_text())["players"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return players


def _newest(folder: Path, kind: str, best_metric: str) -> Path:
    checkpoint = find_checkpoint(folder, kind, best_metric)
    for warning in checkpoint.warnings:
        log.warning("%s", warning)
    return checkpoint.path


def _earlier(policy: int, folder: Path) -> dict[str, Path]:
    """Past selves and milestones of a policy by name, the oldest first."""
    found: dict[str, Path] = {}
    for kind, mark in ((OPPONENT, "@"), ("milestone", _MILESTONE)):
        for named in reversed(list_named(folder, kind)):
            train_step, frames = named.steps
            name = f"policy_{policy}{mark}{frames}"
            found[name if name not in found else f"{name}_{train_step}"] = named.path
    return found


def load_entrants(
    entrants: Entrants, model: ModelConfig, spec: EnvSpec, rows: int, device: str, seed: int
) -> dict[str, PolicyInference]:
    """The networks of those who need one, with memory for `rows` agent rows each.

    Raises:
        ConfigError: a checkpoint is of another network, or fewer than two players are left.
    """
    loaded = {}
    for number, (name, path) in enumerate(entrants.checkpoints.items()):
        try:
            checkpoint = load(path)
        except CheckpointError as error:
            log.warning("%s does not take part: %s", name, error)
            continue
        loaded[name] = PolicyInference(restore_model(checkpoint, model, spec, device), rows, device, seed + number)
    if len(loaded) + len(entrants.scripts) < 2:
        raise ConfigError("a tournament needs two players, whose checkpoints can be read")
    return loaded


class Tournament:
    """Plays all pairs of players in one batch of environments."""

    def __init__(
        self,
        env: BatchEnv,
        policies: Mapping[str, PolicyInference],
        scripts: tuple[str, ...],
        seed: int,
        *,
        deterministic: bool = False,
    ) -> None:
        """`env`: of several agents; is reset for each pair, and left open.

        Raises:
            ConfigError: it has one agent.
        """
        if env.spec.agents_per_env < 2:
            raise ConfigError("a tournament needs an environment with several agents; this one has 1")
        self.players = (*policies, *scripts)
        self.matrix = WinMatrix()
        self._env, self._policies, self._deterministic = env, list(policies.values()), deterministic
        self._scripted = ScriptedSeats(env, scripts, len(policies), np.random.SeedSequence(seed))
        self._arrays = step_arrays(env.spec, env.num_envs)
        # Views: the environments write into the same memory.
        self._observations = {name: torch.from_numpy(array) for name, array in self._arrays.observations.items()}
        self._is_first = torch.from_numpy(self._arrays.is_first)

    def play(
        self,
        matches: int,
        *,
        on_pair: Callable[[str, str], None] | None = None,
        after_step: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Play every pair; False: it was ended before all were played.

        Args:
            matches: of each pair.
            on_pair: told of each pair that has been played.
            after_step: called after every reset and step; False ends the tournament.
        """
        for one, other in itertools.combinations(range(len(self.players)), 2):
            if not self._play_pair(one, other, matches, after_step):
                return False
            if on_pair is not None:
                on_pair(self.players[one], self.players[other])
        return True

    def ratings(self) -> dict[str, float]:
        """Elo ratings, fitted to all matches; that of the random player is 0, or the mean where it has not played."""
        return elo_ratings(self.matrix, self.players, RANDOM)

    def content(self) -> dict[str, Any]:
        """The results, plain."""
        return self.matrix.content(self.players, self.ratings())

    def _play_pair(self, one: int, other: int, matches: int, after_step: Callable[[], bool]) -> bool:
        env, arrays = self._env, self._arrays
        agents = env.spec.agents_per_env
        book, stats = MatchBook(env.num_envs, agents, None), EpisodeStats(env.num_envs * agents)
        share, rest = divmod(matches, env.num_envs)
        left = share + (np.arange(env.num_envs) < rest)
        seats = np.where((np.arange(env.num_envs)[:, None] + np.arange(agents)) % 2 == 0, one, other).astype(np.int32)
        env.reset(arrays)
        self._begin(book, range(env.num_envs), seats)
        while left.any():
            if not after_step():
                return False
            infos = env.step(self._actions(seats.ravel()), arrays)
            finished = stats.add(arrays, infos, seats.ravel())
            book.note(stats.ended_rows, finished)
            begun = np.flatnonzero(arrays.is_first.reshape(-1, agents).all(axis=1)).tolist()
            for index in begun:
                match = book.end(index)  # None: one player took no part, which counts for neither
                if match is not None and left[index] > 0:
                    self.matrix.add_match([self.players[player] for player in match.players], match.outcomes)
                left[index] -= left[index] > 0
                seats[index] = one + other - seats[index]
            self._begin(book, begun, seats)
        return True

    def _begin(self, book: MatchBook, indices: Sequence[int], seats: NDArray[np.int32]) -> None:
        for index in indices:
            book.begin(index, seats[index].tolist())
            self._scripted.begin(index, seats[index])

    def _actions(self, players: NDArray[np.int32]) -> NDArray[np.float32]:
        """[E, W] of all rows [E], each of its player."""
        actions = np.zeros((len(players), action_spec(self._env.spec).width), np.float32)
        for player in np.unique(players).tolist():
            if player < len(self._policies):
                rows = torch.from_numpy(np.flatnonzero(players == player))
                observations = {name: value[rows] for name, value in self._observations.items()}
                chosen = self._policies[player].choose(rows, observations, self._is_first[rows], self._deterministic)
                actions[rows.numpy()] = chosen.numpy()
        return self._scripted.fill(actions, players, self._arrays.observations)
