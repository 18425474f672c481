"""What a policy sees of a MiniGrid task."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class SymbolsOnly(gymnasium.ObservationWrapper[dict[str, Any], Any, dict[str, Any]]):
    """Keeps the image, its channels first, and the direction; drops the mission text."""

    images_channels_last = True

    def __init__(self, env: gymnasium.Env[dict[str, Any], Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gymnasium.spaces.Dict), "MiniGrid observes dicts"
        image, direction = env.observation_space["image"], env.observation_space["direction"]
        assert isinstance(image, gymnasium.spaces.Box), "MiniGrid sees an array of symbols"
        image = gymnasium.spaces.Box(0, 255, (image.shape[2], *image.shape[:2]), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"image": image, "direction": direction})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """{image, direction} of a MiniGrid observation."""
        return {"image": observation["image"].transpose(2, 0, 1), "direction": observation["direction"]}
