"""Two runs that take turns: what follows from their turns, and that a run stands still while it is not its turn."""

import contextlib
import math
import subprocess
import time

import psutil
import pytest

from benchmarks.measuring import ROOT, MeasurementError
from benchmarks.ours import our_run
from benchmarks.speed import ab_test
from benchmarks.speed.ab_test import Runner, Verdict, main, running, student_t, take_turns


def test_the_ratio_is_that_of_neighbouring_turns_with_what_they_leave_open():
    verdict = Verdict.of([110.0, 55.0, 220.0], [100.0, 50.0, 200.0])  # the machine drifts, the ratio does not
    assert verdict.ratio == pytest.approx(1.1) and verdict.low == pytest.approx(verdict.high)
    there, back = Verdict.of([100.0, 120.0], [120.0, 100.0]), Verdict.of([120.0, 100.0], [100.0, 120.0])
    assert there.ratio == pytest.approx(1.0) == back.ratio
    assert there.low == pytest.approx(1 / there.high) and there.low < 0.8


def test_few_turns_leave_more_open_than_the_normal_distribution_says():
    # Printed tables of Student's distribution.
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 11: 2.201, 39: 2.023, 1000: 1.962}
    assert {degrees: round(student_t(degrees), 3) for degrees in table} == table
    logs = [0.1, 0.2, 0.6]  # mean 0.3, deviation sqrt(0.07), of the mean sqrt(0.07 / 3)
    verdict = Verdict.of([math.exp(log) for log in logs], [1.0, 1.0, 1.0])
    reach = 4.30265 * math.sqrt(0.07 / 3)
    assert verdict == pytest.approx((math.exp(0.3), math.exp(0.3 - reach), math.exp(0.3 + reach)), rel=1e-5)


class Silent(Runner):
    """Tells the time, and always the same frames."""

    def told(self):
        return time.time() + 10.0, 5


def test_a_turn_without_frames_is_an_error_that_says_what_to_do(tmp_path):
    runner = Silent(our_run([], tmp_path), psutil.Process())
    with pytest.raises(MeasurementError, match=r"no frame in a turn of 0.1 s; make turns longer with --seconds"):
        runner.frames_per_second(0.1)


def test_what_has_ended_meanwhile_can_be_stopped_and_let_go_on(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as process:
        runner = Runner(our_run([], tmp_path), psutil.Process(process.pid))
        process.kill()
    runner.freeze()
    runner.thaw()


def test_what_was_not_measured_has_another_exit_code_than_what_is_slower(monkeypatch, capsys):
    def fails(*run, **how):
        raise MeasurementError("it ended")

    monkeypatch.setattr(ab_test, "running", fails)
    assert main([f"--other={ROOT}"]) == 2 and "ab_test: it ended" in capsys.readouterr().err
    monkeypatch.setattr(ab_test, "running", lambda *run, **how: contextlib.nullcontext())
    monkeypatch.setattr(ab_test, "take_turns", lambda *run: ([50.0, 51.0], [100.0, 100.0]))
    assert main([f"--other={ROOT}"]) == 1


@pytest.mark.parametrize(
    "argv", [["--other=nowhere"], [f"--other={ROOT}", "--turns=1"], [f"--other={ROOT}", "--seconds=1"]]
)
def test_what_cannot_be_measured_is_refused(argv):
    with pytest.raises(SystemExit, match="2"):
        main(argv)


@pytest.mark.slow
def test_a_run_stands_still_while_it_is_not_its_turn_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ab_test, "WARM_UP_S", 0.0)
    options = ["--num_envs_per_worker=8", "--mlp_layers=64", "--check_env=False"]
    with (
        running("cartpole", options, ROOT, tmp_path / "one", in_terminal=True) as one,
        running("cartpole", options, ROOT, tmp_path / "two") as two,
    ):
        before = one.told()
        time.sleep(1.5)
        assert one.told() == before  # frozen
        ours, others = take_turns(one, two, turns=2, seconds=4.0)
        assert len(ours) == len(others) == 2 and min(ours + others) > 0
        assert one.told()[1] > before[1]
    frame, lines = ((tmp_path / name / "log.txt").read_text() for name in ("one", "two"))
    assert "\x1b[" in frame and "\x1b[" not in lines, "the first is drawn in a terminal"
    left = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in left if "appo" in p.name()]
