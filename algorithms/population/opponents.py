"""Opponents for self-play: which past selves a pool keeps, and how often each is met. Pure functions.

Source of the sampling: Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning",
2019, doi:10.1038/s41586-019-1724-z, Methods, prioritized fictitious self-play: an opponent B of A is drawn with
probability f(P[A beats B]) / sum over C of f(P[A beats C]), where f_hard(x) = (1 - x)^2 and f_var(x) = x (1 - x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# The weight of a match halves with every 100 that follow: opponents stay as they are, the policy does not.
_DECAY = 0.5 ** (1 / 100)
# Before the first match, as after so many that were drawn.
_PRIOR_MATCHES = 2.0
# Of a probability, in proportion to that of the most probable: an opponent that is always beaten is still met now and
# then, or nobody would notice that it is beaten no more.
_LEAST = 0.05


class PastSelf(NamedTuple):
    """A policy as it was."""

    number: int  # unique in a run, from 1
    policy: int
    train_step: int
    env_frames: int
    frozen: int  # the frozen policy that it plays as

    @property
    def steps(self) -> tuple[int, int]:
        """Train step and frames, which name its file."""
        return self.train_step, self.env_frames

    @property
    def name(self) -> str:
        """As tables and files show it."""
        return f"policy_{self.policy}@{self.env_frames}"


class RecentScore(NamedTuple):
    """How a policy has done against one opponent, newer matches counting more."""

    score: float = 0.0  # a win is 1, a draw 0.5
    matches: float = 0.0

    def with_match(self, score: float) -> RecentScore:
        """After one more."""
        return RecentScore(self.score * _DECAY + score, self.matches * _DECAY + 1.0)

    @property
    def win_rate(self) -> float:
        """Expected score of a match."""
        return (self.score + 0.5 * _PRIOR_MATCHES) / (self.matches + _PRIOR_MATCHES)


def win_rate(by_seat: Mapping[int, RecentScore]) -> float:
    """Expected score of a match in a random seat, by what was seen in each; 0.5 where nothing was.

    One draw leads to hundreds of matches in the same seat, so the seats would count by chance.
    """
    return sum(score.win_rate for score in by_seat.values()) / len(by_seat) if by_seat else 0.5


def sampling_weights(win_rates: Sequence[float], how: str) -> list[float]:
    """How often to meet each opponent, summing to 1; empty for none.

    Args:
        win_rates: expected score of the policy against each.
        how: "uniform", "pfsp_hard" or "pfsp_var".
    """
    weigh = {
        "uniform": lambda rate: 1.0,
        "pfsp_hard": lambda rate: (1.0 - rate) ** 2,
        "pfsp_var": lambda rate: rate * (1.0 - rate),
    }[how]
    weights = [weigh(rate) for rate in win_rates]
    least = _LEAST * max(weights, default=0.0)
    raised = [max(weight, least) for weight in weights]
    total = sum(raised)
    return [weight / total if total else 1.0 / len(raised) for weight in raised]


def superfluous(pool: Sequence[PastSelf], size: int) -> PastSelf | None:
    """Which one a pool of `size` has to give up; None: there is room.

    The first and the newest stay. Of the others it is the one whose neighbours are closest to each other in frames, so
    that those who stay are spread over the whole run.
    """
    if len(pool) <= size:
        return None
    by_age = sorted(pool, key=lambda each: (each.env_frames, each.number))
    if len(by_age) < 3:
        return by_age[0]
    gaps = [by_age[i + 1].env_frames - by_age[i - 1].env_frames for i in range(1, len(by_age) - 1)]
    return by_age[1 + min(range(len(gaps)), key=lambda i: gaps[i])]
