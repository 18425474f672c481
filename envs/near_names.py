"""Which names are close to an unknown one, and which ids of Gymnasium's can be made at all.

Nothing here imports a simulator: entries of Gymnasium's registry tell their versions and what they are built by.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

_CLOSE = 0.5  # the share of two names that difflib has to find equal
_CLOSE_GAME = 0.8
_MOST = 3  # names of one answer
_VERSION = re.compile(r"[-_]v(\d+)$")
# Ids of gym, which SB3, CleanRL and many papers use: BreakoutNoFrameskip-v4, Pong-ram-v0. Game names have no digits.
_ATARI_ID = re.compile(r"([A-Za-z]+?)((?:-ram)?(?:NoFrameskip|Deterministic)?)(-v\d+)?")
_ATARI = "atari_"


def near(name: str, known: Iterable[str]) -> list[str]:
    """The closest of the known names, the best first; of each the newest version, or the one that is asked for."""
    by_lower_case = {candidate.lower(): candidate for candidate in sorted(known, key=_version)}
    newest = {_VERSION.sub("", lower): candidate for lower, candidate in by_lower_case.items()}
    wanted = _VERSION.sub("", name.lower())
    if name.lower() in by_lower_case:
        newest[wanted] = by_lower_case[name.lower()]
    if wanted in newest:  # only the version or the case differs
        return [newest[wanted]]
    games = _atari_names(name, [each for each in by_lower_case.values() if each.startswith(_ATARI)])
    if games:
        return games
    close = [newest[match] for match in difflib.get_close_matches(wanted, newest, n=_MOST, cutoff=_CLOSE)]
    if not close and (word := name.lower().partition("_")[2]):  # the family is right, the rest a part of a name
        close = [by_lower_case[known_name] for known_name in sorted(by_lower_case) if word in known_name]
    return close[:_MOST]


def _version(name: str) -> int:
    found = _VERSION.search(name)
    return int(found[1]) if found else -1


def _atari_names(name: str, known: list[str]) -> list[str]:
    """What an id of gym's Atari games is here; none if it is no such id."""
    found = _ATARI_ID.fullmatch(name)
    if not known or found is None:
        return []
    written, marks, _ = found.groups()
    games = {each.removeprefix(_ATARI).replace("_", ""): each.removeprefix(_ATARI) for each in known}
    game = games.get(written.lower())
    if game is None and marks:  # Atari for sure: the nearest, or a game that is not among those known
        close = difflib.get_close_matches(written.lower(), games, n=1, cutoff=_CLOSE_GAME)
        game = games[close[0]] if close else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", written).lower()
    return [] if game is None else [_ATARI + game, f"ALE/{game.title().replace('_', '')}-v5"]


def known_ids() -> list[str]:
    """Ids that Gymnasium knows, as they should be typed: without those that only raise, and gym's old ones of Atari."""
    import gymnasium

    return [
        name
        for name, spec in gymnasium.registry.items()
        if not _only_raises(spec) and not (spec.namespace is None and str(spec.entry_point).startswith("ale_py."))
    ]


def why_not_made(name: str) -> str | None:
    """Why an id that is registered cannot be made, and what can be; None: it can, as far as its entry tells."""
    import gymnasium

    spec = gymnasium.registry[name]
    if not _only_raises(spec):
        return None
    versions = [
        each.id
        for each in gymnasium.registry.values()
        if (each.namespace, each.name) == (spec.namespace, spec.name) and not _only_raises(each)
    ]
    if versions:
        return f"Gymnasium no longer has this version; type --env={max(versions, key=_version)}"
    try:
        spec.entry_point()  # type: ignore[operator, misc]
    except Exception as error:
        return " ".join(str(error).split())
    return None


def _only_raises(spec: Any) -> bool:
    """A placeholder: environments have moved to another package, and its entry point raises an error that names it."""
    entry = spec.entry_point
    is_own = getattr(entry, "__module__", "").partition(".")[0] == "gymnasium"
    return is_own and getattr(entry, "__name__", "").startswith("_raise_")
