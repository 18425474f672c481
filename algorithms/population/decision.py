"""One decision of population-based training: keep a policy, mutate its options, or replace it by a better one.

Pure: objectives and random numbers go in, a decision comes out. Ranking: Jaderberg et al., 2017, arXiv:1711.09846,
"truncation selection"; the gap that a better policy has to have is Sample Factory's, made safe for objectives that are
negative or have any other zero: it is counted in standard deviations of the population.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from appo.algorithms.population.mutation import Mutation, TunedOption, mutated

KEEP, MUTATE, REPLACE = "keep", "mutate", "replace"


class Gap(NamedTuple):
    """By how much another policy has to be better before it is copied; each of these."""

    absolute: float
    deviations: float  # standard deviations of the population's objectives
    relative: float  # share of the worse one's absolute objective

    def is_passed(self, worse: float, better: float, deviation: float) -> bool:
        """Whether the better one is so by enough."""
        return better - worse > max(self.absolute, self.deviations * deviation, self.relative * abs(worse))


class Rules(NamedTuple):
    """How a population decides."""

    fraction: float  # that counts as the best, and as the worst
    gap: Gap
    mutation: Mutation
    keeps_first: bool  # policy 0's options are never changed


class Decision(NamedTuple):
    """What becomes of one policy."""

    kind: str  # KEEP, MUTATE or REPLACE
    source: int  # whose weights it has from now on; its own unless it is replaced
    values: dict[str, float]  # of the tuned options, from now on
    reason: str  # in words


def decide(
    policy: int,
    objectives: Sequence[float],
    values: Sequence[Mapping[str, float]],
    options: Sequence[TunedOption],
    rules: Rules,
    rng: np.random.Generator,
) -> Decision:
    """What becomes of a policy whose turn has come.

    Args:
        policy: whose turn it is.
        objectives: of every policy; finite.
        values: of the tuned options, of every policy.
        options: which may change.
        rules: how it is decided.
        rng: for this decision.
    """
    own = dict(values[policy])
    # Where two are equal the lower number is the better one, so that the best are never also the worst.
    ranking = sorted(range(len(objectives)), key=lambda each: (-objectives[each], each))
    count = min(math.ceil(rules.fraction * len(ranking)), len(ranking) // 2)
    rank = ranking.index(policy)
    if rank < count:
        return Decision(KEEP, policy, own, f"among the best {count}")
    source = policy
    reason = "neither among the best nor the worst"
    if rank >= len(ranking) - count:
        candidate = int(rng.choice(ranking[:count]))
        deviation = statistics.pstdev(objectives)
        told = f"policy {candidate} has {objectives[candidate]:.6g}, policy {policy} {objectives[policy]:.6g}"
        if rules.gap.is_passed(objectives[policy], objectives[candidate], deviation):
            source, reason = candidate, told
        else:
            reason = f"{told}: too close"
    changed = own
    if not (rules.keeps_first and policy == 0):
        changed = mutated(values[source], options, rules.mutation, rng)
    kind = REPLACE if source != policy else MUTATE if changed != own else KEEP
    return Decision(kind, source, changed, reason)
