"""Tests run in several processes of pytest-xdist at once; those that measure wait until no other test runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


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
