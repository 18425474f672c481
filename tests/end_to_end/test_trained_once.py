"""Every decision of an agent is learned from exactly once: counted where it is made, and where it is learned from.

Each observation carries a number of its own. The environment writes down the numbers of the decisions that it has
carried out, and a further loss term those of the rows that enter the loss. Both files outlive their processes.
"""

import signal
from collections import Counter

import numpy as np
import pytest

from tests.end_to_end.conftest import SMALL

ENV = """
import os
import numpy as np
from gymnasium import spaces

class Match:
    '''Three agents act what they like for a random time; the third leaves earlier.'''

    def __init__(self, context):
        self.possible_agents, self.agents = ["a", "b", "c"], []
        self.place = [context.env_id, context.attempt % 1_000_000 + 1000 * (context.attempt // 1_000_000)]
        self.rng, self.count = np.random.default_rng([context.env_id, context.attempt]), 0
        self.file = os.open("decisions", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def observation_space(self, agent):
        return spaces.Box(0, 1e7, (4,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.left = list(self.possible_agents), int(self.rng.integers(2, 12))
        return self.observe(self.agents), {}

    def observe(self, agents):
        self.count += 1
        self.shown = {agent: np.array([*self.place, i, self.count], np.float32)
                      for i, agent in enumerate(self.possible_agents) if agent in agents}
        return self.shown

    def step(self, actions):
        os.write(self.file, b"".join(self.shown[agent].tobytes() for agent in actions))
        self.left -= 1
        acted, ends = list(actions), self.left == 0
        terminated = {agent: ends or (agent == "c" and self.left == 2) for agent in acted}
        observations = self.observe(acted)
        self.agents = [agent for agent in acted if not terminated[agent]]
        return observations, dict.fromkeys(acted, 1.0), terminated, dict.fromkeys(acted, False), {}

    def close(self):
        os.close(self.file)
"""
LOSS = """
import os
from dataclasses import dataclass
import torch
from appo.algorithms.learning.auxiliary_loss import AuxiliaryLoss, AuxiliaryResult

@dataclass(frozen=True)
class Options:
    pass

def compute(inputs, options):
    batch = inputs.minibatch
    file = os.open("learned", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    rows = batch.observations["obs"][batch.valid]
    os.write(file, rows[rows[:, 3] >= 1].numpy().tobytes())  # others are of the check before the start
    os.close(file)
    return AuxiliaryResult(0.0 * inputs.values.sum(), {})

LOSS = AuxiliaryLoss(Options, compute)
"""
ROLLOUT, BATCH = 8, 256
OPTIONS = (
    f"--rollout={ROLLOUT} --batch_size={BATCH} --ppo_epochs=1 --num_batches_per_iteration=1 --use_rnn=False".split()
)
OPTIONS += ["--auxiliary_loss=counting.loss", "--decorrelate_experience_max_seconds=0", "--max_policy_lag=1000000"]
OPTIONS += ["--policy_change_episodes=1", "--normalize_input=False", "--save_every_sec=1000", "--check_env=False"]


@pytest.fixture
def counting(tmp_path):
    folder = tmp_path / "counting"
    folder.mkdir()
    for name, text in (("__init__", ""), ("env", ENV), ("loss", LOSS)):
        (folder / f"{name}.py").write_text(text)
    return tmp_path


def numbers_in(path):
    """[n, 4] environment, life, agent, count."""
    return np.fromfile(path, np.float32).reshape(-1, 4).astype(np.int64)


def rows_by_agent(numbers):
    found: dict[tuple[int, ...], list[int]] = {}
    for *agent, count in numbers.tolist():
        found.setdefault(tuple(agent), []).append(count)
    return found


# Decisions of an agent that may wait for the batch of one policy while those after them, of another, are learned from:
# a batch is what 16 environments play in three rollouts where four policies share them, and a few may be under way.
UNDER_WAY = 200


