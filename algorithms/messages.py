"""Every report and command between processes.

Reports travel from a worker to the driver, commands from the driver to a worker, through a queue; each may be of any
size (`workers.channels`). Bulk data never travels here: it lies in shared memory, and so do the counters that change
with every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Ready(NamedTuple):
    """worker -> driver: `setup` is done, the first `step` follows."""

    worker: str


class Failed(NamedTuple):
    """worker -> driver: an exception ended this worker; the last thing it says."""

    worker: str
    phase: str  # "setup" or "step"
    traceback: str
    retryable: bool  # another try may end in another way


class EpisodeFinished(NamedTuple):
    """actor -> driver, in `EpisodesFinished`: one agent's episode ended; one policy played it from start to end."""

    policy: int
    episode_return: float  # sum of raw rewards, before scaling and clipping
    true_return: float  # `info["true_reward"]`; NaN where it reported none: a lost life, or no objective but the return
    length_frames: int
    extra: dict[str, float]  # what the environment put into info["episode_extra_stats"]


class EpisodesFinished(NamedTuple):
    """actor -> driver: the episodes that ended since the last such report."""

    episodes: list[EpisodeFinished]


class MatchFinished(NamedTuple):
    """actor -> driver, in `MatchesFinished`: players who differ have met, each in its seat from start to end."""

    players: tuple[int, ...]  # of each seat that took part, as `sampling.matchmaking` numbers them
    numbers: tuple[int, ...]  # of past selves; 0: of others
    outcomes: tuple[float, ...]  # the objective of a seat, its return where there is none; the higher wins


class MatchesFinished(NamedTuple):
    """actor -> driver: the matches that ended since the last such report."""

    matches: list[MatchFinished]


class OpponentFailed(NamedTuple):
    """opponent worker -> driver: the weights of this past self cannot be read."""

    number: int
    reason: str


class TrainingReport(NamedTuple):
    """learner -> driver: what one iteration measured, every value finite; tags without the `train/` prefix."""

    policy: int
    train_step: int
    metrics: dict[str, float]


class PolicyRestored(NamedTuple):
    """learner -> driver, before `Ready`: where this policy starts; `run_state` is what the driver saved with it."""

    policy: int
    checkpoint: str  # path; empty when training starts from nothing
    train_step: int
    run_state: dict[str, Any]  # see `appo.algorithms.run_state`; empty when training starts from nothing
    best: float  # --save_best_metric of the best checkpoint by it that is on disk; NaN: there is none
    warnings: list[str]  # checkpoints that could not be read
    values: dict[str, float]  # options in force that differ from those that the run began with
    adoption: int  # number of the last `AdoptPolicy` that was carried out; 0: none was


class PolicyRecovered(NamedTuple):
    """learner -> driver: a learner took the place of a lost one and goes on; nothing that was counted went back."""

    policy: int
    train_step: int
    moments_of: int  # the train step that the optimizer's moments are of


class TrainingRolledBack(NamedTuple):
    """learner -> driver: numbers were not finite too often; the weights are those of the last good snapshot."""

    policy: int
    train_step: int
    reason: str


class EnvironmentFailed(NamedTuple):
    """actor -> driver: an environment failed and was begun anew. Not every one is told of, but all are counted."""

    worker: str  # empty: it is no process, and its failures are in the log already
    cause: str  # in words


class WorkerLost(NamedTuple):
    """supervisor -> driver: a worker ended that should not have; it is replaced unless `WorkerQuarantined` follows."""

    worker: str
    generation: int
    phase: str
    cause: str  # in words
    by_exception: bool = False  # its own, not a kill from outside


class WorkerStarted(NamedTuple):
    """supervisor -> driver: a lost worker has been started anew."""

    worker: str
    generation: int


class WorkerReady(NamedTuple):
    """supervisor -> driver: a worker that was started anew has ended its setup."""

    worker: str
    generation: int
    seconds: float  # since its predecessor was lost


class WorkerWorks(NamedTuple):
    """supervisor -> driver: a worker that was started anew has done its first work."""

    worker: str
    generation: int
    seconds: float  # since its predecessor was lost


class WorkerQuarantined(NamedTuple):
    """supervisor -> driver: an actor failed too often in a row; the run goes on without it."""

    worker: str
    reason: str


class EvaluationFinished(NamedTuple):
    """evaluation worker -> driver: how one version of a policy's weights did in episodes of their own."""

    policy: int
    version: int  # policy version
    episodes: int
    mean_return: float
    sem_return: float  # standard error of the mean
    min_return: float
    max_return: float
    mean_true_return: float  # the return where the environment reports no objective
    mean_length: float  # frames
    extra: dict[str, float]  # means of the environment's statistics
    seconds: float  # that it took


