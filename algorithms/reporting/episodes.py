"""The last episodes of each policy, and what is averaged over them."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from appo.algorithms.messages import EpisodeFinished

# Tags of our own: an environment's statistic of such a name is shown under another.
OWN_STATISTICS = ("reward", "true_reward", "len")
RESERVED_STATISTICS = frozenset(name + end for name in OWN_STATISTICS for end in ("", "_min", "_max"))


class EpisodeWindow:
    """The last episodes of one policy."""

    def __init__(self, size: int) -> None:
        """Remembers `size` episodes."""
        self._size = size
        self.reports_true_reward = False  # some episodes have an objective of their own: the others have none
        self.returns: deque[float] = deque(maxlen=size)
        self.true_returns: deque[float] = deque(maxlen=size)  # of episodes that reported one
        self.lengths: deque[float] = deque(maxlen=size)
        self.extra: dict[str, deque[float]] = {}
        self.finished = 0  # over all runs
        self._finished_before = 0  # by earlier starts
        self._left_out = 0  # of the next episodes

    def add(self, episode: EpisodeFinished) -> None:
        """Take one episode in."""
        self.finished += 1
        if self._left_out:
            self._left_out -= 1
            return
        self.returns.append(episode.episode_return)
        if not math.isnan(episode.true_return):
            self.reports_true_reward = True
            self.true_returns.append(episode.true_return)
        self.lengths.append(episode.length_frames)
        for name, value in episode.extra.items():
            if name not in self.extra:
                self.extra[name] = deque(maxlen=self._size)
            self.extra[name].append(value)

    @property
    def finished_since_start(self) -> int:
        """Episodes that have finished since this start."""
        return self.finished - self._finished_before

    def full_average(self, metric: str) -> float | None:
        """An average over as many episodes as it is meant to cover; None: fewer episodes had this metric so far."""
        values = self._named().get(metric, ())
        return float(np.mean(values)) if len(values) == self._size else None

    def average(self, metric: str, least: int) -> float | None:
        """An average over what there is; None: over fewer than `least` episodes."""
        values = self._named().get(metric, ())
        return float(np.mean(values)) if len(values) >= min(least, self._size) else None

    def known(self) -> list[str]:
        """What episodes have told so far, by name."""
        return [name for name, values in self._named().items() if values]

    def forget(self, under_way: int = 0) -> None:
        """The policy is another one from now on: its episodes tell nothing of it, nor do so many that are under way."""
        self._left_out = under_way
        for values in (self.returns, self.true_returns, self.lengths, *self.extra.values()):
            values.clear()

    def _named(self) -> dict[str, deque[float]]:
        """Everything that is averaged, by the name of its tag; no statistic of an environment takes a name of ours."""
        named = {"reward": self.returns, "true_reward": self.objectives, "len": self.lengths}
        return named | {f"extra_{n}" if n in RESERVED_STATISTICS else n: values for n, values in self.extra.items()}

    @property
    def objectives(self) -> deque[float]:
        """What policies are ranked by: the returns where no episode has reported anything else."""
        return self.true_returns if self.reports_true_reward else self.returns

    def scalars(self) -> dict[str, float]:
        """The `0_aux/` tags of episodes; none before the first episode."""
        tags = {}
        for name, values in self._named().items():
            if values:
                tags[f"0_aux/avg_{name}"] = float(np.mean(values))
                if name in OWN_STATISTICS:
                    tags[f"0_aux/avg_{name}_min"] = float(min(values))
                    tags[f"0_aux/avg_{name}_max"] = float(max(values))
        return tags

    def state(self) -> dict[str, Any]:
        """Plain lists, for a checkpoint."""
        return {
            "finished": self.finished,
            "returns": list(self.returns),
            "true_returns": list(self.true_returns),
            "reports_true_reward": self.reports_true_reward,
            "lengths": list(self.lengths),
            "extra": {name: list(values) for name, values in self.extra.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.finished = self._finished_before = int(state["finished"])
        self.returns.extend(state["returns"])
        self.true_returns.extend(state["true_returns"])
        # Without the flag, returns were kept as true returns where an environment reported none.
        default = state["true_returns"] != state["returns"]
        self.reports_true_reward |= bool(state.get("reports_true_reward", default))
        self.lengths.extend(state["lengths"])
        for name, values in state["extra"].items():
            self.extra.setdefault(name, deque(maxlen=self._size)).extend(values)
