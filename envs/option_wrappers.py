"""What options put around any environment: arguments of its constructor, and wrappers in a fixed order.

From the inside out: --wrap_action_repeat, --wrap_time_limit, --wrap_grey, --wrap_resize, --wrap_clip, --wrap_scale,
--wrap_stack. They are for a single environment with one agent; families that have options of their own for the same
(Doom, Atari) do it more cheaply.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from appo.envs.api import EnvContext
from appo.envs.config import EnvConfig
from appo.envs.factories import refusal_of_argument
from appo.envs.observation_layout import has_channels_last
from appo.envs.registry import ResolvedEnv, resolve
from appo.utils.options import ConfigError


def env_of(config: EnvConfig) -> ResolvedEnv:
    """The environment that these options name, with what they put around it.

    Raises:
        ConfigError: the name is unknown, or the options are not for this environment.
    """
    return dressed(resolve(config.env), config)


def dressed(env: ResolvedEnv, config: EnvConfig) -> ResolvedEnv:
    """An environment with the arguments and the wrappers of these options.

    Raises:
        ConfigError: its family takes no arguments.
    """
    kwargs, layers = config.kwargs, layers_of(config)
    if kwargs and not env.family.takes_kwargs:
        raise ConfigError(
            f"env_kwargs are not for --env={env.name}, which is built from options of its own: --help --env={env.name}"
        )
    if not kwargs and not layers:
        return env
    return env._replace(family=env.family._replace(make=_Dressed(env.family.make, json.dumps(kwargs), config)))


class Layer(NamedTuple):
    """One wrapper of the options."""

    told: str  # as a run prints it
    wrap: Callable[[Any], Any]


def layers_of(config: EnvConfig) -> list[Layer]:
    """The wrappers that these options ask for, the innermost first."""
    return list(_layers(config))


def _layers(config: EnvConfig) -> Iterator[Layer]:
    if config.wrap_action_repeat > 1:
        number = config.wrap_action_repeat
        yield Layer(f"action repeat {number}", lambda env: action_repeat(env, number))
    if config.wrap_time_limit:
        yield Layer(f"time limit {config.wrap_time_limit}", lambda env: _time_limit(env, config.wrap_time_limit))
    if config.wrap_grey:
        yield Layer("grey", _grey)
    if config.wrap_resize:
        size = config.resize
        yield Layer(f"resize {size[0]}x{size[1]}", lambda env: _resize(env, size))
    if config.wrap_clip > 0.0:
        yield Layer(f"clip {config.wrap_clip:g}", lambda env: _clip(env, config.wrap_clip))
    if config.wrap_scale:
        yield Layer("scale", _scale)
    if config.wrap_stack > 1:
        yield Layer(f"stack {config.wrap_stack}", lambda env: stack(env, config.wrap_stack))


@dataclass(frozen=True)
class _Dressed:
    """`EnvFamily.make` with arguments and wrappers."""

    make: Callable[[str, Any, EnvContext], Any]
    kwargs: str  # JSON, which pickles and compares
    config: EnvConfig

    def __call__(self, name: str, options: Any, context: EnvContext) -> Any:
        import gymnasium

        kwargs = json.loads(self.kwargs)
        try:
            env = self.make(name, options, context._replace(env_kwargs=kwargs))
        except TypeError as error:
            raise refusal_of_argument(error, kwargs, name) or error from error
        layers = layers_of(self.config)
        if layers and not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"--env={name} is a {type(env).__name__}, and wrappers by option are for single environments with one "
                f"agent: leave out {', '.join(layer.told for layer in layers)}, or wrap in your own factory"
            )
        for layer in layers:
            env = layer.wrap(env)
        return env


def action_repeat(env: Any, number: int) -> Any:
    """Each action holds for several steps of the environment, fewer where the episode ends; rewards are added."""
    import gymnasium

    class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
        """Repeats actions, and reports the frames."""

        def __init__(self) -> None:
            """Around `env`, of which fewer images are drawn in a second."""
            super().__init__(env)
            if rate := env.metadata.get("render_fps"):
                self.metadata = {**env.metadata, "render_fps": rate / number}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            """Hold an action."""
            total, frames = 0.0, 0
            for _ in range(number):
                observation, reward, terminated, truncated, info = self.env.step(action)
                total, frames = total + float(reward), frames + int(info.get("num_frames", 1))
                if terminated or truncated:
                    break
            return observation, total, terminated, truncated, {**info, "num_frames": frames}

    return ActionRepeat()


def _time_limit(env: Any, steps: int) -> Any:
    from gymnasium.wrappers import TimeLimit

    return TimeLimit(env, steps)


def _grey(env: Any) -> Any:
    from gymnasium.wrappers import GrayscaleObservation

    space = env.observation_space
    if _shape(env, "wrap_grey")[2:] != (3,) or not _is_bytes(space):
        raise ConfigError(f"wrap_grey needs images [height, width, 3] of bytes 0 to 255; observations are {space}")
    return GrayscaleObservation(env, keep_dim=True)


def _resize(env: Any, size: tuple[int, int]) -> Any:
    from gymnasium.wrappers import ResizeObservation

    shape, space = _shape(env, "wrap_resize"), env.observation_space
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or not _is_bytes(space):
        raise ConfigError(f"wrap_resize needs images [height, width, channels] of bytes 0 to 255, not {space}")
    return ResizeObservation(env, size)


def _clip(env: Any, bound: float) -> Any:
    import gymnasium
    from gymnasium.wrappers import TransformObservation

    _require_floats(env, "wrap_clip")
    space = env.observation_space
    low, high = np.clip(space.low, -bound, bound), np.clip(space.high, -bound, bound)
    bounded = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
    return TransformObservation(env, lambda observation: np.clip(observation, -bound, bound), bounded)


def _scale(env: Any) -> Any:
    from gymnasium.wrappers import RescaleObservation

    _require_floats(env, "wrap_scale")
    space = env.observation_space
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ConfigError(f"wrap_scale needs bounds; observations are {space}; --normalize_input=True does without")
    return RescaleObservation(env, np.float32(-1.0), np.float32(1.0))


def stack(env: Any, number: int) -> Any:
    """The last observations side by side: channels of images, entries of vectors; the first one again at the start."""
    import gymnasium

    if not _shape(env, "wrap_stack"):
        raise ConfigError(f"wrap_stack needs arrays; observations are {env.observation_space}")
    shape, axis = _joined_along(env.observation_space, number)

    def joined(arrays: Iterable[Any]) -> Any:
        return np.concatenate([np.reshape(array, shape) for array in arrays], axis)

    class Stack(gymnasium.ObservationWrapper[Any, Any, Any]):
        """Shows the last observations, the newest last."""

        def __init__(self) -> None:
            """Around `env`."""
            super().__init__(env)
            space = env.observation_space
            low, high = (joined([bound] * number) for bound in (space.low, space.high))
            self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
            self._seen: collections.deque[Any] = collections.deque(maxlen=number)

        def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
            """Begin with one observation as often as there is room."""
            self._seen.clear()
            return super().reset(**arguments)

        def observation(self, observation: Any) -> Any:
            """All of them."""
            self._seen.append(np.array(observation))  # the environment may write into its own once more
            while len(self._seen) < number:
                self._seen.append(self._seen[0])
            return joined(self._seen)

    return Stack()


def _joined_along(space: Any, number: int) -> tuple[tuple[int, ...], int]:
    """The shape that each of so many observations has where they are joined, and the axis along which they are.

    Images [height, width] get an axis of channels. Where so many channels would be taken for a height, images keep
    theirs apart and get an axis before them, which `ObservationLayout` understands as well.
    """
    shape = space.shape
    if len(shape) == 2 and space.dtype == np.uint8:
        shape = (*shape, 1)
    if len(shape) == 4:
        return shape, 0
    if len(shape) != 3:
        return shape, len(shape) - 1
    axis = 2 if has_channels_last(shape) else 0
    all_of_them = [size * number if index == axis else size for index, size in enumerate(shape)]
    return (shape, axis) if has_channels_last(all_of_them) == has_channels_last(shape) else ((1, *shape), 0)


def _is_bytes(space: Any) -> bool:
    return bool(space.dtype == np.uint8 and (space.low == 0).all() and (space.high == 255).all())


def _shape(env: Any, option: str) -> tuple[int, ...]:
    import gymnasium

    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"{option} needs a single array; observations are {space}")
    return tuple(space.shape)


def _require_floats(env: Any, option: str) -> None:
    _shape(env, option)
    if not np.issubdtype(env.observation_space.dtype, np.floating):
        raise ConfigError(f"{option} is for real numbers; observations are {env.observation_space}")