class EvaluationCutOff(NamedTuple):
    """evaluation worker -> driver: the run ended before an evaluation was finished; its scores are dropped."""

    policy: int
    version: int  # policy version
    episodes: int  # that were played
    seconds: float  # since it began


class EvaluationVideoSaved(NamedTuple):
    """evaluation worker -> driver: an episode of one version of a policy's weights was recorded."""

    policy: int
    version: int  # policy version
    path: str


class CheckpointSaved(NamedTuple):
    """learner -> driver: a checkpoint is safely on disk."""

    policy: int
    kind: str
    path: str
    request: int  # the number of the command that asked for it


class CheckpointFailed(NamedTuple):
    """learner -> driver: a checkpoint could not be written; the older ones are untouched."""

    policy: int
    kind: str
    reason: str
    request: int


class SaveCheckpoint(NamedTuple):
    """driver -> learner: write a checkpoint, with the driver's own state inside."""

    policy: int
    kind: str  # one of `checkpoint_names.KINDS`
    env_frames: int
    run_state: dict[str, Any]  # plain numbers, strings, lists and dicts
    request: int
    metric: float  # what makes a best checkpoint the best; NaN for the other kinds
    metric_name: str  # what that number is; empty for the other kinds


class HyperparametersChanged(NamedTuple):
    """learner -> driver: these options are in force, and a successor of this learner would go on with them."""

    policy: int
    values: dict[str, float]


class HyperparametersRefused(NamedTuple):
    """learner -> driver: these options cannot be in force; nothing has changed."""

    policy: int
    values: dict[str, float]
    reason: str


class SetHyperparameters(NamedTuple):
    """driver -> learner: use other values of these options from the next iteration on.

    Lost with a learner that is lost: to be repeated until it is answered.
    """

    policy: int
    values: dict[str, float]


class PolicyAdopted(NamedTuple):
    """learner -> driver: this policy goes on with another one's weights, and so would a successor of this learner."""

    policy: int
    source: int
    values: dict[str, float]  # options in force from now on
    train_step: int  # rows that were chosen by earlier weights are not learned from
    request: int  # the number of the command that asked for it


class AdoptionRefused(NamedTuple):
    """learner -> driver: nothing was adopted, and nothing has changed."""

    policy: int
    source: int
    reason: str
    request: int


class AdoptPolicy(NamedTuple):
    """driver -> learner: go on with the weights, moments and normalisers of another policy, and with these options.

    Lost with a learner that is lost: to be repeated until it is answered. A request that was carried out is not
    carried out again.
    """

    policy: int
    source: int
    values: dict[str, float]
    request: int  # counted from 1 for each policy


class SetRewardShaping(NamedTuple):
    """driver -> pool of workers: episodes of this policy that begin from now on have these weights of the reward."""

    policy: int
    weights: dict[str, float]


class SetOpponent(NamedTuple):
    """driver -> pool of workers: which past self a frozen policy is from now on; nobody is matched with it before it is
    loaded."""

    frozen: int  # counted from 0, after the policies that learn
    number: int  # of the past self, unique in a run; 0: none
    train_step: int
    env_frames: int


class SetOpponentShares(NamedTuple):
    """driver -> pool of workers: how often a policy meets each opponent, from the next draw on."""

    policy: int
    shares: list[float]  # of each frozen policy, then of each scripted player


class ReplaceWorkers(NamedTuple):
    """driver -> pool of workers: these block progress; note where all workers are, and replace these."""

    kind: str
    policy: int | None  # that they work for; None: every worker of the kind
    reason: str


Report = (
    Ready
    | Failed
    | EpisodesFinished
    | MatchesFinished
    | OpponentFailed
    | TrainingReport
    | EvaluationFinished
    | EvaluationCutOff
    | EvaluationVideoSaved
    | PolicyRestored
    | PolicyRecovered
    | TrainingRolledBack
    | CheckpointSaved
    | CheckpointFailed
    | HyperparametersChanged
    | HyperparametersRefused
    | PolicyAdopted
    | AdoptionRefused
    | EnvironmentFailed
    | WorkerLost
    | WorkerStarted
    | WorkerReady
    | WorkerWorks
    | WorkerQuarantined
)
LearnerCommand = SaveCheckpoint | SetHyperparameters | AdoptPolicy
Setting = SetRewardShaping | SetOpponent | SetOpponentShares
Command = LearnerCommand | ReplaceWorkers | Setting

# What a reader can do without: where too many reports wait, the oldest of these are dropped and counted.
EXPENDABLE = (
    EpisodesFinished,
    MatchesFinished,
    TrainingReport,
    EvaluationFinished,
    EvaluationVideoSaved,
    EnvironmentFailed,
)
