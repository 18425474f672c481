"""The environment protocol at the level at which an actor works: a batch of agent rows.

A `BatchEnv` holds `num_envs` environments of `agents_per_env` agents each. Its rows are
`row = env * agents_per_env + agent`, E = num_envs * agents_per_env in all, and they are reset, stepped and closed
together. It writes into the arrays it is given, so that an observation is written once, where it will be read.

How an episode ends, seen by the caller of `step`:

* A *terminated* step writes the first observation of the next episode at once (`is_first` = 1).
* A *truncated* step writes the last observation of the episode itself (`is_last` = 1, `is_first` = 0). The next
  `step` ignores the action of that row, resets the environment, gives reward 0 and 0 frames, neither flag, and
  writes the first observation of the next episode (`is_first` = 1, `is_last` = 0).
* An environment that was vectorised by its authors with next-step autoreset sets `is_last` after a terminated step
  too, and continues in the same way.

A caller that wants every step to be a transition gives arrays for final observations. Then a truncated step is like a
terminated one: the last observation is written there, whichever way the episode ended, and the first observation of
the next episode where observations go. (An environment that was vectorised by its authors still begins the next
episode one step later: that step has `is_first` = 1 and none of the flags.)

Every end of an episode of a row is seen exactly once as `terminated` or `truncated`, but for episodes that are lost:

* A step in which an environment fails and recovers (`appo.envs.faults`) has no result: all its rows say
  `crashed` = 1, reward 0, 0 frames, neither flag, and show the first observation of a new episode (`is_first` = 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

ACTION_MASK = "action_mask"  # the observation key, and the info key, that holds which choices are allowed


class ObservationLeaf(NamedTuple):
    """One named array of an observation, as it is stored for each agent row."""

    name: str  # path in a nested Dict, joined by "/"; "obs" when the space is not a Dict
    shape: tuple[int, ...]
    dtype: str  # numpy's name of it
    kind: Literal["image", "vector", "categorical", "mask"]  # image: [channels, height, width]
    num_categories: int = 0  # categorical: each entry of the array counts from 0 to this


class ActionLeaf(NamedTuple):
    """One part of an action: a choice among `size`, or `size` real numbers."""

    kind: Literal["discrete", "continuous"]
    size: int
    low: tuple[float, ...] = ()  # continuous: bounds per number, possibly infinite
    high: tuple[float, ...] = ()


class EnvSpec(NamedTuple):
    """What a batch of environments of one kind exchanges with its caller; small and picklable."""

    observations: tuple[ObservationLeaf, ...]
    actions: tuple[ActionLeaf, ...]
    agents_per_env: int
    reports_true_reward: bool = False
    """An episode whose infos hold no `true_reward` has none: its return does not stand for it."""
    needs_memory: bool = False
    """One observation does not tell what the policy has to know; the environment says so with `needs_memory = True`."""
    reward_shaping: tuple[tuple[str, float], ...] = ()
    """Name and first value of each weight of its reward that training may tune, see `RewardShaping`."""
    agents: tuple[str, ...] = ()
    """Their names, where there are several."""
    scripted_players: tuple[str, ...] = ()
    """See `ScriptedPlayers`."""
    channels_last: tuple[str, ...] = ()
    """Images whose colours are interleaved in the environment's own memory, [height, width, channels]: their space says
    so, or the environment's attribute `images_channels_last = True`. Says how rows lie in memory, not what they are."""


class EnvProfile(NamedTuple):
    """What a moment of random play measured of an environment, beyond its spec; None where nothing was measured."""

    num_steps: int = 0  # that were played
    step_s: float | None = None  # median time of a step
    largest_pixel: float | None = None  # of any image
    num_episodes: int = 0  # that ended meanwhile
    episode_steps: float | None = None  # their mean length
    has_time_limit: bool = False  # an episode was truncated
    rewards_end_only: bool = False
    """No step but the last one of an episode gave a reward other than 0."""
    rewards_only_cost: bool = False
    """Some rewards were below 0, none above."""
    num_gains: int = 0  # rewards above 0, of all agents


class EnvContext(NamedTuple):
    """Which of all environments of a run one environment is; its factory may ask for any field by name."""

    worker_index: int = 0  # of the process that steps it
    vector_index: int = 0  # within that process
    env_id: int = 0  # within the run
    num_envs: int = 1  # in the run
    seed: int | None = None
    attempt: int = 0  # how often this environment was built anew after a failure
    render_mode: str | None = None
    vector_size: int = 1  # environments stepped in one batch with this one: as many as a `VectorEnv` has to hold
    env_name: str = ""  # as typed in --env
    env_kwargs: dict[str, Any] | None = None  # of --env_kwargs


