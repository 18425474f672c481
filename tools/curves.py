"""Curves of experiments: their points from `metrics.jsonl`, and experiments with the same options as one group.

A run that was resumed appends to its points. Those between its checkpoint and a crash are in the file twice: a point
with fewer frames than the ones before it supersedes all that lie at its frames or beyond.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from appo.algorithms.run.config import METRICS_FILE
from appo.algorithms.saved_config import NOT_RESTORED
from appo.algorithms.train_config import groups_for
from appo.tools import seeds
from appo.tools.arguments import Refused, nearest
from appo.tools.experiments import ENV, PLACE, SEED, Found, differing, text_of
from appo.utils.files import read_json_lines
from appo.utils.options import options_of

RETURN, LOWEST, HIGHEST = "0_aux/avg_reward", "0_aux/avg_reward_min", "0_aux/avg_reward_max"
FRAMES_PER_SECOND = "0_aux/_fps"
POINTS = 300  # of the grid of an environment: as many as a panel can show
LAST_HOLDS = 0.01  # share of the axis: how long a curve's last point is told in any case
X_AXES = {"frames": ("env_frames", 1.0), "hours": ("train_seconds", 3600.0)}  # -> key of metrics.jsonl, its unit
_BUDGET_OF = {"frames": "train_for_env_steps", "hours": "train_for_seconds"}
# Neither of these changes how a policy learns, but for a schedule that follows the budget.
_BUDGET = ("train_for_env_steps", "train_for_seconds")
_FOLLOWS_BUDGET = ("linear_decay",)
OF_NO_CONSEQUENCE = (
    *PLACE,
    SEED,
    *NOT_RESTORED,
    "callback",
    "check_env",
    "stop_when",
    "stop_after_no_progress",
    "experiment_summaries_interval",
    "save_every_sec",
    "keep_checkpoints",
    "save_milestones_sec",
    "save_best_metric",
    "save_best_after",
    "save_best_every_sec",
    "eval_every_sec",
    "eval_episodes",
    "eval_envs",
    "eval_most_likely",
    "eval_video_every_sec",
    "with_wandb",
    "wandb_project",
    "wandb_user",
    "wandb_group",
    "wandb_tags",
)
_DEVICE, _ANY_DEVICE = "device", "auto"
DEFAULTS = "defaults"  # label of the group for which nothing was typed in which others differ


class PlotError(Refused):
    """There is nothing to draw. The message says why."""


class Series(NamedTuple):
    """The course of one number while a policy learned."""

    frames: list[float]
    values: list[float]


Curves = dict[int, dict[str, Series]]  # policy -> key of metrics.jsonl -> points in the order of frames


class Group(NamedTuple):
    """Experiments with the same options, as one."""

    env: str
    label: str  # the options in which it differs from the other groups of its environment; empty where it is alone
    num_runs: int
    x: seeds.Array
    summary: seeds.Summary


class _Member(NamedTuple):
    """One experiment with its curves."""

    experiment: Found
    curves: dict[int, Series]  # policy -> its points over the chosen axis
    budget: float  # on this axis


def read_points(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Policy -> its points, frames ascending; none that was superseded.

    Raises:
        PlotError: the folder is not an experiment's.
    """
    path = folder / METRICS_FILE
    points: dict[int, list[dict[str, Any]]] = {}
    try:
        for record in read_json_lines(path):
            if isinstance(record, dict) and "policy" in record and "env_frames" in record:
                of_policy = points.setdefault(int(record["policy"]), [])
                while of_policy and of_policy[-1]["env_frames"] >= record["env_frames"]:
                    of_policy.pop()
                of_policy.append(record)
    except OSError as error:
        raise PlotError(
            f"{path} cannot be read ({error.strerror}); name the folder of an experiment, such as train_dir/first"
        ) from error
    return points


def read_curves(folder: Path, keys: Sequence[str] = (RETURN, LOWEST, HIGHEST, FRAMES_PER_SECOND)) -> Curves:
    """The points of some keys for every policy; lines that lack a key lack a point.

    Raises:
        PlotError: the folder is not an experiment's, or no episode has ended in it.
    """
    points = read_points(folder)
    curves = {policy: {key: series_of(of_policy, key) for key in keys} for policy, of_policy in points.items()}
    if not any(RETURN in series and series[RETURN].values for series in curves.values()):
        raise PlotError(f"{folder / METRICS_FILE} holds no return: no episode has ended there yet")
    return curves


