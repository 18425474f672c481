"""Options of sampling: how many environments are stepped, by how many actor workers, and in which rhythm."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from appo.utils.options import ConfigError, option

MOST_PAST_SELVES = 256  # each has a network, and a row and a column of the win matrix
RANDOM = "random"  # the scripted player that every environment has


@dataclass(frozen=True)
class SamplingConfig:
    """How environments are spread over actor workers and stepped."""

    num_workers: int = option(
        -1,
        "Actor workers, processes that step environments. -1: one per CPU core, as far as a container may use them",
        minimum=-1,
    )
    policy: str = option(
        "learned",
        "Who plays. random: with --sampler_only, actions are drawn in the actor workers and there are no policy "
        "workers; that makes the most frames per second that any policy could play here",
        choices=("learned", "random"),
    )
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
    env_backend: str = option(
        "serial",
        "How an actor runs the environments of a split. serial: one after the other, in the actor; subproc: in "
        "processes, so that one that ends its process costs that process alone; native: as one vectorised environment "
        "that Gymnasium knows for the id",
        choices=("serial", "subproc", "native"),
    )
    env_procs_per_worker: int = option(
        -1,
        "Processes of environments for each actor with --env_backend=subproc, a multiple of --worker_num_splits. -1: "
        "one per environment",
        minimum=-1,
    )
    env_start_method: str = option(
        "fork",
        "How those processes are started: fork is the fastest",
        choices=("fork", "spawn", "forkserver"),
    )
    env_step_timeout: float = option(
        0.0,
        "Seconds that a step of one of those processes may take before it is killed and started anew. 0: no limit but "
        "that of an actor that gives no sign of life",
        minimum=0.0,
    )
    env_restarts_lifetime: int = option(
        -1, "How often one of those processes is started anew before its actor fails. -1: no limit", minimum=-1
    )
    env_restarts_rate: int = option(-1, "The same, within --env_restarts_period seconds. -1: no limit", minimum=-1)
    env_restarts_period: float = option(60.0, "Seconds, see --env_restarts_rate", minimum=1.0)
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
        "Episodes of such an environment for which a draw counts, and those of 25 rollouts at least: a change within "
        "a rollout leaves rows of it to other learners",
        minimum=1,
    )
    agent_policy_map: str = option(
        "",
        "Which policy plays which agents of such an environment: pattern:policy, ... - the first pattern that fits an "
        "agent's name decides, for example 'predator*:0,prey*:1'. Empty: any, drawn",
    )
    self_play: bool = option(
        False,
        "Self-play: in a part of the matches, past selves of the policies, kept in a pool, and scripted players have "
        "half of the seats, rounded down; for environments with several agents",
    )
    self_play_share: float = option(
        0.5, "Share of the draws that give seats to opponents of the pool", minimum=0.0, maximum=1.0
    )
    self_play_pool_size: int = option(
        8,
        "Past selves of each policy in the pool. The first and the newest always stay; of the others those that are "
        "most evenly apart in frames",
        minimum=2,
        maximum=64,
    )
    self_play_save_every: int = option(
        500_000, "Environment frames of a policy after which it joins the pool as it is then", minimum=1
    )
    self_play_sampling: str = option(
        "pfsp_hard",
        "How opponents are drawn from the pool, by the share w of recent matches that the policy won against each. "
        "uniform: all alike; pfsp_hard: by (1 - w)^2, those who win; pfsp_var: by w (1 - w), equals (AlphaStar)",
        choices=("uniform", "pfsp_hard", "pfsp_var"),
    )
    self_play_anchors: str = option(
        "random",
        "Scripted opponents, separated by commas: random, and those that the environment offers; empty: none. They "
        "never change, so a rating that is measured against them means the same all the time",
    )
    self_play_anchor_share: float = option(
        0.2,
        "Share of the opponents that are scripted. Lower, and the policy forgets how to beat those who play badly",
        minimum=0.0,
        maximum=1.0,
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

    def policies_of(self, agents: Sequence[str]) -> tuple[int, ...]:
        """The policy of each agent, as `agent_policy_map` says; empty where it says nothing.

        Args:
            agents: their names.

        Raises:
            ConfigError: it cannot be read, an agent is not named, or there is no such policy or agent.
        """
        text = self.agent_policy_map
        if not text:
            return ()
        words = [entry.strip() for entry in text.split(",")]
        entries = [word.rpartition(":") for word in words]
        for word, (pattern, _, policy) in zip(words, entries, strict=True):
            if not pattern or not policy.isdecimal() or int(policy) >= self.num_policies:
                raise ConfigError(
                    f"agent_policy_map={text!r}: {word!r} should be pattern:policy with a policy "
                    f"from 0 to {self.num_policies - 1}, for example 'predator*:0,prey*:1'"
                )
            if not fnmatch.filter(agents, pattern):
                raise ConfigError(f"agent_policy_map={text!r}: no agent fits {pattern!r}; they are {', '.join(agents)}")
        found = [[int(p) for pattern, _, p in entries if fnmatch.fnmatchcase(agent, pattern)] for agent in agents]
        missing = [agent for agent, policies in zip(agents, found, strict=True) if not policies]
        if missing:
            raise ConfigError(f"agent_policy_map={text!r} names no policy for {', '.join(missing)}; '*:0' names all")
        seats = tuple(policies[0] for policies in found)
        idle = sorted(set(range(self.num_policies)) - set(seats))
        if idle:
            raise ConfigError(
                f"agent_policy_map={text!r} gives no agent to policy {', '.join(map(str, idle))}; nearest: "
                f"--num_policies={len(set(seats))}, with the policies of the map counted from 0"
            )
        return seats

    @property
    def frozen_policies(self) -> int:
        """Past selves that can play at one time."""
        return self.num_policies * self.self_play_pool_size if self.self_play else 0

    @property
    def anchors(self) -> tuple[str, ...]:
        """Names of the scripted players."""
        names = [name.strip() for name in self.self_play_anchors.split(",")]
        return tuple(dict.fromkeys(name for name in names if name)) if self.self_play else ()

    def check_combinations(self) -> None:
        """Refuse combinations that cannot run.

        Raises:
            ConfigError: the message names the nearest value that works.
        """
        if self.agent_policy_map and not self.pbt_mix_policies_in_one_env:
            raise ConfigError(
                "agent_policy_map says who plays each agent, pbt_mix_policies_in_one_env=False that one plays all: "
                "leave one out"
            )
        if self.frozen_policies > MOST_PAST_SELVES:
            most = MOST_PAST_SELVES // self.num_policies
            raise ConfigError(
                f"self_play_pool_size={self.self_play_pool_size} for each of num_policies={self.num_policies}: at most "
                f"{MOST_PAST_SELVES} past selves can play at one time; nearest: {most}"
            )
        if self.num_workers == 0:
            raise ConfigError("num_workers=0 leaves no actor to step environments; nearest: 1, or -1: one per CPU core")
        self._check_env_processes()
        envs, splits = self.num_envs_per_worker, self.worker_num_splits
        if envs % splits:
            below, above = envs - envs % splits, envs - envs % splits + splits
            nearest = ", ".join(str(count) for count in (below, above) if count)
            raise ConfigError(
                f"num_envs_per_worker={envs} cannot be divided into worker_num_splits={splits} equal parts; "
                f"nearest: {nearest}, or --worker_num_splits=1"
            )

    @property
    def env_processes(self) -> int:
        """Processes for the environments of one split; 0: they are stepped by the actor."""
        if self.env_backend != "subproc":
            return 0
        if self.env_procs_per_worker < 0:
            return self.num_envs_per_worker // self.worker_num_splits
        return self.env_procs_per_worker // self.worker_num_splits

    def _check_env_processes(self) -> None:
        procs, splits, envs = self.env_procs_per_worker, self.worker_num_splits, self.num_envs_per_worker
        if procs == -1:
            return
        if self.env_backend != "subproc":
            raise ConfigError(f"env_procs_per_worker={procs} is for env_backend=subproc; here it is {self.env_backend}")
        if procs % splits or not splits <= procs <= envs:
            nearest = min(max(splits, round(procs / splits) * splits), envs - envs % splits)
            raise ConfigError(
                f"env_procs_per_worker={procs} should be a multiple of worker_num_splits={splits}, at most "
                f"num_envs_per_worker={envs}; nearest: {nearest}"
            )
