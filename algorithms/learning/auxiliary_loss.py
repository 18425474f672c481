"""The contract of a further loss term, and how its name becomes the term.

A term is one module with a constant `LOSS = AuxiliaryLoss(config=..., compute=...)`. `--auxiliary_loss=<name>` takes
`algorithms/learning/auxiliary/<name>.py`; a name with dots, or that of a file in the working directory, is a module of
the user's own. The term sees a minibatch and what the model said about it, and has no parameters of its own.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from appo.algorithms.learning import auxiliary
from appo.algorithms.learning.minibatches import Minibatch
from appo.algorithms.learning.protocols import Distribution
from appo.envs.faults import FAILURES
from appo.envs.own_code import import_own, told
from appo.utils.options import ConfigError


class AuxiliaryInputs(NamedTuple):
    """What one forward pass offers to an auxiliary loss."""

    minibatch: Minibatch
    parameters: Tensor  # [R, M, P] with gradient
    values: Tensor  # [R, M] with gradient, in the critic's units
    distribution: Distribution


class AuxiliaryResult(NamedTuple):
    """What an auxiliary loss gives back."""

    loss: Tensor  # scalar, already weighted; added to the sum and shown as train/aux_<name>
    metrics: dict[str, Tensor]  # key -> scalar, shown as train/aux_<name>_<key>


class AuxiliaryLoss(NamedTuple):
    """What the module of an auxiliary loss defines as `LOSS`."""

    config: type
    """A frozen dataclass of `appo.utils.options.option` fields: the options this loss adds to the command line."""
    compute: Callable[[AuxiliaryInputs, Any], AuxiliaryResult]
    """(inputs, an instance of `config`) -> a mean over rows; 0 without gradient where there is nothing to average."""


def available() -> list[str]:
    """Names of the files in the folder."""
    return sorted(module.name for module in pkgutil.iter_modules(auxiliary.__path__))


def load(name: str) -> AuxiliaryLoss:
    """The loss that `--auxiliary_loss=<name>` means.

    Raises:
        ConfigError: there is none, or its module defines no `LOSS`.
    """
    is_own = "." in name or (name not in available() and Path(f"{name}.py").is_file())
    path = name if is_own else f"{auxiliary.__name__}.{name}"
    try:
        module = import_own(path) if is_own else importlib.import_module(path)
    except FAILURES as error:  # a module of the user's own raises whatever it likes
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{path}.".startswith(f"{missing}."):
            near = difflib.get_close_matches(name, [*available(), *(file.stem for file in Path().glob("*.py"))], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"auxiliary_loss={name!r} is neither a file in algorithms/learning/auxiliary "
                f"({', '.join(available())}) nor a file in this folder nor a module that can be imported{hint}"
            ) from error
        raise ConfigError(f"auxiliary_loss={name!r} cannot be imported: {told(error)}") from error
    loss = getattr(module, "LOSS", None)
    if not isinstance(loss, AuxiliaryLoss) or not callable(loss.compute):
        raise ConfigError(f"auxiliary_loss={name!r}: {path} must define LOSS = AuxiliaryLoss(config=..., compute=...)")
    if not dataclasses.is_dataclass(loss.config) or any(
        "rule" not in f.metadata for f in dataclasses.fields(loss.config)
    ):
        raise ConfigError(f"auxiliary_loss={name!r}: the config of its LOSS must be a dataclass of options")
    return loss


def loss_options(name: str, options: Any) -> Any:
    """Options of the loss of this name, its defaults where there are none; None without a name.

    Raises:
        ConfigError: see `load`.
        TypeError: they are those of another loss.
    """
    if not name:
        return None
    loss = load(name)
    if options is None:
        options = loss.config()
    if not isinstance(options, loss.config):
        raise TypeError(f"auxiliary_options is a {type(options).__name__}; {name} takes a {loss.config.__name__}")
    return options


def register(name: str, loss: AuxiliaryLoss) -> None:
    """Let `--auxiliary_loss=<name>` find a loss defined elsewhere, in this process.

    The learner runs in a process of its own: register in a module that it imports too, or name the module instead.

    Raises:
        ConfigError: the name is taken, or is not a plain word.
    """
    path = f"{auxiliary.__name__}.{name}"
    if not name.isidentifier() or name in available() or path in sys.modules:
        raise ConfigError(f"auxiliary loss {name!r} cannot be registered: the name must be a plain word not yet taken")
    module = types.ModuleType(path, f"The auxiliary loss registered as {name}.")
    module.LOSS = loss  # type: ignore[attr-defined]
    sys.modules[path] = module