def series_of(points: Sequence[dict[str, Any]], key: str, x: str = "env_frames", unit: float = 1.0) -> Series:
    """The course of one key over another one."""
    positions: list[float] = []
    values: list[float] = []
    for point in points:
        if point.get(key) is not None and point.get(x) is not None:
            position = float(point[x]) / unit
            # What a crash has lost may have taken longer than what was played again.
            while positions and positions[-1] >= position:
                positions.pop()
                values.pop()
            positions.append(position)
            values.append(float(point[key]))
    return Series(positions, values)


def read_groups(
    experiments: Sequence[Found], metric: str, x: str, smooth: float, *, most_envs: int | None = None
) -> list[Group]:
    """Experiments that differ only in seed, name and place as groups, environments in the order of their names.

    An experiment without points or without config.json is left out, which is told on the terminal.

    Args:
        experiments: in the order in which groups are to be listed.
        metric: key of metrics.jsonl.
        x: one of `X_AXES`.
        smooth: share of the axis over which each curve is averaged, backwards from each point.
        most_envs: how many environments there may be; None: any number.

    Raises:
        PlotError: no experiment has the metric, or there are too many environments.
    """
    members, left_out = _read_members(experiments, metric, x)
    by_env: dict[str, list[_Member]] = {}
    for member in members:
        by_env.setdefault(text_of(member.experiment.options, ENV), []).append(member)
    if most_envs is not None and len(by_env) > most_envs:
        raise PlotError(
            f"{len(by_env)} environments do not fit into {most_envs} panels; choose with --env=, in which * stands for "
            f"anything, or name fewer experiments; there are {', '.join(sorted(by_env))}"
        )
    for told in left_out:
        print(f"plot: {told}", file=sys.stderr)
    return [group for env in sorted(by_env) for group in _groups_of_env(env, by_env[env], smooth)]


def _read_members(experiments: Sequence[Found], metric: str, x: str) -> tuple[list[_Member], list[str]]:
    """Those that have the metric, and which of the others is left out why."""
    members, left_out, unknown = [], [], []
    known: set[str] = set()
    for experiment in experiments:
        try:
            points = read_points(experiment.folder)
        except PlotError as error:
            left_out.append(f"{experiment.name} is left out: {error}")
            continue
        read = {policy: series_of(of_policy, metric, *X_AXES[x]) for policy, of_policy in points.items()}
        curves = {policy: series for policy, series in read.items() if series.values}
        if not curves:
            known.update(key for of_policy in points.values() for point in of_policy for key in point if "/" in key)
            left_out.append(f"{experiment.name} is left out: it has no {metric}")
        elif experiment.problem:
            unknown.append(f"{experiment.name} is left out: {experiment.problem}")
        else:
            members.append(_Member(experiment, curves, _budget(experiment.options, x)))
    if not members and unknown:
        raise PlotError(unknown[0])
    if not members:
        told = f"a point of {metric}{nearest(metric, known)}" if known else "a point yet"
        raise PlotError(f"no experiment has {told}")
    return members, left_out + unknown


def _budget(options: dict[str, Any], x: str) -> float:
    try:
        return float(options[_BUDGET_OF[x]]) / X_AXES[x][1]
    except (KeyError, TypeError, ValueError):  # of another version, or damaged
        return math.inf


