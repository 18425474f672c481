"""Names: which family they lead to, factories of the user's, what another process knows, and what is refused."""

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from appo.envs.api import EnvContext, EnvError, EnvFamily, UnsupportedSpaceError
from appo.envs.factories import call_factory, declared_config
from appo.envs.registry import (
    NoOptions,
    make_batch_env,
    probe,
    register_env,
    register_env_family,
    resolve,
)
from appo.envs.synthetic_options import SyntheticOptions
from appo.utils.options import ConfigError, option

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def forget_what_was_registered(monkeypatch):
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    for name in set(sys.modules) - set(before):
        if name.startswith(("appo.envs.families.my", "user_")):
            del sys.modules[name]


class Small(gymnasium.Env):
    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    action_mask_in_info = False

    def __init__(self, **received):
        self.received = received


@pytest.mark.parametrize(
    "name, family_name",
    [
        ("synthetic_identity", "synthetic"),
        ("CartPole-v1", "classic"),
        ("classic_cartpole_no_velocity", "classic"),
        ("FrozenLake-v1", "gymnasium"),
        ("LunarLander-v3", "box2d"),
        ("HalfCheetah-v5", "mujoco"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("atari_breakout", "atari"),
        ("ALE/Breakout-v5", "atari"),
        ("doom_basic", "doom"),
    ],
)
def test_a_name_leads_to_its_family(name, family_name):
    resolved = resolve(name)
    assert (resolved.family_name, resolved.name) == (family_name, name)
    assert isinstance(resolved.family, EnvFamily)


def run_python(arguments, folder=ROOT):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_only_the_family_asked_for_is_imported_and_gymnasium_not_for_its_name():
    code = """
        import sys
        from appo.envs.registry import resolve
        resolve("synthetic_identity")
        assert "gymnasium" not in sys.modules
        families = [name for name in sys.modules if name.startswith("appo.envs.families.")]
        assert families == ["appo.envs.families.synthetic"]
        resolve("CartPole-v1")
        print([name for name in ("torch", "ale_py") if name in sys.modules])
        for name in ("BreakoutNoFrameskip-v4", "halfcheetah"):
            try:
                resolve(name)
            except ValueError as error:
                assert "did you mean" in str(error)
        print([name for name in ("mujoco", "Box2D", "pettingzoo") if name in sys.modules])
    """
    done = run_python(["-c", textwrap.dedent(code)])
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr


@pytest.mark.parametrize(
    "name, suggestion",
    [
        ("CartPole", "CartPole-v"),
        ("cartpole-v1", "CartPole-v1"),
        ("synthetic_identiy", "synthetic_identity"),
        ("classic_cartpole", "classic_cartpole_no_velocity"),
        ("nothing-like-it-at-all", "my_package.my_module:make_env"),
        ("", "--env is required"),
    ],
)
def test_an_unknown_name_is_refused_with_close_ones(name, suggestion):
    with pytest.raises(ConfigError, match=suggestion):
        resolve(name).family.defaults(name)


@pytest.mark.parametrize(
    "name, suggestions",
    [
        ("BreakoutNoFrameskip-v4", "atari_breakout, ALE/Breakout-v5"),
        ("Breakout-v4", "atari_breakout, ALE/Breakout-v5"),
        ("SpaceInvadersDeterministic-v0", "atari_space_invaders, ALE/SpaceInvaders-v5"),
        ("Pong-ram-v4", "atari_pong, ALE/Pong-v5"),
        ("BrekoutNoFrameskip-v4", "atari_breakout, ALE/Breakout-v5"),
        ("AirRaidNoFrameskip-v4", "atari_air_raid, ALE/AirRaid-v5"),
        ("pong", "atari_pong, ALE/Pong-v5"),
        ("halfcheetah", "HalfCheetah-v5"),
        ("halfcheetah-v4", "HalfCheetah-v4"),
        ("CartPole", "CartPole-v1"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("babyai_goto", "BabyAI-GoTo-v0, BabyAI-GoToSeq-v0, BabyAI-GoToObj-v0"),
    ],
)
def test_what_is_suggested_can_be_made_and_is_the_newest_version(name, suggestions, monkeypatch):
    monkeypatch.delitem(gymnasium.registry, name, raising=False)  # which is there once Atari's package is imported
    with pytest.raises(ConfigError) as caught:
        resolve(name)
    assert f"--env={name}; did you mean {suggestions}? An environment of your own" in str(caught.value)


@pytest.mark.parametrize(
    "name, told",
    [
        ("HalfCheetah-v3", "Gymnasium no longer has this version; type --env=HalfCheetah-v5"),
        ("Walker2d-v2", "Gymnasium no longer has this version; type --env=Walker2d-v5"),
        ("GymV21Environment-v0", 'pip install "shimmy[gym-v21]"'),
    ],
)
def test_an_id_that_only_raises_is_refused_with_what_can_be_made(name, told):
    with pytest.raises(ConfigError, match=f"^--env={name}: ") as caught:
        resolve(name)
    assert told in str(caught.value)


def test_a_registered_family_goes_by_its_longest_prefix():
    def family(label):
        return EnvFamily(lambda name, options, context: Small(label=label, name=name), NoOptions, lambda name: {})

    register_env_family("my", family("my"))
    register_env_family("my_maze", family("my_maze"))
    assert resolve("my_maze_easy").family_name == "my_maze"
    assert resolve("my_other").family_name == "my" == resolve("my").family_name
    env = resolve("my_maze_easy").family.make("my_maze_easy", NoOptions(), EnvContext())
    assert env.received == {"label": "my_maze", "name": "my_maze_easy"}


@pytest.mark.parametrize("prefix", ["", "a.b", "a/b", "a:b", "synthetic"])
def test_a_prefix_that_could_not_be_found_again_is_refused(prefix):
    with pytest.raises(ConfigError, match="cannot register"):
        register_env_family(prefix, resolve("CartPole-v1").family)


def test_a_registered_factory_is_suggested_and_gets_the_fields_it_names():
    received = []

    def factory(env_id, seed, worker_index=None):
        received.append((env_id, seed, worker_index))
        return Small()

    register_env("my-maze-v3", factory)
    contexts = [EnvContext(worker_index=7, env_id=5, seed=2), EnvContext(worker_index=7, env_id=6, seed=2)]
    batch = make_batch_env("my-maze-v3", None, contexts)
    assert received == [(5, 2, 7), (6, 2, 7)] and batch.num_envs == 2
    with pytest.raises(ConfigError, match="my-maze-v3"):
        resolve("my-maze-v4")


def test_a_factory_may_ask_for_env_config_or_context():
    context = EnvContext(worker_index=1, env_id=4, seed=9, attempt=2)
    env_config = call_factory(lambda env_config: env_config, context, "x")
    assert env_config["worker_index"] == 1 and env_config["env_id"] == 4 and env_config["seed"] == 9
    assert call_factory(lambda context: context, context, "x") is context
    assert call_factory(lambda *, attempt, unknown=5: (attempt, unknown), context, "x") == (2, 5)
    with pytest.raises(ConfigError, match="requires size; it can ask for worker_index"):
        call_factory(lambda size: size, context, "x")
    with pytest.raises(ConfigError, match="requires size; it can ask for worker_index"):
        call_factory(lambda size, **others: size, context, "x")


def test_further_keywords_of_a_factory_get_nothing_that_it_does_not_name_but_how_it_is_rendered():
    """They are handed on to a constructor, as PettingZoo's factories do, which knows none of the run's own names."""

    class Raw:
        def __init__(self, max_cycles=25, render_mode=None):
            self.received = (max_cycles, render_mode)

    def parallel_env(**kwargs):
        return Raw(**kwargs)

    context = EnvContext(worker_index=1, seed=9)
    assert call_factory(parallel_env, context, "x").received == (25, None)
    assert call_factory(parallel_env, context._replace(render_mode="rgb_array"), "x").received == (25, "rgb_array")
    assert call_factory(lambda seed, **others: (seed, others), context, "x") == (9, {})


@dataclasses.dataclass(frozen=True)
class Sizes:
    width: int = option(5, "How wide", minimum=1)


def sized(options, seed=None):
    return options, seed


sized.config = Sizes  # type: ignore[attr-defined]


def test_a_factory_receives_the_options_that_its_config_declares():
    assert declared_config(sized, "x") is Sizes
    assert call_factory(sized, EnvContext(seed=3), "x", Sizes(9)) == (Sizes(9), 3)
    assert call_factory(sized, EnvContext(), "x")[0] == Sizes(5), "where nobody has typed any"
    with pytest.raises(ConfigError, match="options of --env=x are typed one by one"):
        call_factory(sized, EnvContext(env_kwargs={"options": 1}), "x")


def test_a_config_that_declares_no_options_is_something_else_and_half_of_one_is_refused():
    def factory(options=None):
        return options

    assert declared_config(factory, "x") is None
    for other in ({"width": 5}, Sizes(5), dataclasses.make_dataclass("Other", [("width", int, 5)]), int):
        factory.config = other  # type: ignore[attr-defined]
        assert declared_config(factory, "x") is None
    half = dataclasses.make_dataclass("Half", [("width", int, option(5, "How wide")), ("height", int, 5)])
    factory.config = half  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"Half\.height is no option; declare it as height: <type> = option"):
        declared_config(factory, "x")
    deaf = type("Deaf", (), {"config": Sizes})
    with pytest.raises(ConfigError, match="has no parameter to receive them; add one that is called options"):
        declared_config(deaf, "x")


USER_MODULE = """
    import gymnasium, numpy as np

    class Maze(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(3)
        action_mask_in_info = False

        def __init__(self, env_id=None, render_mode=None):
            self.env_id = env_id

        def reset(self, *, seed=None, options=None):
            return np.array([self.env_id or 0, 0.0], np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 1.0, False, False, {}

    gymnasium.register("UserMaze-v0", entry_point=Maze)
    not_callable = 3
"""


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    (tmp_path / "user_mazes.py").write_text(textwrap.dedent(USER_MODULE))
    (tmp_path / "user_broken.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    gymnasium.registry.pop("UserMaze-v0", None)


@pytest.mark.parametrize("name", ["user_mazes:Maze", "user_mazes:UserMaze-v0"])
def test_an_environment_is_imported_from_the_current_folder(name, user_folder):
    spec = probe(name)
    assert spec.observations[0].shape == (2,) and spec.actions[0].size == 3


@pytest.mark.parametrize(
    "name, message",
    [
        ("user_mazes:maze", "no function or class 'maze'; did you mean user_mazes:Maze"),
        ("user_mazes:not_callable", "no function or class 'not_callable'$"),
        ("user_maze:Maze", "No module named 'user_maze'; did you mean user_mazes:Maze"),
        ("./user_mazes.py:Maze", "is a file, .*start from /.* with --env=user_mazes:Maze"),
        ("/opt/tasks/walk.py:Walk", "start from the folder of walk.py with --env=walk:Walk"),
        ("user_mazes", "user_mazes.py lies here: type --env=user_mazes:<its class or function>"),
        ("user_mazes.py", "for a file type --env=user_mazes:<its class or function>"),
        ("user_mazes:", "no function or class"),
        ("user_nowhere:make", "cannot import 'user_nowhere' from .*No module named"),
        ("user_broken:make", "cannot import 'user_broken' from .*no_such_package_anywhere"),
        (":make", "cannot import"),
    ],
)
def test_what_cannot_be_imported_is_refused_at_once(name, message, user_folder):
    with pytest.raises(ConfigError, match=message):
        resolve(name)


SCRIPT = """
    import multiprocessing, pickle, sys
    import numpy as np
    from appo.envs.adapters import step_arrays
    from appo.envs.api import EnvContext
    from appo.envs.registry import make_batch_env, register_env, resolve

    def child(connection, resolved):
        batch = make_batch_env(resolved, None, [EnvContext(env_id=i) for i in range(2)])
        out = step_arrays(batch.spec, 2)
        batch.reset(out)
        by_name = make_batch_env(resolved.name, None, [EnvContext()]).num_envs
        connection.send((out.observations["obs"].tolist(), by_name))

    def first_answer(resolved):
        context = multiprocessing.get_context("forkserver")
        mine, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs, resolved))
        process.start()
        theirs.close()
        answer = mine.recv()
        process.join(20)
        return answer

    if __name__ == "__main__":
        imported = resolve("user_mazes:Maze")
        Maze = sys.modules["user_mazes"].Maze
        height = 3.0

        class Tall(Maze):
            def reset(self, *, seed=None, options=None):
                return np.array([self.env_id, height], np.float32), {}

        register_env("tall", lambda env_id: Tall(env_id))
        print([first_answer(imported), first_answer(resolve("tall")), first_answer(resolve("synthetic_truncation"))])
"""


def test_what_was_resolved_here_is_built_in_a_forkserver_child(user_folder):
    script = user_folder / "user_script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = run_python([str(script)], user_folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(
        [([[0.0, 0.0], [1.0, 0.0]], 1), ([[0.0, 3.0], [1.0, 3.0]], 1), ([[1.0], [1.0]], 1)]
    )


def test_probing_tells_the_spec_and_closes(monkeypatch):
    closed = []
    monkeypatch.setattr(Small, "close", lambda self: closed.append(self))
    register_env("my_small", Small)
    assert probe("my_small").agents_per_env == 1 and len(closed) == 1
    assert probe("synthetic_identity", SyntheticOptions(synthetic_size=7)).actions[0].size == 7


def test_what_fails_while_building_names_the_environment_and_closes_the_others():
    closed = []

    class Closable(Small):
        def close(self):
            closed.append(self)

    def factory(env_id):
        if env_id == 2:
            raise OSError("no display")
        return Closable()

    register_env("my_fragile", factory)
    with pytest.raises(EnvError, match=r"environment 2 .*failed in make: OSError: no display") as caught:
        make_batch_env("my_fragile", None, [EnvContext(env_id=i) for i in range(4)])
    assert isinstance(caught.value.__cause__, OSError) and len(closed) == 2

    def wrong_space():
        env = Closable()
        env.observation_space = gymnasium.spaces.Text(4)
        return env

    register_env("my_text", wrong_space)
    with pytest.raises(UnsupportedSpaceError):
        make_batch_env("my_text", None, [EnvContext()])
    assert len(closed) == 3


@pytest.mark.parametrize(
    "error, message",
    [
        (ModuleNotFoundError("No module named 'ale_py'", name="ale_py"), "needs ale_py, .*pip install ale-py"),
        (ModuleNotFoundError("No module named 'vizdoom.x'", name="vizdoom.x"), "needs vizdoom, .*pip install vizdoom"),
        (gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[box2d]"`'), "gymnasium.box2d."),
    ],
)
def test_a_missing_package_comes_with_its_pip_line(error, message):
    def factory():
        raise error

    register_env("my_game", factory)
    with pytest.raises(ConfigError, match=message):
        probe("my_game")


def test_a_file_of_the_users_that_is_not_found_is_no_package_to_be_installed():
    def factory():
        import helpers_of_mine  # noqa: F401

    register_env("my_game", factory)
    with pytest.raises(EnvError, match="failed in make: ModuleNotFoundError: No module named 'helpers_of_mine'"):
        probe("my_game")


def test_a_factory_of_a_vector_is_told_how_many_environments_it_holds():
    class Declared(gymnasium.vector.SyncVectorEnv):
        action_mask_in_info = False

    register_env("my_vector", lambda vector_size: Declared([Small] * vector_size))
    batch = make_batch_env("my_vector", None, [EnvContext(env_id=i) for i in range(5)])
    assert batch.num_envs == 5 and type(batch).__name__ == "VectorEnvAdapter"
