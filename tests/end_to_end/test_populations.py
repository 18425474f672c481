"""Populations of real processes: policies that copy each other, survive deaths, resume, and can be followed."""

import json
import math
import random
import signal
import time

import pytest

from appo.algorithms import checkpoints
from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import SMALL
from tests.end_to_end.test_deaths import events

OPTIONS = ["--with_pbt=True", "--num_policies=2", "--pbt_start_mutation=4000", "--pbt_period_env_steps=4000"]
OPTIONS += ["--stats_avg=20", "--snapshot_every_sec=1", "--pbt_mutation_rate=1.0"]


def start_values(folder, *rates):
    """A file that gives each policy its learning rate; the option that names it."""
    file = folder / "start.json"
    file.write_text(json.dumps([{"learning_rate": rate} for rate in rates]))
    return f"--pbt_start_values={file}"


def history(run):
    path = run.folder / "pbt_history.jsonl"
    return list(read_json_lines(path)) if path.exists() else []


def members(run):
    return [json.loads((run.folder / f"policy_{policy:02d}.json").read_text()) for policy in range(2)]


def test_a_policy_that_cannot_learn_copies_the_one_that_can_and_both_go_on_after_deaths_and_a_resume(start, tmp_path):
    rates = start_values(tmp_path, 1e-9, 3e-3)
    run = start(*SMALL, *OPTIONS, rates, env="synthetic_identity")
    adopted = run.wait_for(lambda: events(run, "policy_adopted"), 90.0)
    assert adopted[0]["policy"] == 0 and adopted[0]["source"] == 1
    [first] = [row for row in history(run) if row["kind"] == "replace"][:1]
    assert first["before"]["learning_rate"] == 1e-9
    # Mutated, by a factor of 1.5 at most for each decision about the source.
    assert abs(math.log(first["values"]["learning_rate"] / 3e-3)) < 8 * math.log(1.5)
    run.kill("learner-0")
    run.wait_for(lambda: events(run, "working"))
    count = len(events(run, "policy_adopted")) + len(events(run, "hyperparameters_changed"))
    run.wait_for(lambda: len(events(run, "policy_adopted")) + len(events(run, "hyperparameters_changed")) > count, 90.0)
    points = [point for point in read_json_lines(run.folder / "metrics.jsonl") if point["policy"] == 0]
    assert points[-1]["zz_pbt/cfg_learning_rate"] > 1e-4 and points[-1]["zz_pbt/adoptions"] >= 1
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert "population: policy 0 copies policy 1, " in run.output
    assert "policy 0 goes on as policy 1" not in run.output, "a line for each decision"
    before, decided = members(run), len(history(run))
    again = start(*SMALL, *OPTIONS, rates, env="synthetic_identity")
    again.wait_for_training()
    [new] = again.wait_for(lambda: [row for row in history(again)[decided:] if row["kind"] != "resume"][:1], 90.0)
    assert [row["kind"] for row in history(again)].count("begin") == 2, "nothing begins anew"
    assert new["before"] == before[new["policy"]]["values"]
    again.signal(signal.SIGTERM)
    assert again.end() == 143, again.output


def test_a_population_tunes_what_rewards_are_worth_for_an_objective_that_they_do_not_show(start):
    options = ["--pbt_mutation_rate=0.7", "--pbt_perturb_max=2", "--pbt_reset_rate=0", "--seed=2"]
    run = start(*SMALL, *OPTIONS[:1], "--num_policies=4", *OPTIONS[2:], *options, env="synthetic_shaped")

    def best():
        return max(policy["avg_true_reward"] or 0.0 for policy in run.status()["policies"])

    run.wait_for_training()
    # Another policy may train already.
    begun = ("begin", 0)
    [first] = run.wait_for(lambda: [row["values"] for row in history(run) if (row["kind"], row["policy"]) == begun])
    assert first["reward:zero"] > first["reward:right"], "which pays more for something else"
    run.wait_for(lambda: best() > 17.0, 180.0)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    states = [json.loads((run.folder / f"policy_{policy:02d}.json").read_text()) for policy in range(4)]
    ratios = [state["values"]["reward:zero"] / state["values"]["reward:right"] for state in states]
    assert min(ratios) < 1.0
    points = list(read_json_lines(run.folder / "metrics.jsonl"))
    assert {point["0_aux/avg_changes"] for point in points if "0_aux/avg_changes" in point} == {0.0}
    for point in points[-4:]:
        assert point["zz_pbt/rew_right"] > 0.0


