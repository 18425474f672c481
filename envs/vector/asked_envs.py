"""What a `VecEnv` runs on: environments that are asked to step or reset, each for itself, and finish when they do."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.envs.api import EnvSpec
from appo.envs.vector.errors import Failure
from appo.envs.vector.shared_rows import STEP, SharedRows

log = logging.getLogger(__name__)


class CloseReport(NamedTuple):
    """How processes of environments ended."""

    closed: int  # by themselves, in time
    terminated: int  # after SIGTERM
    killed: int
    seconds: float
    failures: list[str]  # of environments that raised in `close`, or ended their process there


class AskedEnvs(ABC):
    """N environments in this process, or in others. Not for several threads at a time."""

    spec: EnvSpec
    spaces: tuple[Any, Any]
    """Observation and action space of one agent."""
    steps_apart: bool
    """Each environment can be asked without the others."""
    rows: SharedRows
    ended: list[int] | None = None
    """Rows in which the last step of all ended an episode by termination and began the next one, where nothing was said
    but this, observations and rewards; [] is an ordinary step. None: that is not known."""

    def __init__(self, num_envs: int) -> None:
        """Of which none has been asked for anything."""
        self.num_envs = num_envs
        self._pending = np.zeros(num_envs, np.bool_)  # asked for, and not yet collected
        self._infos: dict[int, dict[str, Any]] = {}  # by row
        self._failures: dict[int, Failure] = {}  # by environment

    @property
    @abstractmethod
    def num_restarts(self) -> int:
        """Environments of this process, or processes of them, that were started anew after a failure."""

    @property
    def num_pending(self) -> int:
        """Environments whose results have not been collected."""
        return int(np.count_nonzero(self._pending))

    def is_pending(self, envs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] which of these have not been collected."""
        found: NDArray[np.bool_] = self._pending[envs]
        return found

    def finished(self) -> NDArray[np.int64]:
        """Environments whose results are there and have not been collected."""
        return np.flatnonzero(self._pending & (self.rows.done >= self.rows.asked))

    @abstractmethod
    def look(self) -> None:
        """Note what has happened, should nobody have waited for long."""

    def take_infos(self, envs: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """What was told of these environments; row -> info. What was told of others stays."""
        agents, chosen = self.spec.agents_per_env, set(envs.tolist())
        found = {row: info for row, info in self._infos.items() if row // agents in chosen}
        for row in found:
            del self._infos[row]
        return found

    def take_failure(self, envs: NDArray[np.int64]) -> Failure | None:
        """The failure of the first of these that has one; then all others wait to be collected again."""
        failed = next((env for env in envs.tolist() if env in self._failures), None)
        if failed is None:
            return None
        self._pending[envs] = True
        self._pending[failed] = False
        self.take_infos(np.array([failed]))  # of a result that nobody will see
        return self._failures.pop(failed)

    def forget(self, envs: NDArray[np.int64]) -> list[int]:
        """Take the results of those of these environments that have finished out of the list, whatever they are.

        Returns:
            Those that had not failed.
        """
        envs = envs[self.rows.done[envs] >= self.rows.asked[envs]]
        self._pending[envs] = False
        self.take_infos(envs)
        sound = []
        for env in envs.tolist():
            if (failure := self._failures.pop(env, None)) is None:
                sound.append(env)
            else:
                log.warning("environment %d failed, too: %s", env, failure.message)
        return sound

    @abstractmethod
    def ask(self, envs: NDArray[np.int64], command: int) -> None:
        """Let environments step with the actions in `rows`, or reset.

        Raises:
            ClosedEnvironmentError: they are closed.
            EnvWorkerDied: their process has ended.
        """

    @abstractmethod
    def require_alive(self, envs: NDArray[np.int64]) -> None:
        """Refuse environments that can be asked for nothing more.

        Raises:
            EnvWorkerDied, EnvWorkerError, EnvTimeout: as their process ended.
        """

    @abstractmethod
    def prepare_reset(self, envs: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> None:
        """Say how environments are reset when they are next asked to."""

    @abstractmethod
    def collect(self, envs: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """Take the results of environments that have finished out of the list; row -> info.

        Raises:
            EnvWorkerError: one of them raised, and is collected; the others are not.
        """

    @abstractmethod
    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something happens, and note what it is.

        Raises:
            EnvWorkerDied: a process ended and is not restarted.
            EnvWorkerError: because an environment raised.
            EnvTimeout: an environment takes too long, and its process is not restarted.
        """

    @abstractmethod
    def wait_for_all(self, envs: NDArray[np.int64]) -> None:
        """Wait until all of these have finished; raises like `wait`."""

    def finish(self, envs: NDArray[np.int64]) -> None:
        """Wait for what is to be thrown away, for each step at most as long as for a reset; raises like `wait`."""
        self.wait_for_all(envs)

    def wait_and_collect(self, envs: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """Wait until all of these have finished, and collect them; row -> info. Raises like `wait` and `collect`."""
        self.wait_for_all(envs)
        return self.collect(envs)

    def step_all(self, envs: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """Step all, none of which is under way, and collect them; row -> info. Raises like `ask`, `wait`, `collect`."""
        self.ask(envs, STEP)
        return self.wait_and_collect(envs)

    @abstractmethod
    def together(self, envs: Sequence[int]) -> list[list[int]]:
        """These environments in groups, of which each is a single object that questions are asked once."""

    @abstractmethod
    def request(self, what: str, envs: Sequence[int], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Ask environments, and wait for the answers.

        Args:
            what: see `talk.answer`.
            envs: which.
            arguments: one tuple per environment.

        Raises:
            EnvWorkerError: one raised.
            EnvWorkerDied: a process ended.
            EnvTimeout: no answer came.
        """

    @abstractmethod
    def keep(self, what: str, env: int, arguments: tuple[Any, ...]) -> None:
        """Have an environment told something once more, should its process be restarted."""

    @abstractmethod
    def close(self, timeout_s: float = 10.0) -> CloseReport:
        """Close every environment; called any number of times."""
