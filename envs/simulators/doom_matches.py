"""The matches of several Doom players: who takes part, on which map, and what each player can do and is told.

Nothing here needs ViZDoom. `MatchPlan` is what `doom_match` hands to the process that plays a match.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from appo.envs.simulators.doom_scenarios import SHOOT, SPRINT, STRAFE, WALK, Head, Scenario, one_of, press
from appo.utils.options import ConfigError

if TYPE_CHECKING:
    from appo.envs.families.doom import DoomOptions

MOST_PLAYERS = 16  # the engine's limit
TICS_PER_S = 35
USUAL_MINUTES = 4.0


class MatchPlan(NamedTuple):
    """One match, as its process needs it; plain values."""

    config: str  # the scenario's .cfg
    map_name: str  # empty: the one of the .cfg
    resolution: str  # ViZDoom's name of the size of a screen
    width: int
    height: int
    buttons: tuple[str, ...]
    variables: tuple[str, ...]
    num_players: int  # agents, each with an engine; the first one's is the host
    num_bots: int
    respawn_delay_s: int
    port: int = 0
    token: str = ""  # part of the players' names, which tell one match from another
    seed: int = 0


class MatchKind(NamedTuple):
    """A name of the family that stands for a match."""

    files: tuple[str, ...]  # scenarios, the first one that exists is played
    agents: tuple[int, int]  # fewest and most
    bots: tuple[int, int]
    usual_agents: int
    usual_bots: int
    map_names: tuple[tuple[str, str], ...] = ()  # scenario -> its map, where that is not the first one
    respawn_delay_s: int = 2


class Party(NamedTuple):
    """Who takes part in a match, and how long it is."""

    num_agents: int
    num_bots: int
    num_tics: int


_DUEL = ("duel", "ssl2", "multi_duel")
_DEATHMATCH = ("multi_deathmatch", "dwango5_dm_continuous_weap", "dwango5_dm", "dwango5", "freedm", "cig")
_CIG_MAP = (("cig", "map02"),)  # the one of its two maps that has weapons to pick up

MATCHES = {
    "duel": MatchKind(_DUEL, (2, 2), (0, 0), 2, 0),
    "duel_bots": MatchKind(_DUEL, (1, 1), (1, 1), 1, 1),
    "multi_deathmatch": MatchKind(_DEATHMATCH, (2, MOST_PLAYERS), (0, MOST_PLAYERS - 2), 4, 0, _CIG_MAP),
    "deathmatch_bots": MatchKind(_DEATHMATCH, (1, 1), (1, MOST_PLAYERS - 1), 1, 7, _CIG_MAP),
}

# Degrees per tic. Fine steps to aim, coarse ones to turn round within half a second.
_AIM: Head = (
    press(),
    *((("TURN_LEFT_RIGHT_DELTA", d),) for d in (-12.5, -7.5, -4.0, -2.0, -1.0, 1.0, 2.0, 4.0, 7.5, 12.5)),
)
_WEAPONS = range(1, 8)
FIGHTER = Scenario(
    (WALK, STRAFE, one_of(*(f"SELECT_WEAPON{i}" for i in _WEAPONS)), SHOOT, SPRINT, one_of("USE"), _AIM),
    measurements=(
        *("HEALTH", "ARMOR", "SELECTED_WEAPON", "SELECTED_WEAPON_AMMO", "ATTACK_READY", "DEAD"),
        *("FRAGCOUNT", "PLAYER_COUNT"),
        *(f"WEAPON{i}" for i in _WEAPONS),
        *(f"AMMO{i}" for i in _WEAPONS),
    ),
    statistics=("FRAGCOUNT", "DEATHCOUNT", "HITCOUNT", "DAMAGECOUNT", "HITS_TAKEN", "DAMAGE_TAKEN"),
    objective="FRAGCOUNT",
)


def party(name: str, options: DoomOptions) -> Party:
    """Who takes part in the match `name`, by its kind and the options.

    Raises:
        ConfigError: these players cannot play it.
    """
    kind = MATCHES[name]
    agents = options.doom_num_agents or kind.usual_agents
    bots = options.doom_num_bots or min(kind.usual_bots, MOST_PLAYERS - agents)
    _require("doom_num_agents", agents, kind.agents, name)
    _require("doom_num_bots", bots, kind.bots, name)
    if agents + bots > MOST_PLAYERS:
        raise ConfigError(
            f"doom_num_agents={agents} and doom_num_bots={bots} are more than the {MOST_PLAYERS} players that a match "
            f"holds; nearest: doom_num_bots={MOST_PLAYERS - agents}"
        )
    minutes = options.doom_match_minutes or USUAL_MINUTES
    return Party(agents, bots, max(1, round(minutes * 60 * TICS_PER_S)))


def _require(option: str, value: int, bounds: tuple[int, int], name: str) -> None:
    low, high = bounds
    if low <= value <= high:
        return
    what = "agents" if option == "doom_num_agents" else "bots"
    allowed = str(low) if low == high else f"{low} to {high}"
    others = [
        f"doom_{other}"
        for other, kind in MATCHES.items()
        if (kind.agents if what == "agents" else kind.bots)[0] <= value <= getattr(kind, what)[1]
    ]
    hint = f"; so many are taken by {' and '.join(others)}" if others else ""
    raise ConfigError(f"{option}={value}, but doom_{name} takes {allowed} {what}{hint}")


def refuse_match_options(name: str, options: DoomOptions) -> None:
    """For a scenario that is played alone.

    Raises:
        ConfigError: an option that only a match has is set.
    """
    for option in ("doom_num_agents", "doom_num_bots", "doom_match_minutes"):
        if getattr(options, option):
            matches = ", ".join(f"doom_{match}" for match in MATCHES)
            raise ConfigError(f"{option}={getattr(options, option)}, but doom_{name} is played alone; for: {matches}")


def map_of(kind: MatchKind, config: Path) -> str:
    """The map to play of a scenario; empty: the one that it names."""
    return dict(kind.map_names).get(config.stem, "")
