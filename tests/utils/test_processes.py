"""What a process asks of its system, each in a process of its own, since it cannot be taken back."""

import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from appo.utils import processes

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "import time; time.sleep(1000)"


@pytest.fixture
def start():
    """Run Python code that prints a line and goes on living."""
    started = []

    def run(code, *words):
        code = f"import os, subprocess, sys, time\nfrom utils import processes\n{code}"
        command = [sys.executable, "-c", code, *words]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(child)
        assert child.stdout is not None
        return child, child.stdout.readline().split()

    yield run
    for child in started:
        child.kill()
        child.communicate()


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition):
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_title_is_what_the_system_shows(start):
    child, _ = start('processes.set_title("appo actor-07"); print("done", flush=True); time.sleep(1000)')
    assert Path(f"/proc/{child.pid}/cmdline").read_text().rstrip("\0") == "appo actor-07"
    assert Path(f"/proc/{child.pid}/comm").read_text() == "appo actor-07\n"


DIES = """
code = "import os, sys, time; from appo.utils import processes; processes.die_with_parent(int(sys.argv[1])); "
code += "print(os.getpid(), flush=True); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
time.sleep(1000)
"""


def test_a_process_that_dies_with_its_parent_is_gone_when_the_parent_is_killed(start):
    child, [pid] = start(DIES)
    assert is_alive(int(pid))
    child.kill()
    child.wait()
    wait_until(lambda: not is_alive(int(pid)))


def test_a_process_that_starts_after_its_parent_died_ends_at_once(start):
    child, words = start("processes.die_with_parent(1); print('alive', flush=True)")
    assert words == [] and child.wait(30.0) == 1


def test_a_signal_is_seen_to_be_handled():
    own = os.getpid()
    assert not processes.handles_signal(own, signal.SIGUSR2)
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert processes.handles_signal(own, signal.SIGUSR2)
        assert not processes.handles_signal(own, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not processes.handles_signal(0, signal.SIGUSR2)  # no process


def test_a_group_is_joined(start):
    leader, _ = start("os.setpgid(0, 0); print('leads', flush=True); time.sleep(1000)")
    joins = "processes.join_group(int(sys.argv[1])); print('joined', flush=True); time.sleep(1000)"
    member, _ = start(joins, str(leader.pid))
    assert os.getpgid(member.pid) == leader.pid != os.getpgid(0)


def test_output_of_a_process_and_of_its_children_goes_to_the_end_of_a_file(start, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("before\n")
    code = """
import pathlib
print("to the terminal", flush=True)
print("kept back, then to the terminal")
processes.redirect_output(pathlib.Path(sys.argv[1]))
print("printed", flush=True)
os.write(2, b"written\\n")
subprocess.run(["sh", "-c", "echo by a child"])
"""
    child, words = start(code, str(path))
    assert " ".join(words) == "to the terminal"
    assert child.stdout.read() == "kept back, then to the terminal\n"
    assert child.wait(30.0) == 0
    assert path.read_text() == "before\nprinted\nwritten\nby a child\n"


@pytest.mark.parametrize("place", ["/dev/full", "below a file", "in a new folder"])
def test_a_bad_disk_raises_no_error_in_code_that_prints(start, tmp_path, place):
    (tmp_path / "file").touch()
    path = {"/dev/full": "/dev/full", "below a file": tmp_path / "file" / "log.txt"}.get(place, tmp_path / "a" / "b")
    code = """
import faulthandler, pathlib
answer = os.fdopen(os.dup(1), "w")
processes.redirect_output(pathlib.Path(sys.argv[1]))
faulthandler.enable()
for _ in range(1000):
    print("x" * 100, flush=True)
print("in words", file=sys.stderr)
print("alive", file=answer, flush=True)
"""
    assert start(code, str(path))[1] == ["alive"]
    if place == "in a new folder":
        assert path.read_text().endswith("x\nin words\n")


def test_a_process_is_pinned_to_its_cores(start):
    cores = processes.usable_cores()
    assert set(cores) == os.sched_getaffinity(0) and cores == sorted(cores)
    code = "processes.pin_to_cores([int(sys.argv[1])]); print(*os.sched_getaffinity(0), flush=True)"
    assert start(code, str(cores[-1]))[1] == [str(cores[-1])]
    everywhere = start("processes.pin_to_cores([]); print(*sorted(os.sched_getaffinity(0)), flush=True)")[1]
    assert everywhere == [str(core) for core in cores]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that can be told who runs where")
def test_cores_that_this_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert processes.core_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def quota_of_version_1(group, quota):
    return {f"{group}/cpu.cfs_quota_us": quota, f"{group}/cpu.cfs_period_us": "100000\n"}


V2, V1 = "0::/pods/mine\n", "4:memory:/other\n3:cpu,cpuacct:/pods/mine\n"


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("", {}, 16),
        (V2, {"pods/mine/cpu.max": "200000 100000"}, 2),
        (V2, {"pods/mine/cpu.max": "max 100000"}, 16),
        (V2, {"pods/mine/cpu.max": "250000 100000"}, 3),
        (V2, {"pods/mine/cpu.max": "5000 100000"}, 1),
        (V2, {"pods/mine/cpu.max": "6400000 100000"}, 16),
        (V2, {"pods/mine/cpu.max": "max 100000", "pods/cpu.max": "400000 100000"}, 4),
        (V2, {"pods/mine/cpu.max": "200000 50000", "pods/cpu.max": "800000 100000"}, 4),
        (V2, {"cpu.max": "200000 100000"}, 2),  # of a container that sees only its own group
        ("0::/../../mine\n", {"cpu.max": "200000 100000"}, 2),
        (V2, {"unified/pods/mine/cpu.max": "200000 100000"}, 2),
        (V2, {"pods/other/cpu.max": "100000 100000"}, 16),
        (V1, quota_of_version_1("cpu,cpuacct/pods/mine", "200000"), 2),
        (V1, quota_of_version_1("cpu", "150000\n"), 2),
        (V1, quota_of_version_1("cpu/pods/mine", "-1"), 16),
        (V1, quota_of_version_1("memory/other", "100000"), 16),
    ],
)  # fmt: skip
def test_cores_are_no_more_than_the_quota_of_the_container_rounded_up(tmp_path, monkeypatch, groups, files, count):
    monkeypatch.setattr(processes, "usable_cores", lambda: list(range(16)))
    for name, content in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{n}": c for n, c in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert processes.core_count(tmp_path) == count


