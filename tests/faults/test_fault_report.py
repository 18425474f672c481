"""Bars: what passes, and that each thing that can go wrong is told in words and fails."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.faults.events import Hit, Look, Sample
from benchmarks.faults.report import Bars, Findings, as_json, checks, failures


def lost(time, worker):
    return {"time": time, "event": "lost", "worker": worker, "cause": "was killed by SIGKILL"}


def working(time, worker):
    return {"time": time, "event": "working", "worker": worker}


def good():
    """A run of which nothing bad can be said: 1000 frames per second in baseline, 800 in the fault phase."""
    counts = [1000 * second for second in range(11)] + [10_000 + 800 * second for second in range(1, 11)]
    told = [Sample(float(t), n, {"env_frames": n, "policy 0 train_steps": n // 100}) for t, n in enumerate(counts)]
    titles, files = Counter({"appo driver": 1, "actor-00": 1}), Counter({"appo driver": 40, "actor-00": 20})
    return Findings(
        samples=told,
        baseline=(0.0, 10.0),
        fault_phase=(10.0, 20.0),
        events=[lost(12.0, "actor-00"), working(12.9, "actor-00")],
        hits=[Hit(11.9, "actor-00", "kill"), Hit(15.0, "actor-00", "term")],
        status={"blocks": {"FREE": 4, "lost": 0}},
        looks={(7, "appo driver"): [Look(10.0 * n, 60.0, 40) for n in range(100)]},
        processes=(titles, titles),
        descriptors=(files, files),
        booked=18_100,
        exit_code=143,
        end_s=1.5,
        final={"env_frames": 18_000, "policies": [{"avg_reward": 433.25}], "faults": {"restarts": 1}},
        saved_frames=18_000,
    )


def test_a_good_run_misses_no_bar_and_its_table_tells_what_was_found():
    results = checks(good(), Bars(share=0.7))
    assert failures(results) == []
    rows = {check.what: check for check in results}
    assert rows["actor, kill: seconds until work goes on"].measured == "p50 1.00, p95 1.00, max 1.00 (1 of 1)"
    assert rows["frames per second, disturbed"].measured == "800 (0.80)"
    assert rows["frames counted twice"].measured == "18000 counted of 18100 stepped"
    assert rows["mean return at the end"].measured == "433.2"
    assert rows["what the run says of itself"].row() == ["what the run says of itself", "restarts 1", "", ""]
    assert sum(check.bar != "" for check in results) >= 12


BACK = [Sample(21.0, 100, {"env_frames": 100})]
GROWTH = {(7, "appo driver"): [Look(10.0 * n, 60.0 + n / 36.0, 40) for n in range(100)]}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"failure": "the run hangs: no frame for 60 s"}, "hangs"),
        ({"hits": [*good().hits, Hit(16.0, "learner-0", "kill")]}, "kills that the run told of: actor 1 of 1, learner"),
        ({"events": [lost(12.0, "actor-00"), working(14.9, "actor-00")]}, "actor, kill: seconds until work goes on"),
        ({"events": [lost(12.0, "actor-00")]}, "never back at work: actor-00"),
        ({"fault_phase": (9.0, 9.5)}, "frames per second, disturbed: nan"),
        ({"samples": [*good().samples, *BACK]}, "env_frames went from 18000 to 100"),
        ({"booked": 17_999}, "18000 counted of 17999 stepped"),
        ({"saved_frames": 17_000}, "frames in the last checkpoint: 17000 of 18000"),
        ({"status": {"blocks": {"lost": 2}}}, "blocks that no living process owns: 2"),
        ({"status": {}}, "blocks that no living process owns: status.json does not tell"),
        ({"processes": (Counter(), Counter({"vizdoom": 1}))}, "processes too many, at rest: vizdoom: 0 -> 1"),
        ({"descriptors": (Counter(), Counter({"appo driver": 1}))}, "open files too many, at rest: appo driver"),
        ({"looks": GROWTH}, "memory, MB per hour: 10.00 by appo driver"),
        ({"exit_code": 1}, "exit code after SIGTERM: 1"),
        ({"exit_code": None}, "it did not end"),
        ({"end_s": 11.0}, "seconds from SIGTERM to the end: 11.0"),
        ({"left_processes": ["actor-00 (process 9)"]}, "processes left: actor-00"),
        ({"left_shared_memory": ["psm_1"]}, "shared memory left: psm_1"),
        ({"left_files": ["tmp/x"]}, "temporary files left: tmp/x"),
    ],
)
def test_whatever_goes_wrong_fails_alone_and_in_words(change, words):
    (failure,) = failures(checks(replace(good(), **change), Bars(share=0.7)))
    assert words in failure


def test_open_files_of_a_successor_are_not_compared_with_those_of_the_lost_worker():
    after = Counter({"appo driver": 40, "actor-00": 25})
    assert failures(checks(replace(good(), descriptors=(good().descriptors[0], after)), Bars())) == []


def test_a_worker_that_is_lost_while_the_run_ends_need_not_come_back():
    events = [*good().events, lost(21.0, "learner-0")]
    assert failures(checks(replace(good(), events=events, told_to_end=20.5), Bars())) == []
    assert len(failures(checks(replace(good(), events=events, told_to_end=21.5), Bars()))) == 1


def test_a_frozen_worker_is_found_by_its_heartbeat_and_has_no_bar():
    hits = [Hit(2.0, "actor-00", "freeze")]
    results = checks(replace(good(), hits=hits), Bars())
    assert failures(results) == []
    assert any(check.what.startswith("actor, freeze") and "10.90" in check.measured for check in results)


def test_the_numbers_can_be_written_as_json():
    found = good()
    numbers = json.loads(json.dumps(as_json(found, checks(found, Bars()))))
    assert numbers["losses"][0]["working_s"] == pytest.approx(1.0)
    assert numbers["frames_per_second"] == {"baseline": pytest.approx(1000), "fault_phase": pytest.approx(800)}


def test_bars_are_typed_by_name_and_a_wrong_name_is_told_with_the_right_ones():
    assert Bars.parse("actor=3.5,slope=2", share=0.7) == Bars(actor=3.5, slope=2.0, share=0.7)
    with pytest.raises(ValueError, match="there is no bar 'actors'; there are actor, policy"):
        Bars.parse("actors=3")
