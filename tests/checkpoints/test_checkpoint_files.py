"""Names, order and places of checkpoint files, and other files in their folder."""

import numpy as np
import pytest
import torch

from appo.algorithms.checkpoints import (
    CheckpointError,
    encode,
    list_checkpoints,
    load,
    load_newest_valid,
    save,
)
from appo.algorithms.workers.checkpoint_fit import require_fit
from tests.checkpoints.test_checkpoints import read_newest, sealed


def content(step):
    return {"model": {"w": torch.full((3,), float(step))}}


def test_the_newest_is_the_one_with_most_optimizer_steps_whatever_its_frames(tmp_path):
    for train_step, frames in ((10, 900), (20, 300), (20, 200), (5, 1000)):
        (tmp_path / f"checkpoint_{train_step:012d}_{frames:015d}.pth").touch()
    found = [tuple(int(word) for word in path.stem.split("_")[1:]) for path in list_checkpoints(tmp_path)]
    assert found == [(20, 300), (20, 200), (10, 900), (5, 1000)]


@pytest.mark.parametrize(
    "name", ["checkpoint_7.pth", "checkpoint_7_mine.pth", "checkpoint_mine_7.pth", "best_7_b_1.pth"]
)
def test_a_file_of_another_program_is_neither_read_nor_removed(tmp_path, name):
    (tmp_path / name).write_bytes(b"somebody else's")
    assert list_checkpoints(tmp_path) == list_checkpoints(tmp_path, "best") == []
    assert load_newest_valid(tmp_path) is None
    for step in (1, 2):
        save(tmp_path, "latest", step, step, content(step), keep=1)
        save(tmp_path, "best", step, step, content(step), metric=0.5)
    assert (tmp_path / name).read_bytes() == b"somebody else's"
    assert read_newest(tmp_path).train_step == read_newest(tmp_path, "best").train_step == 2


def test_every_checkpoint_that_a_run_went_on_before_is_kept_aside(tmp_path):
    """Three times a run reaches step 20 and goes on from step 10."""
    for value in (1, 2, 3):
        save(tmp_path, "latest", 20, 20, content(value))
        save(tmp_path, "latest", 10, 10, content(0))
    aside = [torch.load(path, weights_only=True)["payload"] for path in sorted((tmp_path / "superseded").iterdir())]
    assert [payload["model"]["w"][0].item() for payload in aside] == [1.0, 2.0, 3.0]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint_000000000010_000000000000010.pth"]


def test_milestones_have_a_folder_of_their_own(tmp_path):
    path = save(tmp_path, "milestone", 1, 2, content(1))
    assert path == tmp_path / "milestones" / "checkpoint_000000000001_000000000000002.pth"
    assert load(path).train_step == 1


@pytest.mark.parametrize(
    "call", [lambda folder: encode("newest", 1, 1, {}), lambda folder: list_checkpoints(folder, "newest")]
)
def test_an_unknown_kind_is_refused_before_it_is_written_or_sought(tmp_path, call):
    with pytest.raises(ValueError, match="checkpoint kind 'newest'; allowed: latest, best, milestone"):
        call(tmp_path)


def test_a_key_that_could_not_be_read_again_is_refused():
    with pytest.raises(TypeError, match=r"a key of payload\['x'\] is a int64; checkpoints hold tensors"):
        encode("latest", 1, 1, {"x": {np.int64(3): 1}})


def test_a_file_that_cannot_be_unpacked_is_refused_with_the_first_line_of_the_reason(tmp_path):
    path = save(tmp_path, "latest", 1, 1, content(1))
    for wrong in ({"kind": "latest"}, ["no", "dict"]):
        torch.save(wrong, path)
        path.write_bytes(sealed(path.read_bytes()))
        with pytest.raises(CheckpointError, match=r"is no checkpoint of this program \(\w+Error: .+\)$"):
            load(path)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("_trunks.0.encoder.fc.weight", "--encoder"),
        ("_trunks.0.core.weight", "--use_rnn"),
        ("policy_head.weight", "--adaptive_stddev"),
        ("value_head.weight", "--hidden_size"),
        ("preprocessor.obs.moments", "--normalize_input"),
        ("returns_normalizer.moments", "--normalize_returns"),
        ("something.else", "the model's"),
    ],
)
def test_another_network_is_refused_with_the_options_that_decide_about_the_part_that_differs(tmp_path, name, option):
    saved = {"model": {"same": torch.zeros(1), name: torch.zeros(2)}, "learner": {}, "run_state": {}}
    found = load(save(tmp_path, "latest", 1, 1, saved))
    require_fit(found, {"same": torch.zeros(1), name: torch.zeros(2)})
    for own, theirs in (({name: torch.zeros(3)}, r"\(3,\)"), ({}, "missing")):
        with pytest.raises(
            CheckpointError, match=rf"{name} is \(2,\) there and {theirs} with .* compare [^.]*{option}[,.]"
        ):
            require_fit(found, {"same": torch.zeros(1)} | own)
