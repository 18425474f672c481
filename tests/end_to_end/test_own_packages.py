"""A user's own packages may have the names of our folders, beside a checkout and beside an installed package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, SMALL

CORRIDOR = """
import gymnasium
from utils.options import START  # ours has a module of that name

class Corridor(gymnasium.Wrapper):
    def __init__(self, seed):
        super().__init__(gymnasium.make("CartPole-v1"))
        assert START == "of the user"

class Locked(Corridor):
    def reset(self, **options):
        raise RuntimeError("the door is locked")
"""
OPTIONS = [*SMALL, "--train_for_env_steps=4000"]
NOT_PART_OF_A_CHECKOUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", "__pycache__", "train_dir", "build", "*.egg-info"
)


@pytest.fixture(params=["packages", "folders"])
def own_code(request, tmp_path):
    """`envs.corridor` and `utils.options` in the folder where the run starts; `folders` have no __init__.py."""
    for package, module, text in [("envs", "corridor", CORRIDOR), ("utils", "options", "START = 'of the user'\n")]:
        (tmp_path / package).mkdir()
        (tmp_path / package / f"{module}.py").write_text(text)
        if request.param == "packages":
            (tmp_path / package / "__init__.py").touch()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder of packages into which this one was installed, with nothing of the checkout left."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=NOT_PART_OF_A_CHECKOUT)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        f"--target={folder / 'site'}",
    ]
    subprocess.run([*pip, str(folder / "checkout")], check=True, timeout=240)
    shutil.rmtree(folder / "checkout")
    return folder / "site"


@pytest.mark.usefixtures("own_code")
def test_packages_named_as_ours_train_from_a_checkout(start):
    run = start(*OPTIONS, env="envs.corridor:Corridor")
    assert run.end() == 0, run.output


@pytest.mark.usefixtures("own_code")
def test_packages_named_as_ours_train_from_an_installed_package(installed, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, installed / "bin" / "appo-train", "--env=envs.corridor:Corridor", *OPTIONS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "train_dir" / "default_experiment" / "summary.json").exists()
    for program, words in [
        ("appo-train", ["--env=envs.corridor:Corridor", "--no_such_option=1"]),
        ("appo-train", ["--env=envs.corridor:Locked", "--experiment=second"]),
        ("appo-enjoy", ["--no_such_option=1"]),
    ]:
        command = [sys.executable, installed / "bin" / program, *words]
        failed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert failed.stderr.splitlines()[-1].startswith(f"{program}: error: "), failed.stderr


def test_the_installed_package_takes_one_name_and_holds_every_module(installed):
    packages = {path.name for path in installed.iterdir() if path.is_dir() and path.suffix != ".dist-info"}
    assert packages == {"appo", "bin"}
    folders = ("algorithms", "envs", "tools", "utils")
    ours = {path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py")}
    theirs = {path.relative_to(installed / "appo") for path in (installed / "appo").rglob("*.py")}
    assert theirs == ours | {Path("__init__.py"), Path("train_appo.py"), Path("enjoy_appo.py")}
    assert not [path for path in (installed / "appo").rglob("*") if path.is_symlink()]
