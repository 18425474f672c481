"""What a view of a run shows: the newest snapshot, the newest point of each policy, and a short history of returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from appo.algorithms.reporting.snapshot import Point, RunSnapshot

_MOST_POINTS = 256
RETURN = "0_aux/avg_reward"


class ViewState(NamedTuple):
    """All that a frame is drawn from."""

    title: str
    snapshot: RunSnapshot
    scalars: tuple[Mapping[str, float], ...]  # per policy the tags of its newest point, empty before the first
    returns: tuple[tuple[float, ...], ...]  # per policy over the whole run, oldest first
    silent_s: float = 0.0  # since the run was heard of, where it should have told more


class ViewHistory:
    """Collects points, and makes states of them."""

    def __init__(self, title: str) -> None:
        """`title`: what the run is called."""
        self._title = " ".join(title.split())
        self._scalars: dict[int, dict[str, float]] = {}
        self._returns: dict[int, Course] = {}

    def add(self, point: Point) -> None:
        """Take a point in."""
        self._scalars[point.policy] = point.scalars
        if RETURN in point.scalars:
            self._returns.setdefault(point.policy, Course()).add(point.scalars[RETURN])

    def state(self, snapshot: RunSnapshot, silent_s: float = 0.0) -> ViewState:
        """What there is to show now."""
        policies = range(len(snapshot.policies))
        courses = (self._returns.get(policy) for policy in policies)
        return ViewState(
            self._title,
            snapshot,
            tuple(self._scalars.get(policy, {}) for policy in policies),
            tuple(() if course is None else course.values() for course in courses),
            silent_s,
        )


class Course:
    """The course of a number from its beginning, in a bounded number of means over equally many values."""

    def __init__(self, most: int = _MOST_POINTS) -> None:
        """`most`: even number of means that are kept."""
        self._most = most
        self._means: list[float] = []
        self._each = 1  # values that a mean covers
        self._sum, self._added = 0.0, 0  # of those that are no mean yet

    def add(self, value: float) -> None:
        """Take a value in."""
        self._sum, self._added = self._sum + value, self._added + 1
        if self._added < self._each:
            return
        self._means.append(self._sum / self._added)
        self._sum, self._added = 0.0, 0
        if len(self._means) == self._most:
            self._means = [(a + b) / 2 for a, b in zip(self._means[::2], self._means[1::2], strict=True)]
            self._each *= 2

    def values(self) -> tuple[float, ...]:
        """The means, oldest first, the last one over what there is."""
        begun = (self._sum / self._added,) if self._added else ()
        return (*self._means, *begun)
