"""Plot the curves of a run: `python -m appo.tools.plot train_dir/first first_curve.png`.

Reads `metrics.jsonl` of an experiment and draws, over the environment frames of each policy, the return of its
episodes (mean, and from the worst to the best of those averaged) above, and the frames per second of the run below.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.utils.files import read_json_lines

METRICS_FILE = "metrics.jsonl"
RETURN, LOWEST, HIGHEST = "0_aux/avg_reward", "0_aux/avg_reward_min", "0_aux/avg_reward_max"
FRAMES_PER_SECOND = "0_aux/_fps"
EXIT_OK, EXIT_REFUSED = 0, 2


class PlotError(ValueError):
    """There is nothing to draw. The message says why."""


class Series(NamedTuple):
    """The course of one number while a policy learned."""

    frames: list[float]
    values: list[float]


Curves = dict[int, dict[str, Series]]  # policy -> key of metrics.jsonl -> points in the order of writing


def read_curves(folder: Path, keys: Sequence[str] = (RETURN, LOWEST, HIGHEST, FRAMES_PER_SECOND)) -> Curves:
    """The points of some keys for every policy; lines that lack a key lack a point.

    Raises:
        PlotError: the folder is not an experiment's, or no episode has ended in it.
    """
    path = folder / METRICS_FILE
    try:
        records = list(read_json_lines(path))
    except OSError as error:
        raise PlotError(
            f"{path} cannot be read ({error.strerror}); name the folder of an experiment, such as train_dir/first"
        ) from error
    curves: Curves = {}
    for record in records:
        if "policy" not in record:
            continue
        of_policy = curves.setdefault(int(record["policy"]), {key: Series([], []) for key in keys})
        for key in keys:
            if record.get(key) is not None:
                of_policy[key].frames.append(float(record["env_frames"]))
                of_policy[key].values.append(float(record[key]))
    if not any(RETURN in series and series[RETURN].values for series in curves.values()):
        raise PlotError(f"{path} holds no return: no episode has ended there yet")
    return curves


def draw(curves: Curves, title: str) -> Any:
    """A matplotlib figure of two panels with a common axis of frames."""
    from matplotlib.figure import Figure

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
    lower.set_xlabel("environment frames of the policy")
    lower.set_ylim(bottom=0.0)
    for panel in (upper, lower):
        panel.grid(alpha=0.3)
    if len(curves) > 1:
        upper.legend()
    return figure


def main(argv: Sequence[str]) -> int:
    """Draw what the command line asks for; the exit code."""
    if len(argv) != 2 or argv[1].startswith("-"):
        print("usage: python -m appo.tools.plot <experiment folder> <plot.png>", file=sys.stderr)
        return EXIT_REFUSED
    folder, target = Path(argv[0]), Path(argv[1])
    try:
        figure = draw(read_curves(folder), folder.resolve().name)
        figure.savefig(target, dpi=120)
    except (PlotError, OSError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except ValueError as error:  # matplotlib's, which lists the formats it can write
        print(f"plot: {target}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(target)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
