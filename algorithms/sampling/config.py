"""Options of sampling: how many environments are stepped, by how many actor workers, and in which rhythm."""

from __future__ import annotations

import os
from dataclasses import dataclass

from appo.utils.options import ConfigError, option


@dataclass(frozen=True)
class SamplingConfig:
    """How environments are spread over actor workers and stepped."""

    num_workers: int = option(-1, "Actor workers, processes that step environments. -1: one per CPU core", minimum=-1)
    num_envs_per_worker: int = option(
        2,
        "Environments that each actor worker steps, a multiple of --worker_num_splits. More make larger batches for "
        "the policy and older data",
        minimum=1,
    )
    worker_num_splits: int = option(
        2,
        "Parts of an actor's environments that step in turns: while one waits for its actions, another steps. 1: no "
        "such overlap",
        minimum=1,
    )
    num_policies: int = option(
        1,
        "Policies trained side by side, each by a learner of its own. A split of single agents plays one of them at a "
        "time; where several agents share an environment, each agent's is drawn",
        minimum=1,
        maximum=64,
    )
    pbt_mix_policies_in_one_env: bool = option(
        True,
        "Where several agents share an environment, draw a policy for each of them. Off: all of them play one policy",
    )
    policy_change_episodes: int = option(
        10,
        "Episodes of such an environment for which a draw counts. Fewer mix policies more, and leave more rows of a "
        "rollout to other learners",
        minimum=1,
    )
    decorrelate_experience_max_seconds: float = option(
        10.0,
        "At the start, each environment takes another number of random steps, so that episodes do not end all at once: "
        "up to 1000 or one whole episode, for no longer than this many seconds. Actor i of n may spend i/n of them, so "
        "the first samples almost at once. 0: every episode begins at its beginning",
        minimum=0.0,
        maximum=86_400.0,
    )
    decorrelate_envs_on_one_worker: bool = option(
        True,
        "At the start, move the environments of one actor apart as well, not only those of different actors",
    )
    reset_timeout_seconds: float = option(
        120.0,
        "How long the check before the start may take, and an actor to build or to reset one environment at the start, "
        "or to build one anew, before it is replaced; inf: no limit",
        minimum=1.0,
        may_be_infinite=True,
    )
    max_env_rebuilds: int = option(
        10,
        "An environment that raises is built anew in its place, and its step is lost. How often in a row, without one "
        "sound step in between, before its actor is replaced. 0: never",
        minimum=0,
    )
    on_bad_env_data: str = option(
        "error",
        "Rewards or observations that are not finite or not of the declared shape or dtype, and infos that break the "
        "contract. error: the run ends and names them; drop: the step is lost and the environment reset",
        choices=("error", "drop"),
    )
    check_env: bool = option(
        True,
        "Before the run starts, play some hundred random steps of one environment, for at most 1.5 s, and check that "
        "it keeps what its spaces declare. Off: options of an environment without family defaults follow from its "
        "spaces alone",
    )
    force_envs_single_thread: bool = option(
        True, "Keep libraries inside the environments from starting threads of their own in every actor"
    )

    def check_combinations(self) -> None:
        """Refuse combinations that cannot run.

        Raises:
            ConfigError: the message names the nearest value that works.
        """
        if self.num_workers == 0:
            raise ConfigError("num_workers=0 leaves no actor to step environments; nearest: 1, or -1: one per CPU core")
        envs, splits = self.num_envs_per_worker, self.worker_num_splits
        if envs % splits:
            below, above = envs - envs % splits, envs - envs % splits + splits
            nearest = ", ".join(str(count) for count in (below, above) if count)
            raise ConfigError(
                f"num_envs_per_worker={envs} cannot be divided into worker_num_splits={splits} equal parts; "
                f"nearest: {nearest}, or --worker_num_splits=1"
            )


def available_cores() -> int:
    """CPU cores that this process may use, which containers and `taskset` make fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