def test_niceness_is_added(start):
    assert start("processes.lower_priority(4); print(os.nice(0), flush=True)")[1] == [str(os.nice(0) + 4)]
    assert start("processes.lower_priority(0); print(os.nice(0), flush=True)")[1] == [str(os.nice(0))]


def test_a_niceness_that_is_not_allowed_is_said_and_survived(monkeypatch, caplog):
    def refuse(increment):
        raise PermissionError

    monkeypatch.setattr(os, "nice", refuse)
    processes.lower_priority(-5)
    assert [record.getMessage() for record in caplog.records] == [
        "niceness -5 needs more rights than this user has; going on without it"
    ]


ORPHANS = f"""
processes.adopt_orphans()
sleep = [sys.executable, "-c", {SLEEP!r}]
marked, other, unmarked = dict(os.environ, APPO_RUN="appo-x.1;"), dict(os.environ, APPO_RUN="appo-x.2;"), None
known, first, second, stranger = (subprocess.Popen(sleep, env=env) for env in (marked, marked, other, unmarked))
parent = "import subprocess, sys, time; words = [sys.executable, '-c', sys.argv[1]]; "
parent += "print(subprocess.Popen(words, stdout=subprocess.DEVNULL, env={{}}).pid, flush=True); "
words = [sys.executable, "-c", parent + "time.sleep(1000)", {SLEEP!r}]
third = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=marked)
below = int(third.stdout.readline())
print(known.pid, second.pid, stranger.pid, first.pid, third.pid, below, flush=True)
print(*processes.kill_orphans({{known.pid}}, "appo-x.1;"), flush=True)
time.sleep(1000)
"""


def test_marked_orphans_are_killed_with_all_below_them_and_no_others(start):
    child, words = start(ORPHANS)
    known, second, stranger, *orphans = [int(word) for word in words]
    assert sorted(int(word) for word in child.stdout.readline().split()) == sorted(orphans)
    assert all(is_alive(pid) for pid in (known, second, stranger))
    wait_until(lambda: not any(is_alive(pid) for pid in orphans))
    for pid in (known, second, stranger):
        os.kill(pid, signal.SIGKILL)


OUTLIVES = """
code = "import os, sys, time; from appo.utils import processes; "
code += "processes.die_with_parent(int(sys.argv[1]), heir=int(sys.argv[2])); print(os.getpid(), flush=True); "
code += "time.sleep(1000)"
processes.adopt_orphans()
middle = "import os, subprocess, sys, time; "
middle += "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid()), sys.argv[2]]); time.sleep(1000)"
print(subprocess.Popen([sys.executable, "-c", middle, code, str(os.getpid())]).pid, flush=True)
time.sleep(1000)
"""


def test_a_process_with_an_heir_to_its_parent_outlives_the_parent_and_ends_with_the_heir(start):
    heir, [parent] = start(OUTLIVES)
    pid = int(heir.stdout.readline())
    os.kill(int(parent), signal.SIGKILL)
    wait_until(lambda: psutil.Process(pid).ppid() == heir.pid)
    time.sleep(0.1)
    assert is_alive(pid)
    heir.kill()
    heir.wait()
    wait_until(lambda: not is_alive(pid))


