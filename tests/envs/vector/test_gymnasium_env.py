"""`GymnasiumVectorEnv` beside Gymnasium's own `SyncVectorEnv` with the same autoreset and the same seeds."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from appo.envs.vector.gymnasium_env import GymnasiumVectorEnv
from appo.envs.vector.make import make_vec_env


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Taxi-v4"])
def test_it_gives_what_gymnasium_gives(name, workers):
    where = {} if workers is None else {"backend": "subproc", "num_workers": workers, "start_method": "fork"}
    ours = GymnasiumVectorEnv(make_vec_env(lambda: gymnasium.make(name), 4, **where))
    theirs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(name)] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    seen = [env.reset(seed=5)[0] for env in (ours, theirs)]
    np.testing.assert_array_equal(*seen)
    theirs.action_space.seed(1)
    for _ in range(300):
        actions = theirs.action_space.sample()
        one, other = ours.step(actions), theirs.step(actions)
        for mine, yours in zip(one[:4], other[:4], strict=True):
            np.testing.assert_allclose(mine, yours, rtol=1e-6)
        assert one[0].dtype == other[0].dtype
        if "final_obs" in other[4]:
            ended = other[4]["_final_obs"]
            assert (one[4]["_final_obs"] == ended).all()
            for index in np.flatnonzero(ended):
                np.testing.assert_allclose(one[4]["final_obs"][index], other[4]["final_obs"][index], rtol=1e-6)
    ours.close()
    theirs.close()


def test_attributes_calls_and_wrappers_of_gymnasium_work():
    env = GymnasiumVectorEnv(make_vec_env("CartPole-v1", 3))
    env.set_attr("gravity", [1.0, 2.0, 3.0])
    assert env.get_attr("gravity") == (1.0, 2.0, 3.0)
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(env)
    wrapped.reset(seed=1)
    for _ in range(60):
        *_, _ = wrapped.step(np.ones(3, np.int64))
    assert wrapped.episode_count >= 3 and len(wrapped.return_queue) >= 3
    wrapped.close()


def test_several_agents_have_no_such_form():
    with (
        make_vec_env("pettingzoo_classic_rps_v2", 2) as env,
        pytest.raises(ValueError, match="these environments have 2"),
    ):
        GymnasiumVectorEnv(env)
