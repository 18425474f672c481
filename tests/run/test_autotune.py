"""The search for the right sizes: on surfaces of speed that are known, and once in a real run."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appo.algorithms.config import fitted, resolve
from appo.algorithms.run.autotune import show, where_to_begin
from appo.algorithms.run.session import profile_environment
from appo.algorithms.run.size_search import BUSY, Limits, Sizes, Tried, search, why_not_fastest
from appo.train_appo import main
from appo.utils.options import ConfigError
from appo.utils.signals import MAIN_PROCESS_DECIDES, StopSignals

ROOT = Path(__file__).resolve().parents[2]
FIRST = Sizes(2, 2, 2)
LIMITS = Limits(cores=2, most_envs=512)


def searched(rate, first=FIRST, limits=LIMITS, busy=1.0, has_time_for=lambda number: True):
    """A search where each candidate makes `rate` frames per second, and the cores are so busy."""
    return search(lambda sizes: Tried(sizes, rate(sizes), busy), first, limits, has_time_for)


def surface(best_envs, best_workers, splits_gain=1.0, processes_gain=0.5):
    """Frames per second that fall off on both sides of the best numbers."""

    def rate(sizes):
        envs = abs(math.log2(sizes.num_envs / best_envs))
        workers = abs(math.log2(sizes.num_workers / best_workers))
        found = 10_000 * 0.8**envs * 0.9**workers
        found *= splits_gain if sizes.worker_num_splits == 1 else 1.0
        return found * (processes_gain if sizes.env_backend == "subproc" else 1.0)

    return rate


def whole_grid(rate):
    found = [
        rate(Sizes(workers, envs, splits, backend))
        for workers in (1, 2, 4, 8)
        for envs in (2, 4, 8, 16, 32, 64, 128)
        for splits in (1, 2)
        for backend in ("serial", "subproc")
        if workers * envs <= LIMITS.most_envs
    ]
    return max(found)


@pytest.mark.parametrize("best_envs", [4, 16, 64, 256])
@pytest.mark.parametrize("best_workers", [1, 2, 4])
@pytest.mark.parametrize("splits_gain", [0.8, 1.2])
@pytest.mark.parametrize("busy", [0.5, 1.0])
def test_it_finds_nearly_the_best_of_the_whole_grid_in_few_tries(best_envs, best_workers, splits_gain, busy):
    rate = surface(best_envs, best_workers, splits_gain)
    tried = searched(rate, busy=busy)
    assert tried[-1].frames_per_s >= 0.9 * whole_grid(rate)
    assert tried[-1].frames_per_s == max(each.frames_per_s for each in tried)
    assert len(tried) <= 16


def test_it_never_ends_below_where_it_began_and_small_gains_are_noise():
    assert searched(lambda sizes: 100.0 if sizes == FIRST else 103.0)[-1] == Tried(FIRST, 100.0, 1.0)
    assert searched(lambda sizes: 100.0 if sizes == FIRST else 0.0)[-1] == Tried(FIRST, 100.0, 1.0)


def test_what_looked_better_by_luck_is_not_chosen():
    lucky, measured = Sizes(2, 8, 2), []

    def rate(sizes):
        measured.append(sizes)
        is_luck = sizes == lucky and measured.count(lucky) == 1
        return 120.0 if is_luck else 100.0 if sizes == FIRST else 70.0

    tried = searched(rate)
    assert measured[-2:] == [FIRST, lucky]
    assert tried[-1] == Tried(FIRST, 100.0, 1.0)


@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize(("gain", "again"), [(1.2, 2), (1.5, 0)])
def test_time_is_kept_to_measure_a_gain_once_more_that_may_be_luck(number, gain, again):
    measured: list[Sizes] = []

    def rate(sizes):
        measured.append(sizes)
        return {FIRST: 100.0, Sizes(2, 8, 2): 100.0 * gain}.get(sizes, 50.0)

    tried = searched(rate, has_time_for=lambda more: len(measured) + more <= number)
    assert len(measured) <= number
    assert (tried[-1].sizes != FIRST) == (number >= 2 + min(again, 1))
    if number >= 2 + again > 2:
        assert measured[-2:] == [FIRST, Sizes(2, 8, 2)]


@pytest.mark.parametrize(("second", "is_chosen"), [(103.0, False), (110.0, True)])
def test_with_time_for_one_more_measurement_the_worse_of_the_best_s_two_counts(second, is_chosen):
    best, measured = Sizes(2, 8, 2), []

    def rate(sizes):
        measured.append(sizes)
        return 100.0 if sizes == FIRST else 120.0 if measured.count(best) < 2 else second

    tried = searched(rate, has_time_for=lambda more: len(measured) + more <= 3)
    assert measured == [FIRST, best, best]
    assert tried[-1] == (Tried(best, second, 1.0) if is_chosen else Tried(FIRST, 100.0, 1.0))
    assert Tried(best, second, 1.0) in tried
    assert why_not_fastest(tried) == (None if is_chosen else "a gain of less than 4 % counts as noise")


@pytest.mark.parametrize(("env", "is_tried"), [("doom_basic", False), ("synthetic_slow", True)])
def test_environments_with_an_engine_get_no_second_process(tmp_path, env, is_tried):
    config = resolve([f"--env={env}", f"--train_dir={tmp_path}"]).config
    first, limits = where_to_begin(config, 2)
    tried = searched(lambda sizes: 100.0, first, limits, busy=0.5)
    assert any(each.sizes.env_backend == "subproc" for each in tried) == is_tried


@pytest.mark.parametrize(
    "rates, told",
    [
        ({"chosen": 100.0, "faster": 103.6}, "a gain of less than 4 % counts as noise"),
        ({"chosen": 100.0, "faster": 115.0}, "it was measured once, where luck may have helped"),
        ({"chosen": 100.0, "slower": 99.0}, None),
        ({"chosen": 100.0}, None),
    ],
)
def test_the_table_is_followed_by_why_the_fastest_was_not_chosen(rates, told, capsys):
    sizes = {"chosen": FIRST, "faster": Sizes(2, 8, 2), "slower": Sizes(2, 4, 2)}
    tried = [Tried(sizes[name], rate) for name, rate in reversed(rates.items())]
    show(tried, FIRST, "CartPole-v1")
    printed = capsys.readouterr().out
    assert ("autotune: the fastest was not chosen: " in printed) == (told is not None)
    assert told is None or told in printed


def test_what_did_not_come_to_train_in_time_is_given_less_to_start():
    first = Sizes(2, 16, 2)
    tried = searched(lambda sizes: 0.0 if sizes.num_envs > 16 else 100.0, first=first, busy=0.0)
    assert tried[-1].sizes == Sizes(2, 8, 2)


def test_what_is_typed_stays_and_bounds_hold():
    fixed = frozenset({"num_envs_per_worker", "env_backend"})
    tried = searched(surface(256, 4), limits=Limits(2, 512, fixed))
    assert {each.sizes.num_envs_per_worker for each in tried} == {2} and len(tried) > 2
    tried = searched(surface(10**6, 1), limits=Limits(2, 40))
    assert max(each.sizes.num_envs for each in tried) <= 40


def test_processes_are_tried_where_steps_are_slow_and_cores_wait():
    slow = searched(lambda sizes: 50.0 * (3 if sizes.env_backend == "subproc" else 1), busy=0.4)
    assert slow[-1].sizes.env_backend == "subproc"
    assert slow[1].sizes.env_backend == "subproc", "first: the time for the search may end before anything else"
    for rate, busy in ((50_000.0, 0.4), (50.0, 0.97)):
        tried = searched(lambda sizes, rate=rate: rate, busy=busy)
        assert {each.sizes.env_backend for each in tried} == {"serial"}


def test_after_processes_a_single_split_is_tried_which_steps_all_of_them_at_once():
    left = iter([True] * 2)
    gains = {("serial", 2): 1.0, ("subproc", 2): 1.5, ("subproc", 1): 2.0}
    tried = searched(
        lambda sizes: 50.0 * gains.get((sizes.env_backend, sizes.worker_num_splits), 0.5),
        busy=0.4,
        has_time_for=lambda _: next(left, False),
    )
    assert tried[-1].sizes == FIRST._replace(env_backend="subproc", worker_num_splits=1)


def test_where_all_cores_work_splits_come_before_workers():
    left = iter([True] * 3)
    tried = searched(surface(16, 2, splits_gain=1.2), busy=1.0, has_time_for=lambda _: next(left, False))
    assert tried[-1].sizes == Sizes(2, 8, 1) and len(tried) == 4


def test_where_a_single_split_has_helped_more_environments_come_before_workers():
    """As HalfCheetah-v5 on two cores: with two splits, 128 environments made 3 % more than 64, with one 9 %."""
    rates = {(32, 2): 15_090, (64, 2): 18_144, (128, 2): 18_694, (64, 1): 19_378, (128, 1): 21_110, (32, 1): 15_522}
    left = iter([True] * 4)
    tried = searched(
        lambda sizes: float(rates.get((sizes.num_envs, sizes.worker_num_splits), 0) if sizes.num_workers == 2 else 0),
        first=Sizes(2, 16, 2),
        limits=Limits(2, 128),
        has_time_for=lambda _: next(left, False),
    )
    assert tried[-1].sizes == Sizes(2, 64, 1)


def test_two_options_that_gain_little_each_may_gain_much_together():
    """As atari_breakout on two cores: each of them counts as noise."""
    rates = {Sizes(2, 8, 2): 11_032, Sizes(2, 16, 2): 11_425, Sizes(2, 8, 1): 11_307, Sizes(2, 16, 1): 12_569}
    tried = searched(lambda sizes: float(rates.get(sizes, 10_000)), Sizes(2, 8, 2), Limits(2, 32))
    assert tried[-1].sizes == Sizes(2, 16, 1)


def test_a_gain_that_is_not_worthwhile_is_not_measured_again():
    measured: list[Sizes] = []

    def rate(sizes):
        measured.append(sizes)
        return {FIRST: 100.0, Sizes(2, 8, 2): 103.0}.get(sizes, 50.0)

    tried = searched(rate, has_time_for=lambda more: len(measured) + more <= 5)
    assert len(measured) == len(set(measured)) == 5
    assert tried[-1].sizes == FIRST


def test_a_single_split_is_tried_early_once_the_cores_are_busy():
    """As doom_basic on two cores, which come to wait for nothing with twice the environments of its defaults."""
    rates = {Sizes(2, 8, 2): 6_114, Sizes(2, 16, 2): 8_277, Sizes(2, 16, 1): 8_575, Sizes(2, 32, 1): 9_475}
    left = iter([True] * 4)
    tried = search(
        lambda sizes: Tried(sizes, float(rates.get(sizes, 8_000)), 0.72 if sizes.num_envs == 16 else 0.96),
        Sizes(2, 8, 2),
        Limits(2, 64, has_engine=True),
        lambda _: next(left, False),
    )
    assert tried[-1].sizes == Sizes(2, 32, 1)


def test_it_ends_when_its_time_is_over():
    left = iter([True, True, False])
    assert len(searched(surface(256, 4), has_time_for=lambda _: next(left, False))) == 3


def test_it_begins_where_the_run_would_in_an_environment_without_defaults(tmp_path, monkeypatch):
    begun = []

    def tuned_words(argv, resolved, cores, stop):
        begun.append(resolved.config.sampling.num_envs_per_worker)
        raise ConfigError("enough")

    monkeypatch.setattr("appo.algorithms.run.autotune.tuned_words", tuned_words)
    words = ["train_appo.py", "--env=Taxi-v4", f"--train_dir={tmp_path}", "--device=cpu", "--num_workers=2"]
    unfitted = resolve(words[1:])
    assert unfitted.needs_fitting
    handlers = {number: signal.getsignal(number) for number in MAIN_PROCESS_DECIDES}
    try:
        assert main([*words, "--autotune"]) == 2
        profile = profile_environment(unfitted, StopSignals())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert begun == [fitted(unfitted, *profile).config.sampling.num_envs_per_worker]
    assert begun[0] != unfitted.config.sampling.num_envs_per_worker


def test_what_is_found_takes_the_place_of_the_flag_and_can_be_tuned_anew(tmp_path, monkeypatch):
    """Sizes that were found are no more typed than the defaults are."""
    seen = []

    def train(resolved, argv, stop):
        seen.append((resolved, argv))
        return 0

    found = ["--num_envs_per_worker=6", "--worker_num_splits=1"]
    monkeypatch.setattr("appo.algorithms.run.autotune.tuned_words", lambda *_: found)
    monkeypatch.setattr("appo.algorithms.run.session.train", train)
    words = ["train_appo.py", "--env=CartPole-v1", f"--train_dir={tmp_path}", "--num_workers=2"]
    handlers = {number: signal.getsignal(number) for number in MAIN_PROCESS_DECIDES}
    try:
        assert main([*words, "--autotune", "--seed=1"]) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    ((resolved, argv),) = seen
    assert argv == [*words, "--seed=1", *found] and not resolved.config.run.autotune
    assert resolved.config.sampling.num_envs_per_worker == 6 and resolved.config.sampling.worker_num_splits == 1
    assert resolved.origins["num_envs_per_worker"] == resolved.origins["worker_num_splits"] == "autotune"
    assert "num_workers" in resolved.typed and not {"num_envs_per_worker", "worker_num_splits"} & {*resolved.typed}


@pytest.mark.slow
def test_a_run_is_tuned_and_uses_what_was_found(tmp_path):
    """All but the splits is typed, so two candidates are measured."""
    words = ["--env=synthetic_slow", "--autotune", "--experiment=x", f"--train_dir={tmp_path}", "--device=cpu"]
    words += ["--num_workers=2", "--num_envs_per_worker=4", "--env_backend=serial", "--train_for_env_steps=3000"]
    words += ["--rollout=8", "--recurrence=8", "--batch_size=64"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "train_appo.py"), *words],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    saved = json.loads((tmp_path / "autotune_synthetic_slow.json").read_text())
    rates = {each["worker_num_splits"]: each["frames_per_s"] for each in saved["tried"]}
    assert rates.keys() == {1, 2} and min(rates.values()) > 0
    assert all(0 < each["busy"] < BUSY for each in saved["tried"]), "its environments sleep"
    chosen = saved["chosen"]["worker_num_splits"]
    assert rates[chosen] >= rates[saved["default"]["worker_num_splits"]]
    config = json.loads((tmp_path / "x" / "config.json").read_text())["options"]
    assert config["worker_num_splits"] == chosen and config["num_envs_per_worker"] == 4
    table = [line for line in done.stdout.splitlines() if line[:1] in "┏┃┡│└"]
    assert "frames per second" in " ".join(table) and max(map(len, table)) <= 80
    goes_on = resolve([word for word in words if word != "--autotune"])
    assert not goes_on.config.run.autotune and goes_on.config.sampling.worker_num_splits == chosen
