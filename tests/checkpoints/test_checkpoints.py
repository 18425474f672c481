"""Checkpoints: what was saved comes back, every damage is recognised, nothing is lost that was not replaced."""

import hashlib
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from appo.algorithms.checkpoints import (
    Checkpoint,
    CheckpointError,
    best_metric,
    encode,
    is_intact,
    list_checkpoints,
    load,
    load_newest_valid,
    save,
    where_not_finite,
    write,
)
from appo.utils.failpoints import VARIABLE


def payload(seed=0, size=300):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(size, generator=generator)
    return {
        "model": OrderedDict(w=weights, half=weights.to(torch.bfloat16), count=torch.tensor(3)),
        "run_state": {"best": None, "name": "x", "pair": (1, 2.5), "flags": [True, b"raw"], 7: {}},
    }


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def read_newest(
    folder: Path,
    kind: str = "latest",
    *,
    metric_name: str = "",
    why_unusable: Callable[[Checkpoint], str] = lambda found: "",
) -> Checkpoint:
    """`load_newest_valid` of a folder that has a checkpoint."""
    found = load_newest_valid(folder, kind, metric_name=metric_name, why_unusable=why_unusable)
    assert found is not None
    return found


def rewrite(path, content):
    path.write_bytes(content)
    return path


def test_what_was_saved_comes_back(tmp_path):
    saved = payload()
    path = save(tmp_path / "made", "latest", 12, 3400, saved)
    found = load(path)
    assert path.name == "checkpoint_000000000012_000000000003400.pth"
    assert (found.path, found.train_step, found.env_frames, found.warnings) == (path, 12, 3400, [])
    assert found.payload["run_state"] == saved["run_state"]
    assert all(torch.equal(found.payload["model"][key], saved["model"][key]) for key in saved["model"])
    assert names(tmp_path / "made") == [path.name]


def test_torch_itself_reads_the_file(tmp_path):
    path = save(tmp_path, "latest", 1, 2, payload())
    assert torch.load(path, weights_only=True)["payload"]["run_state"]["name"] == "x"


