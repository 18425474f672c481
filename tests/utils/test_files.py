"""Atomic files: whole or absent, also when the disk is full, the process is killed or the writer raises."""

import errno
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import types

import pytest

from appo.utils import files
from appo.utils.files import (
    AppendedFile,
    DiskFaults,
    JsonLines,
    atomic_write,
    atomic_write_json,
    atomic_write_text,
    cut_text,
    keep_small,
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
        from appo.utils.files import atomic_write
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
        from appo.utils.files import atomic_write
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
        from appo.utils.files import JsonLines
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


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_late_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, call):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="Input/output error"):
            atomic_write(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]


def test_the_old_file_is_there_until_the_new_one_is_complete(tmp_path):
    path, seen = tmp_path / "a.bin", []
    path.write_bytes(b"old")

    def look():
        [temporary] = tmp_path.glob(".a.bin.*.tmp")
        seen.append((path.read_bytes(), temporary.read_bytes()))

    atomic_write(path, [b"new"], before_rename=look)
    assert seen == [(b"old", b"new")] and path.read_bytes() == b"new"


def test_appended_pieces_begin_with_the_header_of_each_new_file(tmp_path):
    path = tmp_path / "made" / "a.bin"
    file = AppendedFile(path, b"header,")
    assert not path.parent.exists()
    file.append(b"one,")
    file.append(b"two,")
    assert path.read_bytes() == b"header,one,two,"
    shutil.rmtree(path.parent)
    file.append(b"three,")
    assert path.read_bytes() == b"header,three,"
    path.rename(tmp_path / "moved")
    file.append(b"four,")
    assert path.read_bytes() == b"header,four," and (tmp_path / "moved").read_bytes() == b"header,three,"
    file.close()
    file.close()
    AppendedFile(path, b"header,").append(b"five,")
    assert path.read_bytes() == b"header,four,five,"


def test_a_header_that_does_not_fit_is_written_when_it_does(tmp_path, monkeypatch):
    file = AppendedFile(tmp_path / "a.bin", b"header,")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, piece: 0)
        with pytest.raises(OSError, match="No space left"):
            file.append(b"one,")
    file.append(b"two,")
    assert (tmp_path / "a.bin").read_bytes() == b"header,two,"


def test_trouble_is_survived_counted_and_told_once_a_minute_for_each_kind(monkeypatch, caplog):
    clock = types.SimpleNamespace(now=50.0)
    monkeypatch.setattr(files, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    disk_faults = DiskFaults()
    for _ in range(61):
        for kind in ("cats", "dogs"):
            with disk_faults.survived(kind):
                (pathlib.Path("/dev/null") / kind).touch()
        clock.now += 1.0
    assert disk_faults.failures == {"cats": 61, "dogs": 61}
    told = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in told] == ["cats", "dogs", "cats", "dogs"]
    assert "could not be written ([Errno 20] Not a directory: '/dev/null/cats'); training goes on without it" in told[0]
    assert told[2].endswith("(61 failures so far)")
    with pytest.raises(ZeroDivisionError), disk_faults.survived("cats"):
        _ = 1 / 0


def test_a_text_that_is_short_enough_stays_as_it_is():
    text = "Traceback:\n  File\nValueError: no such scenario\n"
    assert cut_text(text) == text
    assert cut_text("x" * 100, most=100, most_of_line=100) == "x" * 100


def test_a_long_line_keeps_its_beginning_and_its_end_and_says_how_much_is_missing():
    cut = cut_text(f"Traceback:\nValueError: begin{'x' * 2_000_000}end")
    first, last = cut.split("\n")
    assert first == "Traceback:" and len(cut) < 2_100
    assert last.startswith("ValueError: begin") and last.endswith("end")
    kept = len(last) - len(" [... 1998020 characters cut ...] ")
    assert f" [... {2_000_000 + len('ValueError: beginend') - kept} characters cut ...] " in last


def test_a_long_text_keeps_whole_lines_of_its_beginning_and_of_its_end():
    text = "\n".join(f"line {number} {'x' * 50}" for number in range(100_000))
    cut = cut_text(text)
    lines = cut.split("\n")
    assert len(cut) < 16_100 and set(lines) - set(text.split("\n")) == {next(x for x in lines if "[..." in x)}
    assert lines[0].startswith("line 0 ") and lines[-1].startswith("line 99999 ")


def test_a_small_file_is_left_alone(tmp_path):
    path = tmp_path / "log.txt"
    keep_small(path, 100)
    path.write_bytes(b"x" * 100)
    keep_small(path, 100)
    assert path.read_bytes() == b"x" * 100 and len(list(tmp_path.iterdir())) == 1


def test_a_file_that_has_grown_begins_anew_and_what_it_held_lies_beside_it(tmp_path):
    path, old = tmp_path / "log.txt", tmp_path / "log.old.txt"
    old.write_bytes(b"older")
    with path.open("ab", buffering=0) as file:
        file.write(b"a" * 70 + b"b" * 50)
        keep_small(path, 100)
        file.write(b"goes on")
    assert path.read_bytes() == b"goes on" and old.read_bytes() == b"a" * 50 + b"b" * 50


def test_output_without_end_is_bounded_and_the_last_words_before_a_crash_are_kept(tmp_path):
    path, limit = tmp_path / "worker.txt", 200_000
    code = """
        import os, signal, subprocess, sys
        for number in range(60_000):
            os.write(2, b"line %d of one that writes in native code\\n" % number)
            if number % 20_000 == 0:
                subprocess.run(["sh", "-c", "echo a child writes as well"])
        os.write(2, b"last words\\n")
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    with path.open("ab") as file:
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=file, stderr=file)
    while child.poll() is None:
        keep_small(path, limit)
    keep_small(path, limit)
    assert child.returncode == -signal.SIGSEGV
    old = tmp_path / "worker.old.txt"
    assert path.stat().st_size <= limit and limit / 2 < old.stat().st_size
    assert (old.read_text() + path.read_text()).endswith("last words\n")


def test_where_there_is_no_room_for_the_copy_a_file_may_grow_for_a_while_and_then_begins_anew(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"x" * 5_000)
    code = """
        from appo.utils.files import keep_small
        keep_small(folder / "log.txt", 4_500)
        print((folder / "log.txt").stat().st_size)
        keep_small(folder / "log.txt", 1_200)
        print((folder / "log.txt").stat().st_size)
    """
    done = run_with_small_disk(code, tmp_path, limit_bytes=1_000)
    assert done.stdout.split() == ["5000", "0"], done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.txt"]
