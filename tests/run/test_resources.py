"""From a configuration to memory, doorbells and worker specifications: sizes that fit, places that are not shared."""

import dataclasses
import resource

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.memory import layout
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.run import resources
from appo.algorithms.run.experiment import Experiment
from appo.algorithms.run.resources import (
    allocate,
    check_descriptors,
    check_memory,
    num_blocks,
    plan_of,
    sizes_of,
    too_small_budget,
    with_pooled_policies,
    worker_specs,
)
from appo.algorithms.workers import core_sharing, placement
from appo.algorithms.workers.roster import ACTOR, EVALUATION_WORKER, KINDS, LEARNER, POLICY_WORKER, Roster, WorkerId
from appo.algorithms.workers.seeds import SeedKey, Seeds
from appo.algorithms.workers.worker import WorkerBells
from appo.envs.registry import probe
from appo.utils.options import ConfigError


def config_of(tmp_path, *options, env="CartPole-v1"):
    return resolve([f"--env={env}", f"--train_dir={tmp_path}", "--device=cpu", "--seed=1", *options]).config


@pytest.mark.parametrize(
    ("options", "trajectories", "blocks"),
    [
        # They hold as many batches as may be under way, two per iteration unless said, but for the iteration that the
        # learner has copied ahead; one is filled while one waits.
        (["--batch_size=1024", "--rollout=32"], 32, 2),  # 1024 / 32 = 32 columns: one block of every split
        (["--batch_size=1024", "--rollout=32"], 33, 2),
        (["--batch_size=1024", "--rollout=32"], 16, 2),
        (["--batch_size=1024", "--rollout=32"], 15, 3),
        (["--batch_size=1024", "--rollout=32"], 8, 4),
        (["--batch_size=1024", "--rollout=32", "--train_in_background_thread=False"], 8, 8),
        (["--batch_size=1024", "--rollout=32"], 10_000, 2),
        (["--batch_size=1024", "--rollout=32", "--num_batches_per_iteration=3"], 40, 3),
        (["--batch_size=1024", "--rollout=32", "--num_minibatches_to_accumulate=2"], 15, 3),
        (["--batch_size=1024", "--rollout=32", "--num_minibatches_to_accumulate=2"], 32, 2),
        (["--batch_size=1024", "--rollout=32", "--num_minibatches_to_accumulate=1"], 32, 1),
        (["--batch_size=1024", "--rollout=32", "--num_minibatches_to_accumulate=1"], 16, 2),
        (["--batch_size=1024", "--rollout=32", "--num_minibatches_to_accumulate=10"], 32, 9),
        (["--batch_size=1024", "--rollout=32", "--num_minibatches_to_accumulate=0"], 8, 1),
        (["--batch_size=64", "--rollout=32", "--async_rl=False"], 8, 1),
    ],
)
def test_there_are_as_many_blocks_as_batches_may_be_under_way(tmp_path, options, trajectories, blocks):
    usual = ["--num_batches_per_iteration=1", "--num_minibatches_to_accumulate=-1"]
    options = [*usual, "--num_envs_per_worker=64", "--num_workers=1", *options]
    assert num_blocks(config_of(tmp_path, *options), trajectories) == blocks


def test_sizes_follow_from_the_options_and_the_environment(tmp_path):
    options = ["--num_workers=3", "--num_envs_per_worker=8", "--worker_num_splits=4", "--num_policies=2"]
    learning = ["--rollout=16", "--batch_size=256", "--recurrence=4", "--with_vtrace=False"]
    model = ["--use_rnn=True", "--hidden_size=24", "--rnn_type=lstm", "--policy_workers_per_policy=2"]
    config = config_of(tmp_path, *options, *learning, *model, "--synthetic_num_agents=5", env="synthetic_multi")
    spec = probe("synthetic_multi", config.family)
    sizes = sizes_of(config, spec)
    assert (sizes.actors, sizes.splits, sizes.rows) == (3, 4, 2 * 5)
    assert (sizes.acting_policies, sizes.learning_policies) == (2, 2)
    assert (sizes.rollout, sizes.recurrence, sizes.processes) == (16, 4, 3 + 2 * 2 + 2)
    assert sizes.state_size == build_actor_critic(config.model, spec).state_size == 48
    assert sizes.trajectories == 3 * 8 * 5
    assert sizes.blocks == num_blocks(config, sizes.trajectories)
    assert sizes_of(config_of(tmp_path, "--rollout=8", "--batch_size=64"), probe("CartPole-v1")).recurrence == 8