def test_an_optimizer_in_use_can_be_saved(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    found = load(save(tmp_path, "latest", 1, 2, content)).payload
    optimizer.load_state_dict(found["optimizer"])
    assert torch.equal(found["model"]["weight"], model.weight)


def test_names_sort_as_numbers_do(tmp_path):
    for step in (9, 10, 100, 2):
        save(tmp_path, "milestone", step, step * 1000, payload())
    files = list_checkpoints(tmp_path, "milestone")
    assert [load(path).train_step for path in files] == [100, 10, 9, 2]
    assert [path.name for path in files] == sorted((path.name for path in files), reverse=True)


def test_the_newest_few_are_kept_with_the_best_one_and_every_milestone(tmp_path):
    for step in range(1, 7):
        save(tmp_path, "latest", step, step, payload(), keep=2)
        save(tmp_path, "best", step, step, payload(), metric=step / 2)
        save(tmp_path, "milestone", step, step, payload())
    assert [load(path).train_step for path in list_checkpoints(tmp_path)] == [6, 5]
    assert [path.name for path in list_checkpoints(tmp_path, "best")] == ["best_000000000006_000000000000006_3.000.pth"]
    assert load(list_checkpoints(tmp_path, "best")[0]).metric == 3.0
    assert len(list_checkpoints(tmp_path, "milestone")) == 6


def test_a_best_checkpoint_without_a_number_is_named_without_one(tmp_path):
    path = save(tmp_path, "best", 1, 2, payload())
    assert path.name == "best_000000000001_000000000000002.pth"
    assert math.isnan(load(path).metric)


def test_saving_the_same_step_twice_leaves_one_file(tmp_path):
    save(tmp_path, "latest", 1, 2, payload(0))
    save(tmp_path, "latest", 1, 2, payload(1), keep=1)
    assert len(names(tmp_path)) == 1
    assert torch.equal(read_newest(tmp_path).payload["model"]["w"], payload(1)["model"]["w"])


def test_files_that_cannot_be_read_are_never_deleted_and_do_not_count_as_kept(tmp_path):
    files = [save(tmp_path, "latest", step, step, payload(), keep=9) for step in range(1, 5)]
    rewrite(files[0], b"")
    rewrite(files[2], files[2].read_bytes()[:-7])
    foreign = rewrite(tmp_path / "checkpoint_mine.pth", b"somebody else's")
    newest = save(tmp_path, "latest", 5, 5, payload(), keep=2)
    assert set(tmp_path.iterdir()) == {files[0], files[2], files[3], newest, foreign}


def test_checkpoints_of_an_abandoned_future_are_moved_aside_not_taken_up(tmp_path):
    for step in (10, 20):
        save(tmp_path, "latest", step, step, payload(), keep=3)
    save(tmp_path, "latest", 12, 12, payload(), keep=3)  # the run went on from step 10
    assert read_newest(tmp_path).train_step == 12
    assert [load(path).train_step for path in (tmp_path / "superseded").iterdir()] == [20]


def test_an_empty_or_missing_folder_holds_no_checkpoint(tmp_path):
    assert load_newest_valid(tmp_path) is None
    assert load_newest_valid(tmp_path / "missing", "best") is None


def test_an_unreadable_newest_falls_back_to_the_next_with_a_warning(tmp_path):
    older, newer = (save(tmp_path, "latest", step, step, payload(step)) for step in (1, 2))
    rewrite(newer, newer.read_bytes()[: newer.stat().st_size // 2])
    found = read_newest(tmp_path)
    assert (found.path, found.train_step, len(found.warnings)) == (older, 1, 1)
    assert newer.name in found.warnings[0]
    assert newer.exists()


def test_none_valid_is_an_error_and_deletes_nothing(tmp_path):
    files = [save(tmp_path, "latest", step, step, payload()) for step in (1, 2)]
    for path in files:
        rewrite(path, b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*is empty.*Nothing was changed"):
        load_newest_valid(tmp_path)
    assert all(path.exists() for path in files)


@pytest.mark.parametrize("kind", ["latest", "best"])
@pytest.mark.parametrize("ordinary", [None, "damaged"])
def test_only_milestones_left_is_an_error_that_tells_what_helps(tmp_path, kind, ordinary):
    save(tmp_path, "milestone", 1, 1, payload())
    newest = save(tmp_path, "milestone", 2, 2, payload())
    if ordinary:
        rewrite(save(tmp_path, "latest", 3, 3, payload()), b"")
    with pytest.raises(CheckpointError) as refused:
        load_newest_valid(tmp_path, kind)
    told = str(refused.value)
    assert told.endswith(f". Nothing was changed; copy a milestone into the folder, such as {newest}")
    assert "--load_checkpoint_kind" not in told
    shutil.copy(newest, tmp_path)
    assert read_newest(tmp_path, kind).train_step == 2


def test_without_a_best_checkpoint_the_newest_is_taken_with_a_warning(tmp_path):
    save(tmp_path, "latest", 4, 4, payload())
    found = read_newest(tmp_path, "best")
    assert found.train_step == 4
    assert (
        "has no best checkpoint yet: one is kept from --save_best_after frames and --stats_avg episodes on; "
        in found.warnings[0]
    )
    save(tmp_path, "best", 3, 3, payload(), metric=1.0)
    found = read_newest(tmp_path, "best")
    assert (found.train_step, found.warnings) == (3, [])


@pytest.mark.parametrize("percent", [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 99])
def test_a_file_that_is_cut_off_is_recognised(tmp_path, percent):
    path = save(tmp_path, "latest", 1, 2, payload())
    content = path.read_bytes()
    rewrite(path, content[: len(content) * percent // 100])
    assert not is_intact(path)
    with pytest.raises(CheckpointError):
        load(path)


def test_one_flipped_bit_anywhere_is_recognised(tmp_path):
    path = save(tmp_path, "latest", 1, 2, payload())
    content = path.read_bytes()
    places = sorted({*range(0, len(content), 53), *range(len(content) - 48, len(content))})
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(CheckpointError):
            load(rewrite(path, bytes(damaged)))
    load(rewrite(path, content))  # otherwise the loop would prove nothing
    assert len(places) > 100


@pytest.mark.parametrize("added", [b"\0", b"x" * 100])
def test_bytes_added_at_the_end_are_recognised(tmp_path, added):
    path = save(tmp_path, "latest", 1, 2, payload())
    with pytest.raises(CheckpointError, match="cut off, or no checkpoint"):
        load(rewrite(path, path.read_bytes() + added))


def test_another_checkpoint_under_a_wrong_name_is_recognised(tmp_path):
    path = save(tmp_path, "latest", 1, 2, payload())
    renamed = path.rename(tmp_path / "checkpoint_000000000009_000000000000009.pth")
    with pytest.raises(CheckpointError, match=f"another checkpoint under a wrong name; its own is {path.name}"):
        load(renamed)


@pytest.mark.parametrize("folder_there", [True, False])
def test_what_is_no_file_is_an_error_of_checkpoints(tmp_path, folder_there):
    path = tmp_path / "checkpoint_000000000001_000000000000001.pth"
    if folder_there:
        path.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(path)


class Malicious:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (self.mark,))


def sealed(archive):
    """The bytes of a file whose checksum is right, as an attacker would make it."""
    return archive + b"APPOckp1" + hashlib.sha256(archive).digest()


@pytest.mark.parametrize("form", ["zip", "bare pickle"])
def test_a_malicious_file_with_a_right_checksum_is_refused_and_never_executed(tmp_path, form):
    mark = tmp_path / "executed"
    path = tmp_path / "checkpoint_000000000001_000000000000001.pth"
    if form == "zip":
        torch.save({"kind": "latest", "payload": Malicious(str(mark))}, path)
        archive = path.read_bytes()
    else:
        archive = pickle.dumps(Malicious(str(mark)))
    rewrite(path, sealed(archive))
    assert is_intact(path)
    with pytest.raises(CheckpointError, match="no checkpoint of this program"):
        load(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Malicious(str(mark))))
    assert mark.exists()  # otherwise the file would not have been malicious


def test_an_archive_of_something_else_is_refused(tmp_path):
    path = tmp_path / "checkpoint_000000000001_000000000000001.pth"
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint of this program"):
        load(rewrite(path, sealed(path.read_bytes())))


@pytest.mark.parametrize("bad", [np.float32(1), {"a": [np.zeros(2)]}, {1, 2}, object()])
def test_what_could_not_be_read_again_is_refused_before_anything_is_written(tmp_path, bad):
    with pytest.raises(TypeError, match=r"payload\['x'\].*checkpoints hold tensors and plain"):
        save(tmp_path, "latest", 1, 2, {"x": bad})
    assert names(tmp_path) == []


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="checkpoint kind 'newest'; allowed: latest, best, milestone"):
        save(tmp_path, "newest", 1, 2, {})
    with pytest.raises(ValueError, match="checkpoint kind 'bset'; allowed: latest, best, milestone"):
        load_newest_valid(tmp_path, "bset")


@pytest.mark.parametrize("is_encoded", [True, False], ids=["no room on disk", "no room for the copy either"])
def test_a_full_disk_leaves_the_older_checkpoints_and_no_temporary_file(tmp_path, is_encoded):
    code = f"""
        import pathlib, resource, signal, torch
        from appo.algorithms.checkpoints import CheckpointError, encode, save, write
        folder = pathlib.Path({str(tmp_path)!r})
        save(folder, "latest", 1, 1, {{"x": torch.zeros(10)}})
        large = {{"x": torch.zeros(100_000)}}
        encoded = encode("latest", 2, 2, large) if {is_encoded} else None
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write(folder, encoded or encode("latest", 2, 2, large), keep=1)
        except CheckpointError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert "could not be written" in done.stdout, done.stderr
    assert "the older checkpoints are untouched" in done.stdout
    assert names(tmp_path) == ["checkpoint_000000000001_000000000000001.pth"]
    assert read_newest(tmp_path).train_step == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_late_leaves_the_older_checkpoints_and_the_next_save_succeeds(tmp_path, monkeypatch, call):
    save(tmp_path, "latest", 1, 1, payload())

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(CheckpointError, match=r"Input/output error.*the older checkpoints are untouched"):
            save(tmp_path, "latest", 2, 2, payload(), keep=1)
    assert read_newest(tmp_path).train_step == 1 and len(names(tmp_path)) == 1
    assert load(save(tmp_path, "latest", 3, 3, payload())).train_step == 3


def test_neither_the_copy_nor_the_look_at_the_one_before_takes_memory_of_the_process(tmp_path):
    large = {"x": torch.ones(2**24)}  # 64 MB
    process = psutil.Process()
    write(tmp_path, encode("best", 1, 1, {"x": torch.ones(1)}), keep=1)
    before, resident = process.memory_info().rss, []
    for step in (2, 3):
        encoded = encode("best", step, step, large)
        resident.append(process.memory_info().rss)
        write(tmp_path, encoded, keep=1)
        resident.append(process.memory_info().rss)
    assert encoded.archive.size > 64e6 and max(resident) - before < 32e6
    assert [load(path).train_step for path in list_checkpoints(tmp_path, "best")] == [3]


def test_a_folder_that_vanished_is_made_again(tmp_path):
    folder = tmp_path / "experiment" / "checkpoint_p0"
    for step in (1, 2):
        save(folder, "latest", step, step, payload())
        shutil.rmtree(tmp_path / "experiment")
    save(folder, "milestone", 3, 3, payload())
    assert load(list_checkpoints(folder, "milestone")[0]).train_step == 3


def test_what_is_encoded_does_not_follow_the_tensors(tmp_path):
    content = payload()
    encoded = encode("best", 4, 5, content, metric=1.5)
    expected = content["model"]["w"].clone()
    content["model"]["w"].zero_()
    found = load(write(tmp_path, encoded, keep=1))
    assert torch.equal(found.payload["model"]["w"], expected)
    assert (found.train_step, found.env_frames, found.metric, found.path.name[:5]) == (4, 5, 1.5, "best_")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_found_wherever_they_are(bad):
    content = payload() | {"moments": [torch.zeros(3), (torch.zeros(2), {"x": torch.tensor([1.0, bad, bad])})]}
    told = where_not_finite(content, "payload")
    assert told == "payload['moments'][1][1]['x'] has 2 of 3 numbers that are not finite"
    content["moments"][1][1]["x"].zero_()
    assert where_not_finite(content, "payload") is None
    content["model"]["half"][7] = bad
    told = where_not_finite(content, "payload")
    assert told is not None and told.startswith("payload['model']['half'] has 1 of 300")


@pytest.mark.parametrize(
    ("place", "newest"), [("half-written", 1), ("before-fsync", 1), ("before-rename", 1), ("after-rename", 2)]
)
def test_a_death_at_any_moment_leaves_a_checkpoint_and_the_next_save_clears_up(tmp_path, place, newest):
    save(tmp_path, "latest", 1, 1, payload())
    code = f"""
        import pathlib, torch
        from appo.algorithms.checkpoints import save
        save(pathlib.Path({str(tmp_path)!r}), "latest", 2, 2, {{"x": torch.zeros(100_000)}}, keep=1)
    """
    environment = os.environ | {VARIABLE: f"checkpoint-{place}=kill@1"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_newest(tmp_path).train_step == newest
    assert len(names(tmp_path)) == 2  # the old one, and the new one under its temporary or its own name
    save(tmp_path, "latest", 3, 3, payload(), keep=1)
    assert [load(path).train_step for path in list_checkpoints(tmp_path)] == [3] and len(names(tmp_path)) == 1


def test_what_a_killed_writer_left_is_cleared_by_the_next_save(tmp_path):
    rewrite(tmp_path / ".checkpoint_000000000001_000000000000001.pth.123.tmp", b"half")
    path = save(tmp_path, "latest", 2, 2, payload())
    assert names(tmp_path) == [path.name]


def test_a_folder_that_cannot_be_made_is_an_error_of_checkpoints(tmp_path):
    rewrite(tmp_path / "file", b"")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(tmp_path / "file", "latest", 1, 1, payload())


def test_a_reader_never_sees_half_a_checkpoint_while_one_is_written(tmp_path):
    code = f"""
        import pathlib, torch
        from appo.algorithms.checkpoints import save
        torch.set_num_threads(1)
        print("ready", flush=True)
        for step in range(1, 10**6):
            save(pathlib.Path({str(tmp_path)!r}), "latest", step, step, {{"x": torch.zeros(50_000)}}, keep=1000)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        while len(seen) < 10 and time.monotonic() < deadline:
            for path in list_checkpoints(tmp_path)[:1]:
                seen.add(load(path).train_step)
    finally:
        child.kill()
        child.communicate()
    assert len(seen) == 10
    assert read_newest(tmp_path).warnings == []


def test_the_latest_is_whatever_was_written_last_be_it_ordinary_or_the_best(tmp_path):
    best = save(tmp_path, "best", 8, 900, {"a": 1}, metric=5.0, metric_name="reward")
    found = read_newest(tmp_path)
    assert (found.path, found.train_step, found.payload, found.warnings) == (best, 8, {"a": 1}, [])
    same = save(tmp_path, "latest", 8, 900, {"a": 2})
    assert read_newest(tmp_path).path == same
    save(tmp_path, "best", 8, 901, {"a": 3}, metric=6.0, metric_name="reward")
    assert read_newest(tmp_path).payload == {"a": 3}  # the run was killed before the next ordinary one
    newest = list_checkpoints(tmp_path, "best")[0]
    rewrite(newest, newest.read_bytes()[:-1])
    found = read_newest(tmp_path)
    assert found.path == same and [newest.name in warning for warning in found.warnings] == [True]


def test_the_best_by_each_metric_stays_and_a_better_one_is_never_replaced(tmp_path):
    def best(step, metric, name):
        return save(tmp_path, "best", step, step, payload(), metric=metric, metric_name=name)

    reward, length = best(1, 3.0, "reward"), best(2, 70.0, "len")
    assert reward.name == "best_000000000001_000000000000001_reward_3.000.pth"
    better = best(3, 3.5, "reward")
    worse = best(4, 2.0, "reward")
    assert set(tmp_path.iterdir()) == {length, better, worse}
    assert read_newest(tmp_path, "best", metric_name="reward").path == better
    assert read_newest(tmp_path, "best", metric_name="len").path == length
    assert read_newest(tmp_path, "best", metric_name="kills").path == worse  # the newest of them
    assert set(tmp_path.iterdir()) == {length, better, worse}
    assert best(5, 4.0, "reward").exists() and not better.exists() and not worse.exists()


@pytest.mark.parametrize("name", ["true_reward", "a/b c", "a b/c", "x" * 300, "reward_min", "", "größe"])
def test_metrics_of_any_name_and_size_have_files_of_their_own(tmp_path, name):
    other = save(tmp_path, "best", 1, 1, payload(), metric=1.0, metric_name="a b c")
    for step, metric in ((2, -1.5), (3, 1e300)):
        path = save(tmp_path, "best", step, step, payload(), metric=metric, metric_name=name)
        found = load(path)
        assert (found.metric, found.metric_name, path.parent) == (metric, name, tmp_path)
    assert set(tmp_path.iterdir()) == {other, path}


def test_a_best_checkpoint_of_an_abandoned_future_is_moved_aside_too(tmp_path):
    save(tmp_path, "latest", 10, 10, payload())
    save(tmp_path, "best", 20, 20, payload(), metric=9.0, metric_name="reward")
    save(tmp_path, "latest", 12, 12, payload())  # the run went on from step 10
    assert read_newest(tmp_path).train_step == 12
    assert [load(path).train_step for path in (tmp_path / "superseded").iterdir()] == [20]


def test_a_threshold_comes_from_the_best_file_that_can_be_used_and_is_not_of_an_abandoned_future(tmp_path):
    def threshold(name="reward", refused=()):
        up_to = read_newest(tmp_path, why_unusable=lambda found: "unfit" if found.train_step in refused else "")
        return best_metric(tmp_path, name, up_to, lambda found: "unfit" if found.train_step in refused else "")

    save(tmp_path, "latest", 1, 1, payload())
    assert math.isnan(threshold())
    save(tmp_path, "best", 2, 2, payload(), metric=0.1234567, metric_name="reward")
    save(tmp_path, "best", 9, 9, payload(), metric=0.0, metric_name="reward")
    assert threshold() == 0.1234567 and math.isnan(threshold("len"))
    assert threshold(refused={2}) == 0.0
    assert math.isnan(threshold(refused={2, 9}))
    save(tmp_path, "best", 10, 10, payload(), metric=5.0, metric_name="reward")
    assert math.isnan(threshold(refused={10}))  # the others were replaced by the one that is refused


def test_a_checkpoint_that_its_reader_cannot_use_is_passed_over_with_the_reason(tmp_path):
    older, newer = (save(tmp_path, "latest", step, step, payload()) for step in (1, 2))
    found = read_newest(tmp_path, why_unusable=lambda found: "unfit" if found.train_step == 2 else "")
    assert found.path == older and found.warnings == [f"{newer} cannot be resumed from: unfit"]
    with pytest.raises(CheckpointError, match=r"unfit; .*unfit\. Nothing was changed"):
        load_newest_valid(tmp_path, why_unusable=lambda found: "unfit")
    assert older.exists() and newer.exists()


@pytest.mark.parametrize("kind", ["latest", "best"])
def test_what_is_no_file_is_skipped_with_a_warning_and_stops_no_run(tmp_path, kind):
    prefix = "best" if kind == "best" else "checkpoint"
    path = save(tmp_path, kind, 1, 1, payload())
    pipe, folder = (tmp_path / f"{prefix}_{step:012d}_{step:015d}.pth" for step in (3, 2))
    os.mkfifo(pipe)
    folder.mkdir()
    device = tmp_path / f"{prefix}_000000000004_000000000000004.pth"
    device.symlink_to("/dev/zero")
    found = read_newest(tmp_path, kind)
    assert found.path == path
    assert len(found.warnings) == 3 and all("it is no regular file" in warning for warning in found.warnings)
    assert not any(is_intact(other) for other in (pipe, folder, device))
    save(tmp_path, kind, 5, 5, payload(), keep=1)
    assert {pipe, folder, device} <= set(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["checkpoint_²_³.pth", "checkpoint_١_٢.pth", "checkpoint_-1_2.pth", "checkpoint_1.pth", "best_²_3_1.0.pth"]
)
def test_a_file_without_the_name_of_a_checkpoint_is_left_alone(tmp_path, name):
    foreign = rewrite(tmp_path / name, b"x")
    assert list_checkpoints(tmp_path) == list_checkpoints(tmp_path, "best") == []
    assert load_newest_valid(tmp_path) is None
    save(tmp_path, "latest", 1, 1, payload(), keep=1)
    assert foreign.exists()
