"""What can go wrong with a `VecEnv`, each with the environments concerned and what the child process said."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from appo.envs.api import EnvError, RestartsUsedUp, UnsupportedSpaceError
from appo.utils.options import ConfigError

_REFUSALS = (UnsupportedSpaceError, ConfigError)  # of a factory's environments, whichever process builds them


class VecEnvError(RuntimeError):
    """Base of all errors below."""


class AlreadyStepping(VecEnvError):
    """An environment was given an action although its step or reset is still under way."""


class NotStepping(VecEnvError):
    """Results were asked for, and nothing is under way."""


class ClosedEnvironmentError(VecEnvError):
    """The vector environment was closed."""


class EnvTimeout(VecEnvError):
    """Environments did not answer in time."""

    def __init__(self, env_ids: Sequence[int], waited_s: float, what: str = "their step", why: str = "") -> None:
        """`waited_s`: seconds; `why`: there is no restart."""
        super().__init__(list(env_ids), waited_s, what, why)
        self.env_ids, self.waited_s, self.what, self.why = list(env_ids), waited_s, what, why

    def __str__(self) -> str:
        late = f"environments {in_words(self.env_ids)} did not finish {self.what} within {self.waited_s:g} s"
        return f"{late}; {self.why}" if self.why else late


class EnvWorkerDied(VecEnvError):
    """A process that steps environments ended."""

    def __init__(self, env_ids: Sequence[int], worker: int, exit_code: int | None, how: str) -> None:
        """`how`: the exit code in words."""
        super().__init__(list(env_ids), worker, exit_code, how)
        self.env_ids, self.worker, self.exit_code, self.how = list(env_ids), worker, exit_code, how

    def __str__(self) -> str:
        return f"the process of environments {in_words(self.env_ids)} (worker {self.worker}) {self.how}"


class EnvWorkerError(VecEnvError):
    """An environment raised. `__cause__` is its exception where that could be pickled."""

    def __init__(self, failure: Failure, worker: int) -> None:
        """`failure`: as it was recorded where it happened."""
        super().__init__(failure, worker)
        self.failure, self.worker = failure, worker
        self.env_ids = [failure.env_id] if failure.env_id >= 0 else []
        self.retryable = failure.retryable
        self.exc_type, self.message, self.remote_traceback = failure.exc_type, failure.message, failure.traceback

    @classmethod
    def of(cls, failure: Failure, worker: int) -> EnvWorkerError:
        """With its cause."""
        error = cls(failure, worker)
        error.__cause__ = failure.cause() or failure.error
        return error

    def __str__(self) -> str:
        return (
            f"environment {self.failure.env_id} (worker {self.worker}) failed in {self.failure.phase}: "
            f"{self.exc_type}: {self.message}\n\nIn its process:\n{self.remote_traceback}"
        )


class Failure(NamedTuple):
    """An exception of an environment on its way to another process."""

    env_id: int  # -1: of no environment in particular
    phase: str  # make, reset, step, call ...
    exc_type: str
    message: str
    traceback: str
    pickled: bytes | None  # the exception, where it can be pickled
    error: EnvError | None  # the same as the trainer knows it
    retryable: bool = True  # another try may end in another way

    @classmethod
    def of(cls, error: BaseException, env_id: int, phase: str) -> Failure:
        """Record an exception; an `EnvError` tells of the one that caused it."""
        known = error if isinstance(error, EnvError) else None
        cause = (known.__cause__ if known is not None else None) or error
        text = "".join(traceback.format_exception(cause))
        told = f"{cause}; {known.why}" if isinstance(known, RestartsUsedUp) else str(cause)
        phase = known.phase if known else phase
        retryable = getattr(error, "retryable", not isinstance(cause, _REFUSALS))
        return cls(env_id, phase, type(cause).__name__, told, text, _pickled(cause), known, retryable)

    def raise_refusal(self) -> None:
        """Raise what says that no such environment can be used, as it was raised where it was built.

        Raises:
            UnsupportedSpaceError, ConfigError: if it is one of these.
        """
        if self.phase == "make" and isinstance(cause := self.cause(), _REFUSALS):
            raise cause

    def cause(self) -> BaseException | None:
        """The exception itself, as far as this process can build it."""
        try:
            found = None if self.pickled is None else pickle.loads(self.pickled)
        except Exception:  # a class whose constructor wants something else
            return None
        return found if isinstance(found, BaseException) else None


def _pickled(error: BaseException) -> bytes | None:
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:  # whatever its own methods raise
        return None
    return content


def in_words(env_ids: Sequence[int]) -> str:
    """Numbers of environments, runs of them as a range."""
    ids = sorted(env_ids)
    if len(ids) > 2 and ids == list(range(ids[0], ids[-1] + 1)):
        return f"{ids[0]}-{ids[-1]}"
    return ", ".join(map(str, ids))