def test_what_is_wired_fits_the_sizes(tmp_path):
    config = config_of(tmp_path, "--num_workers=3", "--num_policies=2", "--policy_workers_per_policy=2")
    sizes = sizes_of(config, probe("CartPole-v1"))
    shared = allocate(config, sizes)
    assert shared.arrays.segment.size == layout.total_bytes(sizes)
    assert len(shared.weights) == len(shared.snapshots) == 2
    bells = [shared.bells.of(worker) for worker in shared.roster.ids]
    assert len({bell._read for bell in bells}) == len(bells) == 9
    assert shared.handle().sizes == sizes
    for bell in bells:
        bell.close()


def specs_of(config):
    folders = [config.run.checkpoint_dir(policy) for policy in range(config.sampling.num_policies)]
    return worker_specs(plan_of(config, probe("CartPole-v1"), "cpu", folders, Seeds(1, 0)))


@pytest.mark.parametrize(("device", "threads"), [("cpu", 8), ("cuda:0", 1)])
def test_a_learner_without_a_gpu_has_several_threads_and_all_others_one(monkeypatch, tmp_path, device, threads):
    monkeypatch.setattr(placement, "core_count", lambda: 16)
    config = resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}"]).config
    specs = worker_specs(plan_of(config, probe("CartPole-v1"), device, [tmp_path], Seeds(1, 0)))
    found = {each.worker.kind: each.placement.threads for each in specs}
    assert (found[LEARNER], found[POLICY_WORKER]) == (threads, 1)


@pytest.mark.parametrize(
    ("env", "options", "num_envs"),
    [("CartPole-v1", [], 10), ("doom_basic", [], 5), ("CartPole-v1", ["--eval_envs=3"], 3)],
)
def test_evaluations_beside_training_have_as_many_environments_as_they_cost_little(tmp_path, env, options, num_envs):
    config = resolve([f"--env={env}", f"--train_dir={tmp_path}", "--eval_every_sec=60", *options]).config
    plan = plan_of(config, probe("CartPole-v1"), "cpu", [tmp_path], Seeds(1, 0))
    (job,) = [each.job for each in worker_specs(plan) if each.worker.kind == EVALUATION_WORKER]
    assert job.num_envs == num_envs


@pytest.fixture
def all_specs(tmp_path):
    options = ["--num_workers=3", "--num_policies=2", "--policy_workers_per_policy=2", "--experiment=first"]
    resolved = resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}", "--seed=1", *options])
    experiment = Experiment.open(resolved, ["train_appo.py"])
    spec = probe("CartPole-v1")
    folders = [experiment.checkpoint_dir(policy) for policy in range(2)]
    specs = worker_specs(plan_of(resolved.config, spec, "cpu", folders, Seeds(1, 0)))
    yield specs, sizes_of(resolved.config, spec), experiment
    experiment.close()


def test_every_process_has_a_place_and_a_name_of_its_own_learners_first(all_specs):
    workers, sizes, _ = all_specs
    assert sorted(worker.place for worker in workers) == list(range(sizes.processes))
    assert [(worker.name, worker.place) for worker in workers] == [
        ("learner-0", 7),
        ("learner-1", 8),
        ("policy-0-0", 3),
        ("policy-0-1", 4),
        ("policy-1-0", 5),
        ("policy-1-1", 6),
        ("actor-00", 0),
        ("actor-01", 1),
        ("actor-02", 2),
    ]
    kinds = {worker.name.partition("-")[0]: worker.worker_class.partition(":")[2] for worker in workers}
    assert kinds == {"learner": "LearnerWorker", "policy": "PolicyWorker", "actor": "ActorWorker"}


