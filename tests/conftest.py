"""Tests run in several processes of pytest-xdist at once; those that measure wait until no other test runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.measuring import let_children_hear_hangups

SLOW_TEST_S = 3600.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests marked `gpu` compute."""
    parser.addoption(
        "--gpu_device", default="cpu", help="device of the tests marked gpu; on the CPU they only rehearse (default)"
    )


def pytest_configure() -> None:
    """Tests of hang-ups are of use under nohup as well. Under pytest-xdist torch computes with one thread each."""
    let_children_hear_hangups()
    if "PYTEST_XDIST_WORKER" in os.environ:  # threads of several processes on all cores wait for each other
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests may take longer than `timeout` in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(SLOW_TEST_S))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of this run of the tests."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(autouse=True)
def beside_others_or_alone(request: pytest.FixtureRequest, shared_folder: Path) -> Iterator[None]:
    """Hold a lock that all tests share, or one that a test marked `alone` has for itself."""
    is_alone = request.node.get_closest_marker("alone") is not None
    with (shared_folder / "turnstile").open("w") as turnstile, (shared_folder / "machine").open("w") as machine:
        fcntl.flock(turnstile, fcntl.LOCK_EX)  # whoever waits for the machine is passed by nobody
        fcntl.flock(machine, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:  # not only closed: a process that a test forked may hold it open
            fcntl.flock(machine, fcntl.LOCK_UN)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes with one thread: sums in one order, and no contest for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
