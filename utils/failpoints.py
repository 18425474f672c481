"""Places where a test can make a process die, so that what follows a death at the worst moment can be seen.

Armed by the environment variable `APPO_FAILPOINTS`, which child processes inherit::

    APPO_FAILPOINTS="checkpoint-before-rename=kill@0.05,actor-ask=stop@1"

that is `place=action@probability`, separated by commas. Unarmed, a place costs a tenth of a microsecond.
"""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Callable
from typing import NamedTuple

VARIABLE = "APPO_FAILPOINTS"

FAILPOINTS = {
    "actor-block-begin": "an actor has taken a free block and has written nothing into it",
    "actor-block-complete": "a block is full and no learner has been told",
    "actor-ask": "observations are written and the request for actions is not counted",
    "policy-answer": "actions are in the blocks and the answer is not counted",
    "policy-adopt": "a policy worker is about to copy newer weights",
    "weights-publish": "one half of the published weights is written and readers are still shown the other",
    "learner-take": "a learner has claimed a block and read nothing of it",
    "learner-release": "a block has been read and not given back",
    "learner-step": "a batch is complete and nothing has been learned from it",
    "learner-snapshot": "a learner is about to write what its successor would go on from",
    "adopt-read": "a learner holds another policy's weights, and its successor would not",
    "adopt-kept": "a learner's successor would have another policy's weights, which are not published",
    "report-in-queue": "a report lies in the queue and is not counted as sent",
    "checkpoint-half-written": "half of a checkpoint is in its temporary file",
    "checkpoint-before-fsync": "a checkpoint is written and may not have reached the disk",
    "checkpoint-before-rename": "a checkpoint is on disk under its temporary name",
    "checkpoint-after-rename": "a checkpoint is in place and those it replaces are still there",
}  # place -> the state in which a process dies there
NAMES = tuple(FAILPOINTS)


class _Armed(NamedTuple):
    action: Callable[[str], None]
    probability: float


def failpoint(name: str) -> None:
    """Die here, or stop, when a test asked for it.

    Raises:
        RuntimeError: a test asked for just that.
        ValueError: what was asked for cannot be understood.
    """
    armed = _armed()
    if armed and name in armed and random.SystemRandom().random() < armed[name].probability:
        armed[name].action(name)


def parse(text: str) -> dict[str, _Armed]:
    """What `APPO_FAILPOINTS` asks for, by place.

    Raises:
        ValueError: it cannot be understood, or names an unknown place or action.
    """
    armed = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = entry.partition("=")
        action, _, probability = rest.partition("@")
        if name not in FAILPOINTS:
            raise ValueError(f"{VARIABLE} names the unknown place {name!r}; known: {', '.join(NAMES)}")
        if action not in _ACTIONS:
            raise ValueError(f"{VARIABLE} asks for {action!r} in {entry!r}; known: {', '.join(_ACTIONS)}")
        armed[name] = _Armed(_ACTIONS[action], _probability(probability, entry))
    return armed


@functools.cache
def _armed() -> dict[str, _Armed]:
    """Read once: a process keeps what it was started with."""
    return parse(os.environ.get(VARIABLE, ""))


def _probability(text: str, entry: str) -> float:
    try:
        probability = float(text)
    except ValueError:
        probability = -1.0
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"{VARIABLE} holds {entry!r}; write place=action@probability, for example {NAMES[0]}=kill@0.1")
    return probability


def _kill(name: str) -> None:
    del name
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(name: str) -> None:
    del name
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit(name: str) -> None:
    del name
    os._exit(9)


def _raise(name: str) -> None:
    raise RuntimeError(f"failpoint {name}")


_ACTIONS: dict[str, Callable[[str], None]] = {"kill": _kill, "raise": _raise, "stop": _stop, "exit": _exit}
