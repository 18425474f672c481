"""A run as a frame of text: a pure function of its state and of the room that there is.

The frame is made of panels, one below the other: the run itself with progress and speed, and tables of returns, losses,
time of the processes, what limits the speed, memory and faults. Where the room is too low, panels are left out in the
order of `DROPPED_FIRST`, that of returns row by row; where it is too narrow, columns and stages of the time at the
right, while the limit, memory and faults go on in the next line. A number is shown whole or not at all.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from appo.algorithms.memory.counters import IN_PARALLEL, PART_OF, Timer
from appo.algorithms.reporting.snapshot import PolicySnapshot
from appo.algorithms.reporting.view_state import RETURN, ViewState
from appo.algorithms.reporting.wording import EARLIER, in_digits, in_short, time_left

_LISTS = ("memory", "faults")  # each line of them tells something without the others
DROPPED_FIRST = ("memory", "limit", "time", "losses", "return", "faults")
LEAST_HEIGHT = 3  # of the panel that is always there
_BARS = "▁▂▃▄▅▆▇█"
_GAP = 2
_LABEL_WIDTH = 10  # of the first column of all panels
_LONGEST_COURSE, _LONGEST_BAR = 60, 60
_BUSY_BAR = 10
_STATES = {"training": "bold green", "ended": "bold cyan", "starting": "bold yellow"}
_LOSSES = {"policy": "policy_loss", "value": "value_loss", "entropy": "entropy", "kl": "kl_divergence"}


class Column(NamedTuple):
    """A column of a table: its head, and its cell for each row."""

    head: str
    cells: tuple[str, ...]
    style: str = ""


def render(state: ViewState, width: int, height: int) -> RenderableType:
    """The frame: at most `height` lines of at most `width` columns."""
    return Group(*frame_lines(state, width, height))


def frame_lines(state: ViewState, width: int, height: int) -> list[Text]:
    """The lines of the frame."""
    panels = {name: panel(state, width) for name, panel in _PANELS.items()}
    panels = {name: lines for name, lines in panels.items() if lines}
    for name in DROPPED_FIRST:
        if name == "return":  # of the faults only the first line is worth more than the returns
            _cut(panels, "faults", width, height, least=1)
        _cut(panels, name, width, height)
    panels = {name: lines for name, lines in panels.items() if lines}
    needed = sum(map(len, panels.values()))
    # A line between panels only where that costs none of them.
    between = [Text("")] if needed + len(panels) - 1 <= height else []
    lines = [line for panel in panels.values() for line in (*panel, *between)]
    return (lines[: -len(between)] if between else lines)[: max(0, height)]


def as_text(lines: RenderableType, width: int, *, is_terminal: bool) -> list[str]:
    """Lines of text; for a terminal with the colours that it has, else plain."""
    console = Console(file=io.StringIO(), width=max(1, width), force_terminal=is_terminal, force_jupyter=False)
    with console.capture() as captured:
        console.print(lines)
    return captured.get().splitlines()


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of a number in at most `width` characters, from its smallest to its largest value."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [len(values) * place // count for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1))] for mean in means)


def _run(state: ViewState, width: int) -> list[Text]:
    """Always there: name and state, progress, speed."""
    snapshot = state.snapshot
    told, style = snapshot.state, _STATES.get(snapshot.state, "")
    if state.silent_s:
        told, style = f"no news for {state.silent_s:.0f} s", "bold red"
    status = Text.assemble((told, style), f" {timedelta(seconds=round(snapshot.train_seconds))}")
    if (room := width - status.cell_len - _GAP) < 1:
        return [_line([status], width), _progress(state, width), _speed(state, width)]
    title = Text(state.title, style="bold", no_wrap=True)
    title.truncate(room, overflow="ellipsis")
    rule = max(0, width - title.cell_len - status.cell_len - 2)
    return [
        _line([Text.assemble(title, " ", ("─" * rule, "dim"), " ", status)], width),
        _progress(state, width),
        _speed(state, width),
    ]


def _progress(state: ViewState, width: int) -> Text:
    snapshot = state.snapshot
    words = [Text(f"frames {in_short(snapshot.env_frames)}")]
    left = time_left(snapshot.seconds_left)
    if not left and snapshot.budget_spent < 1.0:
        return _line(words, width)
    share = min(1.0, snapshot.budget_spent)
    words.append(Text(f"{share:.0%}"))
    if left and snapshot.state != "ended":
        words.append(Text(f"left {left}"))
    room = min(_LONGEST_BAR, width - sum(word.cell_len for word in words) - _GAP * len(words))
    if room >= 5:
        words.insert(1, _bar(share, room))
    return _line(words, width)


def _speed(state: ViewState, width: int) -> Text:
    fps = state.snapshot.fps
    windows, rates = "/".join(map(str, fps)), "/".join(in_short(rate) for rate in fps.values())
    words = [Text.assemble(f"fps ({windows} s) ", (rates, "bold"))]
    if words[0].cell_len > width:
        words = [Text.assemble("fps ", (in_short(next(iter(fps.values()), 0.0)), "bold"))]
    share = _shared(state).get("stats/actor_env_step")
    if share:  # with nothing to wait for, the same simulators would play that much faster
        words.append(Text(f"{min(1.0, share):.0%} of what the simulators could do"))
    return _line(words, width)


def _returns(state: ViewState, width: int) -> list[Text]:
    policies = state.snapshot.policies

    def tags(name: str) -> tuple[str, ...]:
        return tuple(in_digits(scalars.get(name)) for scalars in state.scalars)

    def mean(policy: PolicySnapshot, scalars: Mapping[str, float]) -> str:
        value = scalars.get(RETURN, policy.avg_reward)  # of the same moment as the others, where there is a point
        is_earlier = value is not None and not policy.has_new_episodes
        return in_digits(value) + (EARLIER if is_earlier else "")

    columns = [
        Column("mean", tuple(map(mean, policies, state.scalars)), "bold"),
        Column("min", tags(f"{RETURN}_min")),
        Column("max", tags(f"{RETURN}_max")),
        Column("length", tags("0_aux/avg_len")),
        Column("lag steps", tuple(in_digits(policy.policy_lag) for policy in policies)),
    ]
    return _table("return", columns, width, state.returns)


def _losses(state: ViewState, width: int) -> list[Text]:
    if not any("train/lr" in scalars for scalars in state.scalars):  # which every iteration tells
        return []
    columns = [
        Column(head, tuple(in_digits(scalars.get(f"train/{tag}")) for scalars in state.scalars))
        for head, tag in _LOSSES.items()
    ]
    return _table("losses", columns, width)


def _time(state: ViewState, width: int) -> list[Text]:
    lines = []
    for kind, stages in _stages(_shared(state)):
        busy = sum(share for stage, share in stages if not stage.startswith("wait"))
        words = [Text(f"{stage.replace('_', ' ')} {share:.0%}") for stage, share in stages if share >= 0.005]
        lines.append(_row(kind, [_bar(min(1.0, busy), _BUSY_BAR), *words], width))
    return [_head("time", [], width), *lines] if lines else []


def _limit(state: ViewState, width: int) -> list[Text]:
    finding = state.snapshot.bottleneck
    if finding is None or width <= 2 * _LABEL_WIDTH:
        return []
    first, *more = textwrap.wrap(finding.said, width - _LABEL_WIDTH, break_long_words=False)
    return [_row("limit", [Text(first)], width, "magenta"), *(_row("", [Text(line)], width) for line in more)]


def _memory(state: ViewState, width: int) -> list[Text]:
    shared = _shared(state)
    tags = {"driver": "0_aux/master_process_memory_mb"}
    tags |= {found[1]: tag for tag in shared if (found := re.fullmatch(r"stats/(\w+)_memory_mb", tag))}
    words = [Text(f"{kind} {shared[tag]:.0f} MB") for kind, tag in tags.items() if tag in shared]
    return _rows("memory", words, width, "dim")


def _faults(state: ViewState, width: int) -> list[Text]:
    found = {name: count for name, count in state.snapshot.faults.items() if count}
    words = [Text(f"{name.replace('_', ' ')} {count}", style="yellow") for name, count in found.items()]
    return _rows("faults", words, width, "yellow")


_PANELS: Mapping[str, Callable[[ViewState, int], list[Text]]] = {
    "run": _run,
    "return": _returns,
    "losses": _losses,
    "time": _time,
    "limit": _limit,
    "memory": _memory,
    "faults": _faults,
}


def _shared(state: ViewState) -> Mapping[str, float]:
    """Tags that all policies share."""
    return state.scalars[0] if state.scalars else {}


def _stages(tags: Mapping[str, float]) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """For each kind of process its stages and their shares, the largest first."""
    kinds: dict[str, list[tuple[str, float]]] = {}
    for timer in Timer:
        kind, _, stage = timer.name.lower().partition("_")
        share = tags.get(f"stats/{timer.name.lower()}")
        if share is not None and PART_OF.get(timer) is None and timer not in IN_PARALLEL:
            kinds.setdefault(kind, []).append((stage, share))
    for kind, stages in kinds.items():
        yield kind, sorted(stages, key=lambda stage: -stage[1])


def _table(
    title: str, columns: Sequence[Column], width: int, courses: Sequence[Sequence[float]] | None = None
) -> list[Text]:
    """Head and a row for each policy; as many columns as there is room for, and their course in what is left."""
    rows = len(columns[0].cells)
    shown, used = [], _LABEL_WIDTH
    for column in columns:
        needed = max(7, *(cell_len(text) for text in (column.head, *column.cells)))
        if used + needed > width:
            break
        used += needed + _GAP
        shown.append((column, needed))
    room = min(_LONGEST_COURSE, width - used) if courses else 0
    heads = [Text(column.head.rjust(size)) for column, size in shown]
    heads += [Text("course")] if room >= len("course") else []
    lines = [_head(title, heads, width)]
    for row in range(rows):
        cells = [Text(column.cells[row].rjust(size), style=column.style) for column, size in shown]
        if courses and room >= len("course"):
            cells.append(Text(sparkline(courses[row], room), style="green"))
        lines.append(_row(f"policy {row}", cells, width))
    return lines


def _cut(panels: dict[str, list[Text]], name: str, width: int, height: int, least: int = 0) -> None:
    """Take lines of a panel away where all are more than `height`, all of them where some alone tell nothing."""
    lines, over = panels.get(name, []), sum(map(len, panels.values())) - height
    if not lines or over <= 0:
        return
    if name == "return":
        panels[name] = _shortened(lines, over, width)
    else:
        panels[name] = lines[: max(least, len(lines) - over)] if name in _LISTS else []


def _shortened(table: list[Text], over: int, width: int) -> list[Text]:
    """A table without so many of its lines, which a last line tells of; none if there is no room for a row and that."""
    kept = len(table) - over - 1
    if kept < 2:
        return []
    return [*table[:kept], _line([Text(f"and {len(table) - kept} more", style="dim")], width)]


def _head(title: str, heads: list[Text], width: int) -> Text:
    line = _row(title, heads, width, "bold blue")
    line.append(" " + "─" * max(0, width - line.cell_len - 1), style="dim")
    line.truncate(max(0, width))
    return line


def _row(label: str, words: list[Text], width: int, style: str = "") -> Text:
    return _line([Text(label.ljust(_LABEL_WIDTH - _GAP), style=style), *words], width)


def _rows(label: str, words: Sequence[Text], width: int, style: str) -> list[Text]:
    """The words, in as many lines as they need, but for those that no line has room for; none without words."""
    words = [word for word in words if word.cell_len <= width - _LABEL_WIDTH]
    lines: list[Text] = []
    here: list[Text] = []
    for word in words:
        if here and sum(each.cell_len + _GAP for each in here) + word.cell_len > width - _LABEL_WIDTH:
            lines.append(_row("" if lines else label, here, width, style))
            here = []
        here.append(word)
    return [*lines, _row("" if lines else label, here, width, style)] if here else []


def _line(words: list[Text], width: int) -> Text:
    """The words that have room in one line, each whole."""
    line = Text(no_wrap=True, overflow="crop")
    for word in words:
        gap = _GAP if line.cell_len else 0
        if line.cell_len + gap + word.cell_len > width:
            break
        line.append(" " * gap).append_text(word)
    return line


def _bar(share: float, width: int) -> Text:
    filled = round(share * width)
    return Text.assemble(("━" * filled, "blue"), ("─" * (width - filled), "dim"))
