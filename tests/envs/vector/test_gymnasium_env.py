"""`GymnasiumVectorEnv` beside Gymnasium's own `SyncVectorEnv` with the same autoreset and the same seeds."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from appo.envs.vector.errors import EnvWorkerError
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


class Told(gymnasium.Env):
    """Shows how many steps its episode has, which ends after three; tells what its objective is worth."""

    observation_space = gymnasium.spaces.Box(-1.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.start = 0, float((options or {}).get("start", 0))
        return np.array([self.start], np.float32), {}

    def step(self, action):
        self.steps += 1
        observation = np.array([self.start + self.steps], np.float32)
        return observation, 1.0, self.steps == 3, False, {"true_reward": float(10 + self.steps)}


@pytest.mark.parametrize("workers", [None, 2])
def test_some_are_reset_by_a_mask(workers):
    where = {} if workers is None else {"backend": "subproc", "num_workers": workers, "start_method": "fork"}
    ours = GymnasiumVectorEnv(make_vec_env(Told, 3, **where))
    theirs = gymnasium.vector.SyncVectorEnv([Told] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    mask = np.array([True, False, True])
    for env in (ours, theirs):
        env.reset()
        env.step(np.zeros(3, np.int64))
        env.step(np.zeros(3, np.int64))
        shown, _ = env.reset(seed=[1, 2, 3], options={"reset_mask": mask.copy(), "start": 50})
        assert shown.ravel().tolist() == [50, 2, 50]
        shown, _, terminated, *_ = env.step(np.zeros(3, np.int64))
        assert shown.ravel().tolist() == [51, 0, 51] and terminated.tolist() == [False, True, False]
    for wrong, error in (([0, 1, 0], TypeError), ([True, False], ValueError), ([False] * 3, ValueError)):
        with pytest.raises(error, match="reset_mask"):
            ours.reset(options={"reset_mask": wrong})
    with pytest.raises(ValueError, match="2 seeds for 3 environments"):
        ours.reset(seed=[1, 2], options={"reset_mask": np.array([True, True, False])})
    ours.close()
    theirs.close()


class FailsOnce(Told):
    """A reset with the option "fail" raises."""

    def reset(self, *, seed=None, options=None):
        if (options or {}).get("fail") and self.steps == 2:
            raise RuntimeError("no reset")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("workers", [None, 3])
def test_after_a_masked_reset_that_failed_the_next_step_goes_on(workers):
    where = {} if workers is None else {"backend": "subproc", "num_workers": workers, "start_method": "fork"}
    env = GymnasiumVectorEnv(make_vec_env(FailsOnce, 3, **where))
    env.reset()
    env.step(np.zeros(3, np.int64))
    env.reset(options={"reset_mask": np.array([True, True, False])})
    env.step(np.zeros(3, np.int64))
    with pytest.raises(EnvWorkerError, match="no reset"):
        env.reset(options={"reset_mask": np.array([True, False, True]), "fail": True})
    shown, *_ = env.step(np.zeros(3, np.int64))
    assert shown.ravel()[:2].tolist() == [1, 2]
    env.close()


def test_what_was_told_in_an_episode_s_last_step_is_its_final_info():
    env = GymnasiumVectorEnv(make_vec_env(Told, 2))
    env.reset()
    env.step(np.zeros(2, np.int64))
    env.reset(options={"reset_mask": np.array([False, True])})
    *_, infos = env.step(np.zeros(2, np.int64))
    assert infos["true_reward"].tolist() == [12, 11] and "final_info" not in infos
    *_, infos = env.step(np.zeros(2, np.int64))
    assert infos["final_info"]["true_reward"][0] == 13 and infos["final_info"]["_true_reward"].tolist() == [True, False]
    assert infos["_final_info"].tolist() == infos["_final_obs"].tolist() == [True, False]
    assert infos["true_reward"][1] == 12 and infos["_true_reward"].tolist() == [False, True]
    env.close()
