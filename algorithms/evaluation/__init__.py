"""Scoring and watching trained policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from appo.algorithms.evaluation.policy import LoadedPolicy


def load_policy(*args: Any, **kwargs: Any) -> LoadedPolicy:
    """See `appo.algorithms.evaluation.policy.load_policy`; torch is imported when it is called."""
    from appo.algorithms.evaluation.policy import load_policy as load

    return load(*args, **kwargs)
