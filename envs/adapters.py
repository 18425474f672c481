"""One environment, made to write its steps into the rows of a batch as `appo.envs.api` says.

`SingleEnvAdapter` (Gymnasium `Env`) fills one row, `appo.envs.parallel_adapter` (PettingZoo parallel) one row per
agent; `appo.envs.vector.serial` puts many of them side by side. A whole `VectorEnv` is adapted in
`appo.envs.vector.native`.

The arrays of a step arrive with the common case filled in (`fill_common_case`): no episode begins or ends, every agent
active, no flags, one frame each. An adapter writes what differs, and always the observation and the reward.

Action masks in `info`: an environment that always gives them says so with the attribute `action_mask_in_info = True`,
one that never does with `False`. Without the attribute the first reset, which is then done early and kept, shows it.
A single environment's method `action_masks()`, which sb3-contrib knows, is asked after each reset and step instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.envs.action_layout import ActionLayout
from appo.envs.api import (
    ACTION_MASK,
    BadEnvDataError,
    EnvContext,
    EnvError,
    EnvSpec,
    MisfitError,
    StepArrays,
)
from appo.envs.contract import checked_reset, fitting_mask, flag, read_info
from appo.envs.faults import FAILURES
from appo.envs.observation_layout import ObservationLayout
from appo.envs.specs import complete_spec, declares_info_mask, mask_method


class Target(NamedTuple):
    """Where the rows of one step of a batch go."""

    views: list[np.ndarray]  # of the observations, as `ObservationLayout.views` gives them
    out: StepArrays
    infos: dict[int, dict[str, Any]]  # row -> info, for the caller of `BatchEnv.step`
    finals: list[np.ndarray] | None = None  # views of the final observations, for a caller that wants them apart


def target_of(layout: ObservationLayout, out: StepArrays) -> Target:
    """Where the rows of a step go."""
    finals = None if out.final_observations is None else layout.views(out.final_observations)
    return Target(layout.views(out.observations), out, {}, finals)


def first_seed(context: EnvContext) -> int | None:
    """The seed of an environment's first reset: depends on the run's seed, its id and its attempt, and nothing else."""
    if context.seed is None:
        return None
    sequence = np.random.SeedSequence([context.seed, context.env_id, context.attempt])
    return int(sequence.generate_state(1)[0]) % 2**31  # several simulators take no more than 31 bits


def step_arrays(spec: EnvSpec, num_envs: int) -> StepArrays:
    """Arrays of its own for a caller of a `BatchEnv` that has no blocks to write into, all zero."""
    rows = num_envs * spec.agents_per_env
    return StepArrays(
        observations={leaf.name: np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spec.observations},
        is_first=np.zeros(rows, np.uint8),
        is_last=np.zeros(rows, np.uint8),
        active=np.zeros(rows, np.uint8),
        rewards=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, np.uint8),
        truncated=np.zeros(rows, np.uint8),
        frames=np.zeros(rows, np.int32),
        crashed=np.zeros(rows, np.uint8),
    )


def fill_common_case(out: StepArrays) -> None:
    """What an ordinary step says of every row."""
    out.is_first.fill(0)
    out.is_last.fill(0)
    out.active.fill(1)
    out.terminated.fill(0)
    out.truncated.fill(0)
    out.frames.fill(1)
    out.crashed.fill(0)


def fill_common_case_of(rows: NDArray[np.int64], out: StepArrays) -> None:
    """The same for some rows; `fill` is three times as fast for all."""
    for array in (out.is_first, out.is_last, out.terminated, out.truncated, out.crashed):
        array[rows] = 0
    out.active[rows] = 1
    out.frames[rows] = 1


def lose_step(rows: slice, out: StepArrays) -> None:
    """What a step says of rows whose environment failed in it."""
    for array in (out.rewards, out.terminated, out.truncated, out.frames):
        array[rows] = 0
    out.crashed[rows] = 1


def failure(env_index: int, phase: str, error: BaseException, context: EnvContext) -> EnvError:
    """The error that tells a caller which environment raised; its cause is set."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, MisfitError):
        failed: EnvError = BadEnvDataError(env_index, phase, str(error), context)
    else:
        failed = EnvError(env_index, phase, message, context)
    failed.__cause__ = error
    return failed


