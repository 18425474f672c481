"""The memory of queues: not in /dev/shm, there from the start, given back with the queue."""

import gc
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from appo.algorithms.workers.queue_memory import make_queues
from tests.memory.memory_cases import open_descriptors, private_mounts

MAPPINGS = Path("/proc/self/maps")


def python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


def in_shared_memory_folder():
    return [line for line in MAPPINGS.read_text().splitlines() if "/dev/shm" in line]


def test_queues_carry_bytes_and_each_has_its_own_size():
    small, large = make_queues(1000, 100_000)
    large.put_many([b"x" * 50_000, b"y"])
    small.put_many([b"z"])
    assert large.get_many_nowait() == [b"x" * 50_000, b"y"] and small.get_many_nowait() == [b"z"]
    assert (small.max_size_bytes, large.max_size_bytes) == (1000, 100_000)


@pytest.mark.skipif(not MAPPINGS.exists(), reason="tells of its mappings on Linux only")
def test_queues_do_not_lie_in_the_folder_of_shared_memory():
    before = in_shared_memory_folder()
    queues = make_queues(500_000, 250_000)
    assert in_shared_memory_folder() == before
    del queues


def test_a_queue_that_is_gone_leaves_nothing_open():
    gc.collect()
    before = open_descriptors()
    queues = make_queues(100_000, 50_000)
    assert open_descriptors() == before + 2  # one for both queues, and the mapping's own
    del queues
    assert open_descriptors() == before


def test_a_full_folder_of_shared_memory_does_not_kill_the_process_that_makes_a_queue():
    command = private_mounts()
    if command is None:
        pytest.skip("this user may mount nothing, not even in private")
    code = """
        import subprocess
        from appo.algorithms.workers.queue_memory import make_queues
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", "/dev/shm"], check=True)
        old = [make_queues(500_000, 250_000) for _ in range(20)]  # of the workers that a run begins with
        with open("/dev/shm/other_program", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1000))
            except OSError:
                print("full")
        new = [make_queues(500_000, 250_000) for _ in range(5)]
        for reports, commands in new:
            reports.put_many([bytes(490_000)])
            commands.put_many([bytes(240_000)])
        print("works")
    """
    done = subprocess.run([*command, *python(code)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["full", "works"]), done.stderr


def test_a_lack_of_memory_is_an_error_that_can_be_told():
    code = """
        import os, resource, signal
        from appo.algorithms.workers.queue_memory import make_queues
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        before = os.listdir("/dev/fd")
        try:
            make_queues(500_000)
        except OSError as error:
            print("refused", len(os.listdir("/dev/fd")) - len(before))
        make_queues(50_000)
    """
    done = subprocess.run(python(code), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused", "0"]), done.stderr
