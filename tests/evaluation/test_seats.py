"""Policies that were trained for agents of their own play these when they are watched."""

import numpy as np
import torch

import enjoy_appo
from appo.algorithms import checkpoints
from appo.algorithms.evaluation.seats import SeatedPolicies
from appo.algorithms.models.inference import PolicyInference

TAG = "pettingzoo_mpe2_simple_tag_v3"


class Says(PolicyInference):
    """A policy whose answers hold its number and the row."""

    def __init__(self, number):
        self.model = None  # type: ignore[assignment]  # its answers need none
        self.number, self.asked = number, []

    def choose(self, rows, observations, is_first, deterministic=False):
        self.asked.append((rows.tolist(), observations["obs"].tolist(), is_first.tolist(), deterministic))
        return torch.stack([torch.full_like(rows, self.number), rows], 1).float()


def test_each_row_is_played_by_the_policy_of_its_agent_and_answers_come_in_the_order_of_rows():
    policies = [Says(0), Says(1)]
    seated = SeatedPolicies(policies, (1, 0, 1))
    rows = torch.tensor([0, 1, 2, 4, 5])  # of two environments with three agents
    chosen = seated.choose(rows, {"obs": rows * 10}, torch.tensor([1, 0, 0, 0, 1]), True)
    assert chosen.tolist() == [[1, 0], [0, 1], [1, 2], [0, 4], [1, 5]]
    assert policies[0].asked == [([1, 4], [10, 40], [0, 0], True)]
    assert policies[1].asked == [([0, 2, 5], [0, 20, 50], [1, 0, 1], True)]


def test_the_map_of_a_run_says_who_plays_whom_when_it_is_watched(experiment, capsys):
    place, folder = experiment(TAG, "--num_policies=2", "--agent_policy_map=adversary*:0,agent*:1")
    own = checkpoints.load_newest_valid(folder / "checkpoint_p0")
    assert own is not None
    checkpoints.save(folder / "checkpoint_p1", "latest", 12, 99, own.payload)
    scored = ["enjoy_appo.py", *map(str, place), "--no_render", "--max_num_episodes=2"]
    assert enjoy_appo.main(scored) == 0
    printed = capsys.readouterr().out
    assert "policies adversary*:0,agent*:1" in printed and "checkpoint_p1" in printed
    assert enjoy_appo.main([*scored, "--tournament"]) == 2
    assert "trained each policy for its own agents" in capsys.readouterr().err
    assert np.isfinite(float(printed.split("return ")[1].split(",")[0]))
