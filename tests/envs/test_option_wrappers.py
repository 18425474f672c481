"""What --env_kwargs and the --wrap_ options do to an environment, through the way that a run takes."""

import os
import pickle
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest

from appo.algorithms.config import resolve
from appo.algorithms.familiar_words import translated
from appo.algorithms.run.resources import resolved_env
from appo.envs.api import EnvContext, EnvError
from appo.envs.config import DECIDED
from appo.envs.observation_layout import ObservationLayout
from appo.envs.option_wrappers import env_of, layers_of
from appo.envs.registry import make_batch_env
from appo.utils.options import ConfigError


class Pictures(gymnasium.Env):
    """Colour images that tell the step; episodes of `length` steps."""

    metadata = {"render_fps": 20}  # noqa: RUF012 - Gymnasium's own way to declare it
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=10, size=12, paint=None):
        self.length, self.paint = length, paint
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        return self.see(), 1.0, self.steps == self.length, False, {"num_frames": 2}

    def see(self):
        return np.full(self.observation_space.shape, 10 * self.steps, np.uint8)


class Shaped(Pictures):
    """The same with another shape."""

    def __init__(self, shape):
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8)


class Numbers(gymnasium.Env):
    """One number that tells the step, with or without bounds."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, bound=40.0):
        self.observation_space = gymnasium.spaces.Box(-bound, bound, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}


HERE = "tests.envs.test_option_wrappers"


def single(*words, name="Pictures"):
    """The environment that a command line builds."""
    argv, _ = translated([f"--env={HERE}:{name}", *words])
    config = resolve(argv).config
    env = env_of(config.env)
    return env.family.make(env.name, config.family, EnvContext(seed=1))


def test_arguments_reach_the_constructor_in_either_form():
    assert single("--env_kwargs.length=3", "--env_kwargs.paint=red").unwrapped.length == 3
    assert single("--env_kwargs.paint=red").unwrapped.paint == "red"
    assert single("--env_kwargs.paint=False").unwrapped.paint is False
    assert single('--env_kwargs={"length": 4, "paint": [1, 2]}').unwrapped.paint == [1, 2]


def test_a_registered_environment_and_a_batch_get_arguments():
    config = resolve(["--env=FrozenLake-v1", '--env_kwargs={"is_slippery": false, "map_name": "8x8"}']).config
    batch = make_batch_env(env_of(config.env), config.family, [EnvContext(seed=1), EnvContext(seed=2)])
    assert batch.spaces[0].n == 64
    batch.close()


def test_arguments_and_wrappers_reach_vectorised_and_registered_environments():
    gymnasium.register("AppoPictures-v0", lambda **kwargs: Pictures(**kwargs))
    try:
        config = resolve([f"--env={HERE}:AppoPictures-v0", '--env_kwargs={"length": 7}']).config
        env = env_of(config.env)
        assert env.family.make(env.name, config.family, EnvContext(seed=1)).unwrapped.length == 7
    finally:
        del gymnasium.registry["AppoPictures-v0"]
    native = resolve(["--env=CartPole-v1", "--env_backend=native", '--env_kwargs={"sutton_barto_reward": true}']).config
    vector = resolved_env(native).family.make("CartPole-v1", None, EnvContext(seed=1, vector_size=2))
    assert vector.unwrapped._sutton_barto_reward is True
    vector.close()
    wrapped = resolve(["--env=CartPole-v1", "--env_backend=native", "--wrap_stack=2"]).config
    with pytest.raises(ConfigError, match="wrappers by option are for single environments"):
        resolved_env(wrapped).family.make("CartPole-v1", None, EnvContext(seed=1, vector_size=2))


def test_the_vectorised_form_of_a_simulator_is_built_in_processes_that_have_not_imported_it():
    words = ["--env=ALE/Pong-v5", "--env_backend=native", '--env_kwargs={"stack_num": 2}']
    env = pickle.dumps(resolved_env(resolve(words).config)).hex()
    code = f"""
        import pickle, sys
        from appo.envs.api import EnvContext
        env = pickle.loads(bytes.fromhex("{env}"))
        assert "ale_py" not in sys.modules
        print(env.family.make(env.name, None, EnvContext(seed=1, vector_size=3)).observation_space.shape)
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.strip() == "(3, 2, 84, 84)", done.stderr


