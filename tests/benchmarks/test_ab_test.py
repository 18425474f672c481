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
from benchmarks.speed.ab_test import Rates, Runner, Side, Verdict, main, measure_pairs, running, student_t, take_turns


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


def test_several_pairs_leave_open_how_much_runs_differ():
    steady = [Rates([a, a], [100.0, 100.0]) for a in (110.0, 121.0)]  # no turn differs, and the second run is faster
    assert Verdict.over(steady[:1]) == pytest.approx((1.1, 1.1, 1.1))
    middle, reach = math.log(1.1) * 1.5, 12.7062 * math.log(1.1) / 2  # deviation of two: their distance / sqrt(2)
    assert Verdict.over(steady) == pytest.approx([math.exp(middle + way * reach) for way in (0, -1, 1)], rel=1e-4)


def test_each_pair_is_started_anew_and_each_side_is_first_in_every_other_one(monkeypatch, tmp_path):
    order = []

    @contextlib.contextmanager
    def runs(task, side, folder):
        order.append((side.name, folder))
        yield 2.0 if side.name == "this" else 3.0

    monkeypatch.setattr(ab_test, "running", runs)
    monkeypatch.setattr(ab_test, "take_turns", lambda ours, other, turns, seconds: Rates([ours], [other]))
    sides = Side("this", ROOT, []), Side("other", ROOT, [])
    assert list(measure_pairs("cartpole", sides, 3, 2, 4.0, tmp_path)) == [Rates([2.0], [3.0])] * 3
    assert [name for name, _ in order] == ["this", "other", "other", "this", "this", "other"]
    assert len({folder for _, folder in order}) == 6


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
    monkeypatch.setattr(ab_test, "take_turns", lambda *run: Rates([50.0, 51.0], [100.0, 100.0]))
    assert main([f"--other={ROOT}"]) == 1 and "from the turns of these two runs" in capsys.readouterr().out
    assert main([f"--other={ROOT}", "--pairs=2"]) == 1
    out = capsys.readouterr().out
    assert "pair 2 of 2: this / other 0.505" in out and "from 2 pairs of runs" in out


@pytest.mark.parametrize(
    "argv",
    [["--other=nowhere"], *([f"--other={ROOT}", word] for word in ("--turns=1", "--seconds=1", "--pairs=0"))],
)
def test_what_cannot_be_measured_is_refused(argv):
    with pytest.raises(SystemExit, match="2"):
        main(argv)


@pytest.mark.slow
def test_a_run_stands_still_while_it_is_not_its_turn_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ab_test, "WARM_UP_S", 0.0)
    options = ["--num_envs_per_worker=8", "--mlp_layers=64", "--check_env=False"]
    with (
        running("cartpole", Side("one", ROOT, options, in_terminal=True), tmp_path / "one") as one,
        running("cartpole", Side("two", ROOT, options), tmp_path / "two") as two,
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
