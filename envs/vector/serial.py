"""Several environments stepped one after the other in this process: the serial backend.

It suits environments that are cheap or that need no guarding; the bookkeeping is about a microsecond per environment.
Nothing here depends on time or on which process runs it: an environment's episodes follow from its context alone.

With a `FaultPolicy`, an environment that fails is replaced in its place: in `step`, its rows lose that step; in a
reset, nothing is lost, because earlier steps stay valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.envs.action_layout import random_actions
from appo.envs.adapters import (
    SingleEnvAdapter,
    Target,
    failure,
    fill_common_case,
    fill_common_case_of,
    lose_step,
    target_of,
)
from appo.envs.api import (
    ACTION_MASK,
    BadEnvDataError,
    Decorrelation,
    EnvContext,
    EnvError,
    EnvSpec,
    StepArrays,
    TrainingProgressListener,
)
from appo.envs.contract import frames_alone
from appo.envs.faults import FAILURES, FailureStreak, FaultPolicy, ValueCheck, close_quietly, go_on
from appo.envs.parallel_adapter import ParallelEnvAdapter
from appo.envs.specs import require_same_actions, require_spec
from appo.envs.vector.shared_rows import FLAGS
from appo.envs.wrappers import find_ability, set_env_params, shape_rewards
from appo.utils.options import ConfigError


class SerialVecEnv:
    """A `BatchEnv` of single (Gymnasium) or parallel (PettingZoo) environments, all of one kind."""

    def __init__(
        self,
        envs: Sequence[Any],
        contexts: Sequence[EnvContext],
        faults: FaultPolicy | None = None,
        build: Callable[[EnvContext], Any] | None = None,
        spec: EnvSpec | None = None,
    ) -> None:
        """Adapt environments that were built for these contexts.

        Args:
            envs: one per context.
            contexts: which of all environments of the run these are.
            faults: decides about failures; None: the first one is raised, and numbers are not looked at.
            build: builds one environment anew; needed with `faults`.
            spec: of every environment, also of one built anew; None: that of the first.

        Raises:
            UnsupportedSpaceError: a space that cannot be trained on.
            ConfigError: one is no environment.
            EnvError: one differs from `spec`, or a reset that looks for action masks failed.
        """
        self._beat = go_on if faults is None else faults.beat
        self._adapters: list[SingleEnvAdapter | ParallelEnvAdapter] = []
        for index, (env, context) in enumerate(zip(envs, contexts, strict=True)):
            adapter = _adapter(env, index, context)
            spec = spec or adapter.spec
            require_spec(adapter.spec, spec, index, context)
            self._adapters.append(adapter)
            require_same_actions(adapter.spaces[1], self._adapters[0].spaces[1], index, context)
            self._beat()
        assert spec is not None, "a batch of no environments"
        first = self._adapters[0]
        self.num_envs = len(self._adapters)
        self.spec = spec
        self.spaces = first.spaces
        """Observation and action space of one agent."""
        self._layout, self._actions = first.layout, first.actions
        self._takes_groups = isinstance(first, ParallelEnvAdapter)
        agents = self.spec.agents_per_env
        self._slots: list[tuple[Callable[[Any, int, Target], None], int]]
        self._slots = [(adapter.step, index * agents) for index, adapter in enumerate(self._adapters)]
        self._find_abilities()
        self._told: dict[str, Any] = {}  # what environments were told last, for a replacement
        self._reward_weights: dict[int, list[dict[str, float]]] = {}  # the same, of each
        self._scripts: dict[int, list[str]] = {}  # the same
        self._params: dict[int, dict[str, Any]] = {}  # the same
        self._is_closed = False
        self._faults, self._build, self._values = faults, build, ValueCheck(self.spec, self.num_envs)
        self._contexts = list(contexts)
        self._num_steps = 0
        self._own: StepArrays | None = None  # into which nobody else writes
        self._own_flags = self._ordinary_flags = np.empty(0, np.uint8)  # theirs, and what these are in ordinary steps
        self.ended: list[int] | None = None
        """Rows in which the last step of all ended an episode by termination and began the next one, where no step, end
        or beginning said anything else; [] is an ordinary step. None: that is not known, as with arrays that
        `be_only_writer` has not heard of."""
        self._seen: tuple[StepArrays | None, list[np.ndarray], list[np.ndarray] | None] = (None, [], None)
        self._streaks = [FailureStreak() for _ in contexts]

    def be_only_writer(self, steps: StepArrays, flags: NDArray[np.uint8]) -> None:
        """Know arrays into which nobody else writes: values that they have stay unwritten.

        Args:
            steps: the arrays.
            flags: [FLAGS, E] theirs, as one block, see `shared_rows.SharedRows`.
        """
        self._own, self._own_flags, self._ordinary_flags = steps, flags, np.zeros_like(flags)
        self._ordinary_flags[FLAGS.index("active")] = 1
        self.ended = None

    @property
    def envs(self) -> list[Any]:
        """The environments as they were built."""
        return [adapter.env for adapter in self._adapters]

    def reset(self, out: StepArrays) -> None:
        """Start new episodes everywhere, see `BatchEnv`."""
        self.ended = None
        out.is_last.fill(0)
        out.active.fill(1)
        target = target_of(self._layout, out)
        for index in range(self.num_envs):
            self._start(index, index * self.spec.agents_per_env, target)
            self._beat()
        out.is_first.fill(1)

    def step(self, actions: np.ndarray, out: StepArrays) -> dict[int, dict[str, Any]]:
        """Step every row once, see `BatchEnv`."""
        if out is not self._own:
            fill_common_case(out)
        elif self.ended != []:
            self._own_flags[:] = self._ordinary_flags  # less than half the time of `fill_common_case`
            if self.ended is None:  # otherwise every frame count is 1 already
                out.frames.fill(1)
        self.ended = ended = None
        target = self._target(out)
        self._num_steps += 1
        if self._plain:
            ended = self._step_plain(actions, target)
        else:
            self._step_all(iter(zip(self._slots, self._per_env(actions), strict=True)), target)
        if self._faults is not None and not self._all_pass(out, ended):
            ended = None
            agents = self.spec.agents_per_env
            for index in sorted({row // agents for row in self._values.bad_rows(out)}):
                self._check_values(index, index * agents, target)
        if out is self._own:
            self.ended = ended
        return target.infos

    def _all_pass(self, out: StepArrays, ended: list[int] | None) -> bool:
        """Every number that is looked at is finite; `ended`: not None where it is known that nothing was truncated."""
        return self._values.passes(out) and (ended is not None or self._values.finals_pass(out))

    def _target(self, out: StepArrays) -> Target:
        """Where a step goes; a caller with arrays of its own gives the same ones each time."""
        known, views, finals = self._seen
        if out is not known:
            _, _, _, finals = target = target_of(self._layout, out)
            self._seen = (out, target.views, finals)
            return target
        return Target(views, out, {}, finals)

    def step_envs(self, indices: Sequence[int], actions: np.ndarray, out: StepArrays) -> dict[int, dict[str, Any]]:
        """Step some environments once; the rows of the others are left as they are.

        Args:
            indices: which.
            actions: [E, W] of all rows, see `BatchEnv`.
            out: for all rows.
        """
        if len(indices) == self.num_envs:
            return self.step(actions, out)
        agents = self.spec.agents_per_env
        self.ended = None
        fill_common_case_of(self._rows_of_envs(indices), out)
        target = target_of(self._layout, out)
        self._num_steps += 1
        chosen = self._per_env(actions[self._rows_of_envs(indices)])
        self._step_all(iter(zip([self._slots[index] for index in indices], chosen, strict=True)), target)
        if self._faults is not None and not self._all_pass(out, None):
            for index in sorted({row // agents for row in self._values.bad_rows(out)} & set(indices)):
                self._check_values(index, index * agents, target)
        return target.infos

    def reset_envs(
        self,
        indices: Sequence[int],
        out: StepArrays,
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Begin new episodes in some environments; the rows of the others are left as they are.

        Args:
            indices: which.
            out: for all rows.
            seeds: one for each of them; None: their random numbers go on.
            options: for each reset.
        """
        rows = self._rows_of_envs(indices)
        self.ended = None
        fill_common_case_of(rows, out)
        out.rewards[rows], out.frames[rows], out.is_first[rows] = 0, 0, 1
        target = target_of(self._layout, out)
        for place, index in enumerate(indices):
            if seeds is not None or options is not None:
                self._adapters[index].prepare_reset(None if seeds is None else seeds[place], options)
            self._start(index, index * self.spec.agents_per_env, target)
            self._beat()

    def _rows_of_envs(self, indices: Sequence[int]) -> NDArray[np.int64]:
        agents = self.spec.agents_per_env
        return np.asarray((np.asarray(indices)[:, None] * agents + np.arange(agents)).ravel())

    def _step_all(self, steps: Iterable[Any], target: Target) -> None:
        """Step every environment that is left in `steps`; recover those that fail."""
        row = 0
        while True:
            try:
                for (step, row), action in steps:
                    step(action, row, target)
                return
            except FAILURES as error:
                self._recover(row // self.spec.agents_per_env, row, error, target)

    def _step_plain(self, actions: np.ndarray, target: Target) -> list[int] | None:
        """`_step_all` for single environments whose observation is one array, alone or in a dict.

        Those that have no more to say than how many frames a step took need no call; what
        `ObservationLayout.write_plain` asks of an array is asked here again.

        Returns:
            As `ended`.
        """
        view, rewards, row, is_plain = target.views[0], target.out.rewards, 0, True
        ended: list[int] = []
        layout = self._plain[0].layout
        # What is looked up once is not looked up for each of many environments.
        shape, dtype, key, array = layout.plain_shape, layout.known_types[0], layout.plain_key, np.ndarray
        steps = iter(enumerate(zip(self._plain, self._actions.rows(actions), strict=True)))
        while True:
            try:
                for row, (adapter, action) in steps:
                    if adapter.is_between_episodes:
                        is_plain = False
                        adapter.step(action, row, target)
                        continue
                    observation, rewards[row], terminated, truncated, info = adapter.step_env(action)
                    value = observation
                    if key is not None:  # a dict of another type may find its values in its own way: `write` asks it
                        value = observation.get(key) if type(observation) is dict else None
                    frames = frames_alone(info) if info else 1
                    if (
                        terminated
                        or truncated
                        or not frames
                        or adapter.is_to_be_cut
                        or type(value) is not array
                        or value.dtype is not dtype
                        or value.shape != shape
                    ):
                        if adapter.finish(observation, terminated, truncated, info, row, target):
                            ended.append(row)
                        else:
                            is_plain = False
                        continue
                    view[row] = value
                    if frames != 1:
                        is_plain, target.out.frames[row] = False, frames
                return ended if is_plain else None
            except FAILURES as error:
                is_plain = False
                self._recover(row, row, error, target)

    def _start(self, index: int, first_row: int, target: Target) -> None:
        """Begin an episode of one environment."""
        try:
            self._adapters[index].start(first_row, target)
        except FAILURES as error:
            self._recover(index, first_row, error, target)
        if self._faults is not None:
            self._check_observations(index, first_row, target)

    def _check_values(self, index: int, first_row: int, target: Target) -> None:
        misfit = self._values.step_misfit(target.out, self._rows(first_row))
        if misfit is None:
            self._check_observations(index, first_row, target)
        else:  # whatever has begun since
            self._recover(index, first_row, failure(index, "step", misfit, self._contexts[index]), target)

    def _check_observations(self, index: int, first_row: int, target: Target) -> None:
        misfit = self._values.misfit(target.out, self._rows(first_row))
        if misfit is not None:
            self._recover(index, first_row, misfit, target)

    def _rows(self, first_row: int) -> slice:
        return slice(first_row, first_row + self.spec.agents_per_env)

    def _recover(self, index: int, first_row: int, error: BaseException, target: Target) -> None:
        """Put a sound environment where one failed, at the beginning of an episode.

        Raises:
            EnvError: there is no fault policy, or it failed too often.
        """
        failed = self._failure(index, error, target)
        if self._faults is None or self._build is None:
            raise failed
        if failed.loses_step:
            rows = self._rows(first_row)
            lose_step(rows, target.out)
            for row in range(rows.start, rows.stop):
                target.infos.pop(row, None)
        self._faults.recover(
            failed, self._streaks[index], self._num_steps, lambda how: self._restart(index, first_row, how, target)
        )

    def _restart(self, index: int, first_row: int, failed: EnvError, target: Target) -> EnvError | None:
        """Start one environment again, built anew if it raised; how that failed."""
        rows = self._rows(first_row)
        try:
            if not isinstance(failed, BadEnvDataError):
                self._rebuild(index)
            target.out.is_last[rows], target.out.active[rows] = 0, 1
            self._adapters[index].start(first_row, target)
            misfit = self._values.misfit(target.out, rows)
        except FAILURES as error:
            return self._failure(index, error, target)
        return None if misfit is None else self._failure(index, misfit, target)

    def _failure(self, index: int, error: BaseException, target: Target) -> EnvError:
        if isinstance(error, EnvError):
            return error
        phase = "reset" if self._adapters[index].latest_start is target else "step"
        return failure(index, phase, error, self._contexts[index])

    def _rebuild(self, index: int) -> None:
        """Replace one environment by a new one, which is told what the old one was told."""
        old = self._adapters[index]
        close_quietly([old])
        context = self._contexts[index]
        context = self._contexts[index] = context._replace(attempt=context.attempt + 1)
        try:
            adapter = self._built(index, context)
        except EnvError:
            raise
        except FAILURES as error:
            raise failure(index, "make", error, context) from error
        adapter.remembers_randomness = old.remembers_randomness
        self._adapters[index] = adapter
        self._slots[index] = (adapter.step, self._slots[index][1])
        self._find_abilities()
        if "progress" in self._told and index in self._listeners:
            self._tell_progress(index)
        if index in self._reward_weights:
            self.shape_rewards(index, self._reward_weights[index])
        if index in self._scripts:
            self.play_scripts(index, self._scripts[index])
        if index in self._params:
            try:
                set_env_params(adapter.env, self._params[index])
            except FAILURES as error:
                raise failure(index, "set_env_params", error, context) from error

    def _built(self, index: int, context: EnvContext) -> SingleEnvAdapter | ParallelEnvAdapter:
        """A new environment, known to fit in; one that does not is closed."""
        assert self._build is not None
        env = self._build(context)
        try:
            adapter = _adapter(env, index, context)
            require_spec(adapter.spec, self.spec, index, context)
            require_same_actions(adapter.spaces[1], self.spaces[1], index, context)
        except BaseException:
            close_quietly([env])
            raise
        return adapter

    def _find_abilities(self) -> None:
        listeners = enumerate(find_ability(adapter.env, TrainingProgressListener) for adapter in self._adapters)
        self._listeners = {index: listener for index, listener in listeners if listener is not None}
        singles = [adapter for adapter in self._adapters if isinstance(adapter, SingleEnvAdapter)]
        # Environments of one spec may still give their observations differently, say in a dict or counted from 5.
        ways = {(one.layout.is_plain, one.layout.plain_key, one.layout.plain_shape) for one in singles}
        are_alike = len(ways) == 1 and singles[0].layout.is_plain and len(self.spec.observations) == 1
        self._plain = singles if are_alike else []

    def _per_env(self, actions: np.ndarray) -> Any:
        """[E, W] -> for each environment what its adapter takes: an action, or a list with one per agent."""
        rows = self._actions.rows(actions)
        if not self._takes_groups:
            return rows
        rows, agents = list(rows), self.spec.agents_per_env
        return [rows[first : first + agents] for first in range(0, len(rows), agents)]

    def cut(self, rows: NDArray[np.int64]) -> list[int]:
        """See `Cuttable`."""
        agents, can_be_cut = self.spec.agents_per_env, []
        for row in rows.tolist():
            adapter = self._adapters[row // agents]
            if isinstance(adapter, SingleEnvAdapter):  # agents that share an environment end together
                adapter.is_to_be_cut = True
                can_be_cut.append(row)
        return can_be_cut

    def decorrelate(self, how: Decorrelation, out: StepArrays) -> NDArray[np.int64]:
        """Start anew, then take each environment a different number of random steps into its episodes.

        Writes what `reset` writes. Environments that were stepped together would otherwise all end together for long,
        and every batch would hold one phase of the episode only.

        Args:
            how: how far they go. Only what its `max_seconds` cut short depends on time.
            out: where the observations go.

        Returns:
            [E] steps that the episode now being played has behind it.
        """
        self.reset(out)
        number = self.num_envs if how.moves_apart else 1
        num_steps = how.rng.integers(0, how.max_steps, number, endpoint=True).repeat(self.num_envs // number)
        # Time is shared out like steps: where there is too little of it, all fall short alike and are still apart.
        shares = num_steps.cumsum() / max(1, num_steps.sum())
        begin = time.monotonic()
        elapsed = np.zeros(self.num_envs, np.int64)
        for index, env_rng in enumerate(how.rng.spawn(self.num_envs)):
            deadline = begin + how.max_seconds * shares[index] if num_steps[index] else begin
            rows = _rows_of(out, index, self.spec.agents_per_env)
            elapsed[index] = self._advance(index, env_rng, int(num_steps[index]), rows, deadline)
        return elapsed.repeat(self.spec.agents_per_env)

    def _advance(self, index: int, rng: np.random.Generator, num_steps: int, out: StepArrays, deadline: float) -> int:
        """Take one environment some random steps; `out` holds its rows only. Those of its present episode."""
        views = self._layout.views(out.observations)
        left, of_episode = num_steps, 0
        while left > 0 and time.monotonic() < deadline and self._beat():
            mask = out.observations.get(ACTION_MASK)
            actions = random_actions(self.spec.actions, rng, self.spec.agents_per_env, mask)
            fill_common_case(out)
            target = Target(views, out, {})
            self._num_steps += 1
            try:
                self._slots[index][0](next(iter(self._per_env(actions))), 0, target)
            except FAILURES as error:
                self._recover(index, 0, error, target)
            if self._faults is not None:
                self._check_values(index, 0, target)
            left, of_episode = left - 1, of_episode + 1
            if out.crashed.any():
                of_episode = 0
            elif self._adapters[index].latest_start is target:
                left, of_episode = left % of_episode, 0  # another whole episode would lead to where it is now
        if self._adapters[index].is_between_episodes:
            fill_common_case(out)
            self._start(index, 0, Target(views, out, {}))
            of_episode = 0
        out.active[out.is_last == 1] = 0  # an agent that was truncated before the others takes no part any more
        out.is_last.fill(0)
        out.is_first.fill(1)
        return of_episode

    def set_training_progress(self, env_frames: int) -> None:
        """Tell the listening environments how many frames the run has seen; the next step of one that raises fails."""
        self._told["progress"] = env_frames
        for index in self._listeners:
            self._tell_progress(index)

    def _tell_progress(self, index: int) -> None:
        try:
            self._listeners[index].set_training_progress(self._told["progress"])
        except FAILURES as error:
            self._fail_next_step(index, "set_training_progress", error)

    def _fail_next_step(self, index: int, phase: str, error: BaseException) -> None:
        failed = failure(index, phase, error, self._contexts[index])

        def fail(*_: Any) -> None:
            raise failed

        self._slots[index] = (fail, self._slots[index][1])
        adapter = self._adapters[index]
        if isinstance(adapter, SingleEnvAdapter):
            adapter.step_env = fail

    def shape_rewards(self, index: int, weights: list[dict[str, float]]) -> None:
        """See `RewardShapingBatch`; the next step of an environment that raises fails."""
        self._reward_weights[index] = weights
        try:
            shape_rewards(self._adapters[index].env, weights)
        except FAILURES as error:
            self._fail_next_step(index, "set_reward_shaping", error)

    def play_scripts(self, index: int, scripts: list[str]) -> None:
        """See `ScriptedBatch`."""
        self._scripts[index] = scripts
        adapter = self._adapters[index]
        if isinstance(adapter, ParallelEnvAdapter):
            adapter.play_scripts(scripts)

    def set_env_params(self, index: int, params: dict[str, Any]) -> None:
        """Set parameters of one environment, see `EnvParameters`; remembered when it is built anew.

        Raises:
            TypeError: it has none.
            KeyError: it has no such parameter.
        """
        set_env_params(self._adapters[index].env, params)
        self._params[index] = self._params.get(index, {}) | params

    def remember_randomness(self) -> None:
        """See `appo.envs.api.Repeatable`."""
        for adapter in self._adapters:
            adapter.remembers_randomness = True

    def randomness(self) -> list[dict[str, Any]]:
        """See `appo.envs.api.Repeatable`."""
        return [adapter.randomness for adapter in self._adapters]

    def restore_randomness(self, states: list[dict[str, Any]]) -> None:
        """See `appo.envs.api.Repeatable`."""
        for adapter, state in zip(self._adapters, states, strict=True):
            adapter.restore_randomness(state)

    def close(self) -> None:
        """Close every environment, once, also when some of them fail to; the first failure is raised at the end."""
        if self._is_closed:
            return
        self._is_closed = True
        first_failure: tuple[int, BaseException] | None = None
        for index, adapter in enumerate(self._adapters):
            try:
                adapter.close()
            except FAILURES as error:
                first_failure = first_failure or (index, error)
        if first_failure:
            failed_index, cause = first_failure
            raise failure(failed_index, "close", cause, self._contexts[failed_index]) from cause


def _adapter(env: Any, index: int, context: EnvContext) -> SingleEnvAdapter | ParallelEnvAdapter:
    if hasattr(env, "agent_iter"):
        raise ConfigError(
            f"{env} lets its agents act in turns; make it parallel with pettingzoo.utils.conversions.aec_to_parallel"
        )
    if hasattr(env, "possible_agents"):
        return ParallelEnvAdapter(env, index, context)
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return SingleEnvAdapter(env, index, context)
    raise ConfigError(
        f"the factory returned {env!r}; return a gymnasium.Env, gymnasium.vector.VectorEnv or PettingZoo ParallelEnv"
    )


def _rows_of(out: StepArrays, index: int, agents: int) -> StepArrays:
    """The rows of one environment, for steps whose results stay unseen."""
    rows = slice(index * agents, (index + 1) * agents)
    return StepArrays(
        observations={name: array[rows] for name, array in out.observations.items()},
        is_first=out.is_first[rows],
        is_last=out.is_last[rows],
        active=out.active[rows],
        rewards=np.zeros(agents, np.float32),
        terminated=np.zeros(agents, np.uint8),
        truncated=np.zeros(agents, np.uint8),
        frames=np.zeros(agents, np.int32),
        crashed=np.zeros(agents, np.uint8),
    )