@pytest.mark.parametrize(
    ("policies", "workers_each", "cores", "device", "together", "served"),
    [
        (1, 1, 2, "cpu", 0, [(0,)]),
        (2, 1, 2, "cpu", 0, [(0,), (1,)]),
        (3, 1, 2, "cpu", 0, [(0, 1), (2,)]),
        (4, 1, 2, "cpu", 0, [(0, 1), (2, 3)]),
        (4, 1, 1, "cpu", 0, [(0, 1, 2, 3)]),
        (4, 2, 2, "cpu", 0, [(0, 1, 2, 3)]),
        (4, 2, 4, "cpu", 0, [(0, 1), (2, 3)]),
        (4, 1, 2, "cuda:0", 0, [(0,), (1,), (2,), (3,)]),
        (4, 1, 2, "cpu", 1, [(0,), (1,), (2,), (3,)]),
        (4, 1, 8, "cpu", 3, [(0, 1, 2), (3,)]),
    ],
)
def test_policy_workers_serve_so_many_policies_that_they_are_no_more_than_the_cores(
    tmp_path, monkeypatch, policies, workers_each, cores, device, together, served
):
    monkeypatch.setattr("appo.algorithms.workers.core_sharing.core_count", lambda: cores)
    options = [f"--num_policies={policies}", f"--policies_per_policy_worker={together}"]
    options += [f"--policy_workers_per_policy={workers_each}"]
    config = with_pooled_policies(config_of(tmp_path, *options), device)
    workers = [spec for spec in specs_of(config) if spec.worker.kind == POLICY_WORKER]
    assert [tuple(spec.job.seeds) for spec in workers] == [these for these in served for _ in range(workers_each)]
    assert len({seed for spec in workers for seed in spec.job.seeds.values()}) == workers_each * policies
    roster = Roster.of(config.sampling, config.workers)
    for policy in range(policies):
        serving = roster.of_kind(POLICY_WORKER, policy)
        assert [policy in roster.policies_of(worker) for worker in serving] == [True] * workers_each


def test_each_worker_rings_those_that_serve_it_and_whom_it_serves(tmp_path):
    options = ["--num_workers=3", "--num_policies=4", "--policies_per_policy_worker=2", "--policy_workers_per_policy=2"]
    config = config_of(tmp_path, *options)
    shared = allocate(config, sizes_of(config, probe("CartPole-v1")))

    def rung_by(worker):
        return KINDS[worker.kind].rings(shared.roster, worker)

    def names(workers):
        return [worker.name for worker in workers]

    assert names(rung_by(WorkerId(ACTOR, 0, 1))) == ["policy-0-1", "policy-2-1", *(f"learner-{i}" for i in range(4))]
    assert names(rung_by(WorkerId(POLICY_WORKER, 2, 0))) == ["actor-00", "actor-02"]
    assert names(rung_by(WorkerId(LEARNER, 3, 0)))[3:] == ["policy-2-0", "policy-2-1"]
    of_actor = rung_by(WorkerId(ACTOR, 0, 1))
    bells = WorkerBells(
        shared.bells.of(WorkerId(ACTOR, 0, 1)), {worker: shared.bells.of(worker) for worker in of_actor}
    )
    first, second = (shared.bells.of(WorkerId(POLICY_WORKER, policy, 1)) for policy in (0, 2))
    assert bells.by_policy(POLICY_WORKER, 4) == [first, first, second, second]
    for worker in shared.roster.ids:
        shared.bells.of(worker).close()


@pytest.mark.parametrize(
    ("env", "options", "pinned"),
    [("CartPole-v1", [], 0), ("doom_basic", [], 1), ("doom_basic", ["--set_workers_cpu_affinity=False"], 0)],
)
def test_actors_are_kept_on_one_core_where_they_work_in_turns_with_engines(tmp_path, env, options, pinned):
    resolved = resolve([f"--env={env}", f"--train_dir={tmp_path}", "--num_workers=2", "--experiment=first", *options])
    workers = specs_of(resolved.config)
    cores = {worker.name: len(worker.placement.cores) for worker in workers}
    assert cores == {"learner-0": 0, "policy-0-0": 0, "actor-00": pinned, "actor-01": pinned}


