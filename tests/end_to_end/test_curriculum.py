"""A curriculum that follows the frames of the run makes a task learnable that is not without it."""

import pytest

from tests.end_to_end.conftest import SMALL

LOCK = ["--synthetic_episode_length=6", "--synthetic_size=6", "--train_for_env_steps=300000", "--seed=1"]


@pytest.mark.parametrize(
    ("frames", "least", "most"), [(240_000, 0.9, 1.0), pytest.param(0, 0.0, 0.1, marks=pytest.mark.slow)]
)
def test_a_lock_is_opened_after_dials_have_come_one_by_one(start, frames, least, most):
    options = [*SMALL[:1], *SMALL[2:], *LOCK, f"--synthetic_curriculum_frames={frames}"]
    run = start(*options, env="synthetic_lock")
    assert run.end() == 0, run.output
    assert least <= run.status()["policies"][0]["avg_true_reward"] <= most
