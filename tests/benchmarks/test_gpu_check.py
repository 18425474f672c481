"""The check of a GPU, rehearsed on the CPU: a real run of it, and what it says of failures."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, DeviceTests, Speed, outcomes, rows_of

QUICK = ["--device=cpu", "--seconds=2", "--term_seconds=0.2"]


@pytest.mark.slow
def test_it_tests_measures_and_writes_down_what_it_found(tmp_path, capsys):
    out = tmp_path / "found.json"
    code = gpu_check.main([*QUICK, "--tasks=cartpole", "--tests=memory_that_it_reads", f"--out={out}"])
    assert code == EXIT_OK, capsys.readouterr()
    found = json.loads(out.read_text())
    assert found["machine"]["device"] == "cpu" and found["machine"]["cores"] >= 1
    assert found["tests"]["passed"] == 1 and found["tests"]["failed"] == [] and found["failures"] == []
    [speed] = found["speed"]
    assert speed["found"]["measured"] > 100.0 and speed["found"]["terms"]["is_on_gpu"] is False
    assert {"actor_env_step", "policy_forward", "learner_train"} <= set(speed["found"]["stages"])
    told = capsys.readouterr().out
    assert "1 passed, 0 failed" in told and "| cartpole | " in told and "share learner_train" in told


def test_tests_that_fail_are_named_and_speed_is_measured_all_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        gpu_check, "run_tests", lambda *_: DeviceTests(3, ["test_uploads: AssertionError: not pinned"], 2.0)
    )
    monkeypatch.setattr(gpu_check, "measure_speed", lambda task, *_: Speed(task, {}, f"{task} is not installed"))
    out = tmp_path / "found.json"
    assert gpu_check.main([*QUICK, f"--out={out}"]) == EXIT_FAILED
    told = capsys.readouterr().out
    assert "3 passed, 1 failed" in told and "test_uploads: AssertionError: not pinned" in told
    assert "doom_basic is not installed" in told and len(json.loads(out.read_text())["speed"]) == 3


def test_a_run_that_fails_is_told_and_the_next_is_measured(tmp_path, monkeypatch, capsys):
    def fail_once(task, *_):
        if task == "cartpole":
            raise gpu_check.MeasurementError("no frame within 120 s")
        return Speed(task, {}, "not installed")

    monkeypatch.setattr(gpu_check, "run_tests", lambda *_: DeviceTests(1, [], 2.0))
    monkeypatch.setattr(gpu_check, "measure_speed", fail_once)
    out = tmp_path / "found.json"
    assert gpu_check.main([*QUICK, "--tasks=cartpole,breakout", f"--out={out}"]) == EXIT_FAILED
    found = json.loads(out.read_text())
    assert found["failures"] == ["cartpole: no frame within 120 s"] and len(found["speed"]) == 2
    assert "cartpole: no frame" in capsys.readouterr().err


def test_no_test_at_all_is_a_failure(tmp_path):
    found = gpu_check.run_tests("cpu", "nothing_is_called_this", tmp_path)
    assert "exit code 5" in found.problem and not found.passed
    assert rows_of(found, [])[0][1] == found.problem


def test_outcomes_are_read_from_the_report(tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="good"/><testcase name="bad"><failure message="E: x&#10;more"/>'
        '</testcase><testcase name="left"><skipped/></testcase><testcase name="broken"><error message="E: y"/>'
        "</testcase></testsuite></testsuites>"
    )
    assert outcomes(report) == (1, ["bad: E: x", "broken: E: y"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tasks=pong"], "there is no pong"),
        (["--out=/nowhere/x.json"], "there is no folder"),
        (["--device=gpu"], "gpu"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(words, told, capsys, monkeypatch):
    monkeypatch.setattr(gpu_check, "run_tests", lambda *_: pytest.fail("it began"))
    assert gpu_check.main([*QUICK, *words]) == EXIT_REFUSED
    assert told in capsys.readouterr().err


def test_the_default_file_is_written_where_it_is_called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check, "run_tests", lambda *_: DeviceTests(1, [], 2.0))
    monkeypatch.setattr(gpu_check, "measure_speed", lambda task, *_: Speed(task, {}, "not installed"))
    assert gpu_check.main(QUICK) == EXIT_OK and Path("gpu_check.json").exists()
