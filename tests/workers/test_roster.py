"""The table of kinds of worker: one row more, and a run places, names, starts and measures workers of that kind."""

import time

from appo.algorithms.config import resolve
from appo.algorithms.memory.counters import EventCounter
from appo.algorithms.messages import Ready
from appo.algorithms.run import resources
from appo.algorithms.workers.roster import KINDS, Group, WorkerKind
from appo.algorithms.workers.seeds import Seeds
from appo.algorithms.workers.supervisor import Supervisor
from appo.envs.registry import probe
from tests.workers.conftest import PATIENCE_S, hidden_main_module


def test_a_kind_of_worker_is_placed_named_started_and_measured(launcher, tmp_path, monkeypatch):
    kind = WorkerKind(
        name="scout-{number}",
        worker_class="broken_workers:Idle",
        group=lambda sampling, workers: Group(1, 2),
        job=lambda plan, worker: {"index": worker.number},
        rings=lambda roster, worker: [],
        timers="SCOUT",
        first_work=EventCounter.ACTOR_ROLLOUTS,
        worth_a_restart=EventCounter.ACTOR_ROLLOUTS,
        give_back=lambda arrays, worker: None,
        starts=4,
        uses_torch=False,
    )
    monkeypatch.setitem(KINDS, "scout", kind)
    config = resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}", "--device=cpu", "--num_workers=1"]).config
    spec = probe("CartPole-v1")
    shared = resources.allocate(config, resources.sizes_of(config, spec))
    plan = resources.plan_of(config, spec, "cpu", [tmp_path], Seeds(1, 0))
    scouts = [each for each in resources.worker_specs(plan) if each.worker.kind == "scout"]
    assert [(each.name, each.place, each.job) for each in scouts] == [
        ("scout-0", 3, {"index": 0}),
        ("scout-1", 4, {"index": 1}),
    ]
    supervisor = Supervisor(launcher, shared.arrays, shared.handle(), shared.bells, tmp_path)
    try:
        with hidden_main_module():
            for each in scouts:
                supervisor.start(each)
        ready: set[str] = set()
        deadline = time.monotonic() + PATIENCE_S
        while ready != {"scout-0", "scout-1"}:
            assert time.monotonic() < deadline, ready
            ready |= {report.worker for report in supervisor.poll(0.1) if isinstance(report, Ready)}
        supervisor.measure_memory()
        assert (shared.arrays["memory_mb"][3:5] > 5.0).all() and not shared.arrays["memory_mb"][:3].any()
    finally:
        supervisor.stop(0.5)
