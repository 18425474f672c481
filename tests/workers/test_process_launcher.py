"""The launch launcher: functions in processes of their own, and nothing left of a driver however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appo.algorithms.workers import process_launcher
from appo.algorithms.workers.process_launcher import RunFailed, TimeLimit
from appo.utils.options import ConfigError
from tests.workers import worker_processes
from tests.workers.conftest import PATIENCE_S, is_alive

ROOT = Path(__file__).resolve().parents[2]

# A driver with one worker, which has two children as a simulator might: one in the group, one in a session of its own.
DRIVER = """
import pathlib, sys, time
from appo.algorithms.messages import Ready
from tests.workers.conftest import Crew
from appo.algorithms.workers.process_launcher import ProcessLauncher

launcher = ProcessLauncher([str(pathlib.Path("tests/workers").resolve())])
crew = Crew(launcher, pathlib.Path(sys.argv[1]))
worker = crew.broken("HasChildren")
crew.poll_until(lambda: len(crew.reports) == 3)
inside, outside = (int(report.worker) for report in crew.reports[:2])
helpers = launcher.pids - {launcher.process_group}
print(worker.pid, inside, outside, launcher.process_group, *helpers, flush=True)
if sys.argv[2] == "ends":
    sys.stdin.readline()
    launcher.kill_everything()
    print("ended", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def make_driver(tmp_path):
    started = []

    def make(how):
        command = [sys.executable, "-c", DRIVER, str(tmp_path), how]
        driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(driver)
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 6  # a worker, its two children, guardian, forkserver, resource tracker
        assert all(is_alive(pid) for pid in pids)
        return driver, pids

    yield make
    for driver in started:
        driver.kill()
        driver.communicate()


def seconds_until_gone(pids):
    began = time.monotonic()
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() - began < PATIENCE_S, [pid for pid in pids if is_alive(pid)]
        time.sleep(0.02)
    return time.monotonic() - began


def test_when_the_driver_is_killed_everything_below_it_is_gone_within_two_seconds(make_driver):
    driver, pids = make_driver("is killed")
    driver.kill()
    driver.wait()
    assert seconds_until_gone(pids) < 2.0


def test_the_end_leaves_no_process_not_even_one_that_left_the_group(make_driver):
    driver, pids = make_driver("ends")
    driver.stdin.write("go\n")
    driver.stdin.flush()
    assert driver.stdout.readline() == "ended\n"
    assert not [pid for pid in pids if is_alive(pid)]
    assert driver.poll() is None


ADOPTS = """
import os, subprocess, sys
import psutil
from appo.algorithms.workers.process_launcher import ProcessLauncher
from appo.utils import processes

def adopts():
    parent = "import subprocess, sys; print(subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL).pid)"
    orphan = int(subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True).stdout)
    with open(f"/proc/{orphan}/stat") as file:
        is_ours = int(file.read().rpartition(")")[2].split()[1]) == os.getpid()
    os.kill(orphan, 9)
    if is_ours:
        os.waitpid(orphan, 0)
    return is_ours

if sys.argv[1] == "as before":
    processes.adopt_orphans()
before = adopts()
launcher = ProcessLauncher(sys.path)
launcher.clear_up_with(sys.argv[2])
during = adopts()
launcher.kill_everything()
print(before, during, adopts(), len(psutil.Process().children()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
@pytest.mark.parametrize(("how", "told"), [("not before", "False True False 0"), ("as before", "True True True 0")])
def test_a_process_whose_run_has_ended_adopts_as_before_and_has_no_children(tmp_path, how, told):
    clear_up = tmp_path / "clear_up.py"
    # The guardian starts it first, and that one ends last.
    clear_up.write_text(
        "import os, time\ntry:\n    os.mkdir(__file__ + '.first')\n    time.sleep(1)\nexcept OSError:\n    pass\n"
    )
    command = [sys.executable, "-c", ADOPTS, how, str(clear_up)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == told, done.stderr


def run_once(launcher, name, *arguments, timeout_s=PATIENCE_S, is_cancelled=lambda: False):
    limit = TimeLimit(timeout_s, "--some_timeout")
    return launcher.run_once(getattr(worker_processes, name), arguments, limit, is_cancelled)


def test_a_function_runs_in_a_process_of_its_own(launcher):
    assert run_once(launcher, "add", 2, 3) == 5
    assert run_once(launcher, "own_pid") != os.getpid()


def test_what_a_function_raises_is_told_with_its_traceback(launcher):
    with pytest.raises(RunFailed, match=r"(?s)Traceback.*in fail.*ValueError: seven is no number"):
        run_once(launcher, "fail", "seven")


def test_what_a_function_raises_is_told_with_both_ends_of_a_text_of_any_length(launcher):
    told = r"(?s)Traceback.*ValueError: begin x.*characters cut.*x is no number"
    with pytest.raises(RunFailed, match=told) as caught:
        run_once(launcher, "fail", "begin " + "x" * 2_000_000)
    assert len(str(caught.value)) < 20_000


def test_what_a_function_refuses_is_told_in_its_words_alone(launcher):
    with pytest.raises(ConfigError, match=r"^this cannot be; nearest: that$"):
        run_once(launcher, "refuse")


def test_a_function_that_ends_its_process_does_not_end_the_driver(launcher):
    with pytest.raises(RunFailed, match=r"^die ended by itself with exit code 7$"):
        run_once(launcher, "die", 7)


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
def test_a_function_that_asks_to_end_the_process_has_failed_with_its_traceback(launcher, error):
    with pytest.raises(RunFailed, match=rf"(?s)Traceback.*in end_with.*{error}: 0$"):
        run_once(launcher, "end_with", error)


def test_a_function_that_forks_and_ends_is_told_at_once_though_its_child_lives(launcher, tmp_path):
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"^fork_and ended by itself with exit code 7$"):
        run_once(launcher, "fork_and", "parent ends", tmp_path / "pid")
    assert time.monotonic() - began < PATIENCE_S / 2.0
    assert seconds_until_gone([int((tmp_path / "pid").read_text())]) < PATIENCE_S / 2.0


@pytest.mark.parametrize("who", ["child ends", "child goes on"])
def test_the_result_of_a_function_that_forks_is_its_own(launcher, tmp_path, who):
    assert run_once(launcher, "fork_and", who, tmp_path / "pid") == "parent"


def test_a_function_that_takes_too_long_is_ended(launcher, tmp_path):
    with pytest.raises(RunFailed, match=r"^take_long did not finish within 1 s \(--some_timeout\)$"):
        run_once(launcher, "take_long", tmp_path / "pid", timeout_s=1.0)
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_function_that_is_not_waited_for_any_more_is_ended(launcher, tmp_path):
    begins = (tmp_path / "pid").exists
    assert run_once(launcher, "take_long", tmp_path / "pid", is_cancelled=begins) is None
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_server_that_does_not_answer_keeps_no_caller_waiting(launcher, monkeypatch):
    server = process_launcher._forkserver()._forkserver_pid  # not the one that imported torch for other tests
    os.kill(server, signal.SIGSTOP)
    try:
        assert run_once(launcher, "own_pid", is_cancelled=lambda: True) is None
        began = time.monotonic()
        assert not launcher.launch(launcher.process(os.getpid, (), "late"), lambda: True, patience_s=0.5)
        assert time.monotonic() - began > 0.5
        monkeypatch.setattr(process_launcher, "START_S", 0.5)
        with pytest.raises(RunFailed, match=r"^the forkserver did not start appo probe within 0.5 s$"):
            run_once(launcher, "own_pid")
    finally:
        os.kill(server, signal.SIGCONT)
    assert run_once(launcher, "add", 2, 3) == 5


def test_modules_of_the_user_are_found_and_prints_go_nowhere(launcher, capfd):
    assert run_once(launcher, "print_and_import_from_the_search_path") == "broken_workers"
    assert "nowhere" not in capfd.readouterr().out


def test_helpers_are_known_and_alive(launcher):
    launcher.forget_torch()  # other tests may have needed it
    assert launcher.dead() == ""
    assert launcher.process_group in launcher.pids and len(launcher.pids) == 3
    assert all(is_alive(pid) for pid in launcher.pids)
    assert os.getpgid(launcher.process_group) == launcher.process_group


# A driver whose processes may use torch; it prints what they found.
WITH_TORCH = """
import os, pathlib, signal, sys, time
from appo.algorithms.workers.process_launcher import ProcessLauncher, TimeLimit
from appo.algorithms.workers.torch_server import end_forkserver
from tests.workers.conftest import is_alive
from tests.workers.worker_processes import torch_and_parent

def run(uses_torch):
    name, limit = "tests.workers.worker_processes:torch_and_parent", TimeLimit(60.0)
    return launcher.run_once(name, (), limit, bool, uses_torch=uses_torch)

launcher = ProcessLauncher([str(pathlib.Path.cwd())])
helpers = launcher.pids
before = run(uses_torch=True)  # there is no server that has imported it
launcher.import_torch()
(server,) = launcher.pids - helpers
with_torch, without = run(uses_torch=True), run(uses_torch=False)
print(before[0], before[1] in helpers, with_torch == (True, server), without == before, launcher.dead() == "")
os.kill(server, signal.SIGKILL)
while is_alive(server):
    time.sleep(0.01)
print(launcher.dead())
end_forkserver(launcher._torch_server.server)
launcher.import_torch()
(server,) = launcher.pids - helpers
began = time.monotonic()
launcher.kill_everything()
print(time.monotonic() - began < 1.0, is_alive(server))
"""


# A driver that has forgotten torch, and whose workers are lost then; it prints where their successors come from.
TORCH_AGAIN = """
import os, pathlib, signal, time
from appo.algorithms.workers import process_launcher
from appo.algorithms.workers.process_launcher import ProcessLauncher, TimeLimit
from tests.workers.conftest import is_alive
from tests.workers.worker_processes import torch_and_parent

def parent():
    name, limit = "tests.workers.worker_processes:torch_and_parent", TimeLimit(60.0)
    return launcher.run_once(name, (), limit, bool, uses_torch=True)[1]

launcher = ProcessLauncher([str(pathlib.Path.cwd())])
helpers = launcher.pids
launcher.import_torch()
launcher.forget_torch()
print(launcher.pids == helpers and launcher.prepare_start(uses_torch=False))
print(not launcher.prepare_start(uses_torch=True) and parent() in helpers)  # the import has only begun
(server,) = launcher.pids - helpers
while not launcher.prepare_start(uses_torch=True):
    time.sleep(0.01)
print(parent() == server)
launcher.forget_torch(unused_for_s=100.0)
print(launcher.pids == helpers | {server})
launcher.forget_torch(unused_for_s=0.0)
print(launcher.pids == helpers)
launcher._torch_expected_by = 0.0  # as long afterwards
launcher.prepare_start(uses_torch=True)
(server,) = launcher.pids - helpers
os.kill(server, signal.SIGKILL)
while is_alive(server):
    time.sleep(0.01)
print(launcher.prepare_start(uses_torch=True) and parent() in helpers)  # it is done without a server that dies
launcher._torch_expected_by = 0.0
while not launcher.prepare_start(uses_torch=True):
    time.sleep(0.01)
(server,) = launcher.pids - helpers
os.kill(server, signal.SIGSTOP)
while launcher._torch_server.serves():
    time.sleep(0.01)
print(launcher.prepare_start(uses_torch=True) and parent() in helpers)  # nor does anybody wait for one that is stopped
os.kill(server, signal.SIGCONT)
while not launcher._torch_server.serves():
    time.sleep(0.01)
late = launcher.process(time.sleep, (0.0,), "late", uses_torch=True)
os.kill(server, signal.SIGKILL)  # after it was seen to serve
while is_alive(server):
    time.sleep(0.01)
print(launcher.launch(late) and late.join(60.0) is None and late.exitcode == 0)
process_launcher.MEMORY_FOR_TORCH = 2**60
launcher._torch_expected_by = 0.0
print(launcher.prepare_start(uses_torch=True) and not launcher.pids - helpers - {server})
launcher.kill_everything()
"""


@pytest.mark.alone
def test_torch_is_imported_again_when_a_worker_is_lost_and_forgotten_when_no_other_is():
    command = [sys.executable, "-c", TORCH_AGAIN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["True"] * 9, (done.stdout, done.stderr)


@pytest.mark.alone
def test_processes_that_use_torch_are_forked_from_a_server_that_has_imported_it_and_ends_at_once():
    """An end in the middle of the import does not wait for it, which takes longer than a second on one of two cores."""
    command = [sys.executable, "-c", WITH_TORCH]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    expected = ["False True True True True", "", "True False"]
    assert done.stdout.splitlines() == expected, done.stderr


IS_IMPORTED = """
import sys
from appo.algorithms.workers.process_launcher import ProcessLauncher, TimeLimit

launcher = ProcessLauncher(sys.path)
try:
    for name in sys.argv[1:]:
        if name == "appo.algorithms.workers.learner_worker":
            launcher.import_torch()
        expression = f"{name!r} in __import__('sys').modules"
        uses_torch = name == "appo.algorithms.workers.learner_worker"
        print(launcher.run_once("builtins:eval", (expression,), TimeLimit(60.0), lambda: False, uses_torch=uses_torch))
finally:
    launcher.kill_everything()
"""


def test_what_workers_need_is_imported_ahead_wherever_the_program_was_started(tmp_path):
    names = ("appo.algorithms.workers.actor_worker", "appo.algorithms.workers.learner_worker")
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{IS_IMPORTED}"
    command = [sys.executable, "-c", code, *names]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr
