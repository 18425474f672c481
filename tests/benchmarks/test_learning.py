"""The learning benchmark: when a task counts as solved, and what a row of its table says of the seeds."""

import pytest

from benchmarks.learning import table
from benchmarks.learning.table import TASKS, Outcome, Task, summarise


@pytest.mark.parametrize(("bar", "is_reached"), [(1.0, True), (21.0, False)])  # an episode pays from 0 to 20
def test_a_run_that_was_not_sampled_before_its_end_is_judged_by_its_last_numbers(
    tmp_path, monkeypatch, bar, is_reached
):
    monkeypatch.setattr(table, "POLL_S", 60.0)
    task = Task("synthetic_identity", bar, 5000, options=("--num_workers=1",))
    outcome = table.run("short", task, 1, tmp_path)
    assert outcome.exit_code == 0, (tmp_path / "short_1.log").read_text()
    assert outcome.frames >= 5000
    assert outcome.reached == is_reached and 1.0 < outcome.best < 21.0
    assert outcome.last == outcome.best  # there was one look


def test_a_row_tells_the_median_and_the_worst_seed_rounded_alike():
    runs = [(10_240, 6.0, True), (10_752, 5.5, True), (10_752, 5.8, False)]
    outcomes = [
        Outcome("image", seed, reached, frames, seconds, 18.5 + seed, 0, 18.5)
        for seed, (frames, seconds, reached) in enumerate(runs)
    ]
    env, options, goal, reached, frames, seconds, best = summarise(TASKS["image"], outcomes)
    assert (env, options, goal) == ("synthetic_image", "", "18 in 50k")
    assert (reached, frames, seconds, best) == ("2 of 3", "11k (max 11k)", "6 (max 6)", "18.5 .. 20.5")


@pytest.mark.parametrize(("exit_code", "code"), [(1, 1), (0, 0), (130, 0)])
def test_a_task_that_must_fail_is_not_passed_by_a_run_that_broke(exit_code, code, monkeypatch, capsys):
    def run(name, task, seed, train_dir):
        (train_dir / f"{name}_{seed}.log").write_text("started\nno room for blocks\n")
        return Outcome(name, seed, False, 1000, 1.0, 10.0, exit_code, 10.0)

    monkeypatch.setattr(table, "run", run)
    assert table.main(["--tasks=cartpole_blind", "--seeds=1"]) == code
    assert ("cartpole_blind 1 failed: no room for blocks" in capsys.readouterr().out) == bool(code)
