"""A Doom match as its environment sees it: a process that is started, asked within time limits, and killed.

The process is `doom_match_process`. Every wait for it ends: with an answer, with its end, or with a kill after a time
that no sound match takes. It is killed, not asked to end, when a match is over; its engines and all that they share
vanish with it, but for names that a start had not removed yet, which are removed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from appo.envs.simulators.doom_board import DONE, FAILED, START, STEP, Board, board_size, open_memory
from appo.envs.simulators.doom_engine import await_ends
from appo.envs.simulators.doom_leftovers import folder_prefix, remove_unused_memory
from appo.envs.simulators.doom_matches import MatchPlan

# An engine computes for a quarter of a second while it starts; on two cores 64 at once take nine.
CONNECT_LIMIT_S = 20.0
# A step takes milliseconds, a start with its respawns tenths of a second.
ANSWER_LIMIT_S = 10.0
_ENDS_WITHIN_S = 10.0  # after a kill
_ENDS_BY_ITSELF_S = 2.0
_ATTEMPTS = 4
# Below those that systems give to sockets that ask for any, so that no joining player takes the port of a host.
_PORTS = range(10_000, 32_768)


class MatchError(RuntimeError):
    """A match that cannot go on: an engine died or is stuck. It has been ended."""


class DoomMatch:
    """One match; `board` holds what is exchanged with its players."""

    def __init__(self, plan: MatchPlan) -> None:
        """Start its engines and connect them; on other ports if that fails.

        Raises:
            MatchError: it kept failing; the last failure is the cause.
        """
        self._process: subprocess.Popen[bytes] | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start(plan._replace(port=secrets.choice(_PORTS), token=secrets.token_hex(5)))
                return
            except MatchError as error:
                if attempt == _ATTEMPTS:
                    raise MatchError(f"the Doom match did not start in {_ATTEMPTS} attempts: {error}") from error

    def _start(self, plan: MatchPlan) -> None:
        memory = open_memory(board_size(plan))
        folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
        try:
            self.board = Board(plan, memory)
            self._process = _launch(plan, memory, folder)
            self._await_answer(CONNECT_LIMIT_S)
        except BaseException:
            self.close()
            await_ends(folder, _ENDS_WITHIN_S)
            remove_unused_memory()
            raise
        finally:
            os.close(memory)
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Of the process that plays the match; the engines are its children."""
        assert self._process is not None, "the match is over"
        return self._process.pid

    def start(self) -> None:
        """Begin the map anew, everybody alive.

        Raises:
            MatchError: the match cannot go on.
        """
        self._ask(START)

    def step(self, num_tics: int) -> tuple[int, bool]:
        """Play some tics with the actions on the board.

        Returns:
            (tics played, the map has ended).

        Raises:
            MatchError: the match cannot go on.
        """
        self.board.counts[0] = num_tics
        self._ask(STEP)
        return int(self.board.counts[1]), bool(self.board.counts[2])

    def _ask(self, command: bytes) -> None:
        if self._process is None:
            raise MatchError("the match is over")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its last words say why
            os.write(self._process.stdin.fileno(), command)
        self._await_answer(ANSWER_LIMIT_S)

    def _await_answer(self, limit_s: float) -> None:
        assert self._process is not None and self._process.stdout is not None
        answers = self._process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        while not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                self.close()
                raise MatchError(f"the Doom match did not answer within {limit_s:.0f} s: an engine is stuck")
        answer = os.read(answers, 4096)
        if answer != DONE:
            raise MatchError(f"the Doom match has ended: {self._last_words(answer)}")

    def _last_words(self, answer: bytes) -> str:
        code = self.close()
        if answer.startswith(FAILED):
            return answer[1:].decode(errors="replace")
        return f"its process exited with {code}" if code >= 0 else f"its process was ended by signal {-code}"

    def close(self) -> int:
        """End the match and its engines; called any number of times.

        Returns:
            How its process ended, as `subprocess` tells it.
        """
        if self._process is None:
            return 0
        process, self._process = self._process, None
        assert process.stdin is not None and process.stdout is not None
        if not sys.platform.startswith("linux"):  # engines do not end with it there, unless it ends them
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_BY_ITSELF_S)
        process.poll()  # how it ended by itself comes first
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_S)
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return process.returncode or 0


def _launch(plan: MatchPlan, memory: int, folder: Path) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[3])  # where `appo` is found
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [
        sys.executable,
        "-P",
        "-m",
        "appo.envs.simulators.doom_match_process",
        json.dumps(plan._asdict()),
        str(memory),
    ]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        pass_fds=(memory,),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(folder)},
    )
