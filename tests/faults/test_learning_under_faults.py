"""Learning under faults: the bar, and a real run that is measured against it."""

import json

import pytest

from benchmarks.faults.learning import learned, main


@pytest.mark.parametrize("frames, is_met", [(299, True), (300, True), (301, False), (None, False)])
def test_one_and_a_half_times_the_median_of_the_undisturbed_runs_is_allowed(frames, is_met):
    check = learned(frames, [100, 200, 900])
    assert check.is_met == is_met
    assert check.bar == "<= 300" and "100, 200, 900" in check.measured


@pytest.mark.parametrize("argument", ["--seeds=0", "--minutes=0", "--interval=0", "--signals=kill,hup"])
def test_what_measures_nothing_is_refused(argument):
    with pytest.raises(SystemExit, match="2"):
        main([argument])


@pytest.mark.slow
def test_a_real_run_learns_under_faults(tmp_path):
    out = tmp_path / "learning.json"
    assert main(["--minutes=0.5", "--seeds=1", f"--out={out}"]) == 0
    assert "undisturbed" in json.loads(out.read_text())[0]["measured"]
