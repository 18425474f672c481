"""Which encoder reads which observation leaf: by file name, by registration, by path, or chosen by size.

There is no table: an encoder is a module of the package `encoders`. Registering one from outside adds a module.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
from pathlib import Path

from appo.algorithms.models import encoders
from appo.algorithms.models.api import Encoder
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.specs import ELAPSED_STEPS
from appo.envs.api import ObservationLeaf
from appo.envs.faults import FAILURES
from appo.envs.own_code import import_own, told
from appo.utils.options import ConfigError, nearest_names

AUTO = "auto"
_MEDIUM_IMAGE = 36  # pixels of the shorter side
_TINY_IMAGE = 12  # up to this many pixels an image is a grid of cells
_ATARI_SIZE = (84, 84)
_KINDS = ("image", "vector")


def register_encoder(name: str, encoder: type[Encoder]) -> None:
    """Make `--encoder=<name>` mean a class from outside the project, in this process.

    Worker processes import nothing of the caller's: for them the registration has to run when they start, or the
    option has to name the class as `package.module:Class`.

    Raises:
        ConfigError: the name is taken, or is not a name.
    """
    if not name.isidentifier() or name == AUTO or name in encoder_names():
        raise ConfigError(f"encoder name {name!r} is taken or not an identifier; taken: {', '.join(encoder_names())}")
    module = types.ModuleType(f"{encoders.__name__}.{name}", encoder.__doc__)
    module.__dict__["Encoder"] = encoder
    sys.modules[module.__name__] = module


def encoder_names() -> list[str]:
    """The encoders of the folder and the registered ones."""
    prefix = encoders.__name__ + "."
    found = {module.name for module in pkgutil.iter_modules(encoders.__path__)}
    found |= {name.removeprefix(prefix) for name in list(sys.modules) if name.startswith(prefix)}
    return sorted(found)


def require_encoder(config: ModelConfig) -> None:
    """Import an encoder of the user's own, while its folder is the working directory: environments may change that.

    Raises:
        ConfigError: see `find_encoder`.
    """
    if config.encoder != AUTO:
        find_encoder(config.encoder)


def find_encoder(name: str) -> type[Encoder]:
    """The class that a value of `--encoder` other than auto stands for.

    Raises:
        ConfigError: there is no such encoder; the message lists those there are.
    """
    path, _, attribute = name.partition(":")
    is_ours = not attribute and name in encoder_names()
    if not attribute and not is_ours and name not in sys.modules and not Path(f"{name}.py").is_file():
        known = [AUTO, *encoder_names(), *(file.stem for file in Path().glob("*.py"))]
        close = nearest_names(name, known)
        hint = f"did you mean {' or '.join(close)}? There" if close else "there"
        raise ConfigError(
            f"encoder={name!r} does not exist; {hint} are {', '.join([AUTO, *encoder_names()])}, or one of your own: "
            "my_file for the class Encoder of my_file.py in this folder, or package.module:Class"
        )
    try:
        module = importlib.import_module(f"{encoders.__name__}.{name}") if is_ours else import_own(path)
    except FAILURES as error:  # a module of the user's own raises whatever it likes
        raise ConfigError(f"encoder={name!r} cannot be imported: {told(error)}") from error
    attribute = attribute or "Encoder"
    if not hasattr(module, attribute):
        classes = [each for each in dir(module) if hasattr(getattr(module, each), "minimum_size")]
        others = f"; it has {', '.join(f'{path}:{each}' for each in classes)}" if classes else ""
        raise ConfigError(f"encoder={name!r}: {path} has no class {attribute}{others}")
    found: type[Encoder] = getattr(module, attribute)
    if getattr(found, "kind", None) not in _KINDS or not isinstance(getattr(found, "minimum_size", None), int):
        raise ConfigError(
            f"encoder={name!r} needs a class attribute kind, one of {', '.join(_KINDS)}, and a class attribute "
            "minimum_size: the smallest height and width of an image it can read, 1 for vectors"
        )
    return found


def choose_encoder(leaf: ObservationLeaf, config: ModelConfig) -> type[Encoder]:
    """The encoder for an image or vector leaf.

    An encoder named by the option reads the leaves of its kind that the environment shows; all others are read as with
    auto.

    Raises:
        ConfigError: the encoder does not exist, or the image is too small for it.
    """
    encoder = find_encoder(_automatic_name(leaf) if config.encoder == AUTO else config.encoder)
    if encoder.kind != leaf.kind or leaf == ELAPSED_STEPS:
        encoder = find_encoder(_automatic_name(leaf))
    if not _fits(encoder, leaf):
        raise ConfigError(
            f"encoder={config.encoder!r} needs images of at least {encoder.minimum_size}x{encoder.minimum_size}, "
            f"observation {leaf.name!r} is {leaf.shape[1]}x{leaf.shape[2]}; these fit: {', '.join(_fitting(leaf))}"
        )
    return encoder


def output_size_of(encoder: Encoder) -> int:
    """How many features an encoder gives.

    Raises:
        ConfigError: it does not say.
    """
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int) or size < 1:
        name = f"{type(encoder).__module__}:{type(encoder).__qualname__}"
        raise ConfigError(f"encoder={name!r} needs an attribute output_size, the features of a row, once it is built")
    return size


def scales_pixels(leaf: ObservationLeaf, config: ModelConfig) -> bool:
    """The encoder of this leaf divides by `obs_scale` itself."""
    return leaf.kind == "image" and getattr(choose_encoder(leaf, config), "scales_pixels", False)


def require_used(config: ModelConfig, leaves: tuple[ObservationLeaf, ...]) -> None:
    """Refuse an encoder that would read nothing.

    Raises:
        ConfigError: no leaf is of the kind that the named encoder reads.
    """
    if config.encoder == AUTO:
        return
    kind = find_encoder(config.encoder).kind
    kinds = ("vector", "categorical") if kind == "vector" else (kind,)  # one-hot vectors are vectors
    if not any(leaf.kind in kinds for leaf in leaves):
        fitting = sorted({name for leaf in leaves for name in _fitting(leaf)})
        raise ConfigError(
            f"encoder={config.encoder!r} reads observations of kind {kind}, the environment has "
            f"{', '.join(f'{leaf.name} ({leaf.kind})' for leaf in leaves)}; these fit: {', '.join([AUTO, *fitting])}"
        )


def _automatic_name(leaf: ObservationLeaf) -> str:
    if leaf.kind == "vector":
        return "mlp"
    height, width = leaf.shape[1:]
    if (height, width) == _ATARI_SIZE:
        return "conv_nature"
    if min(height, width) >= _MEDIUM_IMAGE:
        return "conv_medium"
    if find_encoder("minigrid_tiny").minimum_size <= min(height, width) and max(height, width) <= _TINY_IMAGE:
        return "minigrid_tiny"
    return "conv_small"


def _fitting(leaf: ObservationLeaf) -> list[str]:
    return [name for name in encoder_names() if _fits(find_encoder(name), leaf)]


def _fits(encoder: type[Encoder], leaf: ObservationLeaf) -> bool:
    if encoder.kind != leaf.kind:
        return False
    return leaf.kind == "vector" or min(leaf.shape[1:]) >= encoder.minimum_size