def test_one_process_decides_the_same_for_the_same_seed(start, tmp_path):
    options = ["--serial_mode=True", "--seed=3", "--train_for_env_steps=30000", start_values(tmp_path, 1e-9, 3e-3)]
    runs = []
    for _ in range(2):
        run = start(*SMALL, *OPTIONS, *options, "--restart_behavior=overwrite", env="synthetic_identity")
        assert run.end() == 0, run.output
        told = [{name: value for name, value in row.items() if name != "time"} for row in history(run)]
        runs.append((told, run.saved().payload["model"], run.saved().train_step))
        assert "too few for" not in run.output
    assert "replace" in {row["kind"] for row in runs[0][0]}
    assert runs[0][0] == runs[1][0] and runs[0][2] == runs[1][2]
    assert all(bool((tensor == runs[1][1][name]).all()) for name, tensor in runs[0][1].items())


def test_a_budget_too_small_for_the_usual_periods_is_warned_of_in_a_line_with_values_that_would_work(start):
    options = ["--with_pbt=True", "--num_policies=2", "--serial_mode=True", "--train_for_env_steps=4000"]
    run = start(*SMALL, *options, env="synthetic_identity")
    assert run.end() == 0, run.output
    [line] = [line for line in run.output.splitlines() if "warning: with_pbt: " in line]
    assert "--train_for_env_steps=50000000, or --pbt_start_mutation=400 --pbt_period_env_steps=400" in line


def test_a_single_policy_follows_a_schedule(start, tmp_path):
    steps = [
        {"env_frames": 0, "values": {"learning_rate": 0.002}},
        {"env_frames": 9000, "values": {"learning_rate": 0.0007}},
    ]
    (tmp_path / "schedule.json").write_text(json.dumps(steps))
    run = start(*SMALL, "--schedule_file=schedule.json", "--train_for_env_steps=60000", env="synthetic_identity")
    assert run.end() == 0, run.output
    changed = events(run, "hyperparameters_changed")
    assert [event["values"]["learning_rate"] for event in changed] == [0.002, 0.0007]
    assert "schedule: learning_rate=0.002" in run.output and "schedule: learning_rate=0.0007" in run.output
    last = list(read_json_lines(run.folder / "metrics.jsonl"))[-1]
    assert last["train/lr"] == pytest.approx(0.0007)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--with_pbt=True"], "with_pbt=True needs a population; nearest: --num_policies=2"),
        (["--with_pbt=True", "--num_policies=2", "--pbt_start_values=nowhere.json"], "nowhere.json cannot be read"),
        (["--pbt_start_values=x.json"], "pbt_start_values is for --with_pbt=True"),
        (["--pbt_perturb_min=2", "--pbt_perturb_max=1.5"], "nearest: --pbt_perturb_max=2"),
        (["--schedule_file=nowhere.json"], "schedule_file=nowhere.json cannot be read"),
        (["--with_pbt=True", "--num_policies=2", "--schedule_file=x.json"], "leave one out"),
    ],
)
def test_what_cannot_be_a_population_is_refused_before_anything_starts(start, options, reason):
    run = start(*options)
    assert run.end() == 2 and reason in run.output
    assert not run.folder.exists()


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_at_twenty_random_moments_has_the_population_that_it_had(start, tmp_path):
    rates, rng = start_values(tmp_path, 1e-4, 3e-3), random.Random(1)
    before: list[dict] = []
    for _ in range(21):
        run = start(*SMALL, *OPTIONS, rates, env="synthetic_identity")
        run.wait_for_training()
        for old, new in zip(before, resumed_states(run), strict=False):
            done = old["values"] | old["open"].get("values", {})
            assert new["values"] in (old["values"], done), "as it was, or as was decided last"
            if not old["open"]:
                assert new == old
        time.sleep(rng.uniform(0.0, 2.0))
        run.signal(signal.SIGTERM)
        assert run.end() == 143, run.output
        before = [checkpoint_state(run, policy) for policy in range(2)]
    assert sum(member["adoptions"] for member in before) >= 1 and sum(member["decisions"] for member in before) >= 20


def checkpoint_state(run, policy):
    found = checkpoints.load_newest_valid(run.folder / f"checkpoint_p{policy}")
    assert found is not None
    return found.payload["run_state"]["population"]


def resumed_states(run):
    """What the driver made of the checkpoints, before it decided anything: the rows that it wrote then."""
    rows = [row for row in history(run) if row["kind"] == "resume"][-2:]
    return [row["state"] for row in sorted(rows, key=lambda row: row["policy"])]
