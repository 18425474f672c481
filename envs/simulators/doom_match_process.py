"""The process that plays one Doom match: an engine and a thread for each player.

    python -m appo.envs.simulators.doom_match_process PLAN DESCRIPTOR

ViZDoom's calls have no time limit. When an engine dies or stops, the others of the match wait for it in theirs, an
engine that dies while it starts takes the process that called it along, and one that is killed inside a message queue
leaves a lock that nobody opens. So none of it happens in the environment's process: this one stands between, and
killing it ends the match and nothing else. Its engines ask the kernel to be killed with it (`doom_engine`).

Players move in lock step, tic by tic: left to run freely, engines come to wait for each other for ever. The first
player's thread conducts. The main thread reads commands and does nothing else, so it sees at once that the
environment's process is gone, whatever a player is stuck in. A player that fails ends the process, with the reason as
its last words.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import vizdoom

from appo.envs.simulators.doom_board import DONE, FAILED, START, Board
from appo.envs.simulators.doom_engine import engine_of, start_once
from appo.envs.simulators.doom_games import load_game, variables
from appo.envs.simulators.doom_matches import MatchPlan

_POLL_S = 0.005
_CONNECT_S = 60  # of the engine's own limit; the environment's process has a shorter one
# Until all have joined and are alive at the start of a match; a respawn takes a few seconds of the game.
_MOST_WAITING_TICS = 350
_RULES = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 "
    "+sv_nojump 1 +sv_nofreelook 1 +sv_noexit 1"
)


class Player:
    """One agent's engine."""

    def __init__(self, plan: MatchPlan, index: int, board: Board) -> None:
        """Prepare a game; nothing is started."""
        self.index, self._board = index, board
        self._variables = variables(plan.variables)
        self.game = game = load_game(Path(plan.config))
        if plan.map_name:
            game.set_doom_map(plan.map_name)
        game.set_available_buttons([getattr(vizdoom.Button, button) for button in plan.buttons])
        game.set_available_game_variables([])
        game.set_screen_resolution(getattr(vizdoom.ScreenResolution, plan.resolution))
        game.set_episode_timeout(0)  # the limit is the environment's
        game.set_death_penalty(0)  # ViZDoom would charge it at every step of a dead player; shaping counts deaths
        game.set_seed(plan.seed)
        game.add_game_args(f"+name {player_name(plan, index)} +viz_connect_timeout {_CONNECT_S}")
        if index:
            game.add_game_args(f"-join 127.0.0.1:{plan.port}")
        else:
            delay = f"+viz_respawn_delay {plan.respawn_delay_s}"
            game.add_game_args(f"-host {plan.num_players} -port {plan.port} {_RULES} {delay}")
            game.add_game_args(f"+viz_bots_path {Path(vizdoom.__file__).with_name('bots.cfg')}")

    def tic(self) -> None:
        """Play a tic that nobody sees."""
        self.game.advance_action(1, False)

    def last_tic(self) -> None:
        """Play the last tic of a step, and put what it shows on the board. Drawing every tic would halve the speed."""
        game, board, read = self.game, self._board, self.game.get_game_variable
        game.advance_action(1, True)
        board.numbers[self.index] = [read(variable) for variable in self._variables]
        board.rewards[self.index] = game.get_last_reward()
        state = game.get_state()
        if state is not None:  # there is none once the map has ended: the last screen stays
            board.screens[self.index] = state.screen_buffer


