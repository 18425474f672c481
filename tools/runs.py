"""List, compare and stop runs.

    python -m appo.tools.runs [train_dir] [--env='doom_*'] [--sort=best] [--json]
    python -m appo.tools.runs [train_dir] --compare first second
    python -m appo.tools.runs [train_dir] --stop first
    python -m appo.tools.runs [train_dir] --save first

Whether a run goes on is told by the lock of its folder, which its process holds. `best` is the highest mean return in
its curves, `age` the time since its last sign of life. Of the options that differ between runs, each lists those that
were typed for it; the middle of a long reason is left out, `--json` has all of it.
`--stop` asks a run to save and end, and waits until it has; `--save` asks for a checkpoint, and the run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from appo.algorithms.checkpoint_names import list_named
from appo.algorithms.run.config import RunConfig
from appo.algorithms.run.folder_lock import Holder, holder
from appo.tools.arguments import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REFUSED,
    OneLineParser,
    Refused,
    as_program,
)
from appo.tools.experiments import PLACE, Found, differing, find_experiments, named, of_env, place_of, text_of
from appo.tools.run_status import RunStatus, duration, status_of, telling_options
from appo.utils.logs import terminal
from appo.utils.processes import handles_signal
from appo.utils.signals import SAVING

STOP_S, SAVE_S = 60.0, 60.0  # a run ends within 10 s of a signal; a checkpoint may wait for a slow disk
_LOOK_EVERY_S = 0.1
_NUMBERS = ("frames", "fps", "last", "best", "age")
_FIXED = ("name", "env", "state", *_NUMBERS)  # columns of the list that are not folded
_GAP, _BELOW = "  ", "    "  # between columns; before what stands below a run
_ABOUT = "reason; options"
_LEAST_ABOUT, _LEAST_ENV = 40, 8  # characters
_STATE_CHARACTERS, _LEFT_OUT = 80, " ... "  # of a state and its reason
_UNSEEN = "one that has just been started is seen once its checks are through"
# What each order sorts by; numbers that do not exist come last.
_ORDERS: dict[str, Callable[[RunStatus], Any]] = {
    "name": lambda run: run.experiment.name,
    "env": lambda run: (run.env, run.experiment.name),
    "state": lambda run: (run.state, run.experiment.name),
    "frames": lambda run: -run.frames,
    "fps": lambda run: _descending(run.fps),
    "last": lambda run: _descending(run.last_return),
    "best": lambda run: _descending(run.best_return),
    "age": lambda run: run.age_s,
}


def _descending(number: float) -> float:
    return math.inf if math.isnan(number) else -number


def list_runs(runs: Sequence[RunStatus]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of runs."""
    told = _told_options(runs)
    heads = [*_FIXED, *(["options"] if any(told) else [])]
    return heads, [
        [run.experiment.name, run.env, _shortened(run.told_state), *_numbers(run), options][: len(heads)]
        for run, options in zip(runs, told, strict=True)
    ]


def _told_options(runs: Sequence[RunStatus]) -> list[str]:
    """Of each run the options that it has typed, of those that differ; others are as its environment has them."""
    several = [run.experiment for run in runs]
    differ = telling_options(several)
    typed = [{name: text_of(each.options, name) for name in differ if name in each.typed} for each in several]
    return [" ".join(f"{name}={value}" for name, value in values.items() if value) for values in typed]


def _numbers(run: RunStatus) -> list[str]:
    returns = (_number(run.last_return), _number(run.best_return))
    return [f"{run.frames:,}", _number(run.fps, "{:,.0f}"), *returns, duration(run.age_s)]


