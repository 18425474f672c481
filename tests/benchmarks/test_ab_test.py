"""Two runs that take turns: what follows from their turns, and that a run stands still while it is not its turn."""

import time

import psutil
import pytest

from benchmarks.measuring import ROOT
from benchmarks.speed import ab_test
from benchmarks.speed.ab_test import Verdict, main, running, take_turns


def test_the_ratio_is_that_of_neighbouring_turns_with_what_they_leave_open():
    verdict = Verdict.of([110.0, 55.0, 220.0], [100.0, 50.0, 200.0])  # the machine drifts, the ratio does not
    assert verdict.ratio == pytest.approx(1.1) and verdict.low == pytest.approx(verdict.high)
    there, back = Verdict.of([100.0, 120.0], [120.0, 100.0]), Verdict.of([120.0, 100.0], [100.0, 120.0])
    assert there.ratio == pytest.approx(1.0) == back.ratio
    assert there.low == pytest.approx(1 / there.high) and there.low < 0.8


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
