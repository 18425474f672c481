"""Past selves play with the weights of their checkpoints, all served by one core."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from appo.algorithms import checkpoints
from appo.algorithms.checkpoint_names import OPPONENT
from appo.algorithms.memory.counters import EventCounter, WorkerCounters
from appo.algorithms.memory.settings import write_setting
from appo.algorithms.messages import CheckpointSaved, SaveCheckpoint, SetOpponent
from appo.algorithms.workers.jobs import OpponentJob
from appo.algorithms.workers.opponents_core import OpponentsCore
from tests.workers.core_cases import Case, Turns

GRU: dict[str, Any] = {"rnn_type": "gru"}
SEVERAL = {"synthetic_num_agents": 3, "synthetic_episode_length": 5}


class Pool:
    """A run whose frozen policies are played by an opponents core; the learner's weights lie in files."""

    def __init__(self, folder, frozen=2):
        self.turns = Turns(Case("synthetic_multi", options=SEVERAL, frozen=frozen, **GRU), folder)
        self.turns.arrays["opponents"][:] = self.turns.arrays["opponents_loaded"][:] = 0
        self.learner = self.turns.learners[0]
        self.folder = folder / "0"

    def core(self, generation=0):
        case, arrays = self.turns.case, self.turns.arrays
        job = OpponentJob([self.folder], case.spec, case.model, "cpu", seed=3)
        self.counters = WorkerCounters(arrays, arrays.sizes.processes - 2)
        return OpponentsCore(arrays, job, self.counters, generation)

    def save(self, frames):
        command = SaveCheckpoint(0, OPPONENT, frames, {}, 1, float("nan"), "")
        saved = self.learner.save(command)
        assert isinstance(saved, CheckpointSaved), saved
        return Path(saved.path)

    def is_to_be(self, frozen, number, frames):
        write_setting(self.turns.arrays, SetOpponent(frozen, number, self.learner.policy_version, frames))


def test_a_past_self_has_the_weights_of_its_checkpoint_which_hold_no_more_than_the_network(tmp_path):
    pool = Pool(tmp_path)
    core, loaded = pool.core(), pool.turns.arrays["opponents_loaded"]
    path = pool.save(frames=70)
    assert set(checkpoints.load(path).payload) == {"model"}
    pool.is_to_be(0, 5, frames=70)
    core.load_new()
    assert loaded.tolist() == [5, 0]
    inference = core._server(0)[0].inference
    assert torch.equal(inference._flat, pool.learner._flat)

    with torch.no_grad():
        for weight in pool.learner._model.parameters():
            weight.add_(1.0)
    assert not torch.equal(inference._flat, pool.learner._flat), "it stays as it was"
    pool.save(frames=90)
    pool.is_to_be(1, 6, frames=90)
    core.load_new()
    assert loaded.tolist() == [5, 6] and not torch.equal(inference._flat, pool.learner._flat)
    inference = core._server(1)[0].inference
    assert torch.equal(inference._flat, pool.learner._flat)


def test_what_cannot_be_read_is_told_once_and_nobody_meets_it(tmp_path):
    pool = Pool(tmp_path)
    core, loaded = pool.core(), pool.turns.arrays["opponents_loaded"]
    pool.is_to_be(0, 5, frames=70)
    [failed] = core.load_new()
    assert failed.number == 5 and "checkpoint_000000000000_000000000000070.pth" in failed.reason
    assert core.load_new() == [] and loaded.tolist() == [0, 0]
    pool.save(frames=80)
    pool.is_to_be(0, 6, frames=80)
    core.load_new()
    assert loaded.tolist() == [6, 0], "the next one can"


def test_all_frozen_policies_are_answered_by_one_core_and_a_successor_goes_on_with_their_memories(tmp_path):
    pool = Pool(tmp_path)
    turns, core = pool.turns, pool.core()
    pool.save(frames=70)
    for frozen in (0, 1):
        pool.is_to_be(frozen, frozen + 1, frames=70)
    core.load_new()
    policy, compared = turns.policies[0], 0
    del turns.policies[1:]
    for round_ in range(40):
        turns.turn()
        for assembler, staging in zip(turns.assemblers, turns.stagings, strict=True):
            assembler.fill(staging)
        if round_ == 20:
            before, core = core, pool.core(generation=1)
            assert turns.arrays["opponents_loaded"].tolist() == [0, 0], "nobody meets what is not there again"
            core.load_new()
            for frozen, requests in enumerate(core._requests):
                slabs = requests.open()
                successor, replay = core._server(frozen)
                replay.before(slabs)
                rows = successor._rows_of(slabs)
                goes_on = successor._is_first[torch.from_numpy(rows.observed)] == 0
                agents = torch.from_numpy(rows.agent)[goes_on]
                states = [each._server(frozen)[0].inference._state[agents] for each in (before, core)]
                torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)
                compared += len(agents)
        core.answer()
    assert compared > 0 and turns.episodes > 10
    assert turns.arrays["answered"][1:].sum() > 100
    rows = turns.arrays["event_counts"][turns.arrays.sizes.processes - 2, EventCounter.OPPONENT_ROWS]
    assert rows > 100 and isinstance(policy.inference.random_state, torch.Tensor)
    assert np.isfinite(turns.arrays["answers"]).all()
    turns.close()


def test_what_is_asked_of_a_frozen_policy_without_weights_is_answered_all_the_same(tmp_path):
    """Its past self's file may vanish while a successor starts: its matches end, and do not count."""
    pool = Pool(tmp_path)
    turns, core = pool.turns, pool.core()
    assert not core._servers, "nothing is built before it is needed"
    for _ in range(30):
        del turns.policies[1:]
        turns.turn()
        core.answer()
    assert turns.episodes > 5
    turns.close()