@pytest.mark.parametrize(("env", "is_apart"), [("CartPole-v1", False), ("doom_basic", True)])
def test_policy_workers_stay_off_the_cores_of_engines_where_nothing_is_learned(tmp_path, monkeypatch, env, is_apart):
    for module in (placement, core_sharing):
        monkeypatch.setattr(module, "usable_cores", lambda: [0, 1])
        monkeypatch.setattr(module, "core_count", lambda: 2)
    options = [f"--train_dir={tmp_path}", "--num_workers=2", "--experiment=first", "--sampler_only=True"]
    resolved = resolve([f"--env={env}", *options])
    workers = specs_of(resolved.config)
    cores = {worker.name: worker.placement.cores for worker in workers if worker.name != "learner-0"}
    apart = {"policy-0-0": (0,), "actor-00": (1,), "actor-01": (1,)}
    assert cores == (apart if is_apart else dict.fromkeys(apart, ()))


@pytest.mark.parametrize(
    ("env", "options", "shared"),
    [
        ("doom_basic", [], (1,)),
        ("CartPole-v1", [], ()),
        ("doom_basic", ["--sampler_only=True"], ()),
        ("doom_basic", ["--async_rl=False"], ()),
        ("doom_basic", ["--learner_threads=2"], ()),
        ("doom_basic", ["--num_policies=2"], ()),
        ("doom_basic", ["--set_workers_cpu_affinity=False"], ()),
    ],
)
def test_actors_with_engines_may_share_a_core_beside_the_learner_of_two(tmp_path, monkeypatch, env, options, shared):
    for module in (placement, core_sharing):
        monkeypatch.setattr(module, "usable_cores", lambda: [0, 1])
        monkeypatch.setattr(module, "core_count", lambda: 2)
    base = [f"--env={env}", f"--train_dir={tmp_path}", "--num_workers=2", "--experiment=first"]
    resolved = resolve([*base, "--rollout=32", "--batch_size=64", *options])
    workers = specs_of(resolved.config)
    for worker in workers:
        assert worker.placement.shared_cores == (() if worker.name.startswith("learner") else shared)


def test_jobs_name_the_policies_actors_and_folders_they_are_for(all_specs):
    workers, _, experiment = all_specs
    jobs = {worker.name: worker.job for worker in workers}
    assert [jobs[f"learner-{p}"].checkpoint_dir for p in (0, 1)] == [experiment.checkpoint_dir(p) for p in (0, 1)]
    assert [jobs[f"learner-{p}"].policy for p in (0, 1)] == [0, 1]
    places = [(*job.seeds, job.index, job.num_workers) for name, job in jobs.items() if name.startswith("policy")]
    assert places == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]
    assert [(jobs[f"actor-0{i}"].index, jobs[f"actor-0{i}"].num_actors) for i in range(3)] == [(0, 3), (1, 3), (2, 3)]
    seeds = [job.seed for name, job in jobs.items() if name.startswith("learner")]
    seeds += [seed for name, job in jobs.items() if name.startswith("policy") for seed in job.seeds.values()]
    assert len(set(seeds)) == len(seeds) == 6


@pytest.mark.parametrize(
    ("options", "holds", "just_in_time"),
    [
        ([], False, False),
        (["--async_rl=False"], True, False),
        (["--num_minibatches_to_accumulate=0"], True, False),
        (["--num_minibatches_to_accumulate=1"], False, True),
        (["--num_batches_per_iteration=4", "--num_minibatches_to_accumulate=4"], False, True),
        (["--num_batches_per_iteration=4", "--num_minibatches_to_accumulate=5"], False, False),
        (["--async_rl=False", "--num_minibatches_to_accumulate=1"], True, False),
    ],
)
def test_blocks_are_held_where_actors_wait_for_what_was_learned(tmp_path, options, holds, just_in_time):
    small = ["--batch_size=64", "--rollout=32", "--num_envs_per_worker=8", "--experiment=first"]
    small += ["--num_batches_per_iteration=2", "--num_minibatches_to_accumulate=-1"]
    resolved = resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}", *small, *options])
    job = next(worker.job for worker in specs_of(resolved.config) if worker.name == "learner-0")
    assert (job.hold_blocks, job.just_in_time) == (holds, just_in_time)
    assert job.trajectories == 2 * resolved.config.learning.num_batches_per_iteration


