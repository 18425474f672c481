"""Runs of the whole program for a moment, in a folder that goes away: for what is decided or told by trying."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.config import TrainConfig

STOP_S = 3.0
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
)


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
            told: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        except (OSError, json.JSONDecodeError):
            return None
        return told

    def is_training(self, told: dict[str, Any]) -> bool:
        """Each policy has learned something."""
        return all(policy["train_steps"] for policy in told["policies"])

    def stop(self) -> None:
        """Let it end, or end it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the guardian ends the rest


@contextlib.contextmanager
def started(
    argv: Sequence[str], train_dir: Path, seconds: float, *, but: Sequence[str] = (), words: Sequence[str] = ()
) -> Iterator[Trial]:
    """A run with the words of a command line, and others; it is stopped at the end.

    Args:
        argv: the words, without the program.
        train_dir: where its experiment is made anew.
        seconds: that it may train at most.
        but: options whose words are left out.
        words: in addition.
    """
    options = [
        *without(argv, (*_OWN, *but)),
        *words,
        f"--experiment={NAME}",
        f"--train_dir={train_dir}",
        "--restart_behavior=overwrite",
        f"--train_for_seconds={seconds:g}",
        "--train_for_env_steps=10000000000",
        "--decorrelate_experience_max_seconds=0",
        "--save_best_after=10000000000",
    ]
    main_file = Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    program = [str(main_file)] if main_file.name == "train_appo.py" else ["-m", "appo.train_appo"]
    (train_dir / NAME / "status.json").unlink(missing_ok=True)
    with (
        (train_dir / f"{NAME}.txt").open("w") as output,
        subprocess.Popen(
            [sys.executable, *program, *options], stdout=output, stderr=output, start_new_session=True, text=True
        ) as process,
    ):
        trial = Trial(process, train_dir / NAME)
        try:
            yield trial
        finally:
            trial.stop()


def last_line(train_dir: Path) -> str:
    """The last that a trial printed, which says why it ended."""
    lines = (train_dir / f"{NAME}.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def result_file(config: TrainConfig, what: str) -> Path:
    """Where what was found out about an environment is kept, beside the experiments."""
    name = re.sub(r"[^\w.-]+", "_", config.env.env)
    path = Path(config.run.train_dir).expanduser() / f"{what}_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
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
