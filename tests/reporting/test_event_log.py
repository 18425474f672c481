"""What was survived is told in the log and in events.jsonl."""

import logging
import math

from appo.algorithms.messages import (
    EnvironmentFailed,
    EpisodesFinished,
    HyperparametersChanged,
    PolicyAdopted,
    PolicyRecovered,
    Report,
    TrainingRolledBack,
    WorkerLost,
    WorkerQuarantined,
    WorkerReady,
    WorkerStarted,
    WorkerWorks,
)
from appo.algorithms.reporting.event_log import EventLog
from appo.utils.files import read_json_lines

REPORTS: list[Report] = [
    WorkerLost("actor-00", 0, "step", "actor-00 was killed by SIGKILL"),
    WorkerStarted("actor-00", 1),
    WorkerReady("actor-00", 1, 0.25),
    WorkerWorks("actor-00", 1, 0.5),
    WorkerQuarantined("actor-01", "4 times in a row soon after its start"),
    PolicyRecovered(0, 100, 90),
    TrainingRolledBack(1, 7, "a weight is not finite"),
]


def test_every_event_is_a_record_and_nothing_else_is(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl")
    assert not (tmp_path / "events.jsonl").exists()
    event_log.note(EpisodesFinished([]))
    for report in REPORTS:
        event_log.note(report)
    event_log.write("stall", {"stage": "nowhere"})
    event_log.close()
    records = list(read_json_lines(tmp_path / "events.jsonl"))
    names = ["lost", "started", "ready", "working", "quarantined", "recovered", "rolled_back", "stall"]
    assert [record.pop("event") for record in records] == names
    assert all(record.pop("time") > 1.7e9 for record in records)
    assert records == [*(report._asdict() for report in REPORTS), {"stage": "nowhere"}]


def test_environments_that_fail_again_and_again_are_told_once_a_minute(tmp_path, caplog, monkeypatch):
    event_log, now = EventLog(tmp_path / "events.jsonl"), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for seconds in range(0, 121, 10):
        now = 100.0 + seconds
        event_log.note(EnvironmentFailed("actor-01", f"environment 3 raised after {seconds} s"))
    now += 60.0
    event_log.note(EnvironmentFailed("", "already in the log"))
    *causes, last = [record["cause"] for record in read_json_lines(tmp_path / "events.jsonl")]
    assert causes == [f"environment 3 raised after {seconds} s" for seconds in (0, 60, 120)]
    assert last == "already in the log"
    assert [record.getMessage() for record in caplog.records] == [
        f"{cause}; it begins anew, as all that fail do: log/actor-01.txt" for cause in causes
    ]


def test_the_log_names_the_worker_the_cause_and_the_duration(tmp_path, caplog):
    event_log = EventLog(tmp_path / "events.jsonl")
    with caplog.at_level(logging.INFO):
        for report in REPORTS:
            event_log.note(report)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "actor-00 was killed by SIGKILL, in step"),
        ("INFO", "actor-00 works again, 0.5 s after it was lost"),
        (
            "ERROR",
            "actor-01 is quarantined: lost 4 times in a row soon after its start; the run goes on without it",
        ),
        ("INFO", "policy 0 goes on at train step 100, with the optimizer's moments of step 90"),
        ("WARNING", "policy 1 returned to its last good weights: a weight is not finite"),
    ]


def test_what_a_controller_has_asked_for_is_a_record_and_no_second_line_of_the_terminal(tmp_path, caplog):
    event_log = EventLog(tmp_path / "events.jsonl")
    with caplog.at_level(logging.DEBUG):
        event_log.note(HyperparametersChanged(0, {"gamma": 0.5}))
        event_log.note(PolicyAdopted(1, 0, {"gamma": 0.5}, 289, 1))
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    event_log.close()
    events = [record["event"] for record in read_json_lines(tmp_path / "events.jsonl")]
    assert events == ["hyperparameters_changed", "policy_adopted"]


def test_a_file_that_cannot_be_written_loses_records_and_nothing_else(tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.write_text("a file where a folder should be")
    event_log = EventLog(folder / "events.jsonl")
    with caplog.at_level(logging.INFO):
        event_log.note(REPORTS[0])
    assert caplog.records[0].getMessage() == "actor-00 was killed by SIGKILL, in step"
    folder.unlink()
    folder.mkdir()
    event_log.note(REPORTS[0])
    event_log.close()
    assert len(list(read_json_lines(folder / "events.jsonl"))) == 1


def test_changed_options_are_one_record_with_their_values_before_and_now(tmp_path, caplog):
    event_log = EventLog(tmp_path / "events.jsonl")
    event_log.tell_changed_options(())
    assert not (tmp_path / "events.jsonl").exists()
    with caplog.at_level(logging.INFO):
        event_log.tell_changed_options((("learning_rate", 1e-4, 5e-4), ("save_every_sec", 9.0, math.inf)))
    event_log.close()
    [record] = read_json_lines(tmp_path / "events.jsonl")
    assert record.pop("time") > 1.7e9
    learning_rate, seconds = {"before": 1e-4, "now": 5e-4}, {"before": 9.0, "now": "inf"}
    options = {"learning_rate": learning_rate, "save_every_sec": seconds}
    assert record == {"event": "options_changed", "options": options}
    told = [entry.getMessage() for entry in caplog.records]
    assert told == [
        "changed since the last start: learning_rate 0.0001 -> 0.0005",
        "changed since the last start: save_every_sec 9 -> inf",
    ]
