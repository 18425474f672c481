"""Show what population-based training and self-play did.

    python -m appo.tools.population train_dir/first [population.png] [--replay=schedule.json]

Reads `pbt_history.jsonl`, `metrics.jsonl` and `self_play.json` of an experiment. Prints a table of the policies:
objective, options in force, how often each copied another one; and who beat whom, with ratings. With the name of an
image it draws objectives and options over the frames of each policy, who copied whom, and the win matrix. `--replay`
writes the options that the best policy, and those that it descends from, went through: `--schedule_file` lets a single
policy follow them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appo.algorithms.evaluation.win_table import WinTable, show_wins
from appo.algorithms.population.decision import REPLACE
from appo.algorithms.population.ratings import SELF_PLAY
from appo.algorithms.population.schedule import ScheduleStep
from appo.algorithms.reporting.population_log import BEGIN, HISTORY, RESUME
from appo.algorithms.run.config import CONFIG_FILE
from appo.tools.arguments import EXIT_OK, EXIT_REFUSED, OneLineParser, as_program
from appo.tools.curves import PlotError, read_curves
from appo.tools.experiments import place_of, similar_to
from appo.tools.win_matrix import draw_wins, read_wins
from appo.utils.files import atomic_write_json, read_json_lines
from appo.utils.logs import terminal

RETURN = "0_aux/avg_reward"
_WIDE = 10.0  # ratio of the largest to the smallest value of an option from which on its scale is logarithmic


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Every decision, oldest first.

    Raises:
        PlotError: there are none.
    """
    try:
        rows = list(read_json_lines(folder / HISTORY))
    except OSError as error:
        raise PlotError(
            f"{folder / HISTORY} cannot be read ({error.strerror}){similar_to(folder)}; name the folder of a run with "
            "--with_pbt=True or --self_play=True"
        ) from error
    if not rows:
        raise PlotError(f"{folder / HISTORY} holds no decision")
    return rows


