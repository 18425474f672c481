"""What viewers see of an environment, whatever kind it is; and the window, on an invisible display."""

import gymnasium
import numpy as np
import pytest

from appo.algorithms.evaluation.screen import Screen, as_image
from appo.algorithms.evaluation.window import NoWindowError, Window, has_display
from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext, EnvFamily
from appo.envs.registry import NoOptions, ResolvedEnv, resolve
from appo.utils.options import ConfigError


class Numbered(gymnasium.Env):
    """Draws how many steps it has taken in this episode; terminates after three."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    action_mask_in_info = False

    def __init__(self, render_mode=None):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, self.steps == 3, False, {}

    def render(self):
        return np.full((4, 6, 3), self.steps, np.uint8)


class OwnWindow(Numbered):
    metadata = {"render_modes": ["human"], "render_fps": 20}  # noqa: RUF012


class Parallel:
    """Two agents of PettingZoo's interface; over after two steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_mask_in_info = False
    possible_agents = ("a", "b")

    def __init__(self, render_mode):
        self.render_mode, self.agents = render_mode, []
        self.space = gymnasium.spaces.Discrete(2)

    def observation_space(self, agent):
        return self.space

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        agents = self.agents
        if self.steps == 2:
            self.agents = []
        ends = dict.fromkeys(agents, self.steps == 2)
        zeros = dict.fromkeys(agents, 0)
        return zeros, zeros, ends, dict.fromkeys(agents, False), {agent: {} for agent in agents}

    def render(self):
        return np.full((2, 2), self.steps, np.uint8)

    def close(self):
        pass


class Sink:
    """A viewer that keeps what it sees."""

    frames_per_second = 0.0

    def __init__(self):
        self.seen = []

    def show(self, image):
        assert image.shape[2] == 3
        self.seen.append(int(image[0, 0, 0]))


def resolved(make):
    return ResolvedEnv(EnvFamily(make, NoOptions, lambda name: {}), "test", "test_env")


def watch(make, steps, rate=0.0, may_open_windows=False, at_once=True):
    """A sink that saw a reset and some steps, each when it was taken or all of them `at_once`."""
    sink = Sink()
    screen = Screen([sink], rate, may_open_windows=may_open_windows)
    env = screen.build(resolved(make), NoOptions(), EnvContext(seed=0))
    arrays = step_arrays(env.spec, env.num_envs)
    env.reset(arrays)
    for _ in range(steps):
        if not at_once:
            screen.flush()
        env.step(np.zeros((len(arrays.is_first), 1), np.float32), arrays)
    assert not at_once or sink.seen == []
    screen.flush()
    screen.flush()
    env.close()
    return sink


def test_the_last_image_of_an_episode_is_seen_as_well_as_the_first_of_the_next():
    sink = watch(lambda name, options, context: Numbered(context.render_mode), 4)
    assert sink.seen == [0, 1, 2, 3, 0, 1]