def not_learned(folder):
    """Decisions that were not learned from although much later ones of the same agent were; checks the others."""
    decisions, learned = numbers_in(folder / "decisions"), numbers_in(folder / "learned")
    made, used = rows_by_agent(decisions), rows_by_agent(learned)
    assert set(used) <= set(made) and len(learned) > 10_000
    gaps = 0
    for agent, counts in used.items():
        assert set(counts) <= set(made[agent]), "what never happened was learned from"
        gaps += sum(count < max(counts) - UNDER_WAY for count in set(made[agent]) - set(counts))
    return gaps


def learned_more_than_once(folder):
    return sum(times - 1 for times in Counter(map(tuple, numbers_in(folder / "learned").tolist())).values())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--num_policies=1"], marks=pytest.mark.slow),
        pytest.param(["--num_policies=2"], marks=pytest.mark.slow),
        pytest.param(["--num_policies=4"], marks=pytest.mark.slow),
        ["--num_policies=2", "--pbt_mix_policies_in_one_env=False"],
        pytest.param(["--num_policies=1", "--async_rl=False"], marks=pytest.mark.slow),
        pytest.param(["--num_policies=2", "--num_minibatches_to_accumulate=1"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_each_decision_is_learned_from_once(start, counting, options):
    run = start(*SMALL, *OPTIONS, *options, "--train_for_env_steps=20000", env="counting.env:Match")
    assert run.end() == 0, run.output
    assert learned_more_than_once(counting) == 0
    assert not_learned(counting) == 0


def test_decisions_of_past_selves_are_not_learned_from_and_all_others_once(start, counting):
    """One of three seats is theirs in each match once they are loaded."""
    options = ["--self_play=True", "--self_play_share=1", "--self_play_save_every=4000", "--self_play_anchors="]
    run = start(*SMALL, *OPTIONS, *options, "--train_for_env_steps=30000", env="counting.env:Match")
    assert run.end() == 0, run.output
    assert learned_more_than_once(counting) == 0
    learned, made = (len(numbers_in(counting / name)) for name in ("learned", "decisions"))
    assert 0.6 < learned / made < 0.9, "until they are loaded, all three seats are learned from"


@pytest.mark.parametrize(
    ("policies", "each"),
    [
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
        pytest.param(2, 1, marks=pytest.mark.slow),
        pytest.param(4, 1, marks=pytest.mark.slow),
        pytest.param(4, 2, marks=pytest.mark.slow),
    ],
)
def test_each_decision_is_learned_from_once_whichever_actors_and_policy_workers_are_killed(
    start, counting, policies, each
):
    options = [f"--num_policies={policies}", f"--policies_per_policy_worker={each}"]
    run = start(*SMALL, *OPTIONS, *options, env="counting.env:Match")
    for round_ in range(6):
        frames = run.status().get("env_frames", 0)
        run.wait_for(lambda seen=frames: run.status().get("env_frames", 0) > seen + 3000)
        policy = round_ // 2 % policies
        run.kill("actor-01" if round_ % 2 else f"policy-{policy - policy % each}-0", signal.SIGKILL)
        run.wait_for(lambda told=round_: run.status()["faults"]["restarts"] == told + 1)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert learned_more_than_once(counting) == 0
    assert not_learned(counting) == 0


@pytest.mark.parametrize("policies", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_learner_that_is_killed_costs_what_it_had_copied_and_repeats_a_block(start, counting, policies):
    run = start(*SMALL, *OPTIONS, f"--num_policies={policies}", env="counting.env:Match")
    kills = 4
    for round_ in range(kills):
        frames = run.status().get("env_frames", 0)
        run.wait_for(lambda seen=frames: run.status().get("env_frames", 0) > seen + 3000)
        run.kill(f"learner-{round_ % policies}", signal.SIGKILL)
        run.wait_for(lambda told=round_: run.status()["faults"]["restarts"] == told + 1)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    block = ROLLOUT * 4 * 3  # rows of a split: of four environments with three agents
    assert learned_more_than_once(counting) <= kills * block
    assert not_learned(counting) <= kills * (2 * BATCH + block), "the batch under way and the one prepared ahead"
