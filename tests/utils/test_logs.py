"""The driver's log on a bad disk or without a terminal: lines are lost, the process goes on."""

import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from rich.table import Table

from appo.utils.logs import LogFile, terminal


@pytest.fixture
def log(tmp_path):
    """A logger of its own that writes to a file."""
    handler, logger = LogFile(tmp_path / "log" / "a.txt", delay=True), logging.Logger("test")
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_a_log_that_vanishes_goes_on_where_it_was(log, tmp_path, capsys):
    folder = tmp_path / "log"
    folder.mkdir()
    log.warning("one")
    shutil.rmtree(folder)
    log.warning("lost")
    folder.touch()
    log.warning("lost, too")
    folder.unlink()
    folder.mkdir()
    log.warning("two")
    log.warning("three")
    assert (folder / "a.txt").read_text() == "two\nthree\n"
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_not_told_of_and_a_wrong_format_is(capsys):
    handler, logger = LogFile("/dev/full"), logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("%d lines", 3)
    assert capsys.readouterr().err == ""
    logger.warning("%d lines", "many")
    assert "not str" in capsys.readouterr().err
    with pytest.raises(OSError, match="No space left"):  # so the disk was full indeed
        handler.close()


def test_a_process_outlives_its_terminal(tmp_path):
    code = """
        import logging, pathlib, sys
        from appo.utils.logs import log_to_terminal_and_file
        log_to_terminal_and_file(pathlib.Path(sys.argv[1]))
        logging.info("said")
        sys.stdin.readline()
        for _ in range(3):
            logging.info("said to nobody")
        print("alive", flush=True)
    """
    words = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "log.txt")]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    assert child.stderr.readline().endswith(b"said\n")
    child.stderr.close()
    child.stdin.write(b"go on\n")
    child.stdin.close()
    assert child.stdout.read() == b"alive\n"
    child.stdout.close()
    assert child.wait(30) == 0
    assert (tmp_path / "log.txt").read_text().count("said to nobody") == 3


@pytest.mark.parametrize("colour", [{}, {"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}])
def test_warnings_and_errors_in_the_terminal_carry_their_level(tmp_path, colour):
    code = """
        import logging, pathlib, sys
        from appo.utils.logs import log_to_terminal_and_file
        log_to_terminal_and_file(pathlib.Path(sys.argv[1]))
        logging.info("all is well")
        logging.warning("actor-01 [bold]was killed[/bold]")
        logging.error("run failed: %s", "no cartridge")
    """
    words = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "log.txt")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env=os.environ | colour)
    assert ("\x1b[" in done.stderr) == (colour == {"FORCE_COLOR": "1"})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)
    assert re.sub(r"^\d\d:\d\d:\d\d ", "", plain, flags=re.MULTILINE).splitlines() == [
        "all is well",
        "warning: actor-01 [bold]was killed[/bold]",
        "error: run failed: no cartridge",
    ]


def test_a_terminal_on_a_full_disk_ends_nothing(tmp_path):
    code = """
        import logging, pathlib, sys
        from appo.utils.logs import log_to_terminal_and_file
        log_to_terminal_and_file(pathlib.Path(sys.argv[1]))
        logging.info("said")
        print("alive", flush=True)
    """
    words = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "log.txt")]
    full = os.open("/dev/full", os.O_WRONLY)
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, timeout=60, check=False)
    os.close(full)
    assert done.stdout == b"alive\n"


def test_a_refusal_is_red_on_a_terminal_and_plain_where_nobody_looks(tmp_path):
    code = "from appo.utils.logs import say_error; say_error('train_appo.py', 'no [b] ' + 'x' * 200)"
    plain = f"train_appo.py: error: no [b] {'x' * 200}"
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stderr == plain + "\n"
    for extra, is_red in ({}, True), ({"NO_COLOR": "1"}, False):
        main, side = os.openpty()
        subprocess.run(words, stderr=side, check=True, env=os.environ | {"TERM": "xterm"} | extra)
        os.close(side)
        shown = os.read(main, 4096).decode().replace("\r\n", "")
        os.close(main)
        assert shown == (plain if not is_red else shown) and ("\x1b[1;31m" in shown) == is_red
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == plain


def test_names_in_tables_are_printed_as_they_are(capsys):
    table = Table("old:Leaves:", title="my:fire:Env [a]")
    table.add_row(":snake: [bold]x")
    terminal(width=60).print(table)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("old:Leaves:", "my:fire:Env [a]", ":snake: [bold]x"))
