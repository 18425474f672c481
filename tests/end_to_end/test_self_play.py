"""Self-play in real runs: the pool, its survival of a resume and of deaths, and who is learned from."""

import json
import signal
import statistics
from pathlib import Path

import pytest

from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import SMALL

GAME = "pettingzoo_classic_rps_v2"
SELF_PLAY = ["--self_play=True", "--self_play_save_every=4000", "--self_play_pool_size=3", "--policy_change_episodes=2"]


def pool_of(run):
    """Frames of the past selves of policy 0; their files are there."""
    folder = run.folder / "checkpoint_p0" / "opponents"
    frames = sorted(int(name.partition("@")[2]) for name in told(run)["players"] if name.startswith("policy_0@"))
    assert set(frames) <= {int(path.stem.split("_")[2]) for path in folder.glob("*.pth")}
    return frames


def told(run):
    path = run.folder / "self_play.json"
    return json.loads(path.read_text()) if path.exists() else {}


def matches_of(run):
    path = run.folder / "metrics.jsonl"
    points = list(read_json_lines(path)) if path.exists() else []
    return points[-1].get("self_play/matches", 0) if points else 0


@pytest.mark.slow
def test_a_policy_meets_its_past_selves_and_goes_on_with_them_after_a_resume(start):
    options = [*SELF_PLAY, "--self_play_share=1"]  # each draw of players counts for dozens of matches: few, at random
    run = start(*SMALL, *options, "--train_for_env_steps=30000", env=GAME)
    assert run.end() == 0, run.output
    first = pool_of(run)
    assert len(first) == 3 and first[0] < 4000 and first[-1] > 10_000
    points = [point for point in read_json_lines(run.folder / "metrics.jsonl") if point["policy"] == 0]
    assert points[-1]["self_play/matches"] > 100 and points[-1]["self_play/pool"] == 3
    assert points[-1]["stats/opponent_forward"] > 0
    assert sum(map(sum, told(run)["wins"])) > 100 and len(told(run)["players"]) == 5, "as it was at the end"
    again = start(*SMALL, *options, "--train_for_env_steps=35000", env=GAME)
    assert again.end() == 0, again.output
    assert pool_of(again)[0] == first[0] and pool_of(again)[1] <= first[-1], "spread over the whole experiment"
    assert matches_of(again) > points[-1]["self_play/matches"]


@pytest.mark.slow
def test_rows_of_opponents_are_not_learned_from_and_little_of_a_batch_is_theirs(start):
    run = start(*SMALL, *SELF_PLAY, "--train_for_env_steps=40000", "--self_play_share=1", env=GAME)
    assert run.end() == 0, run.output
    points = [point for point in read_json_lines(run.folder / "metrics.jsonl") if "train/valids_fraction" in point]
    fractions = [point["train/valids_fraction"] for point in points]
    # Each past self that is replaced ends draws early; half of all rows are its and others'.
    assert len(fractions) > 3 and statistics.mean(fractions) >= 0.8, fractions
    # Each simulator frame counts once, and the policy had one of the two seats.
    status = run.status()
    assert status["policies"][0]["env_frames"] == status["env_frames"]


@pytest.mark.slow
def test_a_killed_opponent_worker_is_replaced_and_matches_go_on(start):
    run = start(*SMALL, *SELF_PLAY, "--self_play_share=1", "--train_for_env_steps=1e9", env=GAME)
    run.wait_for(lambda: matches_of(run) > 50)
    [worker] = [process for title, process in run.tree().items() if "opponents" in title]
    worker.kill()
    run.wait_for(lambda: run.status()["faults"]["restarts"] == 1)
    before = matches_of(run)
    run.wait_for(lambda: matches_of(run) > before + 200)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.output


@pytest.mark.parametrize("policies", [2])
@pytest.mark.slow
def test_policies_of_a_population_meet_each_other_and_the_past_selves_of_both(start, policies):
    options = [*SELF_PLAY, "--self_play_share=1", f"--num_policies={policies}", "--train_for_env_steps=30000"]
    run = start(*SMALL, *options, env=GAME)
    assert run.end() == 0, run.output
    points = {point["policy"]: point for point in read_json_lines(run.folder / "metrics.jsonl")}
    assert all(point["self_play/matches"] > 50 for point in points.values())
    names = told(run)["players"]
    assert {name.split("@")[0] for name in names} == {"policy_0", "policy_1", "random"}


def test_a_serial_run_is_the_same_to_the_last_bit(start):
    saved = []
    for _ in range(2):
        options = ["--serial_mode=True", "--seed=3", "--restart_behavior=overwrite", "--train_for_env_steps=9000"]
        run = start(*SMALL, *SELF_PLAY, *options, env=GAME)
        assert run.end() == 0, run.output
        saved.append((run.saved().payload["model"], pool_of(run)))
    assert saved[0][1] == saved[1][1] and len(saved[0][1]) == 3
    assert all((saved[0][0][name] == saved[1][0][name]).all() for name in saved[0][0])


@pytest.mark.parametrize(
    ("options", "env", "why"),
    [
        (["--self_play=True"], "CartPole-v1", "self_play=True needs an environment with several agents"),
        (["--agent_policy_map=*:0"], "CartPole-v1", "needs an environment with several agents"),
        (["--self_play=True", "--self_play_anchors=clever"], GAME, "the environment offers random"),
        (["--agent_policy_map=player_0:0"], GAME, "names no policy for player_1"),
    ],
)
def test_what_an_environment_has_no_seats_for_is_refused(start, options, env, why):
    run = start(*SMALL, *options, env=env)
    assert run.end() == 2
    assert why in run.output and not Path(run.folder).exists()