def valid_rows(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The decisions that count: not those of a start that was lost, or that came after the checkpoint of a resume."""
    valid: list[dict[str, Any]] = []
    for row in history:
        if row["kind"] in (BEGIN, RESUME):
            first = 0 if row["kind"] == BEGIN else row["env_frames"] + 1
            valid = [each for each in valid if each["policy"] != row["policy"] or each["env_frames"] < first]
        if row["kind"] != RESUME:
            valid.append(row)
    return valid


def schedule_of(history: Sequence[dict[str, Any]], policy: int) -> list[ScheduleStep]:
    """The options that a policy went through, with those of the policies whose weights it has.

    Args:
        history: oldest first.
        policy: whose.

    Returns:
        Steps whose frames are those that the weights have seen.
    """
    steps: list[ScheduleStep] = []
    current, until = policy, None  # frames of `current` after which its weights went another way
    for row in reversed(valid_rows(history)):
        if row["policy"] != current or (until is not None and row["env_frames"] > until):
            continue
        steps.append(ScheduleStep(row["env_frames"], row["values"]))
        if row["kind"] == REPLACE:
            # What the policy did before is lost; the source's past is its past from here on.
            at_source = row["all_env_frames"][row["source"]]
            lag = at_source - row["env_frames"]
            steps = [step._replace(env_frames=step.env_frames + lag) for step in steps]
            current, until = row["source"], at_source
    steps.reverse()
    return steps


def values_in_force(history: Sequence[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Policy -> its newest options."""
    return {row["policy"]: row["values"] for row in valid_rows(history)}


def objective_of(folder: Path) -> str:
    """The key of metrics.jsonl by which the policies were ranked."""
    try:
        options = json.loads((folder / CONFIG_FILE).read_text())["options"]
        return f"0_aux/avg_{options['pbt_target_objective']}"
    except (OSError, ValueError, KeyError) as error:
        raise PlotError(f"{folder / CONFIG_FILE} does not say what policies were ranked by ({error!r})") from error


def best_policy(folder: Path) -> tuple[int, dict[int, float]]:
    """The policy with the highest objective at the end, and the objectives of all.

    Raises:
        PlotError: there is none yet.
    """
    key = objective_of(folder)
    curves = read_curves(folder, (RETURN, key))
    last = {policy: series[key].values[-1] for policy, series in curves.items() if series[key].values}
    if not last:
        raise PlotError(f"{folder} holds no {key}")
    return max(last, key=lambda policy: (last[policy], -policy)), last


def show_table(history: Sequence[dict[str, Any]], objectives: dict[int, float], best: int) -> None:
    """Print one column per policy."""
    from rich.table import Table

    values, rows = values_in_force(history), valid_rows(history)
    policies = sorted(values)
    decided = [row for row in rows if row["kind"] != BEGIN]
    copies = [row for row in rows if row["kind"] == REPLACE]
    table = Table("", *(f"policy {policy}{' (best)' if policy == best else ''}" for policy in policies))
    table.add_row("objective", *(f"{objectives[policy]:.6g}" if policy in objectives else "-" for policy in policies))
    for what, key, of in (
        ("decisions", "policy", decided),
        ("copied", "policy", copies),
        ("was copied", "source", copies),
    ):
        table.add_row(what, *(str(sum(row[key] == policy for row in of)) for policy in policies))
    for name in dict.fromkeys(name for of_policy in values.values() for name in of_policy):
        table.add_row(name, *(f"{values[policy][name]:.4g}" if name in values[policy] else "-" for policy in policies))
    terminal().print(table)


def draw(folder: Path, history: Sequence[dict[str, Any]], wins: WinTable | None) -> Any:
    """A matplotlib figure: what the population did, then who beat whom; either may be missing."""
    from matplotlib.figure import Figure

    changed = changed_options(history)
    heights = [3 + 1.2 * (1 + len(changed))] * bool(history)
    heights += [1.2 + 0.35 * len(wins.players)] if wins is not None else []
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    parts = list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    if history:
        draw_history(folder, history, changed, parts.pop(0))
    if wins is not None:
        draw_wins(wins, parts.pop().subplots())
    return figure


def changed_options(history: Sequence[dict[str, Any]]) -> list[str]:
    """Those that some policy has had another value of than at its beginning."""
    rows = valid_rows(history)
    first = {row["policy"]: row["values"] for row in reversed(rows)}
    return sorted(
        {name for row in rows for name, value in row["values"].items() if value != first[row["policy"]].get(name)}
    )


def draw_history(folder: Path, history: Sequence[dict[str, Any]], changed: Sequence[str], figure: Any) -> None:
    """Objectives above, then a panel for each option that was changed; arrows show who copied."""
    key = objective_of(folder)
    curves, history = read_curves(folder, (RETURN, key)), valid_rows(history)
    ends = {policy: series[key].frames[-1] for policy, series in curves.items() if series[key].frames}
    first = {row["policy"]: row["values"] for row in reversed(history)}
    panels = figure.subplots(1 + len(changed), 1, sharex=True, squeeze=False)[:, 0]
    for policy, series in sorted(curves.items()):
        panels[0].plot(*series[key], color=f"C{policy % 10}", label=f"policy {policy}")
    for row in history:
        if row["kind"] == REPLACE:
            objectives, policy, source = row["objectives"], row["policy"], row["source"]
            panels[0].annotate(
                "",
                xy=(row["env_frames"], objectives[policy]),
                xytext=(row["all_env_frames"][source], objectives[source]),
                arrowprops={"arrowstyle": "->", "color": f"C{source % 10}", "alpha": 0.7},
            )
    panels[0].set_ylabel("objective")
    panels[0].set_title("arrows: from who is copied to who copies", fontsize="small", loc="right")
    panels[0].legend(fontsize="small")
    for panel, name in zip(panels[1:], changed, strict=True):
        for policy in first:
            rows = [row for row in history if row["policy"] == policy]
            values = [row["values"].get(name, float("nan")) for row in rows]
            frames = [row["env_frames"] for row in rows]
            until = max(frames[-1], ends.get(policy, 0))  # the last values are in force to the end
            panel.step([*frames, until], [*values, values[-1]], where="post", color=f"C{policy % 10}")
        had = [row["values"][name] for row in history if name in row["values"]]
        if min(had) > 0.0 and max(had) >= _WIDE * min(had):
            panel.set_yscale("log")
        panel.set_ylabel(name, fontsize="small")
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("environment frames of the policy")


def main(argv: Sequence[str]) -> int:
    """Print, draw and write what the command line asks for; the exit code."""
    try:
        chosen = _parse(argv)
        wins = read_wins(chosen.folder / SELF_PLAY)
        has_history = wins is None or chosen.replay is not None or (chosen.folder / HISTORY).is_file()
        history = read_history(chosen.folder) if has_history else []
        best = 0
        if history:
            best, objectives = best_policy(chosen.folder)
            if chosen.policy is not None and chosen.policy not in values_in_force(history):
                raise PlotError(f"there is no policy {chosen.policy}; they end at {max(values_in_force(history))}")
            show_table(history, objectives, best)
        if wins is not None:
            show_wins(wins)
        if chosen.image is not None:
            draw(chosen.folder, history, wins).savefig(chosen.image, dpi=120)
            print(chosen.image)
        if chosen.replay is not None:
            steps = schedule_of(history, best if chosen.policy is None else chosen.policy)
            if not chosen.replay.parent.is_dir():
                raise PlotError(f"there is no folder {chosen.replay.parent} for --replay")
            atomic_write_json(chosen.replay, [step._asdict() for step in steps])
            print(chosen.replay)
    except (PlotError, OSError, ValueError) as error:  # ValueError: matplotlib's, of the image's format
        print(f"population: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return EXIT_OK


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        prog="python -m appo.tools.population",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=place_of, help="of the experiment, or its name")
    parser.add_argument("image", type=Path, nargs="?", help="file to draw, such as population.png")
    parser.add_argument("--replay", type=Path, help="JSON file for the best policy's schedule of options")
    parser.add_argument("--policy", type=int, help="another one than the best, for --replay")
    chosen = parser.parse_args(argv)
    if chosen.policy is not None and chosen.replay is None:
        parser.error("--policy is for --replay")
    return chosen


if __name__ == "__main__":
    sys.exit(as_program(main))
