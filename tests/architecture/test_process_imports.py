"""What a process really loads: libraries that a fresh interpreter holds after it has imported something."""

import subprocess
import sys

import pytest

from tests.architecture.source_tree import ROOT, modules

SIMULATORS = {"ale_py", "vizdoom", "mujoco", "minigrid", "Box2D", "pygame", "cv2"}


def loaded_after(code):
    """Top-level names in sys.modules of an interpreter that ran `code`."""
    script = f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split())


def test_an_actor_worker_does_not_load_torch():
    loaded = loaded_after("import appo.algorithms.workers.actor_worker")
    assert {"numpy", "faster_fifo"} <= loaded
    assert "torch" not in loaded


def test_building_and_stepping_environments_does_not_load_torch():
    code = """
        import numpy
        from appo.algorithms.workers import actor_worker
        from appo.envs.adapters import step_arrays
        from appo.envs.api import EnvContext
        from appo.envs.registry import make_batch_env
        env = make_batch_env("CartPole-v1", None, [EnvContext(env_id=i, seed=1) for i in range(2)])
        out = step_arrays(env.spec, 2)
        env.reset(out)
        env.step(numpy.zeros((2, 1), numpy.float32), out)
        assert out.rewards.tolist() == [1, 1]
        env.close()
    """
    loaded = loaded_after("\n".join(line.strip() for line in code.splitlines()))
    assert "gymnasium" in loaded
    assert "torch" not in loaded


def test_importing_the_registry_and_every_family_loads_no_simulator():
    families = [module.name for module in modules() if module.name.startswith("appo.envs.families.")]
    assert len(families) >= 8
    loaded = loaded_after(f"import appo.envs.registry, {', '.join(families)}")
    assert "numpy" in loaded
    assert not loaded & (SIMULATORS | {"gymnasium", "torch"})


@pytest.mark.parametrize("program", ["train_appo", "appo.algorithms.config"])
def test_reading_the_command_line_loads_neither_torch_nor_gymnasium(program):
    loaded = loaded_after(f"import {program}\nfrom appo.algorithms.config import reference\nreference()")
    assert "appo" in loaded
    assert not loaded & {"torch", "gymnasium", "tensorboardX"}


def test_the_driver_of_a_run_on_the_cpu_does_not_load_torch():
    loaded = loaded_after("import appo.algorithms.run.session")
    assert "faster_fifo" in loaded
    assert "torch" not in loaded


def test_the_learning_code_loads_no_environment_library():
    loaded = loaded_after("import appo.algorithms.learning.learner, appo.algorithms.models.actor_critic")
    assert "torch" in loaded
    assert "gymnasium" not in loaded