def test_a_vectorised_form_whose_package_is_missing_is_refused_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"--env=ALE/Pong-v5 needs ale_py, .*pip install ale-py"):
        resolved_env(resolve(["--env=ALE/Pong-v5", "--env_backend=native"]).config)


def test_options_of_single_environments_are_refused_where_gymnasiums_vectorised_form_takes_their_place():
    words = ["--env=ALE/Pong-v5", "--env_backend=native"]
    for option in ("--env_framestack=4", "--atari_episodic_life=True"):  # also with the values that they have anyway
        with pytest.raises(ConfigError, match=f"{option[2:].partition('=')[0]} is an option of environments that"):
            resolve([*words, option])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--env_kwargs=x"], "env_kwargs=x is no JSON"),
        (["--env_kwargs=[1]"], "is no JSON object"),
        (["--env_kwargs.seed=1"], "env_kwargs: seed is decided by the run itself"),
        (["--env_kwargs.colour=1"], "has no parameter colour; it has length, size, paint"),
        (["--wrap_resize=big"], "wrap_resize='big' is no size of 1 to 4096"),
        (["--wrap_resize=0"], "is no size"),
        (["--wrap_clip=1"], "wrap_clip is for real numbers"),
        (["--wrap_scale"], "wrap_scale is for real numbers"),
    ],
)
def test_what_cannot_be_is_refused(words, reason):
    with pytest.raises(ConfigError, match=reason):
        single(*words)


@pytest.mark.parametrize(
    ("env", "words", "reason"),
    [
        (
            "FrozenLake-v1",
            ["--env_kwargs.is_slipery=False"],
            r"no argument is_slipery; .*; did you mean is_slippery",
        ),
        (
            "CartPole-v1",
            ["--env_kwargs.reward=1", "--env_backend=native"],
            "env_kwargs: --env=CartPole-v1 has no",
        ),
        ("HalfCheetah-v5", ["--env_kwargs.forward_weight=2"], "; did you mean forward_reward_weight"),
        ("pettingzoo_classic_rps_v2", ["--env_kwargs.max_cycle=3"], "has no argument max_cycle$"),
        (f"{HERE}:Pictures", ["--env_kwargs.lenght=2"], "; did you mean length"),
    ],
)
def test_a_misspelt_argument_is_refused_with_the_nearest_that_there_is(env, words, reason):
    config = resolve(translated([f"--env={env}", *words])[0]).config
    with pytest.raises(ConfigError, match=reason):
        make_batch_env(resolved_env(config), config.family, [EnvContext(seed=1)])


def test_a_type_error_of_an_environment_is_its_own():
    env = env_of(resolve([f"--env={HERE}:Pictures", '--env_kwargs={"size": "large"}']).config.env)
    with pytest.raises(EnvError, match="failed in make: TypeError: "):
        make_batch_env(env, None, [EnvContext()])


def test_all_that_a_run_decides_is_known():
    assert {*EnvContext._fields, "env_config", "context", "disable_env_checker"} == DECIDED


def test_what_an_environment_cannot_have_is_refused():
    with pytest.raises(ConfigError, match="wrap_grey needs images"):
        single("--wrap_grey", name="Numbers")
    with pytest.raises(ConfigError, match="wrap_resize needs images"):
        single("--wrap_resize=84", name="Numbers")
    with pytest.raises(ConfigError, match="wrap_scale needs bounds"):
        single("--wrap_scale", "--env_kwargs.bound=Infinity", name="Numbers")
    with pytest.raises(ConfigError, match="env_kwargs are not for --env=synthetic_identity"):
        env_of(resolve(["--env=synthetic_identity", '--env_kwargs={"a": 1}']).config.env)
    env = env_of(resolve(["--env=pettingzoo_classic_rps_v2", "--wrap_stack=2"]).config.env)
    with pytest.raises(ConfigError, match="wrappers by option are for single environments with one agent"):
        env.family.make(env.name, None, EnvContext(seed=1))


