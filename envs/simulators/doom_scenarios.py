"""What a player of each Doom scenario can do and is told besides the image.

An action is one choice per *head*; a choice is the buttons it holds down. One head makes a discrete action space,
several make a tuple of them. Names of buttons and variables are ViZDoom's; nothing here needs ViZDoom.
"""

from __future__ import annotations

from typing import NamedTuple

Choice = tuple[tuple[str, float], ...]  # buttons and how far each is pressed: 1, or the degrees per tic of a turn
Head = tuple[Choice, ...]


class Scenario(NamedTuple):
    """How one scenario is played."""

    heads: tuple[Head, ...]
    measurements: tuple[str, ...] = ()  # game variables that the policy sees beside the image
    statistics: tuple[str, ...] = ("HEALTH",)  # game variables reported when an episode ends
    objective: str = ""  # the game variable by which policies are ranked; empty: the return

    @property
    def buttons(self) -> tuple[str, ...]:
        """Every button that some choice uses, in order of appearance."""
        return tuple(dict.fromkeys(button for head in self.heads for choice in head for button, _ in choice))


def press(*buttons: str) -> Choice:
    """Hold these buttons down, all at once; none of them is to wait."""
    return tuple((button, 1.0) for button in buttons)


def one_of(*buttons: str) -> Head:
    """At most one of these buttons."""
    return (press(), *(press(button) for button in buttons))


WALK = one_of("MOVE_FORWARD", "MOVE_BACKWARD")
STRAFE = one_of("MOVE_RIGHT", "MOVE_LEFT")
TURN = one_of("TURN_RIGHT", "TURN_LEFT")
SHOOT = one_of("ATTACK")
SPRINT = one_of("SPEED")
SWITCH_WEAPON = one_of("SELECT_NEXT_WEAPON", "SELECT_PREV_WEAPON")
# Fine steps to aim, coarse ones to look round: a turn button alone moves 3.5 degrees a tic.
AIM: Head = (press(), *((("TURN_LEFT_RIGHT_DELTA", degrees),) for degrees in (-8.0, -3.0, -1.0, 1.0, 3.0, 8.0)))

_STEER: Head = (
    *one_of("MOVE_FORWARD", "TURN_LEFT", "TURN_RIGHT"),
    press("MOVE_FORWARD", "TURN_LEFT"),
    press("MOVE_FORWARD", "TURN_RIGHT"),
)
_CORRIDOR: Head = (
    *one_of("MOVE_FORWARD", "MOVE_BACKWARD", "MOVE_LEFT", "MOVE_RIGHT", "TURN_LEFT", "TURN_RIGHT", "ATTACK"),
    press("MOVE_FORWARD", "ATTACK"),
    press("TURN_LEFT", "ATTACK"),
    press("TURN_RIGHT", "ATTACK"),
)
_TURRET = one_of("TURN_LEFT", "TURN_RIGHT", "ATTACK")
_FIGHT_MEASUREMENTS = ("HEALTH", "ARMOR", "SELECTED_WEAPON", "SELECTED_WEAPON_AMMO")
_FIGHT_STATISTICS = ("HEALTH", "ARMOR", "KILLCOUNT", "SELECTED_WEAPON_AMMO")
_BATTLE = Scenario(
    (WALK, STRAFE, AIM, SHOOT, SPRINT), ("HEALTH", "AMMO2"), ("HEALTH", "AMMO2", "KILLCOUNT"), objective="KILLCOUNT"
)

