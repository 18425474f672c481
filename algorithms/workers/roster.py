"""Every kind of worker and every worker of a run: names, places in shared arrays, jobs, and what a loss means.

To add a kind of worker: its class, its job, and a row in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from appo.algorithms.memory import blocks
from appo.algorithms.memory.counters import EventCounter
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.sampling.config import SamplingConfig
from appo.algorithms.workers.config import WorkersConfig
from appo.algorithms.workers.jobs import ActorJob, EvaluationWorkerJob, LearnerJob, OpponentJob, PolicyJob, RunPlan
from appo.algorithms.workers.seeds import SeedKey

ACTOR, POLICY_WORKER, OPPONENT_WORKER, LEARNER = "actor", "policy worker", "opponent worker", "learner"
EVALUATION_WORKER = "evaluation worker"


class WorkerId(NamedTuple):
    """One worker of a run, whichever process does its work now."""

    kind: str  # a key of `KINDS`
    policy: int  # that it works for, the first of them where there are several; 0 for a worker of all policies
    number: int  # among the workers of this kind and policy

    @property
    def name(self) -> str:
        """As `ps`, the log and every message show it."""
        return KINDS[self.kind].name.format(policy=self.policy, number=self.number)


class Group(NamedTuple):
    """How many workers of a kind a run has."""

    policies: int  # 1 for workers of all policies
    per_policy: int
    policies_each: int = 1  # that one worker works for, at most


class WorkerKind(NamedTuple):
    """What is particular to one kind of worker."""

    name: str  # a format of `policy` and `number`
    worker_class: str  # "package.module:Class": the driver need not import what the worker does
    group: Callable[[SamplingConfig, WorkersConfig], Group]
    job: Callable[[RunPlan, WorkerId], Any]
    rings: Callable[[Roster, WorkerId], Sequence[WorkerId]]  # workers whose doorbells it rings
    timers: str  # beginning of the names of its timers, and of its tags
    first_work: EventCounter  # counts when a worker has first done its work
    worth_a_restart: EventCounter  # counts when a worker has done so much that its loss is no failure in a row
    give_back: Callable[[SharedArrays, WorkerId], None]  # frees what a lost worker held
    starts: int  # the lowest first
    uses_torch: bool = True
    can_be_spared: bool = False  # after too many failures in a row the run goes on without it, while others are left
    is_optional: bool = False  # the same, whatever becomes of it
    if_it_ends: str = ""  # what may help where its process ends again and again by no one's will


class Roster:
    """The workers of a run, in the order of their places in the shared arrays: actors first."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        """`groups`: of some or all kinds."""
        self.ids = tuple(
            WorkerId(kind, policy, number)
            for kind in KINDS
            if kind in groups
            for policy in range(0, groups[kind].policies, groups[kind].policies_each)
            for number in range(groups[kind].per_policy)
        )
        self._groups = groups
        self._place = {worker: place for place, worker in enumerate(self.ids)}
        self._by_name = {worker.name: worker for worker in self.ids}

    @classmethod
    def of(cls, sampling: SamplingConfig, workers: WorkersConfig) -> Roster:
        """Every worker that these options ask for."""
        return cls({name: kind.group(sampling, workers) for name, kind in KINDS.items()})

    def __len__(self) -> int:
        return len(self.ids)

    def place(self, worker: WorkerId) -> int:
        """Index of a worker in arrays with one entry per process."""
        return self._place[worker]

    def of_kind(self, kind: str, policy: int | None = None) -> list[WorkerId]:
        """The workers of a kind; those that work for one policy where that is named."""
        found = [worker for worker in self.ids if worker.kind == kind]
        return found if policy is None else [worker for worker in found if policy in self.policies_of(worker)]

    def policies_of(self, worker: WorkerId) -> range:
        """The policies that a worker works for; of a worker of all policies, 0 alone."""
        group = self._groups[worker.kind]
        return range(worker.policy, min(worker.policy + group.policies_each, group.policies))

    def places(self, kind: str) -> slice:
        """Where the workers of a kind lie in arrays with one entry per process."""
        places = [place for place, worker in enumerate(self.ids) if worker.kind == kind]
        return slice(places[0], places[-1] + 1) if places else slice(0)

    def named(self, name: str) -> WorkerId | None:
        """The worker of that name, if there is one."""
        return self._by_name.get(name)


def _rung_by_actor(roster: Roster, actor: WorkerId) -> list[WorkerId]:
    """For each policy the policy worker that serves this actor, the opponent worker, and every learner."""
    servers = roster.of_kind(POLICY_WORKER)
    per_policy = len(roster.of_kind(POLICY_WORKER, 0)) or 1
    mine = [worker for worker in servers if worker.number == actor.number % per_policy]
    return [*mine, *roster.of_kind(OPPONENT_WORKER), *roster.of_kind(LEARNER)]


def _rung_by_policy_worker(roster: Roster, worker: WorkerId) -> list[WorkerId]:
    """The actors that it serves."""
    per_policy = len(roster.of_kind(POLICY_WORKER, worker.policy))
    return roster.of_kind(ACTOR)[worker.number :: per_policy]


def _rung_by_learner(roster: Roster, learner: WorkerId) -> list[WorkerId]:
    return [*roster.of_kind(ACTOR), *roster.of_kind(POLICY_WORKER, learner.policy)]


# Actors come first: in the shared arrays the place of an actor is its number.
KINDS: dict[str, WorkerKind] = {
    ACTOR: WorkerKind(
        name="actor-{number:02d}",
        worker_class="appo.algorithms.workers.actor_worker:ActorWorker",
        group=lambda sampling, workers: Group(1, sampling.num_workers),
        job=lambda plan, worker: ActorJob.of(plan, worker.number),
        rings=_rung_by_actor,
        timers="ACTOR",
        first_work=EventCounter.ACTOR_STEPS_OF_SPLITS,
        worth_a_restart=EventCounter.ACTOR_ROLLOUTS,
        give_back=lambda arrays, worker: blocks.give_back(arrays, worker.number),
        starts=3,
        uses_torch=False,
        can_be_spared=True,
        if_it_ends="an environment that ends its process costs only itself with --env_backend=subproc",
    ),
    POLICY_WORKER: WorkerKind(
        name="policy-{policy}-{number}",
        worker_class="appo.algorithms.workers.policy_worker:PolicyWorker",
        group=lambda sampling, workers: Group(
            sampling.num_policies,
            workers.policy_workers_per_policy if sampling.policy == "learned" else 0,
            workers.served_together,
        ),
        job=lambda plan, worker: PolicyJob.of(plan, worker.policy, worker.number),
        rings=_rung_by_policy_worker,
        timers="POLICY",
        first_work=EventCounter.POLICY_BATCHES,
        worth_a_restart=EventCounter.POLICY_BATCHES,
        give_back=lambda arrays, worker: None,
        starts=2,
    ),
    OPPONENT_WORKER: WorkerKind(
        name="opponents",
        worker_class="appo.algorithms.workers.opponent_worker:OpponentWorker",
        group=lambda sampling, workers: Group(1, int(sampling.self_play)),
        job=lambda plan, worker: OpponentJob.of(plan, plan.seeds.of(SeedKey.OPPONENT_WORKER)),
        rings=lambda roster, worker: roster.of_kind(ACTOR),
        timers="OPPONENT",
        first_work=EventCounter.OPPONENT_BATCHES,
        worth_a_restart=EventCounter.OPPONENT_BATCHES,
        give_back=lambda arrays, worker: None,
        starts=2,
    ),
    LEARNER: WorkerKind(
        name="learner-{policy}",
        worker_class="appo.algorithms.workers.learner_worker:LearnerWorker",
        group=lambda sampling, workers: Group(sampling.num_policies, 1),
        job=lambda plan, worker: LearnerJob.of(plan, worker.policy, plan.seeds.of(SeedKey.LEARNER, worker.policy)),
        rings=_rung_by_learner,
        timers="LEARNER",
        first_work=EventCounter.LEARNER_BATCHES,
        worth_a_restart=EventCounter.LEARNER_BATCHES,
        give_back=lambda arrays, worker: blocks.stop_taking(arrays, worker.policy),
        starts=1,  # it takes longest, and all others wait for its weights
    ),
    EVALUATION_WORKER: WorkerKind(
        name="evaluation",
        worker_class="appo.algorithms.workers.evaluation_worker:EvaluationWorker",
        group=lambda sampling, workers: Group(1, int(workers.eval_every_sec > 0)),
        job=lambda plan, worker: EvaluationWorkerJob.of(plan, plan.seeds.of(SeedKey.EVALUATION)),
        rings=lambda roster, worker: [],
        timers="EVALUATION",
        first_work=EventCounter.EVALUATIONS,
        worth_a_restart=EventCounter.EVALUATIONS,
        give_back=lambda arrays, worker: None,
        starts=4,
        is_optional=True,
    ),
}
