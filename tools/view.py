"""Watch runs from another terminal: `python -m appo.tools.view train_dir/first`, while they go on or afterwards.

    python -m appo.tools.view train_dir/first [train_dir/second ...] [--once] [--svg=view.svg] [--width=120]

Reads `status.json` and `metrics.jsonl` of each experiment, of the latter only what is new, and draws a frame of the
numbers once a second until all runs have ended; Ctrl+C ends it before. `--once` prints one frame, `--svg` saves
one as a picture. Into a pipe or a file it prints plain text, a frame every ten seconds. Pictures and plain text
have as many columns as `--width` says, or 80.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from appo.algorithms.reporting.live_frame import LiveFrame, can_draw
from appo.algorithms.reporting.rates import RATE_WINDOWS_S
from appo.algorithms.reporting.sinks.status import from_json
from appo.algorithms.reporting.snapshot import Point, RunSnapshot
from appo.algorithms.reporting.view import LEAST_HEIGHT, as_text, frame_lines
from appo.algorithms.reporting.view_state import ViewHistory, ViewState
from appo.algorithms.run.config import METRICS_FILE, STATUS_FILE
from appo.algorithms.run.folder_lock import holder
from appo.tools.arguments import EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, OneLineParser, Refused, as_program
from appo.tools.experiments import place_of, similar_to
from appo.tools.run_status import STARTING
from appo.utils.files import NewLines

FRAME_EVERY_S, PLAIN_FRAME_EVERY_S = 1.0, 10.0
_LEAST_WIDTH = 20  # of which a frame can still be read
# The file is replaced once a second; a run whose machine is busy may be late.
SILENT_AFTER_S = 5.0
_PLAIN_COLUMNS, _NO_LIMIT = 80, 10_000


# Of a run that has written no status.
_NOTHING_YET = RunSnapshot(
    state=STARTING,
    time=0.0,
    env_frames=0,
    train_seconds=0.0,
    fps=dict.fromkeys(RATE_WINDOWS_S, 0.0),
    seconds_left=None,
    budget_spent=0.0,
    faults={},
    blocks={},
    policies=(),
)


class ViewError(Refused):
    """There is nothing to watch. The message says why."""


class WatchedRun:
    """One experiment, as its files tell of it."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet."""
        self._folder = folder
        self._status_path = folder / STATUS_FILE
        self._metrics = NewLines(folder / METRICS_FILE)
        self._history = ViewHistory(folder.resolve().name)
        self._told: RunSnapshot | None = None  # by the file
        self.snapshot: RunSnapshot | None = None

    def read(self) -> None:
        """Take in what is new; a file that cannot be read any more leaves the last numbers.

        Raises:
            ViewError: there was none from the beginning, and no process holds the folder's lock.
        """
        try:
            holds = holder(self._folder)
        except OSError:  # no folder, or not ours to read
            holds = None
        for line in self._metrics.read():
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # cut off by a crash
                self._history.add(_point(json.loads(line)))
        try:
            self._told = from_json(json.loads(self._status_path.read_text(encoding="utf-8")))
        except OSError as error:
            if self.snapshot is None and holds is None:
                raise ViewError(_why_none(self._status_path, error)) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if self.snapshot is None:
                raise ViewError(f"{self._status_path} is not what a run writes ({error!r})") from error
        if holds is not None and (self._told is None or self._told.time < holds.since):
            # The file is missing, or of an earlier start: until there is a newer one, the lock is the sign of life.
            told = self._told or _NOTHING_YET
            self.snapshot = told._replace(state=STARTING, time=time.time(), seconds_left=None)
        elif self._told is not None:
            self.snapshot = self._told

    def state(self, now: float) -> ViewState:
        """What there is to show at a time in seconds since 1970, once something was read."""
        assert self.snapshot is not None
        silent_s = now - self.snapshot.time
        is_silent = not self.has_ended and silent_s > SILENT_AFTER_S
        return self._history.state(self.snapshot, silent_s if is_silent else 0.0)

    @property
    def has_ended(self) -> bool:
        """Nothing more will come, unless the run is started again."""
        return self.snapshot is not None and self.snapshot.state == "ended"


