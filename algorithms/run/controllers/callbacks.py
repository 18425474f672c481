"""`--callback=my_module:MyCallback`: a user's own class hears of a run, in the driver, and may end it.

All methods are optional:

    class MyCallback:
        def on_start(self, options, folder): ...    # dict of all options by name, the experiment's folder
        def scalars(self, policy): ...    # dict of numbers for each point of the curves, where they are custom/<name>
        def on_point(self, policy, env_frames, tags): ...    # with each point of the curves; "why" ends the run
        def on_end(self): ...

The driver waits for them and no worker does. A class that cannot be made, or whose methods take other arguments, is
refused before the start; a method that raises later is told of once, and the object is called no more.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from appo.algorithms.messages import Command, Report
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.envs.faults import FAILURES
from appo.envs.own_code import import_own, told
from appo.utils.options import ConfigError

# Method -> what it is called with.
METHODS = {
    "on_start": ("options", "folder"),
    "scalars": ("policy",),
    "on_point": ("policy", "env_frames", "tags"),
    "on_end": (),
}
CUSTOM = "custom/"  # what the names of its numbers begin with
_MOST_NAMES = 5  # of classes in a message

log = logging.getLogger(__name__)


def load_callback(name: str) -> type[Any]:
    """The class that `--callback=<name>` means.

    Raises:
        ConfigError: it cannot be imported, or has none of the methods that are called.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(
            f"callback={name!r}: a module and a class are needed, for example --callback=my_file:MyCallback"
        )
    if module.endswith(".py"):
        raise ConfigError(f"callback={name!r}: without .py, for example --callback={Path(module).stem}:{attribute}")
    try:
        imported = import_own(module)
    except FAILURES as error:  # a module of the user's own raises whatever it likes
        raise ConfigError(f"callback={name!r} cannot be imported: {told(error)}") from error
    if not hasattr(imported, attribute):
        classes = [each for each in dir(imported) if isinstance(getattr(imported, each), type)]
        fitting = [each for each in classes if _methods_of(getattr(imported, each))]
        near = difflib.get_close_matches(attribute, classes, n=1)
        others = f"; it has {', '.join(fitting[:_MOST_NAMES])}" if fitting else ""
        hint = f"; did you mean {module}:{near[0]}?" if near else others
        raise ConfigError(f"callback={name!r}: {module} has no {attribute}{hint}")
    found: type[Any] = getattr(imported, attribute)
    if not callable(found):
        raise ConfigError(f"callback={name!r} is no class")
    if isinstance(found, type):
        _require_methods(name, found, vars(found))
    return found


def make_callback(name: str) -> Any:
    """The object that hears of a run; None where no class is named.

    Raises:
        ConfigError: it cannot be made, or its methods cannot be called with what they are told.
    """
    if not name:
        return None
    found = load_callback(name)
    try:
        made = found()
        _require_methods(name, made, dir(made))
        for method in _methods_of(made):
            _require_arguments(name, made, method)
    except ConfigError:
        raise
    except FAILURES as error:  # of the constructor, or of a property
        raise ConfigError(f"callback={name!r} cannot be made: {told(error)}") from error
    return made


def _methods_of(found: Any) -> list[str]:
    return [method for method in METHODS if getattr(found, method, None) is not None]


def _require_methods(name: str, found: Any, own: Iterable[str]) -> None:
    public = [each for each in own if not each.startswith("_")]
    if _methods_of(found):
        uncalled = [each for each in public if each.startswith("on_") and each not in METHODS]
        if uncalled:
            raise ConfigError(f"callback={name!r}: nothing calls {uncalled[0]}; there are {', '.join(METHODS)}")
        return
    close = [nearest for each in public for nearest in difflib.get_close_matches(each, METHODS, n=1)]
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ConfigError(f"callback={name!r} would hear nothing: it has no method of {', '.join(METHODS)}{hint}")


def _require_arguments(name: str, made: Any, method: str) -> None:
    given, called = METHODS[method], getattr(made, method)
    try:
        takes = inspect.signature(called)
    except ValueError:  # of a function that is not written in Python
        return
    except TypeError as error:
        raise ConfigError(f"callback={name!r}: {method} is no method") from error
    try:
        takes.bind(*given)
    except TypeError as error:
        usage = f"{method}({', '.join(given)})"
        raise ConfigError(f"callback={name!r}: {method}{takes} cannot be called as {usage}: {error}") from error


class Callbacks(Controller):
    """Tells the user's class; does nothing without one."""

    def __init__(self, context: ControllerContext) -> None:
        """Tells it of the start."""
        self._reason = ""
        self._trace_level = logging.INFO if context.config.run.debug else logging.DEBUG
        self._callback = context.callback
        if self._callback is not None:
            self._call("on_start", context.options(), context.folder)

    def note(self, report: Report) -> None:
        """Reports are not told."""

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """Tell of new points."""
        for point in snapshot.points:
            found = self._call("on_point", point.policy, point.env_frames, dict(point.scalars))
            if isinstance(found, str) and found and not self._reason:
                self._reason = f"callback: {found}"
        return ()

    def end(self, last: RunSnapshot) -> None:
        """Tell of the last points, and of the end."""
        self.due(last)
        self._call("on_end")

    def ended_by(self) -> str:
        """Why the run should end; empty: it goes on."""
        return self._reason

    def scalars(self, policy: int) -> dict[str, float]:
        """The user's own numbers of a policy; one that is not finite is left out."""
        found = self._call("scalars", policy)
        try:
            numbers = {f"{CUSTOM}{name}": float(value) for name, value in ({} if found is None else found).items()}
        except FAILURES as error:
            self._give_up("scalars, which returns no dict of numbers", error)
            return {}
        return {name: number for name, number in numbers.items() if math.isfinite(number)}

    def _call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self._callback, name, None)
        if method is None:
            return None
        try:
            return method(*arguments)
        except FAILURES as error:
            self._give_up(name, error)
            return None

    def _give_up(self, where: str, error: BaseException) -> None:
        log.warning("the callback raised in %s and is called no more: %s", where, told(error))
        log.log(self._trace_level, "%s", traceback.format_exc().rstrip())
        self._callback = None