class Match:
    """All players, each with a thread; the first one's runs `start` and `step`."""

    def __init__(self, plan: MatchPlan, board: Board, answers: int) -> None:
        """Prepare every player. `answers`: where the last words of one that fails go."""
        self._plan, self._board = plan, board
        self.players = [Player(plan, index, board) for index in range(plan.num_players)]
        self._tasks: list[SimpleQueue[Callable[[Player], Any]]] = [SimpleQueue() for _ in self.players]
        self._finished: SimpleQueue[int] = SimpleQueue()
        for player in self.players[1:]:
            threading.Thread(target=or_fail, args=(answers, self._obey, player), daemon=True).start()

    def _obey(self, player: Player) -> None:
        while True:
            self._tasks[player.index].get()(player)
            self._finished.put(player.index)

    def _all(self, task: Callable[[Player], Any]) -> None:
        """Every player does this at the same time."""
        for queue in self._tasks[1:]:
            queue.put(task)
        task(self.players[0])
        for _ in self._tasks[1:]:
            self._finished.get()

    def connect(self, folder: Path) -> None:
        """Start the engines: joining ones once the host has its port, so that they reach no other match."""
        folders = [folder / str(player.index) for player in self.players]
        for path in folders:
            path.mkdir()

        def start(player: Player) -> None:
            if player.index:
                _wait_for_host(folders[0], self._plan.port)
            start_once(player.game, folders[player.index])

        self._all(start)
        expected = {player_name(self._plan, player.index) for player in self.players}
        for player in self.players:
            require_players(expected, player.game.get_server_state().players_names)

    def start(self) -> None:
        """Begin the map anew, with everybody alive."""
        self._all(lambda player: player.game.new_episode())
        host = self.players[0].game
        host.send_game_command("removebots")
        for _ in range(self._plan.num_bots):
            host.send_game_command("addbot")
        self._board.actions.fill(0.0)
        for _ in range(_MOST_WAITING_TICS):
            self._step(1)
            here = host.get_server_state().players_in_game
            if sum(here) >= len(self.players) + self._plan.num_bots and not self._any_dead():
                return

    def _any_dead(self) -> bool:
        return any(player.game.is_player_dead() for player in self.players)

    def step(self) -> None:
        """Play the tics that are asked for, fewer when the map ends; what its last tics brought is then not told."""
        self._step(int(self._board.counts[0]))

    def _step(self, num_tics: int) -> None:
        board = self._board
        for player in self.players:
            player.game.set_action(board.actions[player.index].tolist())
        board.rewards.fill(0.0)
        played, has_ended = 0, False
        while played < num_tics and not has_ended:
            played += 1
            self._all(Player.last_tic if played == num_tics else Player.tic)
            has_ended = any(player.game.is_episode_finished() for player in self.players)
        board.counts[1:] = played, has_ended


def require_players(expected: set[str], names: Sequence[str]) -> None:
    """Refuse a match that others have joined.

    Raises:
        RuntimeError: not all that are expected are in it.
    """
    if not expected <= set(names):
        raise RuntimeError(f"this is another match: its players are {', '.join(filter(None, names))}")


def player_name(plan: MatchPlan, index: int) -> str:
    """How a player of this match is called, and none of another."""
    return f"{plan.token}_{index}"


def _wait_for_host(folder: Path, port: int) -> None:
    """Until the host's engine has its port; if it never gets it, it dies, and this process with it."""
    if not sys.platform.startswith("linux"):  # the host is not told from others there; the names of the players are
        return
    while True:
        engine = engine_of(folder)
        if engine is not None and has_port(engine, port):
            return
        time.sleep(_POLL_S)


def has_port(pid: int, port: int) -> bool:
    """A process has bound this UDP port."""
    sockets = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(path.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in sockets for row in rows)


def or_fail(answers: int, do: Callable[..., None], *args: Any) -> None:
    """Call; end the whole process if that raises, with the reason as the last words.

    Args:
        answers: the descriptor that they are written to.
        do: what is called, with the rest.
        *args: its arguments.
    """
    try:
        do(*args)
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        os.write(answers, FAILED + text.encode(errors="replace"))
        os._exit(1)  # other players may be stuck in calls that never return


def _conduct(match: Match, commands: SimpleQueue[bytes], answers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        match.connect(Path(folder))
    os.write(answers, DONE)
    while True:
        command = commands.get()
        if command == START:
            match.start()
        else:
            match.step()
        os.write(answers, DONE)


def main() -> None:
    """Play the match that is described on the command line until the other end of standard input closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the run decides when it ends
    answers = os.dup(sys.stdout.fileno())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):  # engines tell of their connections
        os.dup2(nowhere, stream.fileno())
    plan = MatchPlan(**json.loads(sys.argv[1]))
    board = Board(plan, int(sys.argv[2]))
    commands: SimpleQueue[bytes] = SimpleQueue()

    matches: list[Match] = []

    def conduct() -> None:
        matches.append(Match(plan, board, answers))
        _conduct(matches[0], commands, answers)

    threading.Thread(target=or_fail, args=(answers, conduct), daemon=True).start()
    while command := os.read(sys.stdin.fileno(), 1):
        commands.put(command)
    if not sys.platform.startswith("linux"):  # there engines do not die with the threads that started them
        for player in matches[0].players if matches else []:
            player.game.close()
    os._exit(0)


if __name__ == "__main__":
    main()
