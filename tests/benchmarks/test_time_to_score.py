"""Time to a score: what the peer's log says, which side was faster, and what happens when neither arrives."""

import sys

import pytest

from benchmarks.measuring import MeasurementError
from benchmarks.speed import time_to_score
from benchmarks.speed.side_by_side import Program
from benchmarks.speed.time_to_score import RACES, Finish, Race, peers, row

PROGRAM = """
import sys, time
for second, score in enumerate((-1.5, {score})):
    print(f"\\x1b[36mTotal num frames: {{1000 * (second + 1)}}. Throughput\\x1b[0m", flush=True)
    print(f"Avg episode reward: [(0, '{{score:.3f}}')]", flush=True)
    time.sleep(0.3)
{then}
"""


@pytest.fixture
def peer(tmp_path, monkeypatch):
    def runs(score, then):
        program = tmp_path / "peer.py"
        program.write_text(PROGRAM.format(score=score, then=then))
        command = [sys.executable, str(program)]
        fake = Program(command, lambda: 0, lambda process: "python", tmp_path)
        monkeypatch.setattr(time_to_score, "sample_factory", lambda *_: fake)
        return lambda: peers("doom_basic", Race("doom_basic", 80.0, 0.8), tmp_path, tmp_path / "python")

    return runs


def test_the_peer_is_stopped_when_its_log_tells_the_score(peer):
    finish = peer(0.81, "time.sleep(60)")()
    assert finish.frames == 2000 and 0.3 < finish.seconds < 10.0


def test_a_peer_that_ends_before_the_score_is_a_failure(peer):
    with pytest.raises(MeasurementError, match="ended with 3"):
        peer(0.5, "sys.exit(3)")()


def test_the_row_compares_medians():
    mine, theirs = [Finish(80.0, 290_000), Finish(90.0, 310_000)], [Finish(250.0, 540_000), Finish(260.0, 500_000)]
    cells = row("doom_basic", RACES["doom_basic"], mine, theirs)
    assert cells == ["doom_basic", "80", "85 (80 .. 90)", "300k", "255 (250 .. 260)", "520k", "0.33"]