def fitted(runs: Sequence[RunStatus], columns: int) -> list[str]:
    """The table of runs in so many columns, its heads first.

    Reasons and options, which are long, are folded at blanks: in a last column, or below each run where that would be
    narrow. There, environments are cut and long names have lines of their own.
    """
    rows = [[run.experiment.name, run.env, run.state, *_numbers(run)] for run in runs]
    told = zip((_shortened(run.reason) for run in runs), _told_options(runs), strict=True)
    abouts = ["; ".join(filter(None, about)) for about in told]
    widths = [max(map(len, column)) for column in zip(_FIXED, *rows, strict=True)]
    place = sum(widths) + len(_GAP) * len(widths)  # of the last column
    is_beside = place + min(max(map(len, abouts)), _LEAST_ABOUT) <= columns
    if not is_beside:
        room = columns - sum(widths[2:]) - len(_GAP) * (len(widths) - 1)  # for names and environments
        widths[1] = min(widths[1], max(room - widths[0], room // 2, _LEAST_ENV))
        widths[0] = min(widths[0], max(room - widths[1], len(_BELOW)))
    lines = [_line([*_FIXED, _ABOUT] if is_beside and any(abouts) else _FIXED, widths)]
    for cells, about in zip(rows, abouts, strict=True):
        if is_beside:
            first, *more = _folded(about, columns - place) or [""]
            lines += [_line([*cells, first], widths), *(" " * place + line for line in more)]
        else:
            lines += _hanging(cells, widths)
            lines += [_BELOW + line for line in _folded(about, columns - len(_BELOW))]
    return lines


def _hanging(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """A row whose environment is cut, after a line of its own for a long name, which somebody may want to type."""
    name, env, *others = cells
    cut = env if len(env) <= widths[1] else env[: widths[1] - 1] + "…"
    return [name, _line(["", cut, *others], widths)] if len(name) > widths[0] else [_line([name, cut, *others], widths)]


def _folded(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, max(1, columns), break_on_hyphens=False)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells below each other; one more than there are widths ends the line."""
    return _GAP.join([*map(str.ljust, cells, widths), *cells[len(widths) :]]).rstrip()


def _shortened(state: str) -> str:
    """Beginning and end of a state that is long: an error comes last in it."""
    if len(state) <= _STATE_CHARACTERS:
        return state
    head = _STATE_CHARACTERS // 2
    tail = _STATE_CHARACTERS - head - len(_LEFT_OUT)
    return state[:head].rstrip() + _LEFT_OUT + state[-tail:].lstrip()


def compare(runs: Sequence[RunStatus]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: the options that differ, then how each run stands; a column for each run."""
    options = [run.experiment.options for run in runs]
    rows = [[name, *(text_of(each, name) for each in options)] for name in differing(options) if name not in PLACE]
    rows += [
        ["state", *(run.told_state for run in runs)],
        ["frames", *(f"{run.frames:,}" for run in runs)],
        ["hours", *(_number(run.hours, "{:.3g}") for run in runs)],
        ["fps", *(_number(run.fps, "{:,.0f}") for run in runs)],
        ["last return", *(_number(run.last_return) for run in runs)],
        ["best return", *(_number(run.best_return) for run in runs)],
    ]
    return ["", *(run.experiment.name for run in runs)], rows


def _number(value: float, form: str = "{:.4g}") -> str:
    return form.format(value) if math.isfinite(value) else "-"


def print_list(runs: Sequence[RunStatus]) -> None:
    """The table of runs, as wide as the terminal."""
    from rich.text import Text

    console = terminal()
    if not console.is_terminal:
        _print_plain(*list_runs(runs))
        return
    heads, *lines = fitted(runs, console.width)
    console.print(Text(heads, style="bold"), no_wrap=True, overflow="ellipsis")
    for line in lines:
        console.print(Text(line), no_wrap=True, overflow="ellipsis")


def print_compared(runs: Sequence[RunStatus]) -> None:
    """What differs between runs, as wide as the terminal."""
    from rich import box
    from rich.table import Table

    heads, rows = compare(runs)
    console = terminal()
    if not console.is_terminal:
        _print_plain(heads, rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_plain(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of which nothing is cut off."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for cells in (heads, *rows):
        print(_line(cells, widths))


def stop(experiment: Found) -> int:
    """Ask a run to save and end, and wait for it; the exit code.

    Raises:
        Refused: it does not run, or not here.
    """
    first = _signal(experiment, signal.SIGTERM)
    if not _waited(lambda: _is_gone(experiment, first), STOP_S):
        print(
            f"runs: {experiment.name} has not ended within {STOP_S:.0f} s; `kill -9 {first.pid}` ends it at once, and "
            "its last checkpoint stays",
            file=sys.stderr,
        )
        return EXIT_FAILED
    run = status_of(experiment)
    print(f"{experiment.name} {run.told_state}, after {run.frames:,} frames")
    return EXIT_OK


def _is_gone(experiment: Found, process: Holder) -> bool:
    try:
        now = holder(experiment.folder)
    except OSError:  # the folder cannot be looked at, which says nothing of the process
        return False
    return now is None or now.pid != process.pid


def save(experiment: Found) -> int:
    """Ask a run for a checkpoint, and wait for the first; the exit code.

    Raises:
        Refused: it does not run, or not here.
    """
    before = _checkpoints(experiment)
    first = _signal(experiment, SAVING)
    answered = _waited(lambda: _checkpoints(experiment) - before or _is_gone(experiment, first), SAVE_S)
    new = sorted(_checkpoints(experiment) - before)
    if answered and not new:
        print(
            f"runs: process {first.pid} of {experiment.name} is gone and has written no checkpoint; "
            f"{status_of(experiment).told_state}",
            file=sys.stderr,
        )
        return EXIT_FAILED
    if not new:
        print(
            f"runs: {experiment.name} has written no checkpoint within {SAVE_S:.0f} s; before its first optimizer step "
            "there is nothing to save, else log/driver.txt says why",
            file=sys.stderr,
        )
        return EXIT_FAILED
    for path in new:
        print(path)
    return EXIT_OK


def _checkpoints(experiment: Found) -> set[Path]:
    folders = experiment.folder.glob("checkpoint_p*")
    return {checkpoint.path for folder in folders for checkpoint in list_named(folder, "latest")}


def _signal(experiment: Found, number: signal.Signals) -> Holder:
    run = status_of(experiment)
    holds = run.holder
    if holds is None:
        raise Refused(f"{experiment.name} does not run; {run.told_state} ({_UNSEEN})")
    if not holds.is_here:
        where = f"on {holds.host}; type this there" if holds.host else "but its lock does not tell as which process"
        raise Refused(f"{experiment.name} runs {where}")
    assert holds.pid is not None
    try:
        # Without a handler the signal would end it, saving nothing: a program of the user's own may have taken it away.
        if sys.platform == "linux" and not handles_signal(holds.pid, number):
            raise Refused(f"{experiment.name} runs as process {holds.pid}, which does not listen to {number.name}")
        os.kill(holds.pid, number)
    except OSError as error:
        raise Refused(f"process {holds.pid} of {experiment.name} cannot be reached ({error.strerror})") from error
    return holds


def _waited(condition: Callable[[], Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def main(argv: Sequence[str]) -> int:
    """List, compare, stop or save, as the command line asks; the exit code."""
    try:
        chosen = _parse(argv)
        experiments = find_experiments([chosen.train_dir])
        if name := chosen.stop or chosen.save:
            return _asked(stop if chosen.stop else save, named(experiments, name))
        if chosen.compare:
            runs = [status_of(named(experiments, name)) for name in chosen.compare]
        else:
            runs = sorted(_readable(of_env(experiments, chosen.env)), key=_ORDERS[chosen.sort])
            if not runs:
                raise Refused("there is none that can be read")
    except Refused as error:
        print(f"runs: {error}", file=sys.stderr)
        return EXIT_REFUSED
    if chosen.json:
        every = [run.experiment for run in runs]
        options = differing([each.options for each in every]) if chosen.compare else telling_options(every)
        print(json.dumps([run.as_json(options) for run in runs], indent=2))
    else:
        (print_compared if chosen.compare else print_list)(runs)
    return EXIT_OK


def _asked(ask: Callable[[Found], int], experiment: Found) -> int:
    try:
        return ask(experiment)
    except KeyboardInterrupt:  # while it waits: the signal is sent
        print(
            f"\nruns: interrupted; {experiment.name} was sent the signal, and acts on it all the same", file=sys.stderr
        )
        return EXIT_INTERRUPTED


def _readable(experiments: Sequence[Found]) -> list[RunStatus]:
    """How runs stand; those that cannot be read are left out, which is told."""
    found = []
    for experiment in experiments:
        try:
            found.append(status_of(experiment))
        except Refused as error:
            print(f"runs: {experiment.name} is left out: {error}", file=sys.stderr)
    return found


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        prog="python -m appo.tools.runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = RunConfig().train_dir
    parser.add_argument("train_dir", type=place_of, nargs="?", default=Path(default), help=f"{default} unless typed")
    parser.add_argument("--env", help="only runs of this environment; * stands for anything")
    parser.add_argument("--sort", choices=tuple(_ORDERS), default="name", help="numbers: the highest first, but age")
    parser.add_argument("--json", action="store_true", help="for programs; null where there is no number")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--compare", nargs="+", metavar="NAME", help="options that differ and final numbers side by side")
    what.add_argument("--stop", metavar="NAME", help="ask a run to save and end, and wait")
    what.add_argument("--save", metavar="NAME", help="ask a run for a checkpoint")
    chosen = parser.parse_args(argv)
    if chosen.compare and len(chosen.compare) < 2:
        raise Refused("--compare needs two names or more")
    return chosen


if __name__ == "__main__":
    sys.exit(as_program(main))
