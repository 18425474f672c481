"""The best policies for the suite's own environments, by task. They see what an agent sees, and remember by themselves.

Each function is called for one episode with the action space, and returns observation -> action.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.learning.unseen.choices import ARMS, ThreeDials, preference
from benchmarks.learning.unseen.control import EndlessBalance, Follow
from benchmarks.learning.unseen.images import BLUE, GREEN, MOVES, RED, FallingWalls, FindColour, Gather, LargeScreen
from benchmarks.learning.unseen.recall import SYMBOLS, TMaze

Act = Callable[[Any], Any]


def contextual_bandit(space) -> Act:
    return lambda context: max(range(ARMS), key=lambda arm: preference(context, arm))


def masked_bandit(space) -> Act:
    def act(seen):
        allowed = np.flatnonzero(seen["action_mask"]).tolist()
        return max(allowed, key=lambda arm: preference(seen["context"], arm))

    return act


def three_dials(space) -> Act:
    return lambda numbers: (numbers + np.roll(numbers, -1)) % ThreeDials.sizes


def tool_and_aim(space) -> Act:
    return lambda seen: (int(seen[:3].argmax()), seen[3:])


def recall_cue(space) -> Act:
    cue: list[int] = []

    def act(seen):
        if seen[SYMBOLS]:
            cue.append(int(seen[:SYMBOLS].argmax()))
        return cue[0]

    return act


def repeat_sequence(space) -> Act:
    shown: list[int] = []

    def act(seen):
        if seen[SYMBOLS]:
            shown.append(int(seen[:SYMBOLS].argmax()))
            return 0
        return shown.pop(0)

    return act


def count_flashes(space) -> Act:
    sides = np.zeros(3)

    def act(seen):
        sides[:] += seen
        return int(sides[1] > sides[0])

    return act


def t_maze(space) -> Act:
    goal: list[int] = []

    def act(seen):
        if not goal:
            goal.append(int(seen[:2].argmax()))
        return 2 + goal[0] if seen[TMaze.sees_junction] else 0

    return act


def late_payment(space) -> Act:
    return lambda seen: int(seen[:4].argmax())


def near_or_far(space) -> Act:
    return lambda place: 1


def far_goal(space) -> Act:
    def act(seen):
        row, column = seen[2:] - seen[:2]
        if abs(row) > 0.01:
            return 0 if row > 0 else 1
        return 2 if column > 0 else 3

    return act


def follow(space) -> Act:
    def act(seen):
        place, target = np.split(seen, 2)
        step = np.clip((target - place) / Follow.speed, -1.0, 1.0)
        return (space.low + space.high) / 2 + step * (space.high - space.low) / 2

    return act


def regulator(space) -> Act:
    return lambda state: -1.531 * state


def endless_balance(space) -> Act:
    def act(seen):
        wanted = -EndlessBalance.growth * seen[0] / EndlessBalance.push
        return 1 + int(np.clip(np.round(wanted), -1, 1))

    return act


def catch_drifting(space) -> Act:
    def act(image):
        paddle = int(np.flatnonzero(image[-1, :, 0])[1])
        ball = int(image[:-1, :, 0].sum(axis=0).argmax())
        return 1 + int(np.sign(ball - paddle))

    return act


def cell_of(image, colour, size):
    """Where a square of a colour is, in cells."""
    rows, columns = np.nonzero(image[:, :, colour])
    return int(rows[0]) // size, int(columns[0]) // size


def gather(space) -> Act:
    def act(image):
        place, food = cell_of(image, BLUE, Gather.cell), cell_of(image, GREEN, Gather.cell)
        wanted = (int(np.sign(food[0] - place[0])), 0) if food[0] != place[0] else (0, int(np.sign(food[1] - place[1])))
        return MOVES.index(wanted)

    return act


def falling_walls(space) -> Act:
    def act(image):
        seen = image[:: FallingWalls.cell, :: FallingWalls.cell, 0]
        place = int(np.flatnonzero(seen[-1])[0])
        walls = np.flatnonzero(seen[:-1].any(axis=1))
        gap = int(np.flatnonzero(seen[walls[-1]] == 0)[0]) if len(walls) else place
        return 1 + int(np.sign(gap - place))

    return act


def large_screen(space) -> Act:
    def act(image):
        place, green, red = (cell_of(image, colour, LargeScreen.cell) for colour in (BLUE, GREEN, RED))
        distance = {green: 0}
        border = [green]
        while border:
            row, column = border.pop(0)
            for down, right in MOVES:
                cell = (row + down, column + right)
                inside = 0 <= cell[0] < LargeScreen.size[0] and 0 <= cell[1] < LargeScreen.size[1]
                if inside and cell != red and cell not in distance:
                    distance[cell] = distance[row, column] + 1
                    border.append(cell)
        return min(range(4), key=lambda i: distance.get((place[0] + MOVES[i][0], place[1] + MOVES[i][1]), 1000))

    return act


def find_colour(space) -> Act:
    def act(seen):
        quarters = seen["image"][:: FindColour.half, :: FindColour.half].reshape(4, 3)
        asked = FindColour.colours[int(seen["asked"].argmax())]
        return int((quarters == asked).all(axis=1).argmax())

    return act


def leave_early(space) -> Act:
    return lambda seen: 1 + int(np.sign(seen[1] - seen[0]))


BEST_POLICIES: dict[str, Callable[[Any], Act]] = {
    "contextual_bandit": contextual_bandit,
    "masked_bandit": masked_bandit,
    "three_dials": three_dials,
    "tool_and_aim": tool_and_aim,
    "recall_cue": recall_cue,
    "repeat_sequence": repeat_sequence,
    "count_flashes": count_flashes,
    "t_maze": t_maze,
    "late_payment": late_payment,
    "near_or_far": near_or_far,
    "far_goal": far_goal,
    "tiny_rewards": follow,
    "huge_rewards": follow,
    "tight_bounds": follow,
    "six_joints": follow,
    "unbounded": regulator,
    "unbounded_six": regulator,
    "endless_balance": endless_balance,
    "catch_drifting": catch_drifting,
    "gather": gather,
    "falling_walls": falling_walls,
    "large_screen": large_screen,
    "find_colour": find_colour,
    "leave_early": leave_early,
}
