"""Environments that are stepped apart: `send` actions to some, `recv` results of those that are ready first.

    env = make_vec_env("CartPole-v1", num_envs=8, backend="subproc")
    env.async_reset(seed=1)
    while ...:
        batch = env.recv()                     # at least one environment, and every other that has finished
        env.send(policy(batch.obs), batch.env_ids)

`reset` and `step` do both for all environments. Every step of a batch is a transition: where an episode ended, `obs` is
the first observation of the next one and `final_obs` the last of that one. Rows of `kind` RESET and RESTARTED are no
transitions: an episode begins there, in the second case because the environment failed.

Letters:  n = environments of a batch,  A = agents of each. Arrays are [n, ...], or [n, A, ...] with several agents.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.envs.adapters import first_seed
from appo.envs.api import EnvContext
from appo.envs.vector.arguments import (
    are_same,
    check_close_timeout,
    check_min_envs,
    checked_env_ids,
    checked_seeds,
    one_for_each,
)
from appo.envs.vector.asked_envs import AskedEnvs, CloseReport
from appo.envs.vector.errors import (
    AlreadyStepping,
    ClosedEnvironmentError,
    EnvTimeout,
    EnvWorkerError,
    NotStepping,
    VecEnvError,
    in_words,
)
from appo.envs.vector.shared_rows import RESET, STEP, Stopwatch, rows_of_envs
from appo.envs.vector.space_rows import SpaceRows
from appo.envs.vector.statistics import Aggregate, put_together
from appo.envs.vector.step_batch import StepBatch, ends_alone, kinds_of, ordinary_step, parts_of

log = logging.getLogger(__name__)


class VecEnv:
    """Environments of one kind, stepped apart; see `make_vec_env`. Not for several threads at a time."""

    def __init__(
        self, envs: AskedEnvs, contexts: Sequence[EnvContext], batch_size: int, num_workers: int, *, copy: bool = True
    ) -> None:
        """Over environments that are built.

        Args:
            envs: what runs them.
            contexts: of every environment.
            batch_size: how many `recv` waits for, unless told otherwise.
            num_workers: processes that step them; 0: this one.
            copy: results belong to the caller.
        """
        self._envs, self._contexts = envs, list(contexts)
        self.num_envs, self.batch_size, self.num_workers = envs.num_envs, batch_size, num_workers
        self.spec = envs.spec
        self.num_agents = self.spec.agents_per_env
        self._space_rows = SpaceRows(envs.spaces, self.spec)
        self.observation_space, self.action_space = envs.spaces  # of one agent
        self._all = np.arange(self.num_envs)
        self._all.flags.writeable = False  # as `self._episodes`: batches show it
        self._copies = copy
        self._is_in_order = all(array.flags.c_contiguous for array in envs.rows.steps.observations.values())
        self._ordinary_step = ordinary_step(self.num_envs, self.num_agents)
        self._episodes = np.full(self.num_envs, -1, np.int64)
        self._was_reset = np.zeros(self.num_envs, np.bool_)
        self._is_at_rest = False  # open, begun, and nothing is under way; False: that is not known
        self._told_late: set[int] = set()  # that take too long, as was told, while others go on
        self._left = np.full(self.num_envs, -1, np.int64)  # the last commands when a step of all failed
        self._params: dict[int, dict[str, Any]] = {}
        self._stopwatch = Stopwatch(envs.rows.clocks)
        self._report: CloseReport | None = None

    @property
    def steps_apart(self) -> bool:
        """Each environment can be stepped and reset without the others."""
        return self._envs.steps_apart

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._report is not None

    @property
    def num_restarts(self) -> int:
        """Environments, or processes of them, that were started anew after a failure."""
        return self._envs.num_restarts

    def async_reset(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a new episode everywhere. A barrier: what was under way is waited for and thrown away.

        Like `reset_envs`, it gives each step that it throws away as long as a reset has, and raises as `recv` does.

        Args:
            seed: of the run, from which each environment's follows, or one for each; None: random numbers go on.
            options: for `reset` of every environment.
        """
        self._require_open()
        seeds = self._seeds(self._all, seed)
        self._drop(self._all)
        self._ask_reset(self._all, seeds, options)

    def reset(self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> StepBatch:
        """`async_reset`, and wait for all; raises as `step` does, and leaves what `step` leaves."""
        self.async_reset(seed, options)
        return self._receive_all()

    def reset_envs(
        self,
        env_ids: Sequence[int] | NDArray[np.int64],
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Begin new episodes in some environments; `recv` gives their first observations. Drops their open steps.

        Raises:
            ValueError: the environments are vectorised and reset together.
        """
        self._require_open()
        envs = self._checked_ids(env_ids)
        if not self._envs.steps_apart and len(envs) < self.num_envs:
            raise ValueError("these environments are one VectorEnv, which is reset as a whole: call reset()")
        checked = self._seeds(envs, seeds)
        self._drop(envs)
        self._ask_reset(envs, checked, options)

    def reset_and_receive(
        self,
        env_ids: Sequence[int] | NDArray[np.int64],
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> StepBatch:
        """`reset_envs`, and wait for these; raises as `step` does, and leaves what `step` leaves."""
        self.reset_envs(env_ids, seeds, options)
        envs = self._checked_ids(env_ids)
        try:
            self._envs.wait_for_all(envs)
            return self._batch(envs)
        except VecEnvError:
            self._left = self._envs.rows.asked.copy()
            raise

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.int64] | None = None) -> None:
        """Let environments step, each with its action.

        Args:
            actions: as the batched action space has them: [n], [n, ...], or with an axis of agents [n, A, ...]; a tuple
                or dict of those where the space is one.
            env_ids: [n] which environments; None: all.

        Raises:
            AlreadyStepping: the results of one of them have not been received.
            NotStepping: they were never reset.
        """
        envs = self._ready_ids(env_ids)
        self._space_rows.write_actions(actions, envs, self._envs.rows.actions)
        self._envs.ask(envs, STEP)

    def send_rows(self, actions: NDArray[np.float32], env_ids: Sequence[int] | NDArray[np.int64] | None = None) -> None:
        """`send`, with actions [n * A, W] in policy units as `appo.envs.api.BatchEnv.step` takes them."""
        envs = self._ready_ids(env_ids)
        agents = self.num_agents
        self._check_rows(actions, len(envs))
        self._envs.rows.actions[rows_of_envs(envs, agents)] = actions
        self._envs.ask(envs, STEP)

    def _check_rows(self, actions: NDArray[np.float32], number: int) -> None:
        shape = (number * self.num_agents, self._envs.rows.actions.shape[1])
        if np.shape(actions) != shape:  # one row would be taken for all
            raise ValueError(f"rows of actions have shape {np.shape(actions)}; expected {shape}")

    def _ready_ids(self, env_ids: Any) -> NDArray[np.int64]:
        self._require_open()
        self._is_at_rest = False
        envs = self._all if env_ids is None else self._checked_ids(env_ids)
        if not self._was_reset.all() and len(missing := envs[~self._was_reset[envs]]):
            named = f"environments {in_words(missing.tolist())} were never reset: " if self._was_reset.any() else ""
            raise NotStepping(f"{named}call reset or async_reset before the first step")
        if self._envs.num_pending and self._envs.is_pending(envs).any():
            self._drop_left(envs)
        if not self._envs.steps_apart and len(envs) < self.num_envs:
            raise ValueError("these environments are one VectorEnv, which steps as a whole: send to all")
        return envs

    def _drop_left(self, envs: NDArray[np.int64]) -> None:
        """Throw away what a failed `step` or `reset` has left of these environments and nobody has received.

        Raises:
            EnvWorkerDied: they cannot go on, and what is left stays.
            AlreadyStepping: some do not wait because of that, or have not finished.
        """
        self._envs.require_alive(envs)
        left = envs[self._envs.is_pending(envs) & (self._envs.rows.asked[envs] == self._left[envs])]
        if sound := self._envs.forget(left):
            dropped = np.sort(sound)
            is_first = self._envs.rows.steps.is_first[rows_of_envs(dropped, self.num_agents)]
            begins = np.asarray(is_first.reshape(-1, self.num_agents).all(axis=1))
            self._count_episodes(dropped, begins)  # though nobody has seen where these episodes began
        if (is_pending := self._envs.is_pending(envs)).any():
            raise AlreadyStepping(
                f"environments {in_words(envs[is_pending].tolist())} have not finished: receive their results first"
            )

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> StepBatch:
        """Wait for the results of some environments; every other one that has finished comes with them.

        Args:
            min_envs: how many; None: `batch_size`. As many as are under way, if these are fewer.
            timeout: seconds; None: as long as it takes, as always without processes, where all of it is done now.

        Raises:
            NotStepping: nothing is under way.
            ValueError: `min_envs` is below 1.
            EnvTimeout: the time was over.
            EnvWorkerError: an environment raised; the results of the others come with the next call.
            EnvWorkerDied: a process ended, and is not restarted.
        """
        self._require_open()
        if min_envs is not None:
            check_min_envs(min_envs)
        pending = self._envs.num_pending
        if not pending:
            raise NotStepping("no environment is under way: send actions first")
        wanted = min(self.batch_size if min_envs is None else min_envs, pending)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._noting_late(self._envs.look, wanted)
        finished = self._envs.finished()
        while len(finished) < wanted:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                late = np.setdiff1d(np.flatnonzero(self._envs.is_pending(self._all)), finished)
                raise EnvTimeout(late.tolist(), timeout or 0.0, "their step or reset")
            self._noting_late(partial(self._envs.wait, remaining), wanted)
            finished = self._envs.finished()
        return self._batch(finished)

    def _noting_late(self, wait: Callable[[], None], wanted: int) -> None:
        """Wait; that environments take too long is told once, and again only where it keeps from going on."""
        try:
            wait()
        except EnvTimeout as error:
            if not self._told_late.issuperset(error.env_ids) or len(self._envs.finished()) < wanted:
                self._told_late.update(error.env_ids)
                raise

    def latest_obs(self) -> dict[str, NDArray[Any]]:
        """What every environment showed last, received or not: name -> [N, ...], or with an axis of agents [N, A, ...].

        Copies. Of an environment that is under way it means nothing.
        """
        self._require_open()
        agents, shown = self.num_agents, self._copied(self._envs.rows.steps.observations)
        if agents == 1:
            return shown
        return {name: array.reshape(self.num_envs, agents, *array.shape[1:]) for name, array in shown.items()}

    def step(self, actions: Any) -> StepBatch:
        """Step every environment once.

        Where an environment raises or a process ends, `recv` gives the results of those that have not failed; the next
        step, or `send` to them, throws these away.

        Raises:
            NotStepping: they were never reset.
            EnvWorkerError: an environment raised.
            EnvWorkerDied: a process ended, and is not restarted.
            EnvTimeout: an environment took too long, and its process is not restarted.
        """
        if not self._is_at_rest:
            self._ready_ids(None)
        self._space_rows.write_all_actions(actions, self._envs.rows.actions)
        return self._all_done(self._envs.step_all)

    def step_rows(self, actions: NDArray[np.float32]) -> StepBatch:
        """`step`, with actions as `send_rows` takes them."""
        if not self._is_at_rest:
            self._ready_ids(None)
        self._check_rows(actions, self.num_envs)
        self._envs.rows.actions[:] = actions
        return self._all_done(self._envs.step_all)

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment, or read an attribute that is none; one result each."""
        envs = self._ids(env_ids)
        return self._request("call", envs, [(name, args, kwargs)] * len(envs))

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Read an attribute of each environment, of the outermost layer that has it."""
        envs = self._ids(env_ids)
        return self._request("get_attr", envs, [(name,)] * len(envs))

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute of each environment: a list has one value for each, anything else is for all.

        An environment that is built anew after a failure has its own value again; see `set_env_params`.

        Raises:
            ValueError: the list has another length.
        """
        envs = self._ids(env_ids)
        given = one_for_each("values", values, len(envs))
        self._request("set_attr", envs, [(name, value) for value in given])

    def set_env_params(
        self, params: dict[str, Any] | list[dict[str, Any]], env_ids: Sequence[int] | None = None
    ) -> None:
        """Set parameters of environments (`appo.envs.api.EnvParameters`); one that is restarted is told again.

        Raises:
            ValueError: a list has another length.
            EnvWorkerError: an environment knows no such parameter.
        """
        envs = self._ids(env_ids)
        given = one_for_each("params", params, len(envs))
        self._request("set_env_params", envs, [(value,) for value in given])
        for env, value in zip(envs, given, strict=True):
            known = self._params.get(env, {}) | value
            self._params[env] = known
            self._envs.keep("set_env_params", env, (known,))

    def pop_stats(self) -> dict[str, Aggregate]:
        """What environments have counted and measured since the last call, see `appo.envs.api.EnvStatistics`."""
        firsts = [group[0] for group in self._envs.together(self._ids(None))]
        return put_together(self._envs.request("pop_stats", firsts, [()] * len(firsts)))

    def pop_timing(self) -> dict[str, dict[str, float]]:
        """Where processes of environments have spent their time since the last call: name -> count, total (seconds)."""
        return {name: {"count": count, "total": seconds} for name, (count, seconds) in self._stopwatch.pop().items()}

    def close(self, timeout: float = 10.0) -> CloseReport:
        """Close every environment and end every process, at the latest after `timeout` and two seconds.

        Environments of this process cannot be hurried: they take the time that they take.

        Raises:
            ValueError: the timeout is below 0.
        """
        check_close_timeout(timeout)
        if self._report is None:
            self._is_at_rest = False
            self._stopwatch.stop()
            self._report = self._envs.close(timeout)
        return self._report

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a VecEnv has processes and cannot be pickled: pickle what it is made from, and make it again")

    def _receive_all(self) -> StepBatch:
        return self._all_done(self._envs.wait_and_collect)

    def _all_done(self, collect: Callable[[NDArray[np.int64]], dict[int, dict[str, Any]]]) -> StepBatch:
        """The results of all; when one has failed, those of the others are left to `recv`."""
        try:
            infos = collect(self._all)
        except BaseException as error:
            self._is_at_rest = False
            if isinstance(error, VecEnvError):
                self._left = self._envs.rows.asked.copy()
            raise
        self._is_at_rest = True
        return self._whole_batch(infos)

    def _batch(self, envs: NDArray[np.int64]) -> StepBatch:
        infos = self._envs.collect(envs)
        if self._told_late:
            self._told_late.difference_update(envs.tolist())
        if len(envs) == self.num_envs:
            return self._whole_batch(infos)
        agents = self.num_agents
        rows = rows_of_envs(envs, agents)
        if infos:
            places = {row: place for place, row in enumerate(rows.tolist())}
            infos = {places[row]: info for row, info in infos.items()}

        def taken(array: NDArray[Any]) -> NDArray[Any]:
            found = array[rows]
            return found if agents == 1 else found.reshape(len(envs), agents, *found.shape[1:])

        return self._as_batch(envs, taken, self._envs.rows.flags[:, rows], infos)

    def _whole_batch(self, infos: dict[int, dict[str, Any]]) -> StepBatch:
        agents, copies = self.num_agents, self._copies
        if copies and agents == 1 and (batch := self._usual_copies(infos)) is not None:
            return batch

        def taken(array: NDArray[Any]) -> NDArray[Any]:
            found = array.copy("K") if copies else array
            return found if agents == 1 else found.reshape(self.num_envs, agents, *found.shape[1:])

        return self._as_batch(self._all, taken, self._envs.rows.flags, infos)

    def _usual_copies(self, infos: dict[int, dict[str, Any]]) -> StepBatch | None:
        """Copies of the results of all, for steps in which at most episodes ended; None: flags say something else.

        `_as_batch` does the same for any step, with more calls.
        """
        (code, begins, active, never, frames, kind), ended = self._ordinary_step, self._envs.ended
        steps, finals = self._envs.rows.steps, {}
        if ended is None:
            told, frames = self._envs.rows.flags.tobytes(), steps.frames.copy()
            ends = never if told == code else ends_alone(told, self._ordinary_step)
            if ends is None:
                return None
            if (begins := ends) is not never:
                self._count_episodes(self._all, begins)
        elif ended:  # what the flags say is known without a look at them
            begins = self._count_begun(ended)
        if begins is not never:
            finals = self._copied(steps.final_observations or {})
        observations, rewards, episodes = self._copied(steps.observations), steps.rewards.copy(), self._episodes
        return StepBatch(
            self._all, observations, rewards, begins, never, finals, infos, begins, active, frames, episodes, kind
        )

    def _copied(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Copies of observations, in the order in which they lie in memory."""
        if self._is_in_order:  # naming the order takes as long as copying some numbers
            return {name: array.copy() for name, array in arrays.items()}
        return {name: array.copy("K") for name, array in arrays.items()}

    def _as_batch(
        self,
        envs: NDArray[np.int64],
        taken: Callable[[NDArray[Any]], NDArray[Any]],
        flags: NDArray[np.uint8],
        infos: dict[int, dict[str, Any]],
    ) -> StepBatch:
        """Results of environments.

        Args:
            envs: [n] which.
            taken: gives their rows of an array.
            flags: [FLAGS, n * A] theirs.
            infos: by row of the batch.
        """
        steps, number, agents = self._envs.rows.steps, len(envs), self.num_agents
        ordinary = self._ordinary_step if number == self.num_envs else ordinary_step(number, agents)
        code, is_first, active, never, _, kind = ordinary
        terminated, truncated, finals = never, never, {}
        # Bytes are compared in a tenth of the time that numpy takes to ask whether any flag is set.
        if (told := flags.tobytes()) != code:
            (is_first, _, active, terminated, truncated, crashed), ends = parts_of(told, ordinary)
            if ends is not never:
                finals = {name: taken(array) for name, array in (steps.final_observations or {}).items()}
            begins: NDArray[np.bool_] = is_first
            if agents > 1 or (ends is not is_first and (crashed is not never or ends.tobytes() != told[:number])):
                kind, begins = kinds_of(ends, is_first, crashed)
                kind.flags.writeable = False
            self._count_episodes(envs, begins)
        return StepBatch(
            envs,
            {name: taken(array) for name, array in steps.observations.items()},
            taken(steps.rewards),
            terminated,
            truncated,
            finals,
            infos,
            is_first,
            active,
            taken(steps.frames),
            self._episodes if number == self.num_envs else self._episodes[envs],
            kind,
        )

    def _count_episodes(self, envs: NDArray[np.int64], begins: NDArray[np.bool_]) -> None:
        """`begins`: [n] where an episode of these environments has begun."""
        if len(envs) == self.num_envs:
            self._episodes = self._episodes + begins
        else:
            self._episodes = self._episodes.copy()
            self._episodes[envs] += begins
        self._episodes.setflags(write=False)

    def _count_begun(self, envs: list[int]) -> NDArray[np.bool_]:
        """Count an episode that has begun in each of these few: [N] where. `_count_episodes` takes longer."""
        begins, self._episodes = self._ordinary_step.is_first.copy(), self._episodes.copy()
        for env in envs:
            begins[env] = True
            self._episodes[env] += 1
        begins.flags.writeable = self._episodes.flags.writeable = False
        return begins

    def _ask_reset(
        self, envs: NDArray[np.int64], seeds: list[int | None] | None, options: dict[str, Any] | None
    ) -> None:
        if seeds is not None or options is not None:
            self._envs.prepare_reset(envs.tolist(), seeds or [None] * len(envs), options)
        self._was_reset[envs] = True
        self._is_at_rest = False
        self._envs.ask(envs, RESET)

    def _seeds(self, envs: NDArray[np.int64], seed: Any) -> list[int | None] | None:
        if seed is None:
            return None
        checked = checked_seeds(seed, len(envs))
        if isinstance(checked, int):
            return [first_seed(self._contexts[env]._replace(seed=checked)) for env in envs.tolist()]
        return checked

    def _drop(self, envs: NDArray[np.int64]) -> None:
        """Wait for what these environments do, and throw it away."""
        open_ones = envs[self._envs.is_pending(envs)]
        if len(open_ones):
            self._envs.finish(open_ones)
            try:
                self._envs.collect(open_ones)
            except EnvWorkerError as error:
                log.warning("thrown away with what was under way: %s", str(error).splitlines()[0])
                self._envs.forget(open_ones)

    def _request(self, what: str, envs: list[int], arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Ask environments, each with its arguments; those that are one `VectorEnv` have one answer.

        Raises:
            ValueError: they cannot be told different things.
        """
        groups, given = self._envs.together(envs), dict(zip(envs, arguments, strict=True))
        for group in groups:
            if not all(are_same(given[env], given[group[0]]) for env in group):
                raise ValueError("these environments are one VectorEnv, which takes one value for all")
        answers = self._envs.request(what, [group[0] for group in groups], [given[group[0]] for group in groups])
        found = {env: result for group, result in zip(groups, answers, strict=True) for env in group}
        return [found[env] for env in envs]

    def _ids(self, env_ids: Sequence[int] | None) -> list[int]:
        self._require_open()
        return self._all.tolist() if env_ids is None else self._checked_ids(env_ids).tolist()

    def _checked_ids(self, env_ids: Any) -> NDArray[np.int64]:
        if env_ids is self._all:
            return self._all
        return checked_env_ids(env_ids, self.num_envs)

    def _require_open(self) -> None:
        if self._report is not None:
            raise ClosedEnvironmentError("these environments are closed")