def stacked(states: Sequence[ViewState], width: int, height: int) -> Group:
    """Frames of several runs below each other, each with its share of the height; runs without room are counted."""
    share = height // len(states)
    if share < LEAST_HEIGHT:
        fitting = (height - 1) // LEAST_HEIGHT
        told = f"and {len(states) - fitting} more: {LEAST_HEIGHT * len(states)} rows show all"
        lines = [line for state in states[:fitting] for line in frame_lines(state, width, LEAST_HEIGHT)]
        lines.append(Text(told, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines[:height])
    between = [Text("")] if len(states) > 1 and share > LEAST_HEIGHT else []
    lines = [line for state in states for line in (*frame_lines(state, width, share - len(between)), *between)]
    return Group(*(lines[:-1] if between else lines))


def _point(record: dict[str, Any]) -> Point:
    scalars = {tag: float(value) for tag, value in record.items() if "/" in tag and value is not None}
    if not all(map(math.isfinite, scalars.values())):
        raise ValueError("numbers of a point are finite")
    return Point(int(record["policy"]), int(record["env_frames"]), scalars)


def _why_none(path: Path, error: OSError) -> str:
    folder = path.parent
    told = (
        f"{path} cannot be read ({error.strerror}){similar_to(folder)}; name the folder of an experiment, such as "
        "train_dir/first"
    )
    with contextlib.suppress(OSError):
        if names := sorted(found.parent.name for found in folder.glob(f"*/{STATUS_FILE}"))[:5]:
            return f"{told}; {folder} holds {', '.join(names)}"
    comes = "the file comes when a run has begun" if folder.is_dir() else "a run makes it once its checks are through"
    return f"{told}; {comes}"


def _is_read() -> bool:
    """Somebody may read what is printed: not where a pipe's reader, or a terminal, is gone."""
    output = select.poll()
    try:
        output.register(sys.stdout, 0)
    except OSError:  # it is no file of the system
        return True
    return not output.poll(0)


def _draw_until_ended(runs: Sequence[WatchedRun]) -> None:
    frame = LiveFrame(sys.stdout)
    try:
        while True:
            columns, rows = frame.size()
            frames = stacked([run.state(time.time()) for run in runs], columns, rows)
            frame.draw(as_text(frames, columns, is_terminal=True))
            if all(run.has_ended for run in runs) or not _is_read():
                return
            time.sleep(FRAME_EVERY_S)
            for run in runs:
                run.read()
    finally:
        frame.close()


def _print_until_ended(runs: Sequence[WatchedRun], width: int | None, *, only_once: bool) -> None:
    is_terminal = can_draw(sys.stdout)
    if width is None:
        width = os.get_terminal_size(sys.stdout.fileno()).columns if is_terminal else _PLAIN_COLUMNS
    while True:
        frames = stacked([run.state(time.time()) for run in runs], width, _NO_LIMIT)
        print("\n".join(as_text(frames, width, is_terminal=is_terminal)), end="\n" if only_once else "\n\n", flush=True)
        if only_once or all(run.has_ended for run in runs) or not _is_read():
            return
        time.sleep(PLAIN_FRAME_EVERY_S)
        for run in runs:
            run.read()


def _save(runs: Sequence[WatchedRun], path: Path, width: int) -> None:
    frames = stacked([run.state(time.time()) for run in runs], width, _NO_LIMIT)
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True, color_system="truecolor")
    console.print(frames)
    path.write_text(console.export_svg(title="appo-tools view"), encoding="utf-8")
    print(path)


def main(argv: Sequence[str]) -> int:
    """Show what the command line asks for; the exit code."""
    try:
        arguments = _parse(argv)
        runs = [WatchedRun(folder) for folder in arguments.folders]
        for run in runs:
            run.read()
        if arguments.svg is not None:
            _save(runs, arguments.svg, arguments.width or _PLAIN_COLUMNS)
        elif can_draw(sys.stdout) and not arguments.once:
            _draw_until_ended(runs)
        else:
            _print_until_ended(runs, arguments.width, only_once=arguments.once)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (Refused, OSError) as error:
        print(f"view: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return EXIT_OK


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="view", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=place_of, metavar="folder", help="of an experiment, or its name")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="save one frame as a picture and end")
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="of --once, --svg and plain text (default: 80)")
    arguments = parser.parse_args(argv)
    if arguments.width is not None and arguments.width < _LEAST_WIDTH:
        raise Refused(f"--width={arguments.width}: a frame needs {_LEAST_WIDTH} columns or more")
    return arguments


if __name__ == "__main__":
    sys.exit(as_program(main))
