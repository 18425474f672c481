"""A program watched from outside: its speed, its processes' time and memory, and that nothing of it survives."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks import measuring
from benchmarks.measuring import ROOT, MeasurementError, ProcessTree, measure

FRAMES_PER_SECOND = 1000
MEGABYTES = 50

# Counts frames by the clock while it and a child of it burn processor time. Nobody tells the child to end.
PROGRAM = """
import os, pathlib, signal, sys, time
child = os.fork()
if child == 0:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kept = b"x" * {bytes}
    while True:
        pass
folder = pathlib.Path(sys.argv[1])
(folder / "child").write_text(str(child))
began = time.monotonic()
while True:
    seconds = time.monotonic() - began
    (folder / "new").write_text(str(int(seconds * {rate})))
    (folder / "new").replace(folder / "frames")
    {end}
    waste = sum(range(100_000))
"""


def program(folder, end="pass"):
    code = PROGRAM.format(bytes=MEGABYTES * 10**6, rate=FRAMES_PER_SECOND, end=end)
    return [sys.executable, "-S", "-c", code, str(folder)]


def watch(folder, command, **changes):
    def frames():
        path = folder / "frames"
        return int(path.read_text()) if path.exists() else 0

    def kind_of(process):
        return "parent" if process.ppid() == os.getpid() else "child"

    settings = {"warm_up_s": 0.3, "seconds": 1.0, "start_limit_s": 10.0, "cwd": folder} | changes
    return measure(command, folder / "log.txt", frames, kind_of, **settings)


def is_alive(folder):
    try:
        return psutil.Process(int((folder / "child").read_text())).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_frames_time_and_memory_of_every_process_are_seen_and_none_survives(tmp_path):
    began = time.monotonic()
    result = watch(tmp_path, program(tmp_path))
    assert result.frames_per_second == pytest.approx(FRAMES_PER_SECOND, rel=0.1)
    assert 1.0 <= result.seconds < 2.0
    assert 0.0 < result.first_frame_s < time.monotonic() - began - result.seconds
    # Each would take a whole core, if the machine had two to spare.
    assert 0.1 < result.usage["parent"].cores <= 1.1
    assert 0.1 < result.usage["child"].cores <= 1.1
    assert result.cores == pytest.approx(sum(usage.cpu_seconds for usage in result.usage.values()) / result.seconds)
    assert result.usage["child"].peak_mb > MEGABYTES > result.usage["parent"].peak_mb
    assert result.peak_mb == pytest.approx(sum(usage.peak_mb for usage in result.usage.values()))
    assert (tmp_path / "child").exists() and not is_alive(tmp_path)


def test_a_program_that_ends_by_itself_is_an_error_with_its_last_words_and_leaves_no_orphan(tmp_path):
    end = "seconds > 0.5 and sys.exit('out of patience')"
    with pytest.raises(MeasurementError, match=r"(?s)ended with 1; .*out of patience"):
        watch(tmp_path, program(tmp_path, end))
    assert (tmp_path / "child").exists() and not is_alive(tmp_path)


def test_a_program_without_frames_is_given_up(tmp_path):
    command = [sys.executable, "-S", "-c", "import time; print('loading', flush=True); time.sleep(60)"]
    with pytest.raises(MeasurementError, match=r"(?s)no frame within 0 s.*loading"):
        watch(tmp_path, command, start_limit_s=0.4)


def test_a_program_that_stalls_is_an_error_and_not_a_low_speed(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "STALL_S", 0.3)
    with pytest.raises(MeasurementError, match="no further frame"):
        watch(tmp_path, program(tmp_path, "seconds > 0.1 and time.sleep(60)"), warm_up_s=0.5)


@pytest.mark.parametrize("first", ["starting", "helpers"])
def test_a_process_without_a_name_of_its_own_is_asked_again(first):
    names = {"now": first}
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        tree = ProcessTree(process.pid, lambda member: names["now"])
        tree.look()
        assert set(tree.usage({}, 1.0)) == set(tree.peak_by_kind) == {first}
        names["now"] = "actor"
        tree.look()
        names["now"] = "something else"
        tree.look()
        assert set(tree.usage({}, 1.0)) == {"actor"}
    finally:
        process.kill()
        process.wait()


def test_what_a_process_took_before_the_window_does_not_count(tmp_path):
    tree = ProcessTree(os.getpid(), lambda member: "this")
    tree.look()
    before = tree.cpu_seconds()
    assert before[os.getpid()] > 0.0
    tree.look()
    assert tree.usage(before, 1.0)["this"].cpu_seconds < before[os.getpid()]
    assert json.dumps(tree.usage(before, 1.0)["this"]._asdict())


BENCHMARK = """
import sys, time
from pathlib import Path
from benchmarks.measuring import started
with started([sys.executable, "-c", "import time; time.sleep(1000)"], Path(sys.argv[1])) as (process, _):
    print(process.pid, flush=True)
    time.sleep(1000)
"""


def test_a_benchmark_that_is_terminated_takes_its_program_with_it(tmp_path):
    command = [sys.executable, "-c", BENCHMARK, str(tmp_path / "log.txt")]
    benchmark = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert benchmark.stdout is not None
    program = psutil.Process(int(benchmark.stdout.readline()))
    benchmark.terminate()
    assert benchmark.wait(20.0) == 128 + signal.SIGTERM
    benchmark.stdout.close()
    assert not program.is_running()
