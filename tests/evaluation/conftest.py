"""Experiments as training leaves them: config.json and a checkpoint of an untrained, tiny network."""

import pytest
import torch

from appo.algorithms import checkpoints
from appo.algorithms.config import resolve
from appo.algorithms.learning.learner import Learner
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.specs import action_spec
from appo.algorithms.train_config import to_json
from appo.envs.registry import probe

TINY = ("--hidden_size=8", "--mlp_layers=8", "--device=cpu", "--seed=3")


@pytest.fixture
def experiment(tmp_path):
    """Write an experiment; what to type to play it, and its folder."""

    def write(env, *argv, name="first", train_step=12, kind="latest", weights=0):
        place = [f"--env={env}", f"--train_dir={tmp_path}", f"--experiment={name}"]
        resolved = resolve([*place, *TINY, *argv])
        config = resolved.config
        spec = probe(env, config.family)
        torch.manual_seed(weights)
        model = build_actor_critic(config.model, spec)
        learner = Learner(
            model,
            config.learning,
            torch.device("cpu"),
            action_spec=action_spec(spec),
            auxiliary_options=config.auxiliary,
            seed=0,
        )
        payload = {"model": model.state_dict(), "learner": learner.state_dict(), "run_state": {"env_frames": 99}}
        folder = tmp_path / name
        checkpoints.save(folder / "checkpoint_p0", kind, train_step, 99, payload)
        (folder / "config.json").write_text(to_json(config, resolved.typed))
        return place, folder

    return write