def test_images_become_grey_small_and_stacked_with_the_newest_last():
    env = single("--wrap_grey", "--wrap_resize=6x8", "--wrap_stack=3")
    assert env.observation_space.shape == (6, 8, 3)
    first, _ = env.reset(seed=1)
    assert first.shape == (6, 8, 3) and first.dtype == np.uint8 and first.max() == 0
    env.step(0)
    seen, *_ = env.step(0)
    assert seen[0, 0].tolist() == [0, 10, 20]
    again, _ = env.reset(seed=1)
    assert again.max() == 0, "nothing of the last episode"


@pytest.mark.parametrize(
    ("shape", "number", "leaf"),
    [
        ((12, 10), 4, (4, 12, 10)),  # grey, without an axis for it
        ((12, 10, 1), 4, (4, 12, 10)),
        ((5, 12, 10), 2, (10, 12, 10)),
        ((12, 10, 5), 2, (10, 12, 10)),
        ((6, 5, 3), 4, (12, 6, 5)),  # more channels than rows
        ((3, 6, 5), 4, (12, 6, 5)),
        ((2, 6, 5, 3), 2, (12, 6, 5)),
    ],
)
def test_images_of_every_shape_are_stacked_as_channels_in_the_order_of_time(shape, number, leaf):
    env = single(f"--wrap_stack={number}", f"--env_kwargs.shape={list(shape)}", name="Shaped")
    layout = ObservationLayout(env.observation_space)
    assert [each.shape for each in layout.leaves] == [leaf]
    env.reset(seed=1)
    for _ in range(number):
        seen, *_ = env.step(0)
    row = np.zeros((1, *leaf), np.uint8)
    layout.write(layout.views({layout.leaves[0].name: row}), 0, seen)
    steps = row[0, :, 2, 3].tolist()
    channels = leaf[0] // number
    assert steps == [10 * (1 + channel // channels) for channel in range(leaf[0])]


def test_actions_repeat_until_the_end_and_time_is_limited():
    env = single("--wrap_action_repeat=4", "--wrap_time_limit=2")
    assert env.metadata["render_fps"] == 5, "as many frames in a second as before, in fewer images"
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated, info["num_frames"]) == (4.0, False, False, 8)
    *_, terminated, truncated, _ = env.step(0)
    assert (terminated, truncated) == (False, True), "the limit counts actions"
    longer = single("--wrap_action_repeat=4")
    longer.reset(seed=1)
    rewards = [longer.step(0)[1] for _ in range(3)]
    assert rewards == [4.0, 4.0, 2.0], "the last one ends with the episode"


def test_numbers_are_clipped_and_scaled_in_this_order():
    env = single("--wrap_clip=4", "--wrap_scale", "--wrap_stack=2", name="Numbers")
    env.reset(seed=1)
    seen = [env.step(0)[0].tolist() for _ in range(6)]
    assert seen[0] == [0.0, 0.25] and seen[5] == [1.0, 1.0]
    assert env.observation_space.shape == (2,) and env.observation_space.high.tolist() == [1.0, 1.0]


def test_the_order_is_told():
    words = ["--wrap_stack=2", "--wrap_grey", "--wrap_time_limit=9", "--wrap_resize=84", "--wrap_action_repeat=2"]
    config = resolve([f"--env={HERE}:Pictures", *words]).config
    told = [layer.told for layer in layers_of(config.env)]
    assert told == ["action repeat 2", "time limit 9", "grey", "resize 84x84", "stack 2"]