ENDED_ORPHAN = """
processes.adopt_orphans()
parent = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', '']).pid, flush=True)"
orphan = int(subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True).stdout)
while psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE:
    time.sleep(0.01)
known = subprocess.Popen([sys.executable, "-c", ""])
os.waitid(os.P_PID, known.pid, os.WEXITED | os.WNOWAIT)
processes.reap_orphans({known.pid})
print(psutil.pid_exists(orphan), known.wait(), flush=True)
"""


def test_orphans_that_have_ended_are_cleared_away_and_known_children_are_left_to_their_owner(start):
    assert start("import psutil\n" + ENDED_ORPHAN)[1] == ["False", "0"]


def test_available_memory_is_that_of_the_machine_or_of_its_container(tmp_path):
    machine = psutil.virtual_memory()
    assert 0 < processes.available_memory() <= machine.total
    assert processes.available_memory(tmp_path / "none") == pytest.approx(machine.available, rel=0.5)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert processes.available_memory(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert processes.available_memory(tmp_path) == pytest.approx(machine.available, rel=0.5)


def test_files_that_a_container_can_drop_are_no_memory_in_use(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    (tmp_path / "memory.stat").write_text("anon 200\nfile 700\nshmem 100\nfile_dirty 50\n")
    assert processes.available_memory(tmp_path) == 1000 - 990 + 700 - 100 - 50


def test_the_limit_of_open_files_is_raised_as_far_as_allowed(start):
    code = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(100, hard), hard))
processes.allow_many_descriptors()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert start(code)[1] == [str(hard), str(hard)]


def test_numerical_libraries_are_kept_from_starting_threads_of_their_own():
    code = (
        "import sys, cv2, numpy; from threadpoolctl import threadpool_info; from appo.utils import processes;"
        "cv2.setNumThreads(2); processes.limit_native_threads();"
        "print(cv2.getNumThreads(), max(pool['num_threads'] for pool in threadpool_info()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


def test_one_gpu_is_all_that_a_simulator_sees(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "0")
    processes.show_one_gpu(2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["MUJOCO_EGL_DEVICE_ID"] == "2"


FAULTS = """
import ctypes, resource, sys
from appo.utils.processes import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(64 << 20)
    libc.memset(block, 1, 64 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how glibc treats large blocks")
def test_kept_memory_is_not_asked_for_again():
    faults = {}
    for mode in ("keep", "leave"):
        command = [sys.executable, "-c", FAULTS, mode]
        result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        faults[mode] = int(result.stdout)
    assert 10 * faults["keep"] < faults["leave"], faults


THREADED = """
import threading
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
thread.start()
processes.move_to_cores([int(sys.argv[2])])
processes.move_to_cores([])
print(child.pid, thread.native_id, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell")
def test_a_process_moves_with_its_threads_and_descendants(start):
    core = max(os.sched_getaffinity(0))
    child, (grandchild, thread) = start(THREADED, SLEEP, str(core))
    places = [os.sched_getaffinity(int(task)) for task in (child.pid, thread, grandchild)]
    os.kill(int(grandchild), signal.SIGKILL)
    assert places == [{core}] * 3


PRINTS = """
import os, sys
from appo.utils.processes import keep_standard_streams
keep_standard_streams()
print("said \\udcff", flush=True)
print("complained", file=sys.stderr)
opened = os.open(os.devnull, os.O_RDONLY)
os.write(int(sys.argv[1]), f"{opened > 2} {sys.stdout.isatty()}".encode())
"""


@pytest.mark.parametrize(
    "redirection", ["", ">&-", "2>&-", "<&- >&- 2>&-", "> /dev/full", "> /dev/full 2> /dev/full", "| true"]
)
def test_a_process_prints_whatever_became_of_its_streams(redirection, tmp_path):
    """Closed streams also leave their numbers to the next file that is opened, which then gets what is printed."""
    told = tmp_path / "told"
    shell = f"exec 7> {told}; set -o pipefail; {sys.executable} -c '{PRINTS}' 7 {redirection}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, told.read_text()) == (0, "True False"), done.stderr
    assert done.stderr.replace("complained\n", "") == ""
    if not redirection:
        assert (done.stdout, done.stderr) == ("said \\udcff\n", "complained\n")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended by itself with exit code 0"),
        (3, "ended by itself with exit code 3"),
        (-9, "was killed by SIGKILL (kill -9, or the system ran out of memory)"),
        (-11, "was killed by SIGSEGV"),
        (-250, "was killed by signal 250"),
        (None, "did not end"),
    ],
)
def test_an_exit_code_is_put_into_words(code, words):
    assert processes.describe_exit(code) == words
