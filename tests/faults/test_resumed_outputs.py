"""Whether a policy that goes on acts as before: a real experiment, and one whose weights were changed meanwhile."""

import sys

import torch

from appo.algorithms import checkpoints
from benchmarks.faults.resumed_outputs import NUM_ENVS, STEPS, outputs_of, what_differs
from benchmarks.measuring import started
from benchmarks.ours import our_run

OPTIONS = ["--env=CartPole-v1", "--device=cpu", "--num_workers=2", "--num_envs_per_worker=8", "--check_env=False"]


def trained(tmp_path, name="run"):
    run = our_run([*OPTIONS, "--train_for_env_steps=20000"], tmp_path, name)
    with started(run.command, tmp_path / "log.txt") as (process, _):
        assert process.wait(60) == 0, (tmp_path / "log.txt").read_text()
    return run


def test_a_policy_that_goes_on_gives_the_same_outputs_and_another_does_not(tmp_path):
    run = trained(tmp_path)
    before = outputs_of(run.folder)
    assert before.shape == (STEPS, NUM_ENVS, 2 + 1)
    assert what_differs(run, tmp_path / "again.txt") == []
    assert torch.equal(outputs_of(run.folder), before)  # only a copy went on
    newest = checkpoints.load_newest_valid(run.folder / "checkpoint_p0")
    assert newest is not None
    next(tensor for name, tensor in newest.payload["model"].items() if name.startswith("value_head")).add_(1e-3)
    checkpoints.save(
        run.folder / "checkpoint_p0", "latest", newest.train_step + 1, newest.env_frames + 1, newest.payload
    )
    assert not torch.equal(outputs_of(run.folder), before)


def test_a_run_that_cannot_go_on_is_told_with_its_last_words(tmp_path):
    run = trained(tmp_path)
    broken = run._replace(command=[sys.executable, "-c", "print('no'); raise SystemExit(3)"])
    assert what_differs(broken, tmp_path / "again.txt") == ["it did not go on: exit code 3; its output ends: no"]
