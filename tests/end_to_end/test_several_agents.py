"""Environments of several agents, trained by id with policies that meet in them."""

import pytest

from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import SMALL


@pytest.mark.parametrize(
    ("env", "policies"),
    [
        ("pettingzoo_classic_rps_v2", 2),
        ("pettingzoo_classic_tictactoe_v3", 2),
        pytest.param("pettingzoo_mpe2_simple_spread_v3", 1, marks=pytest.mark.slow),
    ],
)
def test_each_policy_learns_from_what_it_played(start, env, policies):
    options = [f"--num_policies={policies}", "--train_for_env_steps=12000", "--policy_change_episodes=3"]
    run = start(*SMALL, *options, env=env)
    assert run.end() == 0, run.output
    status = run.status()["policies"]
    assert all(policy["train_steps"] > 0 and policy["episodes"] > 0 for policy in status), status
    points = [point for point in read_json_lines(run.folder / "metrics.jsonl") if "train/valids_fraction" in point]
    assert {point["policy"] for point in points} == set(range(policies))


@pytest.mark.slow
def test_two_policies_learn_to_duel_in_doom_and_leave_nothing(start):
    options = ["--num_workers=1", "--num_envs_per_worker=2", "--device=cpu", "--experiment_summaries_interval=1"]
    # A draw of players counts for more frames than this run has: one that gives both policies a seat.
    options += ["--num_policies=2", "--policy_change_episodes=1", "--train_for_env_steps=8000", "--seed=1"]
    run = start(*options, "--doom_match_minutes=0.25", env="doom_duel")
    assert run.end() == 0, run.output
    status = run.status()["policies"]
    assert all(policy["train_steps"] > 0 and policy["episodes"] > 0 for policy in status), status
    points = read_json_lines(run.folder / "metrics.jsonl")
    assert any("0_aux/avg_deaths" in point for point in points)
