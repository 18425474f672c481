"""What counts as a proper end of a run, and what is told of one that is not."""

import os
import signal

import pytest

from benchmarks.faults import shutdown
from benchmarks.faults.report import failures
from benchmarks.faults.shutdown import Moment, Saved, checks, main, newest_checkpoint, what_is_missing


def moment(way="term", seconds=1.0, trained=True, faults=()):
    return Moment(way, 3.0, trained, seconds, None, faults)


def test_the_newest_checkpoint_is_that_of_the_highest_train_step(tmp_path):
    assert newest_checkpoint(tmp_path) == Saved(0, 0, 0.0)
    folder = tmp_path / "checkpoint_p0"
    folder.mkdir()
    for name, time in (("checkpoint_000000009_000002000.pth", 50.0), ("checkpoint_000000010_000003000.pth", 40.0)):
        (folder / name).touch()
        os.utime(folder / name, (time, time))
    (folder / "best_000000099_000009000_reward_1.pth").touch()
    assert newest_checkpoint(tmp_path) == Saved(10, 3000, 40.0)


def test_a_checkpoint_that_is_older_or_holds_less_than_was_told_is_not_enough():
    told = {"train_steps": 10, "env_frames": 500}
    assert what_is_missing(Saved(10, 500, 7.0), 6.0, told) == []
    assert what_is_missing(Saved(9, 499, 5.5), 6.0, told) == [
        "the newest checkpoint is 0.5 s older than the signal",
        "the newest checkpoint has 9 train steps of 10",
        "the newest checkpoint has 499 frames of 500",
    ]


def test_one_slow_end_in_twenty_is_allowed_and_two_are_not():
    fast, slow = [moment()] * 18, moment(seconds=10.5)
    assert failures(checks("term", [*fast, moment(), slow])) == []
    (failure,) = failures(checks("term", [*fast, slow, slow]))
    assert failure == "term: seconds until it has ended: p50 1.00, p95 10.50, max 10.50; demanded: p95 <= 10"


@pytest.mark.parametrize("way, too_slow", [("int", 10.1), ("usr1", 10.1), ("driver", 2.1), ("twice", 1.1)])
def test_every_way_has_its_own_bar(way, too_slow):
    assert failures(checks(way, [moment(way, too_slow - 0.2)])) == []
    assert len(failures(checks(way, [moment(way, too_slow)]))) == 1


def test_a_fault_is_told_with_its_moment_and_moments_without_training_prove_nothing():
    assert "after 3.0 s: exit code 1" in failures(checks("int", [moment("int", faults=("exit code 1",))]))[0]
    assert "moments of training: 0 of 2" in failures(checks("int", [moment("int", trained=False)] * 2))[0]


def test_a_way_that_does_not_exist_is_refused_with_those_that_do(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--ways=term,hop"])
    assert "hop is unknown; there are term, int" in capsys.readouterr().err


def test_outputs_are_compared_at_every_so_many_moments_of_training(tmp_path, monkeypatch):
    compared = []

    class Told:
        def __init__(self, *_):
            pass

        def at(self, way, after_s, *, trains, compares_outputs):
            compared.append((trains, compares_outputs))
            return moment(way)

    monkeypatch.setattr(shutdown, "Ending", Told)
    main(["--moments=12", "--ways=term", "--outputs_every=3", f"--out={tmp_path / 'endings.json'}"])
    assert [number for number, (trains, compares) in enumerate(compared) if trains and compares] == [0, 6]


@pytest.mark.slow
def test_real_runs_end_properly_at_random_moments(tmp_path, monkeypatch):
    # Fewer moments than a measurement takes, and earlier ones: starting is most of the time.
    monkeypatch.setattr(shutdown, "LAST_MOMENT_S", 6.0)
    out = tmp_path / "endings.json"
    options = ["--num_workers=2", "--num_envs_per_worker=8"]
    compared = []
    compare = shutdown.what_differs

    def note_and_compare(run, log):
        compared.append(run)
        return compare(run, log)

    monkeypatch.setattr(shutdown, "what_differs", note_and_compare)
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it: what is measured hears it all the same
    try:
        assert main(["--moments=1", "--seed=3", f"--out={out}", "--", *options]) == 0
    finally:
        signal.signal(signal.SIGHUP, earlier)
    assert len(compared) == len(shutdown.SAVES)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