class EnvFamily(NamedTuple):
    """What `envs/families/<prefix>.py` defines as `FAMILY`, and what a user registers for environments of their own."""

    make: Callable[[str, Any, EnvContext], Any]
    """(name as typed in --env, an instance of `config`, context) -> a Gymnasium `Env` or `VectorEnv`, or a PettingZoo
    `ParallelEnv`. Imports its simulator inside."""
    config: type
    """A frozen dataclass of `appo.utils.options.option` fields: the options this family adds to the command line."""
    defaults: Callable[[str], dict[str, Any]]
    """name -> option name -> the value this environment starts from instead of the option's own default. Empty: the
    options are fitted to the environment; a single entry turns that off."""
    names: tuple[str, ...] = ()
    """Names to suggest when a user types one that does not exist."""
    evaluation: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default, never written to
    """Option name -> the value it takes while a policy is scored or watched, unless the user types another."""
    has_engine: bool = False
    """Each environment works in lock step with a process of its own: actors are then kept on one core with theirs."""
    clear_up: str = ""
    """A script of the standard library alone; `python SCRIPT GROUP` removes what environments of killed processes left
    on the machine, once the process group has ended."""
    registers: str = ""
    """A module that registers further ids with Gymnasium when it is imported: they are suggested as well."""
    takes_kwargs: bool = False
    """`make` hands `EnvContext.env_kwargs` to the environment's constructor."""


class StepArrays(NamedTuple):
    """Where one step of a batch writes; every array has one entry per agent row. Given by the caller."""

    observations: dict[str, np.ndarray]  # [E, ...] per leaf, the observation after the step
    is_first: np.ndarray  # [E] uint8, 1: that observation is the first of an episode
    is_last: np.ndarray  # [E] uint8, 1: that observation is the last of an episode, its action will be ignored
    active: np.ndarray  # [E] uint8, 1: the agent acts on that observation
    rewards: np.ndarray  # [E] float32, of this step
    terminated: np.ndarray  # [E] uint8
    truncated: np.ndarray  # [E] uint8
    frames: np.ndarray  # [E] int32, simulator frames this step covered; 0 where the action was ignored
    crashed: np.ndarray  # [E] uint8, 1: the step has no result, its environment failed and was started anew
    final_observations: dict[str, np.ndarray] | None = None
    """[E, ...] per leaf; written where an episode ends. A mask that comes in infos is not among them."""


class Decorrelation(NamedTuple):
    """How far environments are moved into their episodes before they are recorded."""

    rng: np.random.Generator  # decides how far, and by which actions
    max_steps: int  # each is moved by a number of steps from 0 to this, but not through more than one whole episode
    max_seconds: float = math.inf  # of all together: where it is too short, all fall short alike
    moves_apart: bool = True  # False: all by the same number of steps


class BatchEnv(Protocol):
    """A batch of agent rows that is reset, stepped and closed together."""

    spec: EnvSpec
    spaces: tuple[Any, Any]
    """Observation and action space of one agent, as Gymnasium has them."""
    num_envs: int

    def reset(self, out: StepArrays) -> None:
        """Start new episodes everywhere: write observations, `is_first` = 1, `is_last` = 0 and `active`.

        Raises:
            EnvError: an environment raised, with its index and the cause.
        """

    def step(self, actions: np.ndarray, out: StepArrays) -> dict[int, dict[str, Any]]:
        """Step every row once and fill every array of `out`.

        Args:
            actions: [E, W] float32, W = the sum over action leaves of 1 (discrete) or size (continuous); a
                continuous number is in policy units: clipped to [-1, 1] and stretched to finite bounds.
            out: where the results go.

        Returns:
            row -> info, only for rows whose info holds `true_reward` or `episode_extra_stats`.

        Raises:
            EnvError: an environment raised, with its index and the cause.
        """

    def close(self) -> None:
        """Close every environment; called any number of times."""


@runtime_checkable
class Decorrelating(Protocol):
    """Optional, for a `BatchEnv`: environments that can be moved apart after a reset."""

    def decorrelate(self, how: Decorrelation, out: StepArrays) -> NDArray[np.int64]:
        """Reset, step each environment another random number of random actions, write as `reset`.

        Returns:
            [E] steps that the episode now being played has behind it.
        """


@runtime_checkable
class Cuttable(Protocol):
    """Optional, for a `BatchEnv` of single agents: environments whose episodes can be cut from outside."""

    def cut(self, rows: NDArray[np.int64]) -> list[int]:
        """Truncate the episodes of these rows after their next step, should they not have ended by then.

        Returns:
            The rows for which it can.
        """


@runtime_checkable
class RewardShapingBatch(Protocol):
    """Optional, for a `BatchEnv`: environments whose rewards are weighted sums, each with weights of its own."""

    def shape_rewards(self, index: int, weights: list[dict[str, float]]) -> None:
        """Give one environment other weights, from its next step on; remembered when it is built anew.

        Args:
            index: of the environment.
            weights: one for each of its agents.
        """


@runtime_checkable
class ScriptedBatch(Protocol):
    """Optional, for a `BatchEnv`: environments that can play some of their agents themselves."""

    def play_scripts(self, index: int, scripts: list[str]) -> None:
        """Play agents of one environment from its next step on, whatever their actions; also when it is built anew.

        Args:
            index: of the environment.
            scripts: of each of its agents; empty: its actions count.
        """