def configurations(several: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of experiments the options that decide how a policy learns: without seed, name, place and what only reports.

    The budget is among them only where a schedule follows it, the device only where different ones were named: which
    one `auto` has found is not recorded. An option that has come since an experiment was made has its default there.
    """
    named = {options.get(_DEVICE, _ANY_DEVICE) for options in several} - {_ANY_DEVICE}
    always = OF_NO_CONSEQUENCE if len(named) > 1 else (*OF_NO_CONSEQUENCE, _DEVICE)
    found = []
    for options in several:
        left_out = always if options.get("lr_schedule") in _FOLLOWS_BUDGET else always + _BUDGET
        found.append({name: value for name, value in (_defaults() | options).items() if name not in left_out})
    return found


@functools.cache
def _defaults() -> dict[str, Any]:
    """Of the options that every environment has."""
    declared = [field for room in groups_for("", "").values() for field, _ in options_of(room)]
    return {field.name: field.default for field in declared if field.default is not dataclasses.MISSING}


def _groups_of_env(env: str, members: Sequence[_Member], smooth: float) -> list[Group]:
    by_options: dict[str, tuple[dict[str, Any], list[_Member]]] = {}
    for member, options in zip(members, configurations([each.experiment.options for each in members]), strict=True):
        by_options.setdefault(json.dumps(options, sort_keys=True), (options, []))[1].append(member)
    groups = [group for _, group in by_options.values()]
    labels = _labels([options for options, _ in by_options.values()], groups)
    end = max(series.frames[-1] for member in members for series in member.curves.values())
    return [
        group_of(env, label, [member.curves for member in group], end, smooth, [member.budget for member in group])
        for label, group in zip(labels, groups, strict=True)
    ]


def _labels(options: Sequence[dict[str, Any]], groups: Sequence[Sequence[_Member]]) -> list[str]:
    """Of each group those of the options that differ which were typed for it, and more where they tell too little.

    Of a single option every group has its value.
    """
    names = differing(options)
    # What a member has not typed is what its environment chooses.
    typed = [{*names}.intersection(*(member.experiment.typed for member in group)) for group in groups]
    if len(any_typed := set().union(*typed)) == 1:
        typed = [any_typed for _ in groups]
    texts = [_text(each, names, chosen) for each, chosen in zip(options, typed, strict=True)]
    for text in {text for text in texts if texts.count(text) > 1}:
        alike = [number for number, other in enumerate(texts) if other == text]
        more = differing([options[number] for number in alike])
        for number in alike:
            texts[number] = _text(options[number], names, typed[number].union(more))
    if len(set(texts)) < len(texts):
        texts = [_text(each, names, names) for each in options]
    return [text or DEFAULTS for text in texts] if len(texts) > 1 else texts


def _text(options: dict[str, Any], names: Sequence[str], chosen: Collection[str]) -> str:
    return " ".join(f"{name}={text_of(options, name)}" for name in names if name in chosen)


def group_of(
    env: str,
    label: str,
    runs: Sequence[dict[int, Series]],
    end: float,
    smooth: float = 0.0,
    budgets: Sequence[float] = (),
) -> Group:
    """Runs that are told of as one.

    Args:
        env: their environment.
        label: the options in which they differ from other groups of it.
        runs: of each, policy -> its curve.
        end: of the axis, which begins at 0.
        smooth: share of the axis over which each curve is averaged, backwards from each point.
        budgets: of the runs, on this axis; empty: none had any.
    """
    grid = np.linspace(0.0, end, POINTS + 1)[1:]
    curves = [(number, policy, series) for number, run in enumerate(runs) for policy, series in run.items()]
    several = [series for _, _, series in curves]
    limits = np.array([budgets[number] if budgets else math.inf for number, _, _ in curves])
    values = seeds.align(several, grid, last_holds=_last_holds(several, limits, LAST_HOLDS * end))
    numbers, policies = (np.array([curve[place] for curve in curves]) for place in (0, 1))
    means = seeds.running_mean(values, max(1, round(smooth * POINTS)))
    return Group(env, label, len(runs), grid, seeds.summarize(means, numbers, policies))


def _last_holds(curves: Sequence[Series], budgets: seeds.Array, least: float) -> seeds.Array:
    """How far beyond its position the last point of each curve is told.

    Runs overshoot a budget by an iteration, more or less. Those that have spent the same one end with the last of them:
    without the others, the group would fall back to that one's older point.
    """
    ends = np.array([series.frames[-1] for series in curves])
    holds = np.full(len(curves), least)
    for budget in np.unique(budgets[ends >= budgets]):
        same = (budgets == budget) & (ends >= budgets)
        holds[same] = least + ends[same].max() - ends[same]
    return holds
