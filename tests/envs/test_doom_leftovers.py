"""What engines leave when the process that starts them is killed: it is removed, what is in use stays."""

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appo.envs.families.doom import FAMILY
from appo.envs.simulators import doom_leftovers
from appo.envs.simulators.doom_leftovers import SHARED_MEMORY, clear_up, folder_prefix

NOBODY = 2**22 + 1  # no process group has this number

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="engines leave names where there is /dev/shm")


@pytest.fixture
def name():
    """A name as an engine's shared memory has, removed afterwards."""
    path = SHARED_MEMORY / f"ViZDoomMQCtrtest{os.getpid()}"
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(doom_leftovers.tempfile, "tempdir", str(tmp_path))

    def make(group, *, age_s=0.0):
        folder = tmp_path / f"doom_{group}_abc"
        (folder / "_vizdoom").mkdir(parents=True)
        (folder / "launch").write_text("#!/bin/sh\n")
        os.utime(folder, (time.time() - age_s,) * 2)
        return folder

    return make


def test_shared_memory_that_no_process_maps_is_removed_and_what_is_in_use_stays(name):
    other = SHARED_MEMORY / f"test{os.getpid()}"
    other.touch()
    with name.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        clear_up(NOBODY)
        assert name.exists()
    clear_up(NOBODY)
    assert not name.exists() and other.exists()
    other.unlink()


def test_folders_of_the_group_go_and_those_of_others_only_when_they_are_dead_and_old(folders):
    ours, alive = folders(NOBODY), folders(os.getpgrp(), age_s=1000.0)
    young, old = folders(NOBODY + 1), folders(NOBODY + 2, age_s=1000.0)
    clear_up(NOBODY)
    assert [folder.exists() for folder in (ours, alive, young, old)] == [False, True, True, False]


def test_the_script_waits_for_the_end_of_the_group_and_needs_the_standard_library_alone(name, tmp_path):
    group = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"], process_group=0)
    folder = tmp_path / f"doom_{group.pid}_abc"
    folder.mkdir()
    command = [sys.executable, "-I", "-S", FAMILY.clear_up, str(group.pid)]
    script = subprocess.Popen(command, env={"TMPDIR": str(tmp_path)})
    time.sleep(0.2)
    assert folder.exists()
    assert group.wait() == 0 and script.wait(10.0) == 0
    assert not folder.exists() and not name.exists()


def test_folders_are_named_by_the_process_group(tmp_path):
    assert folder_prefix() == f"doom_{os.getpgrp()}_"
    assert Path(FAMILY.clear_up).samefile(doom_leftovers.__file__)
