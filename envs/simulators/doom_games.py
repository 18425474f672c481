"""A Doom scenario's files, and a game that is set up to play them without a window, sound or console."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import vizdoom

from appo.envs.simulators.doom_matches import MATCHES
from appo.envs.simulators.doom_scenarios import Head, Scenario
from appo.utils.options import ConfigError


def find_config(name: str, user_folder: str) -> Path:
    """The `.cfg` of a scenario: the user's own before ViZDoom's.

    Raises:
        ConfigError: there is none; the message names the folders and what they hold.
    """
    folders = _folders(user_folder)
    for folder in folders:
        if re.fullmatch(r"[\w-]+", name) and (folder / f"{name}.cfg").is_file():
            return folder / f"{name}.cfg"
    names = [each for folder in folders for each in _scenarios_in(folder)]
    close = difflib.get_close_matches(name, [*names, *MATCHES], n=1)
    near = f"; did you mean doom_{close[0]}?" if close else ""
    found = "; ".join(f"{folder} holds {', '.join(_scenarios_in(folder)) or 'none'}" for folder in folders)
    hint = "" if user_folder else "; name the folder of your own scenarios with --doom_scenarios_dir"
    raise ConfigError(f"there is no scenario file {name}.cfg for doom_{name}{near or ':'} {found}{hint}")


def find_first_config(names: tuple[str, ...], user_folder: str) -> Path:
    """The first of these scenarios that there is, in the user's folder before ViZDoom's.

    Raises:
        ConfigError: the folder does not exist.
    """
    paths = [folder / f"{name}.cfg" for folder in _folders(user_folder) for name in names]
    found = next((path for path in paths if path.is_file()), None)
    return found or find_config(names[-1], user_folder)


def _folders(user_folder: str) -> list[Path]:
    folders = [Path(vizdoom.scenarios_path)]
    if user_folder:
        folders.insert(0, Path(user_folder).expanduser().absolute())
        if not folders[0].is_dir():
            raise ConfigError(f"doom_scenarios_dir={user_folder!r} is no folder; it should hold <x>.cfg for doom_<x>")
    return folders


def _scenarios_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.cfg"))


def load_game(config: Path) -> vizdoom.DoomGame:
    """A game that is not started yet.

    Raises:
        ConfigError: its files are missing or cannot be read.
    """
    game = vizdoom.DoomGame()
    try:
        game.load_config(str(config))
    except Exception as error:  # ViZDoom has an exception for each way in which a file can be wrong
        raise ConfigError(f"ViZDoom cannot read {config}: {error}") from error
    if not game.get_doom_scenario_path():
        raise ConfigError(
            f"{config.name} names no scenario, but the whole game; type doom_<scenario>, such as doom_basic"
        )
    wad = Path(game.get_doom_scenario_path())
    if not wad.is_file():
        raise ConfigError(f"{config} names the scenario {wad}, which does not exist; put that .wad file there")
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_console_enabled(False)
    return game


def press_table(head: Head, scenario: Scenario) -> list[list[float]]:
    """choice -> how far each of the scenario's buttons is pressed."""
    return [[float(dict(choice).get(button, 0.0)) for button in scenario.buttons] for choice in head]


def variables(names: tuple[str, ...]) -> list[vizdoom.GameVariable]:
    """ViZDoom's own variables of these names."""
    return [getattr(vizdoom.GameVariable, name) for name in names]
