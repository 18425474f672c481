"""Names of metrics that a run never has: told once, with the nearest that it has, since they may be misspelt."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection

LOOKS_BEFORE_WARNING = 20

log = logging.getLogger(__name__)


class AbsenceWatch:
    """Whether one name is ever among those that a run has."""

    def __init__(self, name: str, told: str) -> None:
        """Waits for it.

        Args:
            name: that is waited for.
            told: how the warning begins.
        """
        self._name, self._told = name, told
        self._known: Collection[str] = ()
        self._num_looks, self._is_over = 0, False

    def look(self, known: Collection[str], *, is_enough: bool = False) -> None:
        """The names that there are now; warns when the name was missing often enough.

        Args:
            known: empty where nothing can be told yet, which does not count.
            is_enough: what they come from is all that a look can wait for.
        """
        if self._is_over or not known:
            return
        self._known = known
        self._num_looks += 1
        if self._name in known:
            self._is_over = True
        elif is_enough or self._num_looks == LOOKS_BEFORE_WARNING:
            self.tell()

    def tell(self) -> None:
        """Warn now, if there were names, it was never among them, and no warning has said so."""
        if self._is_over or not self._known:
            return
        self._is_over = True
        nearest = difflib.get_close_matches(self._name, self._known, n=3, cutoff=0.4) or sorted(self._known)[:6]
        log.warning("%s; there are %s; docs/metrics.md lists all", self._told, ", ".join(nearest))
