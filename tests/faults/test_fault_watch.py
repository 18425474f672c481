"""A run watched from outside: what is seen of it, and how it is noticed that it hangs, ends, or leaves something."""

import json
import signal
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory

import pytest

from appo.utils.files import JsonLines
from appo.utils.processes import handles_signal
from benchmarks.faults.run_watch import Watch, abandoned_shared_memory, end, shared_memory, survivors
from benchmarks.measuring import MeasurementError

# Writes a status ten times a second, counts as told, and starts a child which leaves its process group.
PROGRAM = """
import json, os, pathlib, signal, sys, time
folder, per_write, writes = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
for _ in range(int(os.environ.get("CHILDREN", 1))):
    if os.fork():
        continue
    os.setpgid(0, 0)
    if words := os.environ.get("OF_CHILD"):
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", *words.split()])
    time.sleep(60)
for number in range(writes):
    policy = {"env_frames": number * per_write, "train_steps": max(0, number - 3), "episodes": 0}
    status = {"time": time.time(), "env_frames": number * per_write, "train_seconds": 0.1 * number}
    (folder / "new").write_text(json.dumps(status | {"policies": [policy]}))
    (folder / "new").replace(folder / "status.json")
    time.sleep(0.1)
print("that is all", flush=True)
os._exit(3)
"""


@pytest.fixture
def watched(tmp_path):
    started = []

    def begin(per_write, writes, hang_s=30.0):
        log = tmp_path / "log.txt"
        command = [sys.executable, "-S", "-c", PROGRAM, str(tmp_path), str(per_write), str(writes)]
        with log.open("w") as output:
            started.append(subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True))
        return started[-1], Watch(tmp_path, started[-1], log, hang_s)

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for child in survivors(process.pid, 0.0):
            subprocess.run(["kill", "-9", child.rpartition(" ")[2].rstrip(")")], check=True)


def test_it_trains_when_frames_and_weights_of_this_start_have_changed(watched, tmp_path):
    old = {"time": 1.0, "env_frames": 9, "train_seconds": 1.0, "policies": []}
    (tmp_path / "status.json").write_text(json.dumps(old))
    time.sleep(0.05)
    _, watch = watched(per_write=64, writes=100)
    assert watch.until(watch.trains, 10.0)
    assert watch.samples[0].env_frames % 64 == 0  # not the 9 that an earlier start had told
    assert watch.samples[-1].counters["policy 0 train_steps"] > 0
    ((_, title), looks), *_ = watch.looks.items()
    assert "python" in title and looks[0].own_mb > 0 and looks[0].descriptors > 0


def test_a_run_that_counts_no_frames_any_more_hangs(watched):
    _, watch = watched(per_write=0, writes=100, hang_s=1.0)
    with pytest.raises(MeasurementError, match="hangs: no frame for 1 s"):
        watch.until(lambda: False, 10.0)


def test_a_run_that_ends_by_itself_is_told_with_its_last_line(watched):
    _, watch = watched(per_write=1, writes=3)
    with pytest.raises(MeasurementError, match="ended with 3; its output ends: that is all"):
        watch.until(lambda: False, 10.0)


def test_events_are_read_as_they_come(watched, tmp_path):
    _, watch = watched(per_write=1, writes=100)
    assert watch.events() == []
    lines = JsonLines(tmp_path / "events.jsonl")
    lines.append({"time": 1.0, "event": "lost", "worker": "actor-00"})
    assert [event["worker"] for event in watch.events()] == ["actor-00"]
    lines.close()


def test_processes_and_open_files_at_rest_are_counted_by_title(watched):
    _, watch = watched(per_write=1, writes=100)
    watch.until(watch.trains, 10.0)
    (title,) = {title for _, title in watch.looks}
    processes, descriptors = watch.at_rest(1.0)
    assert processes == {title: 2}
    assert not descriptors  # which of the two is which, nobody can tell


def test_a_server_that_has_torch_for_the_next_loss_is_no_leak_nor_is_the_pipe_to_it(watched, monkeypatch):
    at_rest = {}
    for module in ("'numpy'", "'torch'"):
        monkeypatch.setenv("OF_CHILD", f"forkserver {module}")
        process, watch = watched(per_write=1, writes=100)
        watch.until(watch.trains, 10.0)
        at_rest[module], program = watch.at_rest(1.0), watch.root.name()
        end(process, process.kill, 10.0)
    others, own = at_rest["'numpy'"], at_rest["'torch'"]
    assert others.processes == {program: 1, "forkserver": 1} and own.processes == {program: 1}
    assert own.descriptors == {program: others.descriptors[program] - 1}
    monkeypatch.setenv("CHILDREN", "2")  # a second one is a leak
    _, watch = watched(per_write=1, writes=100)
    watch.until(watch.trains, 10.0)
    assert watch.at_rest(1.0).processes == {program: 1, "torch server": 1}


def test_what_a_program_started_is_found_after_its_end_whatever_its_group_and_parent(watched):
    process, watch = watched(per_write=1, writes=100)
    watch.until(lambda: handles_signal(process.pid, signal.SIGTERM) and bool(watch.samples), 10.0)
    assert not handles_signal(process.pid, signal.SIGUSR1)
    code, seconds = end(process, process.terminate, 10.0)
    assert code == 143 and seconds < 5.0
    assert len(survivors(process.pid, 0.2)) == 1


def test_a_program_that_does_not_end_is_told_as_such(watched):
    process, watch = watched(per_write=1, writes=100)
    watch.until(lambda: bool(watch.samples), 10.0)
    assert end(process, lambda: process.send_signal(signal.SIGCONT), 0.3)[0] is None


def test_shared_memory_that_a_living_process_has_mapped_is_not_abandoned():
    before = shared_memory()
    memory = SharedMemory(create=True, size=100)
    try:
        assert memory.name in shared_memory() and memory.name not in abandoned_shared_memory(before)
        memory.close()
        assert memory.name in abandoned_shared_memory(before)
        assert memory.name not in abandoned_shared_memory(before | {memory.name})
    finally:
        memory.unlink()
