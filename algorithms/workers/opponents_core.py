"""The opponent worker's core, without a process: acts for all frozen policies, each with the weights of a past self.

The driver writes into a shared array which past self each frozen policy is; the weights lie in the checkpoints of kind
"opponent". They are read when the driver names another one, between two answers. Until then no match is drawn with it.
A match that is under way when its past self is replaced is played to its end by the next one, and does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from appo.algorithms import checkpoints
from appo.algorithms.checkpoint_names import OPPONENT, file_name, folder_of
from appo.algorithms.memory.counters import EventCounter, Timer, WorkerCounters
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.memory.request_table import JointRequests, PolicyRequests, Slabs
from appo.algorithms.memory.weights import PublishedVersion
from appo.algorithms.messages import OpponentFailed
from appo.algorithms.models.actor_critic import ActorCritic, build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.models.parameters import flatten
from appo.algorithms.workers.jobs import OpponentJob
from appo.algorithms.workers.policy_core import PolicyCore, ServerCounts, StateReplay

OF_OPPONENT_WORKER = ServerCounts(
    Timer.OPPONENT_GATHER,
    Timer.OPPONENT_FORWARD,
    Timer.OPPONENT_SCATTER,
    Timer.OPPONENT_ADOPT,
    EventCounter.OPPONENT_BATCHES,
    EventCounter.OPPONENT_ROWS,
    EventCounter.OPPONENT_ADOPTIONS,
)


class PastSelfWeights:
    """Reads the weights of the past self that a frozen policy is to be. Satisfies `WeightsSource`."""

    def __init__(self, cells: NDArray[Any], folder: Path, reader: ActorCritic, flat: NDArray[Any]) -> None:
        """Of one frozen policy.

        Args:
            cells: [3] of the shared array `opponents`.
            folder: of the checkpoints of the policy that it is a past self of.
            reader: a network to read checkpoints into, which all frozen policies share.
            flat: [n] its weights.
        """
        self._cells = cells
        self._folder = folder
        self._reader, self._flat = reader, flat
        self.publication = 0
        """Number of the past self whose weights `read_into` gives."""
        self._failed = 0  # number of one that cannot be read

    def look(self) -> OpponentFailed | None:
        """Read the weights of another past self if there is one; a report if they cannot be read, once."""
        number, train_step, env_frames = self._cells.tolist()
        if number in (0, self.publication, self._failed) or number != int(self._cells[0]):
            return None
        name = file_name({"kind": OPPONENT, "train_step": train_step, "env_steps": env_frames})
        path = folder_of(self._folder, OPPONENT) / name
        try:
            self._reader.load_state_dict(checkpoints.load(path).payload["model"])
        except (checkpoints.CheckpointError, KeyError, RuntimeError) as error:
            self._failed = number
            return OpponentFailed(number, str(error))
        self.publication = number
        return None

    def read_into(self, flat: NDArray[Any]) -> PublishedVersion:
        """Copy the weights that `look` has found into `flat` [n]; until the next past self is looked for."""
        flat[:] = self._flat
        return PublishedVersion(self.publication, int(self._cells[1]))


class OpponentsCore:
    """Answers requests for all frozen policies."""

    def __init__(self, arrays: SharedArrays, job: OpponentJob, counters: WorkerCounters, generation: int = 0) -> None:
        """Networks are built when they are first needed. `generation`: above 0 for a successor."""
        sizes = arrays.sizes
        self._arrays, self._job, self._counters, self._generation = arrays, job, counters, generation
        self._loaded = arrays["opponents_loaded"]
        self._loaded[:] = 0  # what a predecessor had loaded is gone
        self._policy_id = arrays["policy_id"]
        self._first = sizes.learning_policies
        per_policy = sizes.frozen_policies // sizes.learning_policies
        reader = build_actor_critic(job.model, job.spec, "cpu")
        flat = flatten(reader).numpy()
        self._sources = [
            PastSelfWeights(arrays["opponents"][frozen], job.checkpoint_dirs[frozen // per_policy], reader, flat)
            for frozen in range(sizes.frozen_policies)
        ]
        self.requests = JointRequests(arrays, range(self._first, sizes.acting_policies))
        self._requests = [PolicyRequests(arrays, self._first + frozen, 0, 1) for frozen in range(sizes.frozen_policies)]
        self._servers: dict[int, tuple[PolicyCore, StateReplay]] = {}

    @property
    def num_frozen(self) -> int:
        """How many frozen policies there are."""
        return len(self._sources)

    def load_new(self) -> list[OpponentFailed]:
        """Read the weights of past selves that the driver has named; those that cannot be read."""
        failed = []
        for frozen, source in enumerate(self._sources):
            before = source.publication
            if (report := source.look()) is not None:
                failed.append(report)
            elif source.publication != before:
                core, _ = self._server(frozen)
                core.adopt_newest()
                self._loaded[frozen] = source.publication
        return failed

    def answer(self) -> set[int]:
        """Answer all that waits; the actors that asked."""
        actors: set[int] = set()
        for frozen in self.requests.asked_policies():
            requests = self._requests[frozen]
            slabs = requests.open()
            actors.update(slabs.actor.tolist())
            if not self._has_rows(frozen, slabs):
                requests.answer(slabs)  # the first request of a split is for all
                continue
            core, replay = self._server(frozen)
            if self._generation:
                replay.before(slabs)
            core.answer(slabs)
        return actors

    def _has_rows(self, frozen: int, slabs: Slabs) -> bool:
        players = self._policy_id[slabs.actor, slabs.split, slabs.block, slabs.step]
        return bool((players == self._first + frozen).any())

    @property
    def random_states(self) -> list[torch.Tensor | None]:
        """Where the random numbers of each frozen policy's actions stand; None: it has drawn none."""
        found = [self._servers.get(frozen) for frozen in range(len(self._sources))]
        return [None if server is None else server[0].inference.random_state for server in found]

    @random_states.setter
    def random_states(self, states: list[torch.Tensor | None]) -> None:
        for frozen, state in enumerate(states):
            if state is not None:
                self._server(frozen)[0].inference.random_state = state

    def _server(self, frozen: int) -> tuple[PolicyCore, StateReplay]:
        if frozen not in self._servers:
            sizes, job = self._arrays.sizes, self._job
            model = build_actor_critic(job.model, job.spec, job.device)
            seed = job.seed + self._generation * len(self._sources) + frozen
            inference = PolicyInference(model, sizes.actors * sizes.splits * sizes.rows, job.device, seed)
            core = PolicyCore(
                self._arrays,
                self._requests[frozen],
                self._sources[frozen],
                inference,
                self._counters,
                self._first + frozen,
                OF_OPPONENT_WORKER,
            )
            self._servers[frozen] = core, StateReplay(core, sizes)
        return self._servers[frozen]
