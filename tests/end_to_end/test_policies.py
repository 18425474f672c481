"""Several policies in one run: each has its own splits, and none waits for another's learner."""

import signal
import time

import pytest

from tests.end_to_end.conftest import SMALL

BEFORE_S = 6.0


def rate(run, policies, seconds):
    """Env frames per second of some policies, by two looks at status.json."""
    before = run.status()
    time.sleep(seconds)
    after = run.status()
    counted = [[status["policies"][policy]["env_frames"] for policy in policies] for status in (before, after)]
    return (sum(counted[1]) - sum(counted[0])) / (after["time"] - before["time"])


@pytest.mark.alone
@pytest.mark.parametrize(("policies", "stopped_s"), [(2, 8.0), pytest.param(4, 20.0, marks=pytest.mark.slow)])
def test_a_learner_that_stands_still_stops_only_its_own_policy(start, policies, stopped_s):
    run = start(*SMALL, f"--num_policies={policies}", "--use_rnn=False")
    run.wait_for_training(frames=20_000)
    run.wait_for(lambda: all(policy["train_steps"] > 20 for policy in run.status()["policies"]))
    others = [policy for policy in range(policies) if policy != 1]
    undisturbed = rate(run, others, BEFORE_S)
    run.kill("learner-1", signal.SIGSTOP)
    time.sleep(1.5)  # until its blocks are full
    left = rate(run, others, stopped_s) / undisturbed
    print(f"the others make {left:.2f} of their frames")
    assert left > 0.8
    assert rate(run, [1], 2.0) == 0.0
    run.kill("learner-1", signal.SIGCONT)
    stopped_at = run.status()["policies"][1]["env_frames"]
    run.wait_for(lambda: run.status()["policies"][1]["env_frames"] > stopped_at + 5000)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert run.status()["faults"]["restarts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers_each", "expected"),
    [
        pytest.param(1, ["policy-0-0", "policy-2-0"], marks=pytest.mark.slow),
        (2, ["policy-0-0", "policy-0-1", "policy-2-0", "policy-2-1"]),
    ],
)
def test_policies_share_policy_workers_and_splits_that_cannot_be_dealt_evenly(start, workers_each, expected):
    options = ["--policies_per_policy_worker=2", f"--policy_workers_per_policy={workers_each}"]
    run = start(*SMALL, "--num_policies=3", *options, "--train_for_env_steps=100000")
    run.wait_for_training()
    assert sorted(name for name in run.tree() if name.startswith("policy")) == expected
    assert run.end() == 0, run.output
    frames = [policy["env_frames"] for policy in run.status()["policies"]]
    assert min(frames) > 0.5 * max(frames)
    assert all(policy["train_steps"] > 0 for policy in run.status()["policies"])


def test_a_run_that_goes_on_with_fewer_policies_says_which_it_leaves_out(start):
    run = start(*SMALL, "--num_policies=3", "--train_for_env_steps=3000")
    assert run.end() == 0, run.output
    again = start(*SMALL, "--num_policies=1", "--train_for_env_steps=6000")
    assert again.end() == 0, again.output
    assert "num_policies=1 leaves out policies 1, 2 of this experiment" in again.output
