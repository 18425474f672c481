"""Numbers of a run as people read them: short, and of a width that hardly changes."""

from __future__ import annotations

import math
from datetime import timedelta

EARLIER = " (earlier)"  # behind a return whose episodes all ended before this start
_LONGEST_LEFT_S = 30 * 86400


def in_short(count: float) -> str:
    """A count or a rate: 999, 1.23k, 4.56M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.2f}{suffix}"
    return f"{count:.0f}"


def in_digits(value: float | None) -> str:
    """Any number in about four digits; a dash for none."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if not size:
        return "0"
    if not 1e-3 <= size < 1e6:
        return f"{value:.2e}"
    decimals = next((places for least, places in ((1000, 0), (100, 1), (1, 2)) if size >= least), 4)
    return f"{value:.{decimals}f}"


def time_left(seconds: float | None) -> str:
    """Hours, minutes and seconds until the budget is spent; empty where no end is in sight."""
    return "" if seconds is None or seconds > _LONGEST_LEFT_S else str(timedelta(seconds=round(seconds)))