class OneBuffer(Numbered):
    """Draws into the same array every time."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.image = np.zeros((4, 6, 3), np.uint8)

    def render(self):
        self.image[:] = self.steps
        return self.image


class OneBufferInAList(OneBuffer):
    """The same in the form of vector environments."""

    def render(self):
        return [super().render()]


@pytest.mark.parametrize("env", [Numbered, OneBuffer, OneBufferInAList])
def test_what_is_seen_ends_with_an_episode_where_no_other_is_played(env):
    def make(name, options, context):
        return env(context.render_mode)

    assert watch(make, 0).seen == [0]
    assert watch(make, 3).seen == [0, 1, 2, 3]
    for at_once in (True, False):
        assert watch(make, 7, at_once=at_once).seen == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


class WronglyDrawn(Numbered):
    def render(self):
        return "no image"


def test_what_is_no_image_is_refused_after_the_reset():
    with pytest.raises(ConfigError, match="gave str instead of uint8"):
        watch(lambda name, options, context: WronglyDrawn(context.render_mode), 0)


def test_the_pace_is_the_environments_own_unless_another_is_asked_for():
    assert watch(lambda name, options, context: Numbered(context.render_mode), 1).frames_per_second == 20
    assert watch(lambda name, options, context: Numbered(context.render_mode), 1, 7.0).frames_per_second == 7.0


def test_a_step_of_several_frames_takes_as_long_as_they_do():
    sink = Sink()
    options = type("Options", (), {"env_frameskip": 4})()
    env = resolved(lambda name, options, context: Numbered(context.render_mode))
    Screen([sink], 0.0, may_open_windows=False).build(env, options, EnvContext())
    assert sink.frames_per_second == 20 / 4


def test_several_agents_are_drawn_once_per_step():
    assert watch(lambda name, options, context: Parallel(context.render_mode), 3).seen == [0, 1, 2, 0, 1]


class Undrawn(Numbered):
    render = gymnasium.Env.render


def test_an_environment_that_only_inherits_render_is_refused_before_it_plays():
    with pytest.raises(
        ConfigError,
        match=r"--env=test_env does not define render\(\), .*; score it with --no_render and without --save_video",
    ):
        watch(lambda name, options, context: Undrawn(context.render_mode), 1)


def test_a_vectorised_environment_is_drawn_too():
    def make(name, options, context):
        return gymnasium.make_vec("CartPole-v1", 1, "vector_entry_point", render_mode=context.render_mode)

    assert len(watch(make, 3).seen) == 4


@pytest.mark.parametrize(
    "name, size, rate",
    [
        ("doom_basic", (120, 160), 35 / 4),
        ("atari_breakout", (210, 160), 60 / 4),
        ("MiniGrid-Empty-5x5-v0", (160, 160), 10),
        ("LunarLander-v3", (400, 600), 50),
        ("classic_cartpole_no_velocity", (400, 600), 50),
    ],
)
def test_every_family_draws_what_is_played_at_its_own_pace(monkeypatch, name, size, rate):
    images: list[np.ndarray] = []
    sink = Sink()
    monkeypatch.setattr(sink, "show", images.append)
    screen = Screen([sink], 0.0, may_open_windows=False)
    env = resolve(name)
    batch = screen.build(env, env.family.config(), EnvContext(seed=0))
    arrays = step_arrays(batch.spec, 1)
    batch.reset(arrays)
    for _ in range(5):
        batch.step(np.ones((1, len(batch.spec.actions)), np.float32), arrays)
    screen.flush()
    batch.close()
    assert len(images) == 6 and sink.frames_per_second == rate
    assert {image.shape for image in images} == {(*size, 3)}
    assert images[0].std() > 1
    assert any((image != images[0]).any() for image in images)


def test_an_environment_that_only_knows_a_window_of_its_own_opens_it_where_that_is_allowed():
    built = []

    def make(name, options, context):
        built.append(context.render_mode)
        return OwnWindow(context.render_mode)

    assert watch(make, 2, may_open_windows=True).seen == []
    assert built == ["rgb_array", "human"]
    with pytest.raises(ConfigError, match="draws no images"):
        watch(make, 2)


def test_an_environment_that_was_not_told_to_draw_is_refused():
    with pytest.raises(ConfigError, match=r"test_env draws no images .*--no_render"):
        watch(lambda name, options, context: Numbered(), 1, may_open_windows=True)


@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7, 4), (5, 7, 1), (5, 7)])
def test_colours_and_greys_become_images_of_three_colours(shape):
    drawn = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    image = as_image(drawn)
    assert image.shape == (5, 7, 3)
    np.testing.assert_array_equal(image[..., 0], drawn if drawn.ndim == 2 else drawn[..., 0])
    np.testing.assert_array_equal(as_image((drawn,)), image)


@pytest.mark.parametrize("drawn", [None, "a text", np.zeros((3, 3, 3)), np.zeros(4, np.uint8), []])
def test_what_is_no_image_is_refused(drawn):
    with pytest.raises(ConfigError, match=r"render\(\) gave .* instead of uint8 \[height, width, 3\]"):
        as_image(drawn)


@pytest.fixture
def unseen_display(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.mark.parametrize("leave", ["QUIT", "K_ESCAPE", "K_q"])
def test_a_window_shows_images_until_its_user_leaves(unseen_display, leave):
    import pygame

    window = Window("a title", frames_per_second=1000)
    image = np.random.default_rng(0).integers(0, 255, (50, 80, 3), np.uint8)
    window.show(image)
    shown = pygame.display.get_surface()
    assert shown is not None
    assert shown.get_size() == (80 * 8, 50 * 8)  # magnified by a whole number to 400 or more
    assert shown.get_at((8 * 7 + 3, 8 * 5 + 3))[:3] == tuple(image[5, 7])
    assert not window.is_closed
    event = pygame.event.Event(pygame.QUIT)
    if leave != "QUIT":
        event = pygame.event.Event(pygame.KEYDOWN, key=getattr(pygame, leave))
    pygame.event.post(event)
    window.show(image)
    assert window.is_closed
    window.close()
    window.close()


def test_a_window_needs_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert not has_display()
    with pytest.raises(NoWindowError, match="no display"):
        Window("a title")


def test_a_display_that_cannot_be_used_is_told_apart_from_none(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "nonsense")
    with pytest.raises(NoWindowError, match="the display cannot be used"):
        Window("a title")
