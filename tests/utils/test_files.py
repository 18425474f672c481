"""Atomic files: whole or absent, also when the disk is full, the process is killed or the writer raises."""

import json
import math
import signal
import subprocess
import sys
import textwrap

import pytest

from utils.files import (
    JsonLines,
    atomic_write,
    atomic_write_json,
    atomic_write_text,
    read_json_lines,
    remove_temporaries,
)


def run_with_small_disk(code, folder, limit_bytes=4096):
    """Run code in a child whose files cannot grow beyond a limit, as on a full disk."""
    preamble = f"""
        import pathlib, resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))
        folder = pathlib.Path({str(folder)!r})
    """
    program = textwrap.dedent(preamble) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_a_file_is_replaced_whole_and_nothing_else_stays(tmp_path):
    path = tmp_path / "a.txt"
    atomic_write_text(path, "old")
    atomic_write(path, [b"ne", memoryview(b"w")], durable=False)
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    done = run_with_small_disk(
        """
        from utils.files import atomic_write
        try:
            atomic_write(folder / "a.bin", [b"x" * 3000, b"y" * 3000])
        except OSError as error:
            print("refused", error.errno)
        """,
        tmp_path,
    )
    assert done.stdout.startswith("refused"), done.stderr
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]


def test_a_writer_that_raises_half_way_leaves_the_old_file(tmp_path):
    def parts():
        yield b"half"
        assert list(tmp_path.glob(".a.bin.*.tmp"))  # otherwise the temporary file would not be what is tested
        raise KeyboardInterrupt

    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, parts())
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]


def test_a_killed_writer_leaves_the_old_file_and_its_rest_can_be_removed(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    code = f"""
        import os, pathlib, signal
        from utils.files import atomic_write
        def parts():
            yield b"half"
            os.kill(os.getpid(), signal.SIGKILL)
        atomic_write(pathlib.Path({str(path)!r}), parts())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    remove_temporaries(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]


def test_json_never_holds_what_is_no_json(tmp_path):
    atomic_write_json(tmp_path / "a.json", {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": (-math.inf, 2)}})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": None, "b": [None, 1.5], "c": {"d": [None, 2]}}


def test_lines_are_appended_over_several_openings(tmp_path):
    path = tmp_path / "m.jsonl"
    for number in range(3):
        lines = JsonLines(path)
        lines.append({"n": number, "x": math.nan})
        lines.close()
        lines.close()
    assert list(read_json_lines(path)) == [{"n": number, "x": None} for number in range(3)]


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"n":0}\n{"n":')
    lines = JsonLines(path)
    lines.append({"n": 2})
    lines.close()
    assert list(read_json_lines(path)) == [{"n": 0}, {"n": 2}]


def test_a_line_that_does_not_fit_is_taken_back_and_the_next_may_fit(tmp_path):
    done = run_with_small_disk(
        """
        from utils.files import JsonLines
        lines = JsonLines(folder / "m.jsonl")
        lines.append({"n": 0})
        try:
            lines.append({"n": "x" * 5000})
        except OSError as error:
            print("refused", error.errno)
        lines.append({"n": 2})
        """,
        tmp_path,
    )
    assert done.stdout.startswith("refused"), done.stderr
    assert (tmp_path / "m.jsonl").read_text() == '{"n":0}\n{"n":2}\n'
