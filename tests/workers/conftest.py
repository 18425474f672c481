"""One process launcher for all tests of this room, and crews of workers on it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest

from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.memory.weights import WeightsBuffer
from appo.algorithms.workers.placement import Placement
from appo.algorithms.workers.process_launcher import ProcessLauncher, RunFailed
from appo.algorithms.workers.restarts import RestartLimits
from appo.algorithms.workers.roster import ACTOR, LEARNER, POLICY_WORKER, Group, Roster
from appo.algorithms.workers.supervisor import Supervisor
from appo.algorithms.workers.torch_server import end_forkserver
from appo.algorithms.workers.worker import Bells, SharedMemoryHandle
from appo.algorithms.workers.worker_handle import WorkerSpec
from tests.memory.memory_cases import small_sizes

NO_RESTARTS = RestartLimits(failures_in_a_row=0, setup_retries=0)  # most tests look at one end
PATIENCE_S = 30.0  # far more than anything takes; only a failing test waits so long


@pytest.fixture(scope="session")
def launcher():
    """A forkserver and a guardian."""
    # One that other tests left running has loaded nothing that workers need.
    end_forkserver(forkserver._forkserver)  # a private object of multiprocessing
    process_launcher = ProcessLauncher([str(Path(__file__).parent)])
    yield process_launcher
    process_launcher.kill_everything()


@contextlib.contextmanager
def hidden_main_module():
    """Children started here need not import whatever runs the tests."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


class Crew:
    """A supervisor, what its workers share, and every process that it ever started."""

    def __init__(self, launcher, folder, arrays=None):
        self.arrays = SharedArrays.create(small_sizes()) if arrays is None else arrays
        actors, policies = self.arrays.sizes.actors, self.arrays.sizes.learning_policies
        self.weights = [WeightsBuffer.create(f"weights-{policy}") for policy in range(policies)]
        per_policy = (self.arrays.sizes.processes - actors - policies) // policies
        self.roster = Roster(
            {ACTOR: Group(1, actors), POLICY_WORKER: Group(policies, per_policy), LEARNER: Group(policies, 1)}
        )
        self.bells = Bells(self.roster)
        self.log_dir = folder
        self.snapshots = [WeightsBuffer.create(f"snapshot-{policy}") for policy in range(policies)]
        handle = SharedMemoryHandle.of(self.arrays, self.weights, self.snapshots)
        self.supervisor = Supervisor(launcher, self.arrays, handle, self.bells, folder)
        self.supervisor.restarts.limits = NO_RESTARTS
        self.pids = []
        self.started = {}  # name -> worker
        self.reports = []

    def start(self, worker_class, *, process=0, name=None, job=None, placement=None, generation=0):
        """Start a worker of this class in a place of the roster, for the log under any name."""
        worker, where = self.roster.ids[process], placement or Placement((), 1, 0)
        worker_spec = WorkerSpec(worker, name or f"worker-{process}", process, worker_class, job, where)
        with hidden_main_module():
            handle = self.supervisor.start(worker_spec, generation)
        self.pids.append(handle.pid)
        self.started[handle.spec.name] = worker
        return handle

    def broken(self, kind, **options):
        return self.start(f"broken_workers:{kind}", **options)

    def send(self, name, command):
        return self.supervisor.send(self.started[name], command)

    def lives(self, name):
        return name in self.started and self.supervisor.lives(self.started[name])

    def poll_until(self, condition):
        """Collect reports until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"never came; so far {self.reports}, logs {self.logs()}"
            self.reports += self.supervisor.poll(0.05)

    def failure(self):
        """How the run ends."""
        with pytest.raises(RunFailed) as caught:
            self.poll_until(lambda: False)
        return str(caught.value)

    def ready(self, *names):
        self.poll_until(lambda: set(names) <= {report.worker for report in self.reports if hasattr(report, "worker")})

    def logs(self):
        return {path.stem: path.read_text() for path in self.log_dir.glob("*.txt")}

    def phase(self, place=0):
        return int(self.arrays["phase"][place])

    def close(self):
        self.supervisor.stop(0.2)
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def exit_code(worker):
    """Of a worker that has ended; the forkserver, which waits for it, may tell a moment later."""
    worker.process.join(PATIENCE_S)
    return worker.process.exitcode


@pytest.fixture
def make_crew(launcher, tmp_path):
    crews = []

    def make(arrays=None):
        crews.append(Crew(launcher, tmp_path, arrays))
        return crews[-1]

    yield make
    for crew in crews:
        crew.close()


@pytest.fixture
def crew(make_crew):
    return make_crew()
