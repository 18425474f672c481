"""Processes that step environments, seen from the one that started them.

Commands and results lie in shared memory (`shared_rows`), a doorbell per direction wakes the waiting process. Nothing
here waits for a process without a limit: it waits for its doorbell, for its messages and for its end alike. So a
process that was killed is noticed at once, and one that hangs or was stopped when its time is over.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import os
import secrets
import selectors
import signal
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.envs.api import EnvContext, EnvSpec
from appo.envs.faults import RestartQuota
from appo.envs.registry import ResolvedEnv
from appo.envs.specs import difference_in_words, exchange_the_same
from appo.envs.vector.asked_envs import AskedEnvs, CloseReport
from appo.envs.vector.channel import Garbled
from appo.envs.vector.env_process import ChildJob
from appo.envs.vector.errors import ClosedEnvironmentError, EnvTimeout, EnvWorkerError, Failure, in_words
from appo.envs.vector.open_requests import OpenRequests
from appo.envs.vector.process_ends import TERMINATE_S, end_processes
from appo.envs.vector.process_guard import KILLED_S, guarded_mark, kill_marked, send_signal
from appo.envs.vector.process_handle import ProcessHandle, ProcessSettings, name_of, spread
from appo.envs.vector.shared_rows import RESET, RESET_AS_TOLD, STEP, map_rows, rows_of_envs, segment_size
from appo.envs.vector.talk import Answer, Ask, Closed, Counted, Failed, Fatal, Infos, Ready, Shared
from appo.utils import processes
from appo.utils.options import ConfigError
from appo.utils.segment import Segment

# How often limits of time are looked at while nothing happens.
LOOK_EVERY_S = 0.1
# No environment is built anew more often in the life of one process: its seeds never come again.
ATTEMPTS_PER_PROCESS = 1000

log = logging.getLogger(__name__)

_open: weakref.WeakSet[EnvProcesses] = weakref.WeakSet()


class EnvProcesses(AskedEnvs):
    """Environments spread over processes, each of which steps its own, in the order of their numbers.

    Not for several threads at a time.
    """

    def __init__(
        self,
        env: ResolvedEnv,
        options: Any,
        contexts: Sequence[EnvContext],
        settings: ProcessSettings,
        spec: EnvSpec | None = None,
    ) -> None:
        """Start every process and wait until all environments are built.

        Args:
            env: what is built.
            options: of its family.
            contexts: of every environment.
            settings: how.
            spec: what every environment must exchange; None: what the first does.

        Raises:
            ConfigError: there are more processes than environments, the machine has no such way to start them, or
                environments have different spaces.
            EnvWorkerError: an environment could not be built, or differs from `spec`.
            EnvWorkerDied, EnvTimeout: a process ended meanwhile, or did not come to an end.
        """
        num_envs = len(contexts)
        if not 1 <= settings.num_workers <= num_envs:
            raise ConfigError(
                f"{settings.num_workers} processes for {num_envs} environments; nearest: "
                f"{min(max(1, settings.num_workers), num_envs)}"
            )
        if settings.start_method not in multiprocessing.get_all_start_methods():
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise ConfigError(f"start_method={settings.start_method!r} is not known here; there are {known}")
        super().__init__(num_envs)
        self.settings = settings
        self._env, self._options, self._contexts, self._spec = env, options, list(contexts), spec
        self._segment: Segment | None = None
        self._token = f"{guarded_mark()}-{secrets.token_hex(4)}"
        self._owner = os.getpid()
        self._is_lost = np.zeros(num_envs, np.bool_)  # of a process that was restarted: begins anew when next asked for
        self._restarted = np.zeros(num_envs, np.bool_)  # the result is that of a restart
        self._prepared = np.zeros(num_envs, np.bool_)  # its next reset is told of in a message
        self._told_resets: dict[int, tuple[int | None, dict[str, Any] | None]] = {}
        self._next_look = 0.0
        self._asked_at = np.zeros(num_envs)
        self._requests = OpenRequests()
        self._remembered: dict[tuple[str, int, str], tuple[Any, ...]] = {}  # for a successor
        self._early: list[tuple[ProcessHandle, Ready]] = []  # ready before the first process
        self._full: set[ProcessHandle] = set()  # with messages that wait for room
        self.close_failures: list[str] = []
        self._report: CloseReport | None = None
        self._selector = selectors.DefaultSelector()
        self.workers: list[ProcessHandle] = []
        _open.add(self)
        try:
            for worker, envs in enumerate(spread(num_envs, settings.num_workers)):
                self.workers.append(ProcessHandle(worker, envs, RestartQuota(settings.restarts)))
                self._start(self.workers[-1])
            while not all(worker.is_ready for worker in self.workers):
                self.wait(LOOK_EVERY_S)
        except BaseException:
            self.close(0.0)
            raise

    def _start(self, worker: ProcessHandle) -> None:
        settings = self.settings
        contexts = [self._contexts[index] for index in worker.envs]
        contexts = [
            context._replace(attempt=context.attempt + worker.attempt * ATTEMPTS_PER_PROCESS) for context in contexts
        ]
        name = self._env.name.rpartition("/")[2] or "env"
        worker.mark = f"{self._token}.{worker.worker}.{worker.attempt};"
        job = ChildJob(
            env=self._env,
            options=self._options,
            contexts=contexts,
            first=worker.envs.start,
            worker=worker.worker,
            num_envs=self.num_envs,
            num_workers=settings.num_workers,
            spec=getattr(self, "spec", self._spec),
            keeps_final=settings.keeps_final,
            faults=settings.child_faults,
            title=f"{name}:{name_of(worker.envs)}",
            mark=worker.mark,
            parent=0 if settings.start_method == "forkserver" else os.getpid(),
            remembered=[
                Ask(0, what, [env - worker.envs.start], arguments)
                for (what, env, _), arguments in self._remembered.items()
                if worker.attempt and env in worker.envs
            ],
            log_level=logging.getLogger().getEffectiveLevel(),
            own_group=settings.own_group,
            shows_progress=settings.step_timeout_s is not None,
            cores=self._cores_of(worker),
            single_thread=settings.single_thread,
        )
        worker.start(job, settings.start_method, settings.reset_timeout_s, self._selector)

    @property
    def num_restarts(self) -> int:
        """See `AskedEnvs`."""
        return sum(worker.attempt for worker in self.workers)

    def _cores_of(self, worker: ProcessHandle) -> tuple[int, ...]:
        cores = self.settings.cores
        return (cores[(self.settings.first_core + worker.worker) % len(cores)],) if cores else ()

    def ask(self, envs: NDArray[np.int64], command: int) -> None:
        """See `AskedEnvs`."""
        self._require_open()
        rows = self.rows
        asked_of = self.workers if len(envs) == self.num_envs else self._workers_of(envs)
        _require_alive(asked_of)
        lost = envs[self._is_lost[envs]]
        rows.command[envs] = command
        self._restarted[envs] = False
        if command == RESET and self._prepared.any():
            rows.command[envs[self._prepared[envs]]] = RESET_AS_TOLD
            self._prepared[envs] = False
        if len(lost):
            if command == STEP:
                self._restarted[lost] = True
                rows.command[lost] = RESET
            self._is_lost[lost] = False
        rows.asked[envs] += 1
        self._pending[envs] = True
        self._asked_at[envs] = time.monotonic()
        for worker in asked_of:
            worker.own.ring()

    def require_alive(self, envs: NDArray[np.int64]) -> None:
        """See `AskedEnvs`."""
        _require_alive(self._workers_of(envs))

    def prepare_reset(self, envs: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> None:
        """See `AskedEnvs`."""
        self.require_alive(np.asarray(envs))
        self._prepared[envs] = True
        self._told_resets |= {env: (seed, options) for env, seed in zip(envs, seeds, strict=True)}
        for worker in self._workers_of(np.asarray(envs)):
            self._tell_resets(worker, [env for env in envs if env in worker.envs])

    def _tell_resets(self, worker: ProcessHandle, envs: list[int]) -> None:
        for env in envs:
            seed, options = self._told_resets[env]
            worker.post(Ask(0, "prepare_reset", [env - worker.envs.start], ([seed], options)))

    def collect(self, envs: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
        """See `AskedEnvs`."""
        self._pending[envs] = False
        if self._restarted.any():
            self._mark_restarted(envs)
        if not self._failures and not self.rows.outcome[envs].any():
            return {}
        for worker in self._workers_of(envs[self.rows.outcome[envs] != 0]):
            self._receive(worker)
        if (failure := self.take_failure(envs)) is not None:
            raise EnvWorkerError.of(failure, self._worker_of(failure.env_id).worker)
        return self.take_infos(envs)

    def wait(self, timeout_s: float | None) -> None:
        """See `AskedEnvs`."""
        self._require_open()
        slice_s = LOOK_EVERY_S if timeout_s is None else min(timeout_s, LOOK_EVERY_S)
        self._await_room()
        events = self._selector.select(max(0.0, slice_s))
        ended: list[ProcessHandle] = []
        for key, _ in events:
            worker = key.data
            if key.fileobj is worker.channel:
                self._receive(worker)
            elif key.fd == worker.parents.descriptors[0]:
                worker.parents.wait(0.0)
            elif worker not in ended:
                ended.append(worker)
        for worker in ended:
            self._end(worker)
        now = time.monotonic()
        if not events or now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            if not all(worker.is_ready for worker in self.workers):
                self.settings.beat()
            self._look_at_clock()

    def look(self) -> None:
        """See `AskedEnvs`."""
        if time.monotonic() >= self._next_look:
            self.wait(0.0)

    def _await_room(self) -> None:
        """Be woken when there is room for messages that wait for it."""
        for worker in self.workers:
            if worker.process is not None and worker.channel.is_full:
                self._full.add(worker)
                self._selector.modify(worker.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)
        for worker in [worker for worker in self._full if worker.process is None or not worker.channel.is_full]:
            self._full.discard(worker)
            if worker.process is not None:
                self._selector.modify(worker.channel, selectors.EVENT_READ, worker)

    def wait_for_all(self, envs: NDArray[np.int64]) -> None:
        """See `AskedEnvs`."""
        # One process after the other: while the first is waited for, the others finish without waking this one.
        done, asked = self.rows.done, self.rows.asked
        for worker in self.workers if len(envs) == self.num_envs else self._workers_of(envs):
            mine: Any = (
                worker.slice
                if len(envs) == self.num_envs
                else envs[(envs >= worker.envs.start) & (envs < worker.envs.stop)]
            )
            while (done[mine] < asked[mine]).any():
                events = worker.poll.poll(LOOK_EVERY_S * 1000.0)
                if len(events) == 1 and events[0][0] == worker.parents.descriptors[0]:
                    worker.parents.wait(0.0)
                else:
                    self.wait(0.0)

    def finish(self, envs: NDArray[np.int64]) -> None:
        """See `AskedEnvs`."""
        began = time.monotonic()
        while len(late := envs[self.rows.done[envs] < self.rows.asked[envs]]):
            self.wait(LOOK_EVERY_S)
            if self.settings.step_timeout_s is None:  # steps are the only ones without a limit
                self._require_ends(late[self.rows.command[late] == STEP], began)

    def _require_ends(self, stepping: NDArray[np.int64], began: float) -> None:
        """Each of these environments has as long for its step as for a reset; those of a process take turns.

        Raises:
            EnvTimeout: a process has not finished any of its steps in the time of all.
        """
        now = time.monotonic()
        for worker in self._workers_of(stepping):
            limit_s = self.settings.reset_timeout_s * len(worker.envs)
            if worker.is_ready and now - max(began, worker.progress_at) > limit_s:
                late = [env for env in stepping.tolist() if env in worker.envs]
                raise EnvTimeout(late, limit_s, "the step before their reset", "step_timeout would limit it")

    def request(
        self,
        what: str,
        envs: Sequence[int],
        arguments: Sequence[tuple[Any, ...]],
        *,
        per_worker: bool = False,
        extra_s: float = 0.0,
    ) -> list[Any]:
        """See `AskedEnvs`.

        Args:
            what: see `talk.answer`.
            envs: which.
            arguments: one tuple per environment.
            per_worker: ask the batch of each process that holds some of them, with the arguments of the first.
            extra_s: seconds that it may take beyond the limit of a reset.
        """
        workers = self._workers_of(np.asarray(envs, np.int64))
        _require_alive(workers)
        asked: list[int] = []
        try:
            for worker in workers:
                mine = [(env, given) for env, given in zip(envs, arguments, strict=True) if env in worker.envs]
                for env, given in mine[:1] if per_worker else mine:
                    asked.append(self._requests.open(env, worker))
                    self._requests.send(asked[-1], what, given)
            limit_s = self.settings.reset_timeout_s + extra_s
            deadline = time.monotonic() + limit_s
            while late := self._requests.unanswered(asked):
                if time.monotonic() > deadline:
                    raise EnvTimeout(late, limit_s, f"{what!r}")
                self.settings.beat()
                self.wait(LOOK_EVERY_S)
            found = self._requests.results(what, asked)
            return [found[env] for env in envs if env in found]
        finally:
            self._requests.forget(asked)

    def keep(self, what: str, env: int, arguments: tuple[Any, ...]) -> None:
        """See `AskedEnvs`."""
        self._remembered[what, env, arguments[0] if what == "batch" else ""] = arguments

    def together(self, envs: Sequence[int]) -> list[list[int]]:
        """See `AskedEnvs`."""
        if self.steps_apart:
            return [[env] for env in envs]
        of_workers = [[env for env in envs if env in worker.envs] for worker in self.workers]
        return [mine for mine in of_workers if mine]

    def tell(self, what: str, env: int, arguments: tuple[Any, ...]) -> None:
        """Tell an environment something; nobody waits for an answer, and a failure is raised with its next result."""
        worker = self._worker_of(env)
        if not worker.has_ended:
            worker.post(Ask(0, what, [env - worker.envs.start], arguments))

    def close(self, timeout_s: float = 10.0) -> CloseReport:
        """End every process: asked to, then with SIGTERM, then with SIGKILL, and all that they have started.

        Takes no longer than `timeout_s` and two seconds. In a forked child nothing happens.
        """
        if self._report is not None or os.getpid() != self._owner:
            return self._report or CloseReport(0, 0, 0, 0.0, [])
        self._report = CloseReport(0, 0, 0, 0.0, [])
        _open.discard(self)
        began = time.monotonic()
        living = [worker for worker in self.workers if worker.process is not None and not worker.has_ended]
        try:
            ends = end_processes(living, self._token, timeout_s, self._receive)
            for worker in ends.closed:
                if worker.is_ready and not worker.is_closed:
                    how = processes.describe_exit(worker.process.exitcode)
                    self.close_failures.append(f"the process of environments {in_words(worker.envs)} {how}")
        finally:
            for worker in self.workers:
                worker.release(self._selector)
            self._selector.close()
            if self._segment is not None:
                self._segment.close()
                del self.rows, self._segment  # the memory goes with the last array that shows it
        closed, terminated, killed = (len(these) for these in ends)
        self._report = CloseReport(closed, terminated, killed, time.monotonic() - began, self.close_failures)
        return self._report

    def __del__(self) -> None:
        """Processes do not outlive what would close them."""
        with contextlib.suppress(Exception):
            self.close(TERMINATE_S)

    def _receive(self, worker: ProcessHandle) -> None:
        if worker.process is None:
            return
        worker.channel.flush()
        for message in worker.channel.receive():
            match message:
                case Ready():
                    self._begin(worker, message)
                case Infos():
                    self._infos |= message.by_row
                case Fatal():
                    worker.failure = message.failure
                case Failed() if not worker.is_ready:
                    worker.failure = message.failure
                case Failed() if message.failure.phase == "close":
                    self.close_failures.append(f"environment {message.failure.env_id}: {message.failure.message}")
                case Failed():
                    self._failures[message.failure.env_id] = message.failure
                case Counted():
                    self.settings.count(message.is_bad_data, message.cause)
                case Answer() if message.request:
                    self._requests.answer(worker, message)
                case Answer() if message.failure is not None:  # to what nobody waits for
                    self._failures[message.failure.env_id] = message.failure
                case Garbled():
                    self._note_garbled(worker, message.error)
                case Closed():
                    worker.is_closed = True

    def _note_garbled(self, worker: ProcessHandle, error: Exception) -> None:
        """A message could not be put together: that environments are built, or the oldest answer that is missing."""
        failure = Failure.of(error, worker.envs.start, "a message to this process")
        if not worker.is_ready:
            worker.failure = failure
            send_signal(worker.pid, signal.SIGKILL)
            return
        log.warning("environments %s sent what cannot be put together here: %r", in_words(worker.envs), error)
        self._requests.fail_oldest(worker, failure)

    def _begin(self, worker: ProcessHandle, ready: Ready) -> None:
        """Share memory with a process whose environments are built, and let it go on where the one before was.

        Raises:
            ConfigError: they have other spaces than the first environment, which is waited for.
        """
        settings = self.settings
        if self._segment is None and worker.worker > 0:
            self._early.append((worker, ready))
            return
        if self._segment is None:
            self.spec, self.spaces, self.steps_apart = ready.spec, ready.spaces, ready.steps_apart
            shape = (self.spec, self.num_envs, settings.num_workers, settings.keeps_final)
            # Its name is without the mark: this process maps it and would be taken for a marked one.
            self._segment = Segment.create("env-rows", segment_size(*shape))
            self.rows = map_rows(self._segment, *shape)
        elif worker.attempt == 0 and not (
            exchange_the_same(ready.spec, self.spec) and ready.spaces[1] == self.spaces[1]
        ):
            raise ConfigError(
                f"environments {in_words(worker.envs)} have other spaces than environment 0, but need the same: "
                + difference_in_words(ready.spec, ready.spaces, self.spec, self.spaces)
            )
        worker.channel.give_descriptor(self._segment.descriptor)
        worker.is_ready = True
        worker.post(Shared(self.spec))
        self._asked_at[worker.slice] = time.monotonic()  # of what a predecessor left undone
        for content in worker.waiting:
            worker.channel.post(content)
        worker.waiting.clear()
        worker.own.ring()
        early, self._early = self._early, []
        for each in sorted(early, key=lambda pair: pair[0].worker):  # the same is refused, whichever was ready first
            self._begin(*each)

    def _end(self, worker: ProcessHandle) -> None:
        """A process has ended: restart it, or tell.

        Raises:
            EnvWorkerDied, EnvWorkerError: it is not restarted.
        """
        settings = self.settings
        self._receive(worker)
        worker.process.join(KILLED_S)
        code = worker.process.exitcode
        kill_marked(worker.mark)
        how = processes.describe_exit(code) if worker.late is None else f"was killed after {worker.late[1]:g} s"
        envs = worker.slice
        self._requests.end(worker)
        worker.forget(self._selector)
        worker.has_ended = True
        worker.end = (code, how)
        if self._segment is None or not worker.take_restart(int(self.rows.done[worker.slice].sum())):
            self._pending[envs] = False
            if worker.failure is None and (remedy := self._remedy(worker)):
                worker.why = remedy
            worker.raise_end()
        cause = f"the process of environments {in_words(worker.envs)} {how}"
        settings.count(False, cause)
        log.warning("%s; it is restarted", cause)
        rows = self.rows
        unfinished = self._pending[envs] & (rows.done[envs] < rows.asked[envs])
        self._restarted[envs] |= unfinished & (rows.command[envs] == STEP)
        as_told = self._prepared[envs] | (unfinished & (rows.command[envs] == RESET_AS_TOLD))
        rows.command[envs][unfinished & ~as_told] = RESET
        self._is_lost[envs] = ~unfinished
        lost = np.flatnonzero(unfinished) + worker.envs.start
        self.take_infos(lost)  # of steps that nobody will see
        for env in lost.tolist():
            self._failures.pop(env, None)
        worker.attempt += 1
        try:
            self._start(worker)
        except OSError as error:
            worker.why = f"its process could not be started again: {error}"
            self._pending[envs] = False
            worker.raise_end()
        self._tell_resets(worker, (np.flatnonzero(as_told) + worker.envs.start).tolist())

    def _remedy(self, worker: ProcessHandle) -> str:
        """What helps against the end of a process that said nothing before."""
        if worker.is_ready:
            return self.settings.remedy if self.settings.restarts.on == "raise" else ""
        # What Python itself ends with, before the first environment was built.
        if worker.attempt or worker.end[0] != 1 or self.settings.start_method == "fork":
            return ""
        return (
            "it said nothing, so look above for what Python printed: where that is of __main__, the script needs "
            "`if __name__ == '__main__':` around what it does, or start_method='fork'"
        )

    def _mark_restarted(self, envs: NDArray[np.int64]) -> None:
        restarted = envs[self._restarted[envs]]
        if not len(restarted):
            return
        agents, steps = self.spec.agents_per_env, self.rows.steps
        rows = rows_of_envs(restarted, agents)
        steps.crashed[rows] = 1
        self._restarted[restarted] = False

    def _look_at_clock(self) -> None:
        """Kill processes that take too long.

        Raises:
            EnvTimeout: processes are not restarted.
        """
        now, settings = time.monotonic(), self.settings
        for worker in self.workers:
            if worker.has_ended:
                continue
            late, limit, what = self._late(worker, now)
            if not late:
                continue
            if settings.restarts.on == "raise":
                raise EnvTimeout(late, limit, what, settings.remedy if worker.is_ready else "")
            log.warning("environments %s took more than %g s: their process is killed", in_words(late), limit)
            worker.late = late, limit, what
            send_signal(worker.pid, signal.SIGKILL)

    def _late(self, worker: ProcessHandle, now: float) -> tuple[list[int], float, str]:
        """Environments that take too long, their limit in seconds, and what they do; none: they are in time."""
        settings = self.settings
        if not worker.is_ready:
            return (list(worker.envs) if now > worker.deadline else []), settings.reset_timeout_s, "being built"
        done = int(self.rows.done[worker.slice].sum())
        if done != worker.done_at_look:  # its environments take turns
            worker.done_at_look, worker.progress_at = done, now
        busy = self._pending[worker.slice] & (self.rows.done[worker.slice] < self.rows.asked[worker.slice])
        resets = self.rows.command[worker.slice] != STEP
        since = now - np.maximum(self._asked_at[worker.slice], worker.progress_at)
        limit = settings.step_timeout_s if settings.step_timeout_s is not None else float("inf")
        for is_concerned, seconds, what in (
            (resets, settings.reset_timeout_s, "their reset"),
            (~resets, limit, "their step"),
        ):
            late = np.flatnonzero(busy & is_concerned & (since > seconds))
            if len(late):
                return (late + worker.envs.start).tolist(), seconds, what
        return [], 0.0, ""

    def _workers_of(self, envs: NDArray[np.int64]) -> list[ProcessHandle]:
        wanted = set(envs.tolist())
        return [worker for worker in self.workers if not wanted.isdisjoint(worker.envs)]

    def _worker_of(self, env: int) -> ProcessHandle:
        return next(worker for worker in self.workers if env in worker.envs)

    def _require_open(self) -> None:
        if self._report is not None:
            raise ClosedEnvironmentError("these environments are closed")


def _require_alive(workers: Sequence[ProcessHandle]) -> None:
    for worker in workers:
        if worker.has_ended:
            worker.raise_end()


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        each.close(0.5)
