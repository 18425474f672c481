"""The table of tasks that no default was made for: names, what random play earns, good scores, budgets of frames.

Families give the tasks what they give to any task that they do not name; the exceptions are MountainCarContinuous,
whose actions are numbers, and the two tasks of MiniGrid that need memory. A hash of the name puts each task into one of
two halves: the development set, which may be looked at while defaults are made, and the report set, which is run to
report and for nothing else.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
from typing import Literal, NamedTuple

DEVELOPMENT, REPORT, ALL = "development", "report", "all"
HALVES = (DEVELOPMENT, REPORT, ALL)
OURS = "benchmarks.learning.unseen"
REQUIREMENTS = "benchmarks/learning/unseen/requirements.txt"

Peer = Literal["ppo", "maskable", "recurrent", "none"]


class UnseenTask(NamedTuple):
    """One row of the table."""

    env: str
    random: float  # mean return of uniformly drawn allowed actions, as `--measure_random` measures it
    good: float  # the mean return of 100 episodes that shows that the task was learned
    frames: int  # within which
    peer: Peer = "ppo"  # which algorithm of Stable-Baselines3 the task needs; none: it has no space for this one
    package: str = ""  # what has to be importable besides requirements.txt


# Where no comment says otherwise, the good score is nine tenths of the way from random play to the optimum, which the
# docstring of the environment tells.
UNSEEN = {
    # Registered threshold; the best policy earns 0.74 within the 100 steps.
    "frozen_lake": UnseenTask("FrozenLake-v1", 0.014, 0.7, 300_000),
    # Nine tenths of 0.886, which the best policy earns within the 200 steps.
    "frozen_lake_8x8": UnseenTask("FrozenLake8x8-v1", 0.002, 0.8, 1_000_000),
    # The shortest way costs 13, the one farthest from the cliff 17: room for a fall in 30 episodes.
    "cliff_walking": UnseenTask("CliffWalking-v1", -65400.0, -20.0, 500_000),
    # The registered threshold, 8, is above the mean of the best policy, 7.9.
    "taxi": UnseenTask("Taxi-v4", -188.0, 7.0, 1_000_000, "maskable"),
    # The best policy earns -0.05; the mean of 100 hands has a standard error of 0.1.
    "blackjack": UnseenTask(f"{OURS}.others:make_blackjack", -0.39, -0.05, 500_000),
    # Registered thresholds.
    "mountain_car": UnseenTask("MountainCar-v0", -200.0, -110.0, 1_000_000),
    "mountain_car_continuous": UnseenTask("MountainCarContinuous-v0", -33.0, 90.0, 1_000_000),
    "contextual_bandit": UnseenTask(f"{OURS}.choices:ContextualBandit", 6.4, 26.5, 200_000),
    "masked_bandit": UnseenTask(f"{OURS}.choices:MaskedBandit", 11.56, 30.0, 500_000, "maskable"),
    "three_dials": UnseenTask(f"{OURS}.choices:ThreeDials", 2.88, 29.0, 500_000),
    # With less than a tenth of the width of the plane off the target.
    "tool_and_aim": UnseenTask(f"{OURS}.choices:ToolAndAim", 1.13, 13.5, 500_000, "none"),
    "recall_cue": UnseenTask(f"{OURS}.recall:RecallCue", 0.25, 0.92, 500_000, "recurrent"),
    "repeat_sequence": UnseenTask(f"{OURS}.recall:RepeatSequence", 1.5, 5.5, 1_000_000, "recurrent"),
    "count_flashes": UnseenTask(f"{OURS}.recall:CountFlashes", 0.5, 0.95, 1_000_000, "recurrent"),
    "t_maze": UnseenTask(f"{OURS}.recall:TMaze", 0.053, 0.9, 1_000_000, "recurrent"),
    "late_payment": UnseenTask(f"{OURS}.horizon:LatePayment", 0.25, 0.92, 1_000_000),
    "near_or_far": UnseenTask(f"{OURS}.horizon:NearOrFar", 0.27, 0.93, 300_000),
    "far_goal": UnseenTask(f"{OURS}.horizon:FarGoal", 0.045, 0.9, 1_000_000),
    "tiny_rewards": UnseenTask(f"{OURS}.control:make_tiny_rewards", -0.0268, -0.0054, 300_000),
    "huge_rewards": UnseenTask(f"{OURS}.control:make_huge_rewards", -26800.0, -5400.0, 300_000),
    "tight_bounds": UnseenTask(f"{OURS}.control:make_tight_bounds", -26.8, -5.4, 300_000),
    "six_joints": UnseenTask(f"{OURS}.control:make_six_joints", -26.8, -5.4, 500_000),
    # Twice the cost of the best policy: nine tenths of the way would allow four times.
    "unbounded": UnseenTask(f"{OURS}.control:make_unbounded", -133.0, -8.6, 500_000, "none"),
    "unbounded_six": UnseenTask(f"{OURS}.control:make_unbounded_six", -133.0, -8.6, 1_000_000, "none"),
    "endless_balance": UnseenTask(f"{OURS}.control:EndlessBalance", 3.0, 89.0, 300_000),
    "catch_drifting": UnseenTask(f"{OURS}.images:CatchDrifting", -0.62, 0.85, 300_000),
    "gather": UnseenTask(f"{OURS}.images:Gather", 0.19, 6.6, 1_000_000),
    "falling_walls": UnseenTask(f"{OURS}.images:FallingWalls", 0.16, 21.6, 1_000_000),
    "large_screen": UnseenTask(f"{OURS}.images:LargeScreen", 0.0, 0.9, 1_000_000),
    "find_colour": UnseenTask(f"{OURS}.images:FindColour", 4.0, 14.8, 500_000),
    "leave_early": UnseenTask(f"{OURS}.several:LeaveEarly", -0.51, 0.71, 300_000, "none", "pettingzoo"),
    # What a trained agent does: it stays near the target, swims on, hops on. CleanRL's published agents swim 78 and 98.
    "reacher": UnseenTask("Reacher-v5", -43.0, -7.0, 1_000_000, package="mujoco"),
    "swimmer": UnseenTask("Swimmer-v5", 1.1, 100.0, 1_000_000, package="mujoco"),
    "hopper": UnseenTask("Hopper-v5", 18.0, 2000.0, 1_000_000, package="mujoco"),
    # A policy without memory of the object turns right in every other episode: at most 0.5.
    "minigrid_memory": UnseenTask("MiniGrid-MemoryS7-v0", 0.19, 0.9, 2_000_000, "recurrent", "minigrid"),
    # A walk of half of the 100 steps: from a random place the shortest takes about 20, but the goal has to be found.
    "minigrid_four_rooms": UnseenTask("MiniGrid-FourRooms-v0", 0.016, 0.5, 2_000_000, "recurrent", "minigrid"),
    # The shortest walk earns about 0.95.
    "minigrid_lava_crossing": UnseenTask("MiniGrid-LavaCrossingS9N1-v0", 0.004, 0.85, 2_000_000, package="minigrid"),
    # Eight tenths of the 288 of the tuned agent in SB3's zoo, which had 5 million frames.
    "bipedal_walker": UnseenTask("BipedalWalker-v3", -100.0, 230.0, 2_000_000, package="Box2D"),
    # Five bricks of the 30, and one invader more than the first wave of 24.
    "minatar_breakout": UnseenTask(f"{OURS}.others:make_minatar_breakout", 0.41, 5.0, 2_000_000, package="minatar"),
    "minatar_space_invaders": UnseenTask(
        f"{OURS}.others:make_minatar_space_invaders", 4.1, 25.0, 2_000_000, package="minatar"
    ),
    # An episode is scored from -1 to 1.
    "popgym_repeat_previous": UnseenTask(
        f"{OURS}.others:make_popgym_repeat_previous", -0.5, 0.85, 1_000_000, "recurrent", "popgym"
    ),
    # A deck of 52 cards, higher or lower: a policy that looks at the present card alone earns about 0.5.
    "popgym_higher_lower": UnseenTask(
        f"{OURS}.others:make_popgym_higher_lower", 0.0, 0.45, 500_000, "recurrent", "popgym"
    ),
}


def half_of(name: str) -> str:
    """The half of a task, from its name alone."""
    return REPORT if hashlib.sha256(name.encode()).digest()[0] % 2 else DEVELOPMENT


def names_of(half: str) -> list[str]:
    """The tasks of a half, or of both."""
    return [name for name in UNSEEN if half in (ALL, half_of(name))]


def choose(tasks: str, half: str) -> list[str]:
    """The tasks of a command: of the half, all or those named, separated by commas.

    Raises:
        ValueError: a name is unknown, or belongs to the other half.
    """
    names = names_of(half)
    if tasks == "all":
        return names
    chosen = list(dict.fromkeys(tasks.split(",")))
    if unknown := [name for name in chosen if name not in UNSEEN]:
        close = [f"{each} ({half_of(each)} half)" for each in difflib.get_close_matches(unknown[0], UNSEEN, n=2)]
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"unknown tasks {', '.join(unknown) or '(empty)'}; there are {', '.join(names)}{hint}")
    if others := [name for name in chosen if name not in names]:
        other = half_of(others[0])
        raise ValueError(f"--half={half} does not hold {', '.join(others)}; --half={other} or --half=all does")
    return chosen


def require_packages(names: list[str]) -> None:
    """See to it that what the tasks need is installed.

    Raises:
        ValueError: a package is missing; says which, for which tasks, and how to install it.
    """
    needs: dict[str, list[str]] = {}
    for name in names:
        package = UNSEEN[name].package
        if package and importlib.util.find_spec(package) is None:
            needs.setdefault(package, []).append(name)
    if needs:
        missing = "; ".join(f"{package} is not installed, for {', '.join(of)}" for package, of in needs.items())
        raise ValueError(f"{missing}: pip install -r {REQUIREMENTS}, or leave them out with --tasks")
