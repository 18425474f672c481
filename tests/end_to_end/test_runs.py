"""Whole runs from the command line: their end, their files, resume, and what a user is refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from appo.algorithms import checkpoints
from appo.algorithms.reporting.timing import TimingNode
from tests.end_to_end.conftest import PLAIN_ENV, ROOT, SMALL

TAGS = [
    "0_aux/_fps",
    "0_aux/_sample_throughput",
    "0_aux/master_process_memory_mb",
    "0_aux/policy_lag_min",
    "0_aux/policy_lag_avg",
    "0_aux/policy_lag_max",
    "0_aux/avg_reward",
    "0_aux/avg_reward_min",
    "0_aux/avg_reward_max",
    "0_aux/avg_true_reward",
    "0_aux/avg_true_reward_min",
    "0_aux/avg_true_reward_max",
    "0_aux/avg_len",
    "0_aux/avg_len_min",
    "0_aux/avg_len_max",
    "train/loss",
    "train/policy_loss",
    "train/value_loss",
    "train/exploration_loss",
    "train/entropy",
    "train/value",
    "train/adv_min",
    "train/adv_max",
    "train/adv_std",
    "train/grad_norm",
    "train/grad_norm_clipped",
    "train/kl_divergence",
    "train/kl_divergence_max",
    "train/fraction_clipped",
    "train/ratio_mean",
    "train/ratio_min",
    "train/ratio_max",
    "train/value_delta",
    "train/value_delta_max",
    "train/valids_fraction",
    "train/same_policy_fraction",
    "train/version_diff_min",
    "train/version_diff_avg",
    "train/version_diff_max",
    "train/discarded_rollouts",
    "train/lr",
    "train/adam_max_second_moment",
    "train/num_sgd_steps",
    "stats/actor_env_step",
    "stats/actor_wait_policy",
    "stats/actor_wait_block",
    "stats/policy_gather",
    "stats/policy_forward",
    "stats/policy_wait",
    "stats/learner_wait_batch",
    "stats/learner_collate",
    "stats/learner_train",
    "stats/policy_batch_size",
    "stats/actor_memory_mb",
    "stats/policy_memory_mb",
    "stats/learner_memory_mb",
]


def test_a_run_ends_at_its_budget_and_leaves_what_it_promises(start):
    run = start(*SMALL, "--train_for_env_steps=20000")
    assert run.end() == 0, run.output
    assert "reached train_for_env_steps=20000" in run.output
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["env_frames"] >= 20000 and summary["policies"][0]["episodes"] > 10
    assert json.loads((run.folder / "status.json").read_text())["state"] == "ended"
    saved = run.saved()
    assert saved.env_frames == summary["env_frames"] and saved.train_step == summary["policies"][0]["train_steps"] > 0
    assert json.loads((run.folder / "config.json").read_text())["options"]["env"] == "CartPole-v1"
    assert (run.folder / "git.diff").exists() and (run.folder / "command_lines.txt").exists()
    assert {"driver.txt", "actor-00.txt", "learner-0.txt"} <= {path.name for path in (run.folder / "log").iterdir()}
    events = EventAccumulator(str(run.folder / ".summary" / "0")).Reload()
    assert set(TAGS) <= set(events.Tags()["scalars"]), set(TAGS) - set(events.Tags()["scalars"])
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert set(TAGS) <= set(lines[-1])
    assert events.Scalars("0_aux/avg_reward")[-1].value == pytest.approx(lines[-1]["0_aux/avg_reward"])
    assert [line["env_frames"] for line in lines] == sorted(line["env_frames"] for line in lines)


def test_a_run_tells_where_its_time_has_gone(start):
    """All of it: the stages of each process follow each other without a gap."""
    options = ["--env_backend=subproc", "--env_procs_per_worker=2", "--train_for_seconds=1e9", "--num_policies=2"]
    run = start(*SMALL, *options)
    run.wait_for_training(frames=2000)

    def told():
        found = json.loads((run.folder / "timing.json").read_text())
        return found["train_seconds"], {kind.name: kind for kind in map(TimingNode.from_json, found["processes"])}

    run.wait_for((run.folder / "timing.json").exists)
    before_s, before = told()
    run.wait_for(lambda: told()[0] > before_s + 5.0)
    after_s, tree = told()
    assert {name: kind.times for name, kind in tree.items()} == {"actor": 2, "policy": 2, "learner": 2, "driver": 1}
    for name, kind in tree.items():
        whole_s = kind.times * (after_s - before_s)
        assert kind.total_s - before[name].total_s == pytest.approx(whole_s, rel=0.15), name
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    _, tree = told()
    for kind in tree.values():
        assert f"time of {kind.times} x {kind.name}: " in run.output
    stages = {stage.name: stage for kind in tree.values() for stage in kind.parts}
    train = stages["train"]
    parts = {part.name: part for part in train.parts}
    assert 0.5 * train.total_s < sum(part.total_s for part in parts.values()) <= train.total_s
    assert parts["loss"].times == parts["backward"].times > parts["prepare"].times > 0
    (simulate,) = stages["env_step"].parts
    assert simulate.times == stages["env_step"].times
    steps = {part.name: part for part in simulate.parts}["processes_step"]
    assert steps.parallel and steps.times > simulate.times
    with_tool = subprocess.run(
        [sys.executable, "-m", "appo.tools.timing", str(run.folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "processes_step" in with_tool.stdout


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_learner_that_has_nothing_more_to_do_waits_for_its_end(start, is_ahead):
    options = ("--num_workers=1", "--train_for_env_steps=3000", f"--train_in_background_thread={is_ahead}")
    run = start(*options, env="synthetic_identity")
    assert run.end() == 0, run.output
    assert "failed" not in run.output


def test_a_larger_budget_goes_on_and_a_typed_learning_rate_is_in_force(start):
    first = start(*SMALL, "--train_for_env_steps=15000")
    assert first.end() == 0 and "no limit is set" not in first.output, first.output
    before = json.loads((first.folder / "summary.json").read_text())
    second = start("--train_for_env_steps=40000", "--learning_rate=0.00012")
    assert second.end() == 0, second.output
    after = json.loads((first.folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (first.folder / "metrics.jsonl").read_text().splitlines()]
    # The first run ends by its own budget, which a driver on a busy machine sees a few tenths of a second late.
    assert before["env_frames"] < 30000 and after["env_frames"] >= 40000
    assert after["policies"][0]["train_steps"] > before["policies"][0]["train_steps"]
    assert after["policies"][0]["episodes"] > before["policies"][0]["episodes"]
    assert after["train_seconds"] > before["train_seconds"]
    frames = [line["env_frames"] for line in lines]
    assert frames == sorted(frames)
    rates = [line["train/lr"] for line in lines if "train/lr" in line]
    assert rates[-1] == pytest.approx(0.00012) and rates[0] != pytest.approx(0.00012)


@pytest.mark.parametrize("mode", ["--serial_mode=False", pytest.param("--serial_mode=True", marks=pytest.mark.slow)])
def test_a_budget_that_was_spent_before_starts_nothing_and_says_how_to_go_on(start, mode):
    def content():
        return {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}

    first = start(*SMALL, "--train_for_env_steps=3000")
    assert first.end() == 0, first.output
    before = content()
    again = start(*SMALL, "--train_for_env_steps=3000", mode)
    assert again.end() == 0, again.output
    assert "has reached train_for_env_steps=3000 before: " in again.output
    assert "type a larger --train_for_env_steps" in again.output
    assert content() == before
    timed = start(*SMALL, "--train_for_env_steps=1e6", "--train_for_seconds=0.1")
    assert timed.end() == 0 and "type a larger --train_for_seconds" in timed.output, timed.output
    assert content() == before


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_the_same_command_goes_on(start, number, code):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    sent = time.time()
    run.signal(number)
    assert run.end() == code, run.output
    assert time.time() - sent < 10.0
    saved = run.saved()
    assert saved.path.stat().st_mtime >= sent
    summary = json.loads((run.folder / "summary.json").read_text())
    assert saved.env_frames == summary["env_frames"]
    again = start(*SMALL)
    again.wait_for_training(frames=saved.env_frames + 2000)
    again.signal(signal.SIGINT)
    assert again.end() == 130
    assert f"{saved.env_frames} env frames" in again.output
    assert "no limit is set: the run goes on until Ctrl+C" in run.output
    assert run.saved().train_step > saved.train_step


@pytest.mark.slow
def test_a_signal_before_the_first_optimizer_step_of_a_resumed_run_saves_the_frames_it_has_counted(start):
    first = start(*SMALL, "--batch_size=65536", "--train_for_env_steps=70000")
    assert first.end() == 0, first.output
    before = first.saved()
    again = start(*SMALL, "--train_for_env_steps=1e7")
    again.wait_for(lambda: again.status().get("env_frames", 0) > before.env_frames + 100)
    told, sent = again.status()["env_frames"], time.time()
    again.signal(signal.SIGTERM)
    assert again.end() == 143, again.output
    saved = again.saved()
    assert saved.path.stat().st_mtime >= sent and saved.env_frames >= told
    assert saved.train_step == before.train_step


def torch_server(run):
    """The process that imports torch for others, once it is there."""
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "forkserver" in (command := " ".join(process.cmdline())) and "'torch'" in command:
                return process
    return None


def probe_of(run, other_than=0):
    """The pid of the process that tries something before the start, once it is there."""
    probe = run.tree().get("appo probe")
    return probe.pid if probe is not None and probe.pid != other_than else 0


@pytest.mark.parametrize("moment", ["the environment is tried", "the networks are tried"])
def test_a_signal_while_it_starts_is_answered_in_one_line(start, tmp_path, moment):
    (tmp_path / "held.py").write_text(
        f"{PLAIN_ENV}\n"
        "import pathlib, time\n"
        "class Held(Base):\n"
        "    def __init__(self):\n"
        "        while not pathlib.Path('go').exists():\n"
        "            time.sleep(0.01)\n"
    )
    run = start(*SMALL, env="held:Held")
    run.wait_for(lambda: torch_server(run)).suspend()  # the networks' process then imports torch itself, for a while
    probe = run.wait_for(lambda: probe_of(run))
    if moment == "the networks are tried":
        (tmp_path / "go").touch()
        run.wait_for(lambda: probe_of(run, other_than=probe))
    run.signal(signal.SIGINT)
    assert run.end() == 130
    assert run.output.splitlines() == ["stopped by SIGINT before the start"]
    assert not run.folder.exists()


def test_a_second_interrupt_ends_at_once(start):
    run = start(*SMALL)
    run.wait_for_training()
    os.kill(run.tree()["learner-0"].pid, signal.SIGSTOP)  # it cannot save, so the first interrupt takes its time
    run.signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.end() == 130
    assert time.monotonic() - began < 1.5


def test_a_checkpoint_cut_in_half_is_passed_over_with_a_warning(start):
    run = start(*SMALL, "--train_for_env_steps=10000")
    assert run.end() == 0, run.output
    longer = start("--train_for_env_steps=20000")
    assert longer.end() == 0, longer.output
    newest, older = checkpoints.list_checkpoints(run.folder / "checkpoint_p0")[:2]
    os.truncate(newest, newest.stat().st_size // 2)
    resumed = start("--train_for_env_steps=30000")
    assert resumed.end() == 0, resumed.output
    assert newest.name in resumed.output and f"goes on from {older}" in resumed.output
    assert newest.exists() or (newest.parent / "superseded" / newest.name).exists()


def test_no_readable_checkpoint_is_refused_and_nothing_is_deleted(start):
    run = start(*SMALL, "--train_for_env_steps=5000")
    assert run.end() == 0, run.output
    files = sorted((run.folder / "checkpoint_p0").glob("*.pth"))
    for path in files:
        path.write_bytes(b"")
    resumed = start("--train_for_env_steps=30000")
    assert resumed.end() == 2
    assert "no checkpoint in" in resumed.output.strip().splitlines()[-1]
    assert sorted((run.folder / "checkpoint_p0").glob("*.pth")) == files


@pytest.mark.parametrize(
    "options, message",
    [
        (["--batch_size=1000"], "nearest"),
        (["--learning_rat=1"], "learning_rate"),
        (["--num_envs_per_worker=3"], "worker_num_splits"),
        (["--device=gpu"], "nearest: cpu"),
        (["--env=CartPool-v1"], "CartPole-v1"),
        (["--async_rl=False", "--num_workers=1", "--num_envs_per_worker=2"], "async_rl=False"),
        (["--num_envs_per_worker=20000000"], "MB"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(start, tmp_path, options, message):
    if options == ["--device=gpu"] and torch.cuda.is_available():
        options, message = ["--device=cuda:99"], "cuda:"
    run = start(*options)
    assert run.end() == 2, run.output
    assert message in run.output.strip().splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_serial_runs_with_one_seed_are_bit_identical(start, tmp_path):
    weights = []
    for restart in ("resume", "overwrite"):
        run = start(
            *SMALL, "--serial_mode=True", "--seed=3", "--train_for_env_steps=8000", f"--restart_behavior={restart}"
        )
        assert run.end() == 0, run.output
        weights.append(run.saved().payload["model"])
        told = json.loads((run.folder / "timing.json").read_text())["processes"]
        assert [kind["name"] for kind in told] == ["driver"], "there are no other processes whose stages could be told"
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_resumed_serial_run_equals_an_uninterrupted_one(start, tmp_path):
    """Episodes of this task are one rollout long, so the run is cut where all of them begin anew."""
    task = ["--serial_mode=True", "--seed=3", "--num_workers=2", "--num_envs_per_worker=8", "--rollout=16"]
    task += [
        "--batch_size=256",
        "--num_batches_per_iteration=1",
        "--ppo_epochs=1",
        "--synthetic_episode_length=16",
        "--decorrelate_envs_on_one_worker=False",
    ]
    weights = []
    for budgets in ([8192], [4096, 8192]):
        for first, budget in enumerate(budgets):
            behavior = "resume" if first else "overwrite"
            run = start(
                *task, f"--train_for_env_steps={budget}", f"--restart_behavior={behavior}", env="synthetic_identity"
            )
            assert run.end() == 0, run.output
        saved = run.saved()
        assert saved.env_frames == 8192 and saved.train_step == 32
        weights.append(saved.payload["model"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_synchronous_training_never_learns_from_other_weights_than_acted(start):
    whole_round = ["--num_workers=2", "--num_envs_per_worker=16", "--batch_size=1024", "--rollout=32"]
    one_pass = ["--num_batches_per_iteration=1", "--ppo_epochs=1", "--train_for_env_steps=20000"]
    run = start("--async_rl=False", *whole_round, *one_pass, *SMALL[2:])
    assert run.end() == 0, run.output
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    lags = [line["train/version_diff_max"] for line in lines if "train/version_diff_max" in line]
    ratios = [line["train/ratio_max"] for line in lines if "train/ratio_max" in line]
    assert max(lags) == 0 and max(np.abs(np.array(ratios) - 1.0)) < 1e-4


def test_sampling_alone_learns_nothing(start):
    run = start(*SMALL, "--sampler_only=True", "--train_for_env_steps=30000")
    assert run.end() == 0, run.output
    assert json.loads((run.folder / "summary.json").read_text())["policies"][0]["train_steps"] == 0


def test_two_policies_share_the_environments(start):
    run = start(*SMALL, "--num_policies=2", "--train_for_env_steps=30000")
    assert run.end() == 0, run.output
    summary = json.loads((run.folder / "summary.json").read_text())
    assert all(policy["train_steps"] > 0 and policy["episodes"] > 0 for policy in summary["policies"])
    assert sum(policy["env_frames"] for policy in summary["policies"]) == summary["env_frames"]


def test_an_environment_of_the_users_own_folder_trains(start, tmp_path):
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\n"
        "def make_env(env_id, seed):\n"
        "    assert isinstance(env_id, int) and seed is not None\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    run = start(*SMALL, "--use_rnn=False", "--train_for_env_steps=4000", env="my_envs:make_env")
    assert run.end() == 0, run.output


def test_a_signal_in_the_middle_of_a_long_iteration_saves_what_was_learned_until_then(start):
    """An iteration of 20 000 optimizer steps: nobody waits for its end."""
    long = ("--ppo_epochs=20000", "--batch_size=256", "--num_batches_per_iteration=1", "--max_policy_lag=1000000")
    run = start(*SMALL, *long, "--save_every_sec=1000")
    run.wait_for_training()
    learned = run.status()["policies"][0]["train_steps"]
    run.signal(signal.SIGUSR1)
    run.wait_for(lambda: list(run.folder.glob("checkpoint_p0/checkpoint_*.pth")), seconds=5.0)
    told_at = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert time.monotonic() - told_at < 5.0
    assert run.saved().train_step > learned > 0
    assert "killed" not in run.output