class OneEnv:
    """What adapters of single and of parallel environments share: layouts, seeding, action masks in infos, closing."""

    def __init__(
        self,
        env: Any,
        env_index: int,
        context: EnvContext,
        observation_space: Any,
        action_space: Any,
        agents: Sequence[Any] = (),
    ) -> None:
        self.env, self.env_index, self.context = env, env_index, context
        self.spaces = (observation_space, action_space)
        self._seed = first_seed(context)
        self.latest_start: Target | None = None
        """What the newest episode's first observation was written to, or was to be: tells whether a step began it."""
        self._early: tuple[Any, Any] | None = None  # the first reset, when it was done to look for an action mask
        self._options: dict[str, Any] | None = None
        self.remembers_randomness = False
        self.randomness: dict[str, Any] = {"seed": self._seed, "generator": None}
        """Where the random numbers stood when the present episode began: its seed, or the state of its generator."""
        self.layout, self.actions = ObservationLayout(observation_space), ActionLayout(action_space)
        self._ask_mask: Callable[[], Any] | None = None if agents else mask_method(env, self.layout, self.actions)
        adds_mask = self._ask_mask is not None or declares_info_mask(env, self.layout, self.actions)
        if adds_mask is None:
            self._early = self._reset_env()
            adds_mask = any(ACTION_MASK in info for info in self._each(self._early[1]))
        self._adds_mask = adds_mask
        self._is_closed = False
        self.spec = complete_spec(env, self.layout, self.actions, agents, adds_mask)

    def _each(self, infos: Any) -> Iterable[dict[str, Any]]:
        """The infos of all agents."""
        return (infos,)

    def _reset_env(self) -> tuple[Any, Any]:
        """(observation, info); the first time seeded, and taken from the early reset if there was one."""
        if self._early is not None:
            early, self._early = self._early, None
            return early
        seed, self._seed = self._seed, None
        if self.remembers_randomness:
            generator = None if seed is not None else self._generator_state()
            self.randomness = {"seed": seed, "generator": generator}
        try:
            options, self._options = self._options, None
            return checked_reset(self.env, seed, options)
        except FAILURES as error:
            raise failure(self.env_index, "reset", error, self.context) from error

    def prepare_reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Say how the next reset is done; without a seed, random numbers go on where they stand."""
        if seed is not None or options is not None:
            self._early = None
            self._options = options
        self._seed = self._seed if seed is None else seed

    def _generator_state(self) -> Any:
        """None: the environment keeps its random numbers to itself, so its episodes cannot be begun once more."""
        generator = self._generator()
        return None if generator is None else generator.bit_generator.state

    def _generator(self) -> Any:
        return getattr(getattr(self.env, "unwrapped", self.env), "np_random", None)

    def _read_state(self, info: dict[str, Any], row: int, out: StepArrays) -> None:
        """What an info says of the observation that comes with it."""
        if "is_active" in info:
            out.active[row] = flag("is_active", info["is_active"])
        if self._adds_mask:
            masks = out.observations[ACTION_MASK]
            told = info if self._ask_mask is None else {ACTION_MASK: self._ask_mask()}
            masks[row] = fitting_mask(told[ACTION_MASK], masks.shape[1]) if ACTION_MASK in told else 1

    def restore_randomness(self, state: dict[str, Any]) -> None:
        """Let the next reset begin the episode that this state was taken at."""
        if state["generator"] is not None:
            self._generator().bit_generator.state = state["generator"]
        self._early, self._seed = None, state["seed"]

    def close(self) -> None:
        """Close the environment, once, also when it fails to."""
        if not self._is_closed:
            self._is_closed = True
            self.env.close()


def keep_final(views: list[np.ndarray], finals: list[np.ndarray], row: int) -> None:
    """Copy the observation of a row that ends an episode to the final ones, before that of the next one is written."""
    for view, final in zip(views, finals, strict=True):
        final[row] = view[row]


def read_step(info: dict[str, Any], row: int, target: Target) -> None:
    """What an info says of the step that it comes with."""
    target.out.frames[row], reports = read_info(info)
    if reports:
        target.infos[row] = info


class SingleEnvAdapter(OneEnv):
    """One Gymnasium environment: one row."""

    def __init__(self, env: Any, env_index: int, context: EnvContext) -> None:
        """Adapt `env`, environment `env_index` of its batch.

        Raises:
            UnsupportedSpaceError: a space that cannot be trained on.
            EnvError: the early reset failed.
        """
        super().__init__(env, env_index, context, env.observation_space, env.action_space)
        self.step_env: Callable[[Any], Any] = env.step
        self._write: Callable[[list[np.ndarray], int, Any], None] = (
            self.layout.write_plain if self.layout.is_plain else self.layout.write
        )
        self.is_between_episodes = False
        """The next step ignores its action and starts an episode."""
        self.is_to_be_cut = False
        """The episode is truncated after its next step, should it not have ended by then."""

    def start(self, row: int, target: Target) -> bool:
        """Reset, and write the first observation of an episode; True: its info said nothing."""
        self.latest_start = target
        self.is_between_episodes = self.is_to_be_cut = False
        observation, info = self._reset_env()
        self._write(target.views, row, observation)
        target.out.is_first[row] = 1
        if info or self._adds_mask:
            self._read_state(info, row, target.out)
            return False
        return True

    def step(self, action: Any, row: int, target: Target) -> None:
        """Step once and write the row; one step after a truncation, start the next episode instead."""
        if self.is_between_episodes:
            target.out.rewards[row] = 0.0
            target.out.frames[row] = 0
            self.start(row, target)
            return
        observation, target.out.rewards[row], terminated, truncated, info = self.step_env(action)
        self.finish(observation, terminated, truncated, info, row, target)

    def finish(
        self, observation: Any, terminated: Any, truncated: Any, info: dict[str, Any], row: int, target: Target
    ) -> bool:
        """Write all but the reward of a step that was made.

        Returns:
            The episode was terminated, the next one began, and neither info said anything.
        """
        views, out, _, finals = target
        if info:
            read_step(info, row, target)
        if terminated:
            out.terminated[row] = 1
            if finals is not None:
                self._write(finals, row, observation)
            return self.start(row, target) and not info
        self._write(views, row, observation)
        if info or self._adds_mask:
            self._read_state(info, row, out)
        if truncated or self.is_to_be_cut:
            if finals is not None:
                out.truncated[row] = out.active[row] = 1
                keep_final(views, finals, row)
                self.start(row, target)
                return False
            self.is_between_episodes = True
            out.truncated[row] = out.is_last[row] = out.active[row] = 1
        return False
