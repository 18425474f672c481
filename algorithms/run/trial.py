"""Runs of the whole program for a moment, in a folder that goes away: for what is decided or told by trying."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appo.algorithms.config import ResolvedConfig
from appo.algorithms.run.config import STATUS_FILE
from appo.algorithms.train_config import TrainConfig, to_json
from appo.utils.options import ConfigError
from appo.utils.processes import ends_with_caller, is_alive
from appo.utils.signals import StopSignals

POLL_S = 0.1
KILL_S = 3.0  # until the guardian of a trial that was killed has killed the rest of it
NAME = "tried"
# What a trial decides itself.
_OWN = (
    "autotune",
    "benchmark",
    "experiment",
    "train_dir",
    "experiments_root",
    "restart_behavior",
    "train_for_seconds",
    "train_for_env_steps",
    "decorrelate_experience_max_seconds",
    "save_best_after",
    "stop_when",
    "stop_after_no_progress",
    "callback",
    "with_wandb",
)


class Period(NamedTuple):
    """When a run is looked at, in seconds."""

    warm_up_s: float  # from when it has begun
    measured_s: float  # from the first look to the last
    longest_start_s: float  # until it has begun


class Trial(NamedTuple):
    """A run that is under way."""

    process: subprocess.Popen[str]
    folder: Path  # of its experiment

    @property
    def is_running(self) -> bool:
        """It has not ended."""
        return self.process.poll() is None

    def status(self) -> dict[str, Any] | None:
        """What status.json says; None: nothing yet."""
        try:
            told: dict[str, Any] = json.loads((self.folder / STATUS_FILE).read_text())
        except (OSError, json.JSONDecodeError):
            return None
        return told

    def looks(
        self, period: Period, is_stopped: Callable[[], bool], *, learns: bool = True
    ) -> Iterator[tuple[float, int]]:
        """(time, frames) again and again, from the end of the warm-up until enough has been seen.

        Args:
            period: when to look.
            is_stopped: looked at now and then; ends it.
            learns: it has begun when each policy has learned something, not with the first frame.
        """
        began, since, first, newest = time.monotonic(), 0.0, 0.0, 0.0
        while self.is_running and not is_stopped():
            time.sleep(POLL_S)
            told = self.status()
            has_begun = told is not None and told["env_frames"] and (not learns or _has_learned(told))
            if told is None or not has_begun:
                if time.monotonic() - began > period.longest_start_s:
                    return
                continue
            now = float(told["time"])
            since = since or now
            if now - since < period.warm_up_s or now == newest:
                continue
            first, newest = first or now, now
            yield now, int(told["env_frames"])
            if now - first >= period.measured_s:
                return

    def stop(self, limit_s: float) -> None:
        """Let it end, or kill it after so many seconds."""
        if limit_s:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(limit_s)
        if self.is_running:
            _kill([psutil.Process(self.process.pid)])
            self.process.wait()


@contextlib.contextmanager
def temporary_folder(kind: str, stop: StopSignals) -> Iterator[Path]:
    """A folder for trials. A second Ctrl+C, which ends this process at once, kills the trial first and removes it."""
    before, end_at_once = set(psutil.Process().children()), stop.end_at_once
    try:
        with tempfile.TemporaryDirectory(prefix=f"appo-{kind}-", ignore_cleanup_errors=True) as name:

            def end() -> None:
                try:
                    _kill([each for each in psutil.Process().children() if each not in before])
                    shutil.rmtree(name, ignore_errors=True)
                finally:
                    end_at_once()

            stop.end_at_once = end
            yield Path(name)
    finally:
        stop.end_at_once = end_at_once


def _kill(trials: Sequence[psutil.Process]) -> None:
    """Kill them, and wait until nothing that they have started can write any more."""
    family = [*trials]
    for trial in trials:
        with contextlib.suppress(psutil.Error):
            family += trial.children(recursive=True)
        with contextlib.suppress(psutil.Error):
            trial.kill()  # its guardian ends the rest
    deadline = time.monotonic() + KILL_S
    while any(is_alive(each.pid) for each in family) and time.monotonic() < deadline:
        time.sleep(0.01)


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    train_dir: Path,
    period: Period,
    stop_s: float,
    *,
    but: Sequence[str] = (),
    words: Sequence[str] = (),
) -> Iterator[Trial]:
    """A run with the words of a command line, and others; it is stopped at the end.

    Args:
        argv: the words, without the program.
        train_dir: where its experiment is made anew.
        period: in which it is looked at.
        stop_s: for its end; 0: it is killed, for nothing that it would save is needed.
        but: options whose words are left out.
        words: in addition.
    """
    options = [
        *without(argv, (*_OWN, *but)),
        *words,
        f"--experiment={NAME}",
        f"--train_dir={train_dir}",
        "--experiments_root=",  # as below: what a preset or a file may set
        "--restart_behavior=overwrite",
        f"--train_for_seconds={sum(period) + 10.0:g}",
        "--train_for_env_steps=10000000000",
        "--decorrelate_experience_max_seconds=0",
        "--save_best_after=10000000000",
        "--autotune=False",
        "--benchmark=False",
        "--stop_when=",
        "--stop_after_no_progress=0",
        "--callback=",
        "--with_wandb=False",
    ]
    main_file = Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    program = [str(main_file)] if main_file.name == "train_appo.py" else ["-m", "appo.train_appo"]
    (train_dir / NAME / STATUS_FILE).unlink(missing_ok=True)
    with (
        (train_dir / f"{NAME}.txt").open("w") as output,
        subprocess.Popen(
            [sys.executable, *program, *options],
            stdout=output,
            stderr=output,
            start_new_session=True,
            text=True,
            env=ends_with_caller(),
        ) as process,
    ):
        trial = Trial(process, train_dir / NAME)
        try:
            yield trial
        finally:
            trial.stop(stop_s)


def _has_learned(told: dict[str, Any]) -> bool:
    return all(policy["train_steps"] for policy in told["policies"])


def words_of(argv: Sequence[str], resolved: ResolvedConfig) -> list[str]:
    """The words of a command line, and of config.json where its experiment goes on."""
    if not resolved.resumed:
        return list(argv)
    options = json.loads(to_json(resolved.config))["options"]
    return [f"--{name}={value}" for name, value in options.items()]


def last_line(train_dir: Path) -> str:
    """The last that a trial printed, which says why it ended."""
    lines = (train_dir / f"{NAME}.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def result_file(config: TrainConfig, what: str) -> Path:
    """Where what was found out about an environment is kept, beside the experiments.

    Raises:
        ConfigError: nothing can be written there.
    """
    name = re.sub(r"[^\w.-]+", "_", config.env.env)
    path = Path(config.run.train_dir).expanduser() / f"{what}_{name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"train_dir={config.run.train_dir} cannot be made: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"train_dir={config.run.train_dir} cannot be written to")
    return path


def without(argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """A command line without some options, whether their values follow "=" or stand alone."""
    kept: list[str] = []
    is_value_dropped = False
    for word in argv:
        if word.startswith("--"):
            is_dropped = any(is_option(word, name) for name in names)
            is_value_dropped = is_dropped and "=" not in word
        else:
            is_dropped, is_value_dropped = is_value_dropped, False
        if not is_dropped:
            kept.append(word)
    return kept


def is_option(word: str, name: str) -> bool:
    """A word of a command line sets this option."""
    return re.sub("-", "_", word.partition("=")[0].removeprefix("--")) == name and word.startswith("--")
