"""Checkpoints on a thread of their own: what was submitted is written as it was, and every request is answered."""

import os
import threading
import time

import pytest
import torch

from appo.algorithms import checkpoints
from appo.algorithms.checkpoints import CheckpointError
from appo.algorithms.messages import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from appo.algorithms.workers.checkpoint_writer import MOST_WAITING, CheckpointFolder, CheckpointWriter


def command(request, kind="latest"):
    return SaveCheckpoint(0, kind, request * 100, {}, request, float("nan"), "")


class Trained:
    """One tensor that changes between checkpoints."""

    def __init__(self):
        self.weights = torch.zeros(1000)
        self.steps = 0

    def train(self):
        self.steps += 1
        self.weights += 1

    def encode(self, command):
        payload = {"model": {"w": self.weights}}
        return checkpoints.encode(command.kind, self.steps, command.env_frames, payload, metric=command.metric)


@pytest.fixture
def trained():
    return Trained()


@pytest.fixture
def writer(tmp_path):
    made = CheckpointWriter(CheckpointFolder(0, tmp_path / "p0", 3))
    yield made
    made.close(10.0)


class SlowDisk:
    """`fsync` that returns when the test says so: the one place where a slow disk is felt."""

    def __init__(self, monkeypatch):
        self.is_busy, self.go_on = threading.Event(), threading.Event()
        real = os.fsync

        def fsync(descriptor):
            self.is_busy.set()
            assert self.go_on.wait(30)
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def slow_disk(monkeypatch):
    made = SlowDisk(monkeypatch)
    yield made
    made.go_on.set()


def answers_of(writer, number, seconds=20.0):
    answers: list[CheckpointSaved | CheckpointFailed] = []
    deadline = time.monotonic() + seconds
    while len(answers) < number and time.monotonic() < deadline:
        answers += writer.finished()
        time.sleep(0.01)
    return answers


def test_what_was_submitted_is_written_and_told(writer, trained, tmp_path):
    trained.train()
    writer.submit(command(7), trained.encode)
    [answer] = answers_of(writer, 1)
    assert answer == CheckpointSaved(0, "latest", answer.path, 7)
    newest = checkpoints.load_newest_valid(tmp_path / "p0")
    assert newest is not None and newest.path == checkpoints.list_checkpoints(tmp_path / "p0")[0]
    assert writer.finished() == []


def test_training_goes_on_while_the_disk_is_busy_and_changes_nothing_that_was_submitted(
    writer, trained, tmp_path, slow_disk
):
    began = time.monotonic()
    for request in range(1, MOST_WAITING + 1):
        trained.train()
        writer.submit(command(request), trained.encode)
    trained.train()
    assert slow_disk.is_busy.wait(10) and time.monotonic() - began < 5.0
    assert writer.finished() == []
    slow_disk.go_on.set()
    answers = answers_of(writer, MOST_WAITING)
    assert [answer.request for answer in answers] == [1, 2, 3, 4]
    for path in checkpoints.list_checkpoints(tmp_path / "p0"):
        found = checkpoints.load(path)
        assert (found.payload["model"]["w"] == found.train_step).all()
    assert found.train_step == 2  # of four, the newest three are there: 4, 3 and 2


def test_more_than_a_handful_of_requests_are_answered_at_once_and_not_encoded(writer, trained, slow_disk):
    for request in range(1, MOST_WAITING + 1):
        writer.submit(command(request), trained.encode)
    writer.submit(command(9, "best"), lambda _: pytest.fail("encoded"))
    [answer] = writer.finished()
    assert (answer.request, answer.kind) == (9, "best")
    assert "is too slow: 4 checkpoints wait for it" in answer.reason
    slow_disk.go_on.set()
    assert len(answers_of(writer, MOST_WAITING)) == MOST_WAITING
    writer.submit(command(10), trained.encode)  # there is room again
    assert isinstance(answers_of(writer, 1)[0], CheckpointSaved)


def test_the_newest_ordinary_checkpoint_takes_the_place_of_those_that_wait(writer, trained, tmp_path, slow_disk):
    for request in range(1, MOST_WAITING):
        trained.train()
        writer.submit(command(request), trained.encode)
    writer.submit(command(MOST_WAITING, "milestone"), trained.encode)
    assert slow_disk.is_busy.wait(10)  # with the first
    trained.train()
    writer.submit(command(9), trained.encode)
    left_out = writer.finished()
    assert [(type(answer), answer.request) for answer in left_out] == [(CheckpointFailed, 2), (CheckpointFailed, 3)]
    assert "a newer checkpoint takes the place of one that waits" in left_out[0].reason
    slow_disk.go_on.set()
    answers = answers_of(writer, 3)
    assert [(type(answer), answer.request) for answer in answers] == [(CheckpointSaved, n) for n in (1, 4, 9)]
    newest = checkpoints.load_newest_valid(tmp_path / "p0")
    assert newest is not None and newest.train_step == trained.steps
    for request in range(10, 10 + MOST_WAITING):
        writer.submit(command(request), trained.encode)
    assert len(answers_of(writer, MOST_WAITING)) == MOST_WAITING, "there is as much room as before"


def test_a_folder_that_cannot_be_written_fails_a_request_and_not_the_next(writer, trained, tmp_path):
    (tmp_path / "p0").write_text("in the way")
    writer.submit(command(1), trained.encode)
    [failed] = answers_of(writer, 1)
    assert isinstance(failed, CheckpointFailed) and failed.request == 1
    assert "could not be written" in failed.reason and "older checkpoints are untouched" in failed.reason
    (tmp_path / "p0").unlink()
    writer.submit(command(2), trained.encode)
    assert isinstance(answers_of(writer, 1)[0], CheckpointSaved)


def test_what_cannot_be_encoded_is_answered_with_the_reason(writer):
    def encode(_):
        raise CheckpointError("a number is not finite")

    writer.submit(command(3), encode)
    assert writer.finished() == [CheckpointFailed(0, "latest", "a number is not finite", 3)]


def test_an_unforeseen_error_is_an_answer_and_not_the_end(writer, trained, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: 1 / 0)
        writer.submit(command(1), trained.encode)
        [failed] = answers_of(writer, 1)
    assert "ZeroDivisionError" in failed.reason
    writer.submit(command(2), trained.encode)
    assert isinstance(answers_of(writer, 1)[0], CheckpointSaved)


def test_closing_waits_for_what_was_submitted(tmp_path, trained):
    writer = CheckpointWriter(CheckpointFolder(0, tmp_path / "p0", 3))
    for request in (1, 2):
        trained.train()
        writer.submit(command(request), trained.encode)
    assert writer.close(20.0)
    assert [answer.request for answer in writer.finished()] == [1, 2]
    assert len(checkpoints.list_checkpoints(tmp_path / "p0")) == 2


def test_closing_does_not_wait_for_ever(tmp_path, trained, slow_disk):
    writer = CheckpointWriter(CheckpointFolder(0, tmp_path / "p0", 3))
    writer.submit(command(1), trained.encode)
    assert slow_disk.is_busy.wait(10)
    began = time.monotonic()
    assert not writer.close(0.2)
    assert 0.1 < time.monotonic() - began < 5.0
    slow_disk.go_on.set()
    assert writer.close(20.0)
