"""An environment family made for these tests, known under `sample_...` while one of them runs."""

import sys
from dataclasses import dataclass

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.train_config import to_json
from appo.envs.api import EnvFamily
from appo.envs.registry import register_env_family
from appo.utils.options import option


@dataclass(frozen=True)
class SampleOptions:
    """How the sample environment looks."""

    res_w: int = option(128, "Width of the image", minimum=8)


def sample_defaults(name):
    return {"gamma": 0.9, "res_w": 64} | ({"lr": 1.0} if name == "sample_unknown" else {}) | (
        {"hidden_size": 0} if name == "sample_range" else {}
    )  # fmt: skip


@pytest.fixture(autouse=True)
def sample_family(monkeypatch):
    monkeypatch.setitem(sys.modules, "appo.envs.families.sample", None)
    register_env_family("sample", EnvFamily(lambda *_: None, SampleOptions, sample_defaults))


@pytest.fixture
def start(tmp_path):
    """Resolve a command line for an experiment in a temporary folder."""

    def resolved(*argv, env="sample_task"):
        return resolve([f"--env={env}", f"--train_dir={tmp_path}", *argv])

    return resolved


@pytest.fixture
def save_config(tmp_path):
    """Write config.json as a run would."""

    def write(resolved, text=None):
        folder = tmp_path / resolved.config.run.experiment
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(text or to_json(resolved.config, resolved.typed))
        return folder

    return write