SCENARIOS = {
    "basic": Scenario((one_of("MOVE_LEFT", "MOVE_RIGHT", "ATTACK"),), statistics=("KILLCOUNT", "AMMO2")),
    "my_way_home": Scenario(((*_STEER, press("MOVE_LEFT"), press("MOVE_RIGHT")),), statistics=()),
    "deadly_corridor": Scenario((_CORRIDOR,), ("HEALTH",), ("HEALTH", "KILLCOUNT")),
    "defend_the_center": Scenario((_TURRET,), ("AMMO2", "HEALTH"), ("KILLCOUNT", "AMMO2", "HEALTH")),
    "defend_the_line": Scenario((_TURRET,), ("AMMO2", "HEALTH"), ("KILLCOUNT", "AMMO2", "HEALTH")),
    "health_gathering": Scenario((_STEER,), ("HEALTH",)),
    "health_gathering_supreme": Scenario((_STEER,), ("HEALTH",)),
    "take_cover": Scenario((one_of("MOVE_LEFT", "MOVE_RIGHT"),), ("HEALTH",)),
    "predict_position": Scenario((_TURRET,), statistics=("KILLCOUNT",)),
    "deathmatch": Scenario(
        (WALK, STRAFE, AIM, SHOOT, SPRINT, SWITCH_WEAPON), _FIGHT_MEASUREMENTS, _FIGHT_STATISTICS, objective="KILLCOUNT"
    ),
    "battle": _BATTLE,
    "battle2": _BATTLE,
    "two_colors": Scenario((WALK, STRAFE, TURN), ("HEALTH",)),
}

STATISTIC_NAMES = {
    "KILLCOUNT": "kills",
    "FRAGCOUNT": "frags",
    "DEATHCOUNT": "deaths",
    "HITCOUNT": "hits",
    "DAMAGECOUNT": "damage",
    "AMMO2": "ammo",
    "SELECTED_WEAPON_AMMO": "ammo",
}

# What brings a variable to about 1; what is not listed counts in hundreds, as health does.
_FULL_VALUES = {
    "SELECTED_WEAPON": 10.0,
    "SELECTED_WEAPON_AMMO": 50.0,
    "KILLCOUNT": 20.0,
    "FRAGCOUNT": 20.0,
    "PLAYER_COUNT": 10.0,
    "ATTACK_READY": 1.0,
    "DEAD": 1.0,
}

_OPPOSITES = (
    ("MOVE_FORWARD", "MOVE_BACKWARD"),
    ("MOVE_RIGHT", "MOVE_LEFT"),
    ("TURN_RIGHT", "TURN_LEFT"),
    ("LOOK_UP", "LOOK_DOWN"),
    ("SELECT_NEXT_WEAPON", "SELECT_PREV_WEAPON"),
)
_FEW_BUTTONS = 4  # so many single choices cover a scenario well enough without combinations


def full_value(variable: str) -> float:
    """What a game variable is divided by."""
    if variable.startswith("WEAPON"):
        return 1.0
    return 50.0 if variable.startswith("AMMO") else _FULL_VALUES.get(variable, 100.0)


def scenario_from_config(buttons: list[str], variables: list[str]) -> Scenario:
    """How to play a scenario that is known only by what its `.cfg` makes available.

    Few buttons become one choice among them. More become a head per pair of opposites and per other button, except that
    a turn by degrees replaces the turn buttons, weapons by number form one head, and other analogue buttons are left
    out.
    """
    switches = [button for button in buttons if not button.endswith("_DELTA")]
    can_aim = "TURN_LEFT_RIGHT_DELTA" in buttons
    if len(switches) <= _FEW_BUTTONS and not can_aim:
        heads: list[Head] = [one_of(*switches)]
    else:
        if can_aim:
            switches = [button for button in switches if button not in ("TURN_RIGHT", "TURN_LEFT")]
        weapons = [button for button in switches if button.startswith("SELECT_WEAPON")]
        pairs = [[button for button in pair if button in switches] for pair in _OPPOSITES]
        grouped = {button for pair in pairs for button in pair} | set(weapons)
        singles = [[button] for button in switches if button not in grouped]
        heads = [one_of(*group) for group in (*pairs, weapons, *singles) if group]
        if can_aim:
            heads.append(AIM)
    kills = [variable for variable in ("FRAGCOUNT", "KILLCOUNT") if variable in variables]
    return Scenario(tuple(heads), tuple(variables), tuple(variables), objective=kills[0] if kills else "")
