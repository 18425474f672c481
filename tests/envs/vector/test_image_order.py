"""Images of vector environments: their numbers, and the order in memory that the environment writes in.

Writing an image in another order takes ten times as long. What callers see is [channels, height, width] either way.
"""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from appo.envs.vector.make import make_vec_env

LENGTH = 3  # steps of an episode
AGENTS = 2
# The shape of the space, and how such an image becomes [channels, height, width].
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "colours last": ((4, 5, 3), lambda image: image.transpose(2, 0, 1)),
    "colours first": ((3, 4, 5), lambda image: image),
    "grey": ((4, 5), lambda image: image[None]),
    "stacked, colours last": ((2, 4, 5, 3), lambda image: np.concatenate([each.transpose(2, 0, 1) for each in image])),
    "stacked, colours first": ((2, 3, 4, 5), lambda image: image.reshape(6, 4, 5)),
}
SERIAL: dict[str, Any] = {"backend": "serial"}
PROCESSES: dict[str, Any] = {"backend": "subproc", "num_workers": 2, "start_method": "fork"}
# Each time several environments in one process, and a last one that is alone.
WAYS = {
    "serial": SERIAL,
    "serial, not copied": SERIAL | {"copy": False},
    "processes": PROCESSES,
    "processes, not copied": PROCESSES | {"copy": False},
}
NUM_ENVS = 3


def painted(shape: str, place: int, steps: int) -> np.ndarray:
    """What environment or agent `place` shows, of the shape of its space."""
    size = SHAPES[shape][0]
    return (np.arange(np.prod(size)) + 70 * place + 20 * steps).astype(np.uint8).reshape(size)


def in_memory(image: np.ndarray, is_interleaved: bool) -> np.ndarray:
    """The same image; an interleaved one is a view of [height, width, channels], as a camera draws it."""
    if not is_interleaved or image.ndim != 3 or image.shape[0] != 3:
        return image
    return np.ascontiguousarray(image.transpose(1, 2, 0)).transpose(2, 0, 1)


