"""The bars for Doom matches under faults, without Doom."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from benchmarks.faults.doom_matches import Belongings, Played, Recovery, checks, left_since
from benchmarks.faults.report import failures

NOTHING = Belongings(frozenset(), frozenset(), frozenset(), frozenset())
FINE = Played(20, 9000, 60.0, [Recovery("kill", "host", 1.5, 1.0), Recovery("stop", "joined", 11.0, 1.0)], 0, 0.2, 3)


def missed(played=FINE, left=NOTHING):
    return failures(checks(played, left, (4000.0, 30000.0)))


def test_matches_that_come_back_at_once_and_leave_nothing_pass():
    assert not missed()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"matches": 0}, "matches played to their end"),
        ({"losses": 1}, "losses that no signal explains"),
        ({"recoveries": [Recovery("kill", "host", 6.0, 5.5)] * 3}, "seconds to rebuild a match"),
        ({"recoveries": []}, "seconds to rebuild a match"),  # nothing was measured
    ],
)
def test_what_is_missed_is_told(change, what):
    assert [line.partition(":")[0] for line in missed(FINE._replace(**change))] == [what]


def test_each_thing_that_is_left_fails():
    left = Belongings(
        frozenset({"vizdoom (7)"}), frozenset({12345}), frozenset({"ViZDoomSMabc"}), frozenset({"doom_1_x"})
    )
    assert len(missed(left=left)) == 4


def test_what_was_there_before_is_not_counted_and_what_comes_later_is(monkeypatch):
    monkeypatch.setattr("benchmarks.faults.doom_matches._ENDS_WITHIN_S", 0.1)
    before = Belongings.now()
    assert not left_since(before).folders
    folder = Path(tempfile.mkdtemp(prefix=f"doom_{os.getpgrp()}_"))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
            port = next(port for port in range(20_000, 30_000) if _binds(bound, port))
            left = left_since(before)
            assert folder.name in left.folders and port in left.ports
    finally:
        folder.rmdir()


def _binds(bound, port):
    try:
        bound.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
