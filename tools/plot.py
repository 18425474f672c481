"""Plot the curves of runs.

    python -m appo.tools.plot train_dir/first first_curve.png
    python -m appo.tools.plot train_dir comparison.pdf --metric=0_aux/avg_len --x=hours

One experiment and no option: over the environment frames of each policy, the return of its episodes (mean, and from
the worst to the best of those averaged) above, and the frames per second of the run below.

Otherwise any number of experiments, or folders that hold them, are compared. Experiments that differ only in seed,
name and place are one group: its interquartile mean (IQM) as a line, its mean as a thin dashed one, and the
95 % interval of the IQM from a stratified bootstrap. A curve is drawn where at least half of the group's seeds have
data, its interval where at least two have. Each environment has a panel.

The file's name says what it is: .png, .jpg, .pdf or .svg a picture, .csv the numbers, whose `group` is the environment
and the options that differ (`env=CartPole-v1 gamma=0.9`).
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appo.algorithms.run.config import METRICS_FILE
from appo.tools.arguments import EXIT_OK, EXIT_REFUSED, OneLineParser, Refused, as_program
from appo.tools.curves import (
    FRAMES_PER_SECOND,
    HIGHEST,
    LOWEST,
    RETURN,
    X_AXES,
    Curves,
    Group,
    PlotError,
    read_curves,
    read_groups,
)
from appo.tools.experiments import ENV, find_experiments, of_env, place_of, without_moved_aside

MOST_PANELS = 6
TABLE_SUFFIX = ".csv"
COLUMNS = ("group", "x", "n", "mean", "iqm", "low", "high")
_X_LABELS = {"frames": "environment frames of the policy", "hours": "hours of training"}
_METRIC_LABELS = {RETURN: "return per episode"}
# Of legends. A character is as wide as here on average, or less: options are small letters and digits.
_FONT_POINTS, _POINTS_PER_INCH, _EM_PER_CHARACTER, _MARGIN_POINTS = 10.0, 72.0, 0.66, 60.0
_LINE_POINTS, _BETWEEN_POINTS = 12.0, 5.0
_USUAL_LEGEND = 0.7  # inches, for which pictures have room
_FEW_LABELS, _MOST_COLUMNS = 6, 3
_EXPLAINED = "line: interquartile mean; dashed: mean; band: 95 % interval"


def draw(curves: Curves, title: str) -> Any:
    """A matplotlib figure of two panels with a common axis of frames."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for policy, series in sorted(curves.items()):
        colour, name = f"C{policy % 10}", f"policy {policy}"
        upper.plot(*series[RETURN], color=colour, label=name)
        low, high = series[LOWEST], series[HIGHEST]
        if low.frames == high.frames:
            upper.fill_between(low.frames, low.values, high.values, color=colour, alpha=0.15, linewidth=0)
        lower.plot(*series[FRAMES_PER_SECOND], color=colour, label=name)
    upper.set_title(title)
    upper.set_ylabel("return per episode: mean, worst to best")
    lower.set_ylabel("frames per second")
    lower.set_xlabel(_X_LABELS["frames"])
    lower.xaxis.set_major_formatter(EngFormatter(sep=""))
    lower.set_ylim(bottom=0.0)
    for panel in (upper, lower):
        panel.grid(alpha=0.3)
    if len(curves) > 1:
        upper.legend()
    return figure


