"""The bound and its terms on a real environment, and the guard's verdicts."""

import json

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.workers.process_launcher import ProcessLauncher
from appo.envs.registry import probe
from benchmarks.measuring import ROOT, Measurement, Usage
from benchmarks.speed import regression, roofline
from benchmarks.speed.roofline import Result, Terms, as_json, measure_terms, rows_of

OPTIONS = [
    "--env=synthetic_identity", "--num_workers=2", "--num_envs_per_worker=4", "--rollout=8", "--batch_size=64",
    "--num_batches_per_iteration=2", "--ppo_epochs=2", "--mlp_layers=16", "--device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    config = resolve([*OPTIONS, f"--train_dir={tmp_path_factory.mktemp('limit')}"]).config
    launcher = ProcessLauncher([str(ROOT)])
    try:
        yield measure_terms(launcher, config, probe("synthetic_identity", config.family), seconds=0.3)
    finally:
        launcher.kill_everything()


def test_every_term_is_measured_on_what_a_run_executes(found):
    assert found.frames_per_step == 1.0
    # A step of this environment is a few microseconds, a forward pass of eight rows some hundred.
    assert 1e-7 < found.environment_s < 1e-4
    assert found.bookkeeping_s < 1e-4
    assert 1e-6 < found.inference_s < 1e-2
    assert 1e-6 < found.train_s < 1e-2
    assert 0.0 < found.collate_s < found.train_s
    assert 1e-7 < found.hand_over_s < 1e-2


def test_the_bound_is_the_cores_divided_by_what_a_step_needs():
    terms = Terms(10e-6, 2e-6, 3e-6, 5e-6, 1e-6, 50e-6, frames_per_step=4.0, cores=2)
    assert terms.pure_simulation == pytest.approx(800_000)
    assert terms.limit == pytest.approx(4 * 2 / 20e-6)
    assert terms.limit_of_sampling == pytest.approx(4 * 2 / 15e-6)
    usage = {"actor": Usage(2, 10.0, 0.5, 70.0)}
    run = Measurement(200_000.0, 20.0, 3.0, usage, 500.0)
    stages = {"actor_env_step": 0.25, "policy_batch_size": 8.0, "actor_memory_mb": 35.0}
    result = Result(terms, run, stages, is_sampling_only=False)
    assert (result.ratio, result.ratio_env) == (pytest.approx(0.5), pytest.approx(0.25))
    assert Result(terms, run, stages, is_sampling_only=True).ratio == pytest.approx(0.375)
    cells = dict(rows_of(result))
    assert cells["R"] == "0.50" and cells["  share actor_env_step"] == "0.25"
    assert "  share actor_memory_mb" not in cells
    assert json.loads(json.dumps(as_json(result)))["run"]["usage"]["actor"]["cores"] == 0.5


def test_a_configuration_that_cannot_run_is_refused_before_anything_is_measured(capsys):
    assert roofline.main(["--env=CartPole-v1", "--rollout=3"]) == roofline.EXIT_REFUSED
    assert "rollout=3" in capsys.readouterr().err


def test_the_guard_measures_twice_before_it_says_slower():
    def verdict(stored, *ratios):
        left = list(ratios)
        return regression.judge("cartpole", stored, lambda task: left.pop(0)), left

    assert verdict(0.8, 0.77) == (regression.Verdict("cartpole", 0.8, [0.77]), [])
    noisy, left = verdict(0.8, 0.7, 0.79)
    assert not noisy.is_slower and noisy.measured == [0.7, 0.79] and not left
    slower, _ = verdict(0.8, 0.7, 0.75)
    assert slower.is_slower and slower.row()[-1] == "SLOWER"
    assert not verdict(None, 0.1)[0].is_slower


def test_the_guard_fails_only_where_it_is_meant_to(monkeypatch, capsys, tmp_path):
    stored = tmp_path / "baseline.json"
    stored.write_text('{"cartpole": 0.8}')
    monkeypatch.setattr(regression, "BASELINE", stored)
    monkeypatch.setattr(regression, "ratio_of", lambda task, seconds: 0.5)
    assert regression.main(["--tasks=cartpole"]) == regression.EXIT_FAILED
    assert regression.main(["--tasks=cartpole", "--report_only"]) == regression.EXIT_OK
    assert "SLOWER" in capsys.readouterr().out
    assert regression.main(["--tasks=cartpole", "--update"]) == regression.EXIT_OK
    assert json.loads(stored.read_text()) == {"cartpole": 0.5}
    with pytest.raises(SystemExit):
        regression.main(["--tasks=nothing"])


def test_the_run_gets_the_options_that_were_chosen_for_the_terms(monkeypatch, tmp_path):
    measured, trained = [], []
    monkeypatch.setattr(roofline, "measure_terms", lambda launcher, config, spec, seconds: measured.append(config))

    def train(options, seconds, folder):
        trained.append(options)
        return None, {}

    monkeypatch.setattr(roofline, "train", train)
    words = ["--env=tests.config.unknown_env:make_env", "--num_workers=2", "--rollout=64"]
    roofline.find_out(resolve([*words, f"--train_dir={tmp_path}"]), words, 1.0, 1.0)
    assert measured[0].learning.recurrence == 1 and measured[0].learning.rollout == 64
    run = resolve([*trained[0], f"--train_dir={tmp_path}"]).config
    assert (run.learning, run.model, run.sampling) == (measured[0].learning, measured[0].model, measured[0].sampling)
