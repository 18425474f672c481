"""Runs whose messages are larger than a queue: statistics without number, bursts of episodes, texts without end."""

from __future__ import annotations

import json

from tests.end_to_end.conftest import SMALL

# Episodes of two steps; the statistics of a hundred are larger than a queue. Every end adds a byte to a file.
TALKATIVE = """
import os
import gymnasium
import numpy as np

STATISTICS = {f"statistic_{number}": number / 7 for number in range(500)}

class Talkative(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        is_over, info = self.steps == 2, {}
        if is_over:
            info["episode_extra_stats"] = dict(STATISTICS)
            descriptor = os.open(COUNT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, b".")
            os.close(descriptor)
        return np.zeros(4, np.float32), 1.0, is_over, False, info
"""
LENGTHY = """
import gymnasium

class Lengthy(gymnasium.Wrapper):
    def step(self, action):
        raise ValueError("begin " + 1_000_000 * "x" + 1_000_000 * "y" + " end")

def make_env():
    return Lengthy(gymnasium.make("CartPole-v1", disable_env_checker=True))
"""


def test_every_episode_of_a_burst_is_counted_saved_and_there_after_a_resume(start, tmp_path):
    count = tmp_path / "count"
    (tmp_path / "talkative.py").write_text(f"COUNT = {str(count)!r}\n{TALKATIVE}")
    options = ("--check_env=False", "--decorrelate_experience_max_seconds=0", "--use_rnn=False")
    before = 0
    for budget in (3000, 6000):
        run = start(*SMALL, *options, f"--train_for_env_steps={budget}", env="talkative:Talkative")
        assert run.end() == 0, run.output
        summary = json.loads((run.folder / "summary.json").read_text())
        assert summary["env_frames"] >= budget
        assert summary["policies"][0]["episodes"] == count.stat().st_size > before + 1000
        before = count.stat().st_size
        saved = run.saved()
        assert saved.env_frames == summary["env_frames"] and not saved.warnings
        episodes = saved.payload["run_state"]["episodes"]
        assert episodes["finished"] == before and len(episodes["extra"]) == 500
        assert all(len(values) == 100 for values in episodes["extra"].values())
    assert "goes on from" in run.output and "reports dropped" not in run.output


def test_an_exception_with_a_text_of_megabytes_is_told_counted_as_a_failure_and_fills_no_disk(start, tmp_path):
    (tmp_path / "lengthy.py").write_text(LENGTHY)
    options = ("--check_env=False", "--max_env_rebuilds=3", "--restart_pause_seconds=0.1", "--use_rnn=False")
    run = start(*SMALL, *options, env="lengthy:make_env")
    assert run.end() == 1
    last = run.output.strip().splitlines()[-1]
    assert "begin x" in last and "y end" in last and "characters cut" in last and len(last) < 10_000
    assert f"lengthy.py, line 6; {run.folder / 'log' / 'driver.txt'} has the traceback" in last
    assert len(run.output) < 300_000
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    started = [event for event in events if event["event"] == "started"]
    assert len(started) <= 2 * 3, "the restart policy counts what fails in a row"
    assert sum(path.stat().st_size for path in (run.folder / "log").iterdir()) < 1_000_000