def draw_groups(groups: Sequence[Group], metric: str, x: str) -> Any:
    """A matplotlib figure with a panel for each environment, `MOST_PANELS` at most, and one legend for all of them."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter

    envs = list(dict.fromkeys(group.env for group in groups))
    columns = min(len(envs), 3)
    rows = math.ceil(len(envs) / columns)
    width, height = (8.0, 5.5) if len(envs) == 1 else (4.5 * columns, 3.4 * rows + 0.8)
    colours = _colours(groups)
    legend, legend_columns, legend_height = _folded([_legend(label, groups) for label in colours], width)
    height += max(0.0, legend_height - _USUAL_LEGEND)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = dict(zip(envs, figure.subplots(rows, columns, squeeze=False).flat, strict=False))
    for group in groups:
        _draw_group(panels[group.env], group, colours[group.label])
    for number, (env, panel) in enumerate(panels.items()):
        panel.set_title(env)
        panel.set_xlabel(_X_LABELS[x])
        if x == "frames":
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.grid(alpha=0.3)
        if number % columns == 0:
            panel.set_ylabel(_METRIC_LABELS.get(metric, metric))
    for empty in figure.axes[len(envs) :]:
        empty.remove()
    figure.legend(
        [Line2D([], [], color=colour) for colour in colours.values()],
        legend,
        loc="outside lower center",
        ncols=legend_columns,
        fontsize=_FONT_POINTS,
        title=_EXPLAINED if any(group.num_runs > 1 for group in groups) else None,
        title_fontsize="small",
        frameon=False,
    )
    return figure


def _draw_group(panel: Any, group: Group, colour: Any) -> None:
    summary = group.summary
    panel.plot(group.x, summary.iqm, color=colour)
    panel.plot(group.x, summary.mean, color=colour, linewidth=0.8, linestyle="--")
    panel.fill_between(group.x, summary.low, summary.high, color=colour, alpha=0.2, linewidth=0)


def _colours(groups: Sequence[Group]) -> dict[str, Any]:
    """Label -> colour: the same options have the same one in every panel."""
    import matplotlib

    labels = list(dict.fromkeys(group.label for group in groups))
    if len(labels) <= 10:
        return {label: f"C{number}" for number, label in enumerate(labels)}
    shades = matplotlib.colormaps["turbo"]
    return {label: shades(number / (len(labels) - 1)) for number, label in enumerate(labels)}


def _folded(labels: Sequence[str], width: float) -> tuple[list[str], int, float]:
    """Labels of a legend that is no wider than so many inches, its columns, and its height in inches."""
    room = int((_POINTS_PER_INCH * width - _MARGIN_POINTS) / (_EM_PER_CHARACTER * _FONT_POINTS))
    columns = 1
    if len(labels) > _FEW_LABELS:
        beside = int(_MARGIN_POINTS / (_EM_PER_CHARACTER * _FONT_POINTS))  # the line of a colour, and a gap
        columns = max(1, min(_MOST_COLUMNS, (room + beside) // (max(map(len, labels)) + beside)))
    folded = [textwrap.fill(label, room, break_on_hyphens=False) for label in labels]
    rows = math.ceil(len(labels) / columns)
    lines = rows if columns > 1 else sum(label.count("\n") + 1 for label in folded)
    return folded, columns, (lines * _LINE_POINTS + rows * _BETWEEN_POINTS) / _POINTS_PER_INCH


def _legend(label: str, groups: Sequence[Group]) -> str:
    """A label with the number of its seeds, in all panels."""
    counts = sorted({group.num_runs for group in groups if group.label == label})
    told = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    seeds = f"{told} seed{'' if told == '1' else 's'}"
    return f"{label} ({seeds})" if label else seeds


def write_table(groups: Sequence[Group], target: Path) -> None:
    """A line for each group and point of its curve; without an interval where fewer than two seeds have data."""
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for group in groups:
            name = f"{ENV}={group.env} {group.label}".strip()
            for x, count, *numbers in zip(group.x, *group.summary, strict=True):
                if not math.isnan(numbers[0]):
                    told = ["" if math.isnan(number) else f"{number:.8g}" for number in numbers]
                    writer.writerow([name, f"{x:.8g}", count, *told])


def main(argv: Sequence[str]) -> int:
    """Draw what the command line asks for; the exit code."""
    try:
        chosen = _parse(argv)
        folders, target = [place_of(word) for word in chosen.words[:-1]], Path(chosen.words[-1])
        _require_format(target)
        found = of_env(find_experiments(folders), chosen.env)
        experiments = without_moved_aside(found, folders)
        if len(experiments) < len(found):
            left_out = f"{len(found) - len(experiments)} that --restart_behavior=restart moved aside"
            print(f"plot: without {left_out}; name them to have them drawn", file=sys.stderr)
        is_plain = chosen.metric is None and chosen.x is None and chosen.smooth is None
        if len(experiments) == 1 and is_plain and target.suffix != TABLE_SUFFIX:
            (only,) = experiments
            draw(read_curves(only.folder), only.folder.resolve().name).savefig(target, dpi=120)
        else:
            metric, x = chosen.metric or RETURN, chosen.x or next(iter(X_AXES))
            most_envs = None if target.suffix == TABLE_SUFFIX else MOST_PANELS
            groups = read_groups(experiments, metric, x, chosen.smooth or 0.0, most_envs=most_envs)
            if target.suffix == TABLE_SUFFIX:
                write_table(groups, target)
            else:
                draw_groups(groups, metric, x).savefig(target, dpi=120)
    except (Refused, OSError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(target)
    return EXIT_OK


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        prog="python -m appo.tools.plot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s <folder> [<folder> ...] <file.png> [options]",
    )
    parser.add_argument(
        "words", nargs="*", metavar="folder", help="experiments, or folders that hold some; then a file"
    )
    parser.add_argument("--env", help="only runs of this environment; * stands for anything")
    parser.add_argument("--metric", help=f"any key of {METRICS_FILE}; {RETURN} unless typed")
    parser.add_argument("--x", choices=tuple(X_AXES), help="frames of the policy, or hours of training")
    parser.add_argument(
        "--smooth", type=float, help="share of the axis over which each curve is averaged, backwards; 0 unless typed"
    )
    chosen = parser.parse_intermixed_args(argv)
    if len(chosen.words) < 2:
        raise Refused(f"folders and a file are needed; {parser.format_usage().strip()}")
    if chosen.smooth is not None and not 0.0 <= chosen.smooth < 1.0:
        raise Refused(f"--smooth={chosen.smooth:g} is no share of the axis; for example --smooth=0.05")
    return chosen


def _require_format(target: Path) -> None:
    """Refuse a file that cannot be written, before anything is read."""
    from matplotlib.figure import Figure

    known = [TABLE_SUFFIX, *(f".{name}" for name in Figure().canvas.get_supported_filetypes())]
    if target.is_dir():
        raise PlotError(f"{target} is a folder; the last word is the file to write, such as plot.png")
    if target.suffix not in known:
        raise PlotError(f"{target} has to end in .png, .jpg, .pdf, .svg or {TABLE_SUFFIX}")
    if not target.parent.is_dir():
        raise PlotError(f"there is no folder {target.parent} for {target.name}")


if __name__ == "__main__":
    sys.exit(as_program(main))