def test_seeds_follow_from_the_run_and_from_nothing_else():
    def drawn(seed, starts):
        seeds = Seeds(seed, starts)
        places: list[tuple[SeedKey, *tuple[int, ...]]] = [(SeedKey.ENVIRONMENTS,), (SeedKey.ASSIGNMENT,)]
        places += [(SeedKey.LEARNER, 0), (SeedKey.LEARNER, 1), (SeedKey.POLICY_WORKER, 0, 0)]
        return [seeds.of(*place) for place in places]

    first = drawn(3, 0)
    assert first == drawn(3, 0)
    others = [*first, *drawn(4, 0), *drawn(3, 1)]
    assert len(set(others)) == len(others) == 15
    assert all(0 <= seed < 2**63 for seed in others)  # torch and numpy take them


def test_a_run_that_does_not_fit_is_refused_with_its_sizes_and_what_to_lower(tmp_path, monkeypatch):
    config = config_of(tmp_path, "--num_workers=2", "--num_envs_per_worker=4")
    sizes = sizes_of(config, probe("CartPole-v1"))
    check_memory(config, sizes)
    monkeypatch.setattr(resources, "available_memory", lambda: 100e6)
    with pytest.raises(ConfigError) as caught:
        check_memory(config, sizes)
    message = str(caught.value)
    assert "and 100 MB are available" in message and "MB of rollouts" in message and "MB of processes" in message
    options = message.partition("lower ")[2].replace(" or ", ", ").split(", ")
    names = {field.name for room in (config.sampling, config.learning) for field in dataclasses.fields(room)}
    assert len(options) == 6 and set(options) <= names


def test_a_run_with_more_workers_than_files_may_be_opened_is_refused_with_what_would_fit(tmp_path, monkeypatch):
    config = config_of(tmp_path, "--num_workers=60")
    sizes = sizes_of(config, probe("CartPole-v1"))
    check_descriptors(sizes)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    with pytest.raises(
        ConfigError, match=r"for its 62 workers and may open 256.*ulimit -n 528, or lower num_workers to"
    ) as caught:
        check_descriptors(sizes)
    fitting = int(str(caught.value).rpartition(" ")[2])
    check_descriptors(sizes_of(config_of(tmp_path, f"--num_workers={fitting}"), probe("CartPole-v1")))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check_descriptors(sizes)


def test_what_is_needed_counts_rollouts_batches_and_processes(tmp_path, monkeypatch):
    config = config_of(tmp_path, "--num_workers=2", "--num_envs_per_worker=64", "--rollout=32", "--batch_size=8192")
    sizes = sizes_of(config, probe("CartPole-v1"))
    monkeypatch.setattr(resources, "available_memory", lambda: 0)
    with pytest.raises(ConfigError, match="this run needs about") as caught:
        check_memory(config, sizes)
    numbers = [int(word) for word in str(caught.value).replace("(", " ").split() if word.isdigit()]
    needed, rollouts, batches, processes, _ = numbers
    assert needed == pytest.approx(rollouts + batches + processes, abs=2)
    assert rollouts == round(layout.total_bytes(sizes) / 1e6)
    assert processes > 2 * 300
    column_bytes = sum(spec.nbytes for spec in layout.batch_arrays(sizes))
    columns = 2 * config.learning.num_batches_per_iteration * 8192 // 32  # two batches, one of them ahead
    assert batches == pytest.approx(columns * column_bytes / (sizes.trajectories * sizes.blocks) / 1e6, abs=1)


@pytest.mark.parametrize(
    ("options", "before", "told"),
    [
        (["--train_for_env_steps=1023"], 0, "train_for_env_steps=1023 may be spent before this start learns anything"),
        (["--train_for_env_steps=1024"], 0, ""),
        ([], 0, ""),
        (["--train_for_env_steps=9000"], 8000, "train_for_env_steps=9000 leaves 1000 frames, which may be spent"),
        (["--train_for_env_steps=9000"], 7000, ""),
        (["--train_for_env_steps=9000", "--num_policies=2"], 7000, "of each of 2 policies takes 1024 agent steps"),
        (["--train_for_env_steps=500", "--sampler_only=True"], 0, ""),
    ],
)
def test_a_budget_of_less_than_one_iteration_is_told_before_it_is_spent(tmp_path, options, before, told):
    config = config_of(tmp_path, "--batch_size=512", "--num_batches_per_iteration=2", *options)
    warning = too_small_budget(config, probe("CartPole-v1", config.family), before)
    assert told in warning and bool(warning) == bool(told)
