"""Options of processes: how many there are, where they run, and how long one may be silent."""

from __future__ import annotations

from dataclasses import dataclass

from appo.utils.options import ConfigError, option


@dataclass(frozen=True)
class WorkersConfig:
    """How the work is spread over processes, cores and devices."""

    policy_workers_per_policy: int = option(
        1, "Processes that compute actions for one policy; actors are divided among them", minimum=1, maximum=64
    )
    policies_per_policy_worker: int = option(
        0,
        "Policies whose actions one policy worker computes. 0: one each on a GPU; on the CPU so many that there are no "
        "more policy workers than cores, for processes that share a core take turns, which costs more than it brings",
        minimum=0,
        maximum=64,
    )
    async_rl: bool = option(
        True, "Sample while learning. False: actors wait for the weights that their last rollout led to"
    )
    serial_mode: bool = option(
        False, "Run everything in one process, in turns: slower, repeatable with --seed, easy to debug"
    )
    set_workers_cpu_affinity: bool = option(
        True,
        "Keep each actor on one CPU core together with the engines it steps, where environments are processes of their "
        "own, as in Doom: the two work in turns. Other actors are left to the scheduler",
    )
    default_niceness: int = option(
        0,
        "Niceness of the workers; a higher one leaves more of the machine to other programs",
        minimum=-20,
        maximum=19,
    )
    actor_worker_gpus: str = option(
        "", "GPUs on which environments may run, such as 0,1; actors take them in turns. Empty: none"
    )
    heartbeat_timeout_seconds: float = option(
        60.0,
        "How long a worker may show no sign of life before it is replaced, a reset between two episodes included; "
        "building environments and their first reset are bounded by reset_timeout_seconds instead; inf: no limit",
        minimum=1.0,
        may_be_infinite=True,
    )
    max_failures_in_a_row: int = option(
        3,
        "How often a worker may be lost in a row, without having done any work in between, and still be replaced. "
        "Beyond that an actor is quarantined, and the run goes on without it; a policy worker or learner ends the run. "
        "Workers that had worked are replaced however often. 0: the first loss ends the run",
        minimum=0,
    )
    max_setup_retries: int = option(
        2,
        "How often an actor whose environments raise while they are built is started again. Exceptions in the setup of "
        "other workers end the run",
        minimum=0,
    )
    restart_pause_seconds: float = option(
        0.5,
        "Pause before a worker that failed twice in a row is started again; doubles each time, up to 30",
        minimum=0.0,
    )
    max_quarantined_share: float = option(
        0.5, "Share of the actors that may be quarantined before the run ends", minimum=0.0, maximum=1.0
    )
    stall_timeout_seconds: float = option(
        300.0,
        "No environment frame for so long, or no frame or new version of a policy that has work: the stacks of all "
        "processes go to their logs and the workers that block progress are replaced; when it happens again at once, "
        "the run ends; inf: never",
        minimum=1.0,
        may_be_infinite=True,
    )
    snapshot_every_sec: float = option(
        10.0,
        "How often a learner keeps its optimizer's state in memory, at the end of an iteration, for the learner that "
        "replaces it when it is lost; weights are kept after every optimizer step",
        minimum=0.0,
    )
    eval_every_sec: float = option(
        0.0,
        "Seconds from one evaluation to the next while training goes on: a process of the lowest priority plays "
        "episodes of its own with the newest weights; eval/ tags. 0: none",
        minimum=0.0,
        maximum=86_400.0,
    )
    eval_episodes: int = option(10, "Episodes of such an evaluation", minimum=1)
    eval_envs: int = option(
        0,
        "Environments in which they are played, at most. 0: 10, or 5 where each is a process of its own, as Doom's are",
        minimum=0,
        maximum=256,
    )
    eval_most_likely: bool = option(False, "Take the most likely action in them instead of drawing one")
    eval_video_every_sec: float = option(
        0.0,
        "Record one more episode after an evaluation, at most this often: an animated image in TensorBoard, and a file "
        "in videos/. 0: none",
        minimum=0.0,
        maximum=86_400.0,
    )
    policy_worker_threads: int = option(
        0,
        "Threads that torch uses in each policy worker. 0: one, or with --serial_mode those of the learner",
        minimum=0,
        maximum=1024,
    )
    learner_threads: int = option(
        0,
        "Threads that torch uses in each learner. 0: as many as make its iterations faster, which it tries when it "
        "begins to learn: at most 8, and half of the cores for all learners together. Beside a GPU one. With "
        "--serial_mode that many, untried, for everything",
        minimum=0,
        maximum=1024,
    )

    @property
    def served_together(self) -> int:
        """Policies that one policy worker serves; one where that has not been chosen."""
        return max(1, self.policies_per_policy_worker)

    @property
    def actor_gpus(self) -> tuple[int, ...]:
        """The GPUs named in `actor_worker_gpus`.

        Raises:
            ConfigError: it does not list GPU numbers.
        """
        words = [word.strip() for word in self.actor_worker_gpus.split(",")] if self.actor_worker_gpus.strip() else []
        if not all(word.isascii() and word.isdigit() for word in words):
            numbers = ",".join(word for word in words if word.isascii() and word.isdigit()) or "0,1"
            raise ConfigError(
                f"actor_worker_gpus={self.actor_worker_gpus!r} does not list GPU numbers; nearest: {numbers}"
            )
        return tuple(int(word) for word in words)

    def check_combinations(self) -> None:
        """Refuse combinations that cannot run.

        Raises:
            ConfigError: the message names the nearest value that works.
        """
        _ = self.actor_gpus
        if self.serial_mode and self.eval_every_sec:
            raise ConfigError(
                f"serial_mode=True computes everything in one process, so eval_every_sec={self.eval_every_sec:g} "
                "cannot be; nearest: 0, and enjoy_appo.py --no_render afterwards"
            )
        if self.eval_video_every_sec and not self.eval_every_sec:
            raise ConfigError(
                f"eval_video_every_sec={self.eval_video_every_sec:g} records evaluations, and there are none; add "
                f"--eval_every_sec={self.eval_video_every_sec:g}"
            )
        if self.serial_mode and self.policy_workers_per_policy != 1:
            raise ConfigError(
                f"serial_mode=True computes everything in one process, so policy_workers_per_policy="
                f"{self.policy_workers_per_policy} cannot be; nearest: 1"
            )
