"""A `BatchEnv` whose environments are stepped by processes: what an actor's split runs on with --env_backend=subproc.

All step together, as every batch does; but an environment that ends its process costs that process and the step, and
the actor goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.envs.api import Decorrelation, EnvContext, EnvSpec, StepArrays
from appo.envs.registry import ResolvedEnv
from appo.envs.vector.env_processes import EnvProcesses
from appo.envs.vector.errors import EnvWorkerDied
from appo.envs.vector.process_handle import ProcessSettings
from appo.envs.vector.shared_rows import RESET, STEP, Stopwatch

# An actor has little time to end; an environment that is in the middle of a long step is not waited for.
CLOSE_S = 0.25

log = logging.getLogger(__name__)


class SubprocBatchEnv:
    """Environments of one kind in processes of their own."""

    def __init__(
        self, env: ResolvedEnv, options: Any, contexts: Sequence[EnvContext], settings: ProcessSettings, spec: EnvSpec
    ) -> None:
        """Start the processes and build every environment, see `EnvProcesses`."""
        self._envs = EnvProcesses(env, options, contexts, settings, spec)
        self.spec, self.spaces, self.num_envs = self._envs.spec, self._envs.spaces, self._envs.num_envs
        self._all = np.arange(self.num_envs)
        self._stopwatch = Stopwatch(self._envs.rows.clocks)

    def reset(self, out: StepArrays) -> None:
        """See `BatchEnv`."""
        self._do(RESET)
        _copy(self._envs.rows.steps, out, with_results=False)

    def step(self, actions: np.ndarray, out: StepArrays) -> dict[int, dict[str, Any]]:
        """See `BatchEnv`."""
        self._envs.rows.actions[:] = actions
        infos = self._do(STEP)
        _copy(self._envs.rows.steps, out)
        return infos

    def decorrelate(self, how: Decorrelation, out: StepArrays) -> NDArray[np.int64]:
        """See `Decorrelating`; processes do it at the same time."""
        workers = self._envs.workers
        # Alike: all draw the same number of steps.
        rngs = how.rng.spawn(len(workers)) if how.moves_apart else [how.rng] * len(workers)
        given = [(how._replace(rng=rngs[worker.worker]),) for worker in workers for _ in worker.envs]
        try:
            elapsed = self._envs.request(
                "decorrelate", self._all.tolist(), given, per_worker=True, extra_s=how.max_seconds
            )
        except EnvWorkerDied as error:
            if self._envs.settings.restarts.on == "raise":
                raise
            log.warning("%s; all environments begin at the beginning", error)
            self.reset(out)
            return np.zeros(len(out.is_first), np.int64)
        _copy(self._envs.rows.steps, out, with_results=False)
        return np.concatenate(elapsed)

    def cut(self, rows: NDArray[np.int64]) -> list[int]:
        """See `Cuttable`."""
        cut: list[int] = []
        agents = self.spec.agents_per_env
        for worker in self._envs.workers:
            first = worker.envs.start * agents
            mine = rows[(rows >= first) & (rows < worker.envs.stop * agents)] - first
            if len(mine):
                try:
                    done = self._envs.request("batch", [worker.envs.start], [("cut", mine)])[0]
                except EnvWorkerDied:
                    continue  # its episodes are cut by that
                cut += [first + row for row in done or []]
        return cut

    def shape_rewards(self, index: int, weights: list[dict[str, float]]) -> None:
        """See `RewardShapingBatch`."""
        self._tell("shape_rewards", index, weights)

    def play_scripts(self, index: int, scripts: list[str]) -> None:
        """See `ScriptedBatch`."""
        self._tell("play_scripts", index, scripts)

    def set_training_progress(self, env_frames: int) -> None:
        """Tell the listening environments how many frames the run has seen."""
        for worker in self._envs.workers:
            self._envs.keep("batch", worker.envs.start, ("set_training_progress", env_frames))
            self._envs.tell("batch", worker.envs.start, ("set_training_progress", env_frames))

    def pop_timing(self) -> dict[str, tuple[int, float]]:
        """What the processes did since the last call: how often, and how many seconds over all of them."""
        return self._stopwatch.pop()

    def close(self) -> None:
        """Close every environment and end every process."""
        for failure in self._envs.close(CLOSE_S).failures:
            log.warning("%s failed to close", failure)

    def _tell(self, method: str, index: int, given: Any) -> None:
        first = next(worker.envs.start for worker in self._envs.workers if index in worker.envs)
        self._envs.keep("batch", index, (method, index - first, given))
        self._envs.tell("batch", index, (method, index - first, given))

    def _do(self, command: int) -> dict[int, dict[str, Any]]:
        self._envs.ask(self._all, command)
        self._envs.wait_for_all(self._all)
        return self._envs.collect(self._all)


def _copy(source: StepArrays, out: StepArrays, *, with_results: bool = True) -> None:
    for name, array in source.observations.items():
        np.copyto(out.observations[name], array)
    states = ((out.is_first, source.is_first), (out.is_last, source.is_last), (out.active, source.active))
    for target, array in states:
        np.copyto(target, array)
    if with_results:
        np.copyto(out.rewards, source.rewards)
        np.copyto(out.terminated, source.terminated)
        np.copyto(out.truncated, source.truncated)
        np.copyto(out.frames, source.frames)
        np.copyto(out.crashed, source.crashed)