@runtime_checkable
class Repeatable(Protocol):
    """Optional, for a `BatchEnv`: environments that can begin their present episodes once more."""

    def remember_randomness(self) -> None:
        """From now on keep what `randomness` tells; costs a microsecond or two per episode."""

    def randomness(self) -> list[dict[str, Any]]:
        """Per environment, plain values: where its random numbers stood when its present episode began."""

    def restore_randomness(self, states: list[dict[str, Any]]) -> None:
        """Let the next reset begin the episodes that `randomness` told of, and all later ones follow from them."""


class EnvError(RuntimeError):
    """An environment failed. The cause is its `__cause__`; pickles with its text only."""

    def __init__(
        self, env_index: int, phase: str, message: str, context: EnvContext | None = None, in_a_row: int = 1
    ) -> None:
        """`env_index`: its place in its batch; `in_a_row`: failures since its last sound step."""
        super().__init__(env_index, phase, message, context, in_a_row)
        self.env_index = env_index
        self.phase = phase
        self.message = message
        self.context = context
        self.in_a_row = in_a_row

    @property
    def loses_step(self) -> bool:
        """A step has no result because of it."""
        return self.phase not in ("make", "reset")

    def __str__(self) -> str:
        context = self.context or EnvContext(env_id=self.env_index)
        name = f" of {context.env_name}" if context.env_name else ""
        env = f"environment {context.env_id}{name} (worker {context.worker_index}, place {self.env_index} of its batch)"
        repeated = f" {self.in_a_row} times in a row, without a sound step in between" if self.in_a_row > 1 else ""
        return f"{env} failed in {self.phase}{repeated}: {self.message}"


class BadEnvDataError(EnvError):
    """An environment gave what cannot be learned from. Another try would not help: a defect of the environment."""

    retryable = False  # another try would end the same way


class RestartsUsedUp(EnvError):
    """An environment failed, and was built anew as often as it may be."""

    retryable = False  # the limit holds for what would try again, too

    def __init__(
        self,
        env_index: int,
        phase: str,
        message: str,
        context: EnvContext | None = None,
        in_a_row: int = 1,
        why: str = "",
    ) -> None:
        """`why`: the limit, in words."""
        super().__init__(env_index, phase, message, context, in_a_row)
        self.args = (*self.args, why)  # from which it is unpickled
        self.why = why

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.why}"


class DifferentSpecError(EnvError):
    """An environment does not have the spec of the run it was built for. Another try would build the same."""

    retryable = False  # another try would end the same way


class MisfitError(ValueError):
    """A value that is not what a space, or the contract, declares."""

    def __init__(self, key: str, expected: str, seen: str) -> None:
        """`key`: the observation's, the info's, or "reward"."""
        super().__init__(key, expected, seen)
        self.key = key
        self.expected = expected
        self.seen = seen

    def __str__(self) -> str:
        return f"{self.key!r} should be {self.expected}, but is {self.seen}"


class SignatureError(MisfitError):
    """`reset` or `step` takes or returns something else than Gymnasium's do, and so at every call."""


class UnsupportedSpaceError(TypeError):
    """A space that cannot be trained on. The message names it and what to wrap it with."""

    retryable = False  # another try would end the same way


@runtime_checkable
class RewardShaping(Protocol):
    """Optional: an environment whose reward is a weighted sum that training may tune."""

    def get_reward_shaping(self) -> dict[str, float]:
        """The weights now in force."""

    def set_reward_shaping(self, weights: dict[str, float]) -> None:
        """Take new weights, from the next step on."""


@runtime_checkable
class AgentRewardShaping(RewardShaping, Protocol):
    """The same for several agents, each of which may be given weights of its own."""

    def set_agent_reward_shaping(self, agent: int, weights: dict[str, float]) -> None:
        """Take new weights for one agent, by its place among `possible_agents`, from the next step on."""


@runtime_checkable
class ScriptedPlayers(Protocol):
    """Optional: an environment of several agents that offers scripted opponents, by name."""

    scripted_players: tuple[str, ...]

    def scripted_action(self, name: str, agent: Any) -> Any:
        """What a script does now in the place of an agent, an action of the agent's space."""


@runtime_checkable
class TrainingProgressListener(Protocol):
    """Optional: an environment that follows a curriculum."""

    def set_training_progress(self, env_frames: int) -> None:
        """How many environment frames the whole run has seen."""


@runtime_checkable
class EnvParameters(Protocol):
    """Optional: an environment with parameters that are set from outside, for a curriculum or for randomisation."""

    def get_env_params(self) -> dict[str, Any]:
        """Every parameter, as it is now."""

    def set_env_params(self, params: dict[str, Any]) -> None:
        """Take new values for some of them, from the next episode on."""


@runtime_checkable
class EnvStatistics(Protocol):
    """Optional: an environment that counts and measures things of its own."""

    def pop_env_stats(self) -> dict[str, tuple[Any, str]]:
        """name -> (value, how values of steps and environments are put together), since the last call.

        One of "mean", "last", "sum", "min", "max" and "histogram", whose value is a list of numbers.
        """
