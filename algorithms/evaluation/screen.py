"""Show what an environment draws: in a window, in a video file, or both.

An environment is drawn after every reset and every step, so that the last image of an episode is seen although the
step that ends it also begins the next. The first image of that one is shown with its first step: where nothing more is
played, what is seen ends with the end of the episode. Images are kept until `flush`, outside of the environment: what
goes wrong in a viewer is not blamed on the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.evaluation.window import NO_DISPLAY
from appo.envs.api import BatchEnv, EnvContext
from appo.envs.registry import ResolvedEnv, make_batch_env
from appo.utils.options import ConfigError

SCORE_ONLY = "score it with --no_render and without --save_video"
# Methods `render` that draw nothing: those of base classes, and of wrappers that ask what they wrap.
_DECLARATIONS = (
    "gymnasium.core.Env.render",
    "gymnasium.core.Wrapper.render",
    "gymnasium.vector.vector_env.VectorEnv.render",
    "gymnasium.wrappers.common.OrderEnforcing.render",
    "gymnasium.wrappers.common.PassiveEnvChecker.render",
    "pettingzoo.utils.env.AECEnv.render",
    "pettingzoo.utils.env.ParallelEnv.render",
)
_DEFAULT_RATE = 30.0  # simulator frames per second of environments that do not tell


class Viewer(Protocol):
    """Takes the images that are shown."""

    frames_per_second: float

    def show(self, image: NDArray[np.uint8]) -> None:
        """Take one image [height, width, 3]."""


class Screen:
    """Builds one environment that is watched, and shows what it draws."""

    def __init__(
        self,
        viewers: Sequence[Viewer],
        frames_per_second: float,
        *,
        may_open_windows: bool,
        remedy: str = SCORE_ONLY,
    ) -> None:
        """Nothing is drawn yet.

        Args:
            viewers: each gets every image.
            frames_per_second: of the viewers; 0: the environment's own pace.
            may_open_windows: an environment that cannot be drawn into an array may show itself in its own window.
            remedy: what a refusal recommends.
        """
        self._remedy = remedy
        self._viewers = viewers
        self._rate = frames_per_second
        self._may_open_windows = may_open_windows
        self._pending: list[Any] = []
        self._held: list[Any] = []  # what a reset drew behind the end of an episode, until a step follows

    def build(self, env: ResolvedEnv, family_options: Any, context: EnvContext) -> BatchEnv:
        """A batch of one environment that is drawn after every reset and step.

        Raises:
            ConfigError: it draws nothing, besides what `make_batch_env` raises.
        """
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            # MuJoCo reads this when it is imported. Its default draws into a hidden window, which needs a display.
            os.environ.setdefault("MUJOCO_GL", "egl")
            os.environ.setdefault("SDL_VIDEODRIVER", NO_DISPLAY)  # else pygame complains of every display it misses

        def make(name: str, options: Any, context: EnvContext) -> Any:
            return self._make(env, options, context)

        watched = env._replace(family=env.family._replace(make=make))
        return make_batch_env(watched, family_options, [context])

    def flush(self) -> None:
        """Show what was drawn since the last time.

        Raises:
            ConfigError: what was drawn is no image.
        """
        pending, self._pending = self._pending, []
        for drawn in pending:
            image = as_image(drawn, self._remedy)
            for viewer in self._viewers:
                viewer.show(image)

    def _make(self, env: ResolvedEnv, options: Any, context: EnvContext) -> Any:
        built = env.family.make(env.name, options, context._replace(render_mode="rgb_array"))
        modes = (getattr(built, "metadata", None) or {}).get("render_modes", ())
        if getattr(built, "render_mode", None) == "rgb_array" and ("rgb_array" in modes or not modes):
            if not _has_render(built):
                built.close()
                raise ConfigError(f"--env={env.name} does not define render(), so it has no images; {self._remedy}")
            self._follow(built, getattr(options, "env_frameskip", 1))
            return built
        built.close()
        if "human" in modes and self._may_open_windows:
            return env.family.make(env.name, options, context._replace(render_mode="human"))
        known = f"its render_modes are {list(modes)}, its render_mode is {getattr(built, 'render_mode', None)}"
        raise ConfigError(
            f"--env={env.name} draws no images ({known}); {self._remedy}. An environment of your own is asked for "
            f"render_mode='rgb_array'"
        )

    def _follow(self, env: Any, frames_per_step: int) -> None:
        """Draw an environment, of whatever kind it is: no wrapper suits single, parallel and vector environments."""
        own_rate = (getattr(env, "metadata", None) or {}).get("render_fps") or _DEFAULT_RATE
        for viewer in self._viewers:
            viewer.frames_per_second = self._rate or own_rate / frames_per_step
        reset, step, draw = env.reset, env.step, env.render

        def reset_and_draw(*args: Any, **kwargs: Any) -> Any:
            result = reset(*args, **kwargs)
            drawn = [_kept(draw())]
            if self._pending:
                self._held = drawn
            else:
                self._pending, self._held = drawn, []
            return result

        def step_and_draw(*args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            self._pending += [*self._held, _kept(draw())]
            self._held = []
            return result

        env.reset, env.step = reset_and_draw, step_and_draw


def _has_render(env: Any) -> bool:
    """The environment, or a wrapper around it, implements `render`."""
    while env is not None:
        render = getattr(env, "render", None)
        if render is not None and _full_name(render) not in _DECLARATIONS:
            return True
        env = getattr(env, "env", None)
    return False


def _kept(drawn: Any) -> Any:
    """What `render` returned, also when it returns the same array the next time."""
    if isinstance(drawn, list | tuple):
        return [_kept(each) for each in drawn]
    return drawn.copy() if isinstance(drawn, np.ndarray) else drawn


def _full_name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"


def as_image(drawn: Any, remedy: str = SCORE_ONLY) -> NDArray[np.uint8]:
    """uint8 [height, width, 3] of what `render` returned: colours with or without transparency, or grey.

    Raises:
        ConfigError: it is no image.
    """
    image = drawn[0] if isinstance(drawn, list | tuple) and drawn else drawn  # a VectorEnv draws each environment
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim not in (2, 3):
        found = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ConfigError(f"render() gave {found} instead of uint8 [height, width, 3]; {remedy}")
    if image.ndim == 2:
        image = image[..., None]
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3]