class Painted(gymnasium.Env):
    """Shows an image in which every number is another one, below one key or two; ends after `LENGTH` steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, context: Any, shape: str, interleaved: bool, is_nested: bool = False) -> None:
        self.place, self.shape, self.is_nested = context.env_id, shape, is_nested
        self.images_channels_last = interleaved
        image: spaces.Space[Any] = spaces.Box(0, 255, SHAPES[shape][0], np.uint8)
        image = spaces.Dict({"inner": image}) if is_nested else image
        self.observation_space = spaces.Dict({"image": image, "n": spaces.Discrete(9)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observation(), 0.0, self.steps == LENGTH, False, {}

    def _observation(self) -> dict[str, Any]:
        image = in_memory(painted(self.shape, self.place, self.steps), self.images_channels_last)
        return {"image": {"inner": image} if self.is_nested else image, "n": self.steps}


class PaintedAgents:
    """The same for two agents, as PettingZoo has them."""

    possible_agents = ("left", "right")

    def __init__(self, context: Any, shape: str, interleaved: bool) -> None:
        self.first, self.shape, self.images_channels_last = AGENTS * context.env_id, shape, interleaved

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({"image": spaces.Box(0, 255, SHAPES[self.shape][0], np.uint8), "n": spaces.Discrete(9)})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.steps, self.agents = 0, list(self.possible_agents)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.steps += 1
        acting, has_ended = self.agents, self.steps == LENGTH
        self.agents = [] if has_ended else self.agents
        ends, never = dict.fromkeys(acting, has_ended), dict.fromkeys(acting, False)
        return self._observations(), dict.fromkeys(acting, 0.0), ends, never, {agent: {} for agent in acting}

    def close(self) -> None:
        pass

    def _observations(self) -> dict[str, Any]:
        images = [painted(self.shape, self.first + i, self.steps) for i in range(AGENTS)]
        return {
            agent: {"image": in_memory(image, self.images_channels_last), "n": self.steps}
            for agent, image in zip(self.possible_agents, images, strict=True)
        }


@pytest.fixture
def make():
    """Makes vector environments and closes them after the test."""
    made = []

    def begin(*args: Any, **options: Any) -> Any:
        made.append(make_vec_env(*args, **options))
        return made[-1]

    yield begin
    for env in made:
        env.close()


def check(images: np.ndarray, shape: str, places: list[int], steps: int, is_interleaved: bool) -> None:
    """Every number is right, and the order in memory is the promised one."""
    to_channels_first = SHAPES[shape][1]
    flat = images.reshape(-1, *images.shape[-3:])
    assert len(flat) == len(places)
    for image, place in zip(flat, places, strict=True):
        assert np.array_equal(image, to_channels_first(painted(shape, place, steps)))
    assert (np.moveaxis(images, -3, -1) if is_interleaved else images).flags.c_contiguous


def play(env: Any, shape: str, is_interleaved: bool, name: str = "image", agents: int = 1) -> None:
    """Look at each step of an episode, its end, the beginning of the next one, and parts of the batch."""
    everyone = list(range(env.num_envs * agents))
    actions = np.zeros(env.num_envs, int) if agents == 1 else np.zeros((env.num_envs, agents), int)
    check(env.reset().obs[name], shape, everyone, 0, is_interleaved)
    for steps in range(1, LENGTH):
        check(env.step(actions).obs[name], shape, everyone, steps, is_interleaved)
    batch = env.step(actions)
    check(batch.obs[name], shape, everyone, 0, is_interleaved)
    check(batch.final_obs[name], shape, everyone, LENGTH, is_interleaved)
    for some in ([1], [0, 2]):
        env.send(actions[some], some)
        places = [env_id * agents + agent for env_id in some for agent in range(agents)]
        check(env.recv(len(some)).obs[name], shape, places, 1, is_interleaved)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("shape", "says_so", "is_interleaved"),
    [
        ("colours last", False, True),
        ("colours first", False, False),
        ("colours first", True, True),
        ("grey", True, False),
        ("stacked, colours last", True, False),
        ("stacked, colours first", True, False),
    ],
)
def test_images_keep_the_order_that_they_have_in_memory(make, way, shape, says_so, is_interleaved):
    play(
        make(functools.partial(Painted, shape=shape, interleaved=says_so), NUM_ENVS, **WAYS[way]), shape, is_interleaved
    )


@pytest.mark.parametrize("way", ["serial", "processes"])
@pytest.mark.parametrize(("shape", "says_so"), [("colours last", False), ("colours first", True)])
def test_images_of_several_agents_keep_their_order(make, way, shape, says_so):
    env = make(functools.partial(PaintedAgents, shape=shape, interleaved=says_so), NUM_ENVS, **WAYS[way])
    play(env, shape, True, agents=AGENTS)


@pytest.mark.parametrize("way", ["serial", "processes"])
def test_images_below_two_keys_keep_their_order(make, way):
    factory = functools.partial(Painted, shape="colours first", interleaved=True, is_nested=True)
    play(make(factory, NUM_ENVS, **WAYS[way]), "colours first", True, name="image/inner")


@pytest.mark.parametrize("way", ["serial", "processes"])
def test_what_an_environment_says_of_its_images_is_found_below_wrappers(make, way):
    def wrapped(context: Any) -> Any:
        return gymnasium.wrappers.TimeLimit(Painted(context, "colours first", interleaved=True), 100)

    play(make(wrapped, NUM_ENVS, **WAYS[way]), "colours first", True)


@pytest.mark.parametrize("where", [{"backend": "native"}, PROCESSES | {"num_workers": 1}])
@pytest.mark.parametrize(
    ("shape", "says_so", "is_interleaved"),
    [("colours last", False, True), ("colours first", True, True), ("colours first", False, False)],
)
def test_images_of_a_native_vector_environment_keep_their_order(make, where, shape, says_so, is_interleaved):
    class PaintedVector(SyncVectorEnv):
        images_channels_last = says_so

    def build(context: Any) -> Any:
        builders = [
            functools.partial(Painted, context._replace(env_id=place), shape, says_so)
            for place in range(context.vector_size)
        ]
        return PaintedVector(builders, autoreset_mode=AutoresetMode.NEXT_STEP)

    env = make(build, NUM_ENVS, **where)
    actions, everyone = np.zeros(NUM_ENVS, int), list(range(NUM_ENVS))
    check(env.reset().obs["image"], shape, everyone, 0, is_interleaved)
    for steps in (1, 2):
        check(env.step(actions).obs["image"], shape, everyone, steps, is_interleaved)


@pytest.mark.parametrize("way", ["serial", "processes"])
@pytest.mark.parametrize("first_says_so", [True, False])
def test_environments_that_differ_in_the_order_of_their_images_share_that_of_the_first(make, way, first_says_so):
    def factory(context: Any) -> Any:
        return Painted(context, "colours first", interleaved=(context.env_id == 0) == first_says_so)

    play(make(factory, NUM_ENVS, **WAYS[way]), "colours first", first_says_so)
