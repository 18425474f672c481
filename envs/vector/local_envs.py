"""Environments in this process, behind the same calls as processes of them: work is done when it is waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from appo.envs.api import BatchEnv, EnvContext, EnvError
from appo.envs.contract import reported
from appo.envs.faults import FAILURES, FaultPolicy
from appo.envs.registry import ResolvedEnv, make_batch_env
from appo.envs.vector.asked_envs import AskedEnvs, CloseReport
from appo.envs.vector.env_process import ChildFaults, FailureRecorder
from appo.envs.vector.errors import ClosedEnvironmentError, EnvWorkerError, Failure
from appo.envs.vector.serial import SerialVecEnv
from appo.envs.vector.shared_rows import RESET, STEP, add_time, map_rows
from appo.envs.vector.talk import Ask, answer, prepare_reset_of_all


class LocalEnvs(AskedEnvs):
    """Environments of this process. An environment that ends this process ends it."""

    def __init__(self, batch: BatchEnv, recorder: FailureRecorder | None = None) -> None:
        """Over a batch that is built.

        Args:
            batch: the environments; closed with this.
            recorder: the fault policy of the batch, if it records failures; without one, the batch raises its own.
        """
        super().__init__(batch.num_envs)
        self._batch: Any = batch
        self._recorder = recorder
        self.spec, self.spaces = batch.spec, batch.spaces
        self.steps_apart = hasattr(batch, "step_envs")
        self._is_serial = isinstance(batch, SerialVecEnv)
        self.rows = map_rows(None, self.spec, self.num_envs, 1, keeps_final=True)
        if isinstance(batch, SerialVecEnv):
            batch.be_only_writer(self.rows.steps, self.rows.flags)
        self._step_clock = self.rows.clocks[0, STEP]
        self._seeds: dict[int, int | None] = {}
        self._options: dict[int, dict[str, Any] | None] = {}
        self._is_closed = False
        self._end: EnvWorkerError | None = None  # what they do not recover from
        self._was_made = False
        self._all_step = False  # all are to be stepped, and nothing else
        self._survived: list[bool] = []  # an entry for each failure that was recovered from

    @classmethod
    def make(
        cls, env: ResolvedEnv, options: Any, contexts: Sequence[EnvContext], faults: ChildFaults | None
    ) -> LocalEnvs:
        """Build every environment.

        Raises:
            EnvWorkerError: one could not be built.
        """
        recorder = FailureRecorder() if faults is None else None
        survived: list[bool] = []
        policy: FaultPolicy | None = recorder
        if faults is not None:
            policy = faults.policy(lambda is_bad_data, _: survived.append(is_bad_data))
        try:
            made = cls(make_batch_env(env, options, contexts, policy), recorder)
        except FAILURES as error:
            failure = Failure.of(error, getattr(error, "env_index", 0), "make")
            failure.raise_refusal()
            raise EnvWorkerError.of(failure, 0) from error
        made._survived, made._was_made = survived, True
        return made

    @property
    def num_restarts(self) -> int:
        """See `AskedEnvs`."""
        return len(self._survived)

    def ask(self, envs: NDArray[np.int64], command: int) -> None:
        """See `AskedEnvs`."""
        self._require_open()
        if len(envs) == self.num_envs:  # nothing else is under way: without a look at each of them
            self._all_step = command == STEP
            self.rows.command.fill(command)
            self.rows.asked[:] += 1
            self._pending.fill(True)
            return
        self._all_step = False
        self.rows.command[envs] = command
        self.rows.asked[envs] += 1
        self._pending[envs] = True

    def require_alive(self, envs: NDArray[np.int64]) -> None:
        """See `AskedEnvs`; in this process all end together."""
        del envs
        self._require_open()

    def prepare_reset(self, envs: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> None:
        """See `AskedEnvs`."""
        self._seeds |= dict(zip(envs, seeds, strict=True))
        self._options |= dict.fromkeys(envs, options)

    def collect(self, envs: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """See `AskedEnvs`."""
        self._pending[envs] = False
        if not self._infos and not self._failures:
            return {}
        if (failure := self.take_failure(envs)) is not None:
            raise EnvWorkerError.of(failure, 0)
        return self.take_infos(envs)

    def look(self) -> None:
        """See `AskedEnvs`; nothing happens here by itself, so what is asked for is done now."""
        if self.num_pending:
            self.wait(None)

    def wait(self, timeout_s: float | None) -> None:
        """Do everything that is asked for."""
        del timeout_s
        self._require_open()
        rows, whole = self.rows, self._all_step
        self._all_step = False
        if whole:
            self._step(None)
            rows.done[:] = rows.asked
            return
        open_ones = np.flatnonzero(rows.asked > rows.done)
        to_reset = rows.command[open_ones] == RESET
        if to_reset.any():
            self._reset(open_ones[to_reset].tolist())
        if not to_reset.all():
            self._step(open_ones[~to_reset].tolist())
        rows.done[open_ones] = rows.asked[open_ones]

    def wait_for_all(self, envs: NDArray[np.int64]) -> None:
        """See `AskedEnvs`."""
        del envs
        self.wait(None)

    def step_all(self, envs: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """See `AskedEnvs`: here without asking."""
        self._require_open()
        self._step(None)
        return self.collect(envs) if self._infos or self._failures else {}

    def together(self, envs: Sequence[int]) -> list[list[int]]:
        """See `AskedEnvs`."""
        return [[env] for env in envs] if self.steps_apart else [list(envs)]

    def request(self, what: str, envs: Sequence[int], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `AskedEnvs`."""
        self._require_open()
        results = []
        for env, given in zip(envs, arguments, strict=True):
            found = answer(Ask(0, what, [env], given), self._batch, 0)
            if found.failure is not None:
                raise EnvWorkerError.of(found.failure, 0)
            results += found.results
        return results

    def keep(self, what: str, env: int, arguments: tuple[Any, ...]) -> None:
        """See `AskedEnvs`; the batch itself remembers what its environments were told."""

    def close(self, timeout_s: float = 10.0) -> CloseReport:
        """Close every environment, once; none can be hurried."""
        del timeout_s
        failures = []
        began = time.monotonic()
        if not self._is_closed:
            self._is_closed = True
            try:
                self._batch.close()
            except FAILURES as error:
                failures.append(str(error))
        return CloseReport(1, 0, 0, time.monotonic() - began, failures)

    def _step(self, envs: list[int] | None) -> None:
        """Step some environments; None: all."""
        rows, began, self.ended = self.rows, time.perf_counter_ns(), None
        try:
            if self.steps_apart and envs is not None:
                infos = self._batch.step_envs(envs, rows.actions, rows.steps)
            else:
                infos = self._batch.step(rows.actions, rows.steps)
        except EnvError as error:
            self._give_up(error)
        if self._is_serial:
            self.ended = self._batch.ended
        number = self.num_envs if envs is None else len(envs)
        add_time(self._step_clock, number, time.perf_counter_ns() - began)
        if infos:
            self._infos |= reported(infos)
        self._note_failures()

    def _reset(self, envs: list[int]) -> None:
        self.ended = None
        began = time.perf_counter_ns()
        try:
            if self.steps_apart:
                for env in envs:
                    seed, options = self._seeds.pop(env, None), self._options.pop(env, None)
                    self._batch.reset_envs([env], self.rows.steps, [seed], options)
            else:
                prepare_reset_of_all(self._batch, self._seeds, self._options)
                self._batch.reset(self.rows.steps)
        except EnvError as error:
            self._give_up(error)
        add_time(self.rows.clocks[0, RESET], len(envs), time.perf_counter_ns() - began)
        self._note_failures()

    def _give_up(self, error: EnvError) -> NoReturn:
        """Environments that were made here end as a process of them does: nothing more can be asked of them.

        Raises:
            EnvWorkerError: always, but for
            EnvError: environments of a batch that another made.
        """
        self._pending.fill(False)
        self.rows.done[:] = self.rows.asked
        if not self._was_made:
            raise error
        self._end = EnvWorkerError.of(Failure.of(error, error.env_index, error.phase), 0)
        raise self._end from error

    def _note_failures(self) -> None:
        if self._recorder is None or not self._recorder.failures:
            return
        for failed in self._recorder.failures:
            self._failures[failed.env_index] = Failure.of(failed, failed.env_index, failed.phase)
        self._recorder.failures.clear()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedEnvironmentError("these environments are closed")
        if self._end is not None:
            raise self._end
