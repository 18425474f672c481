"""A trained policy in a program of one's own: the same actions as evaluation, single and in batches."""

import gymnasium
import numpy as np
import pytest

from appo.algorithms.evaluation import load_policy
from appo.algorithms.sampling.rollout_sampler import SamplerRecipe
from appo.envs.api import MisfitError
from appo.utils.options import ConfigError


def play(policy, env, seed):
    """Actions and return of one episode."""
    observation, _ = env.reset(seed=seed)
    policy.reset()
    actions, total, has_ended = [], 0.0, False
    while not has_ended:
        actions.append(policy.act(observation))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        total, has_ended = total + reward, terminated or truncated
    return actions, total


@pytest.mark.parametrize("memory", ["--use_rnn=True", "--use_rnn=False"])
def test_an_episode_is_played_in_a_few_lines_and_in_a_batch_alike(experiment, memory):
    _, folder = experiment("CartPole-v1", memory, "--normalize_input=True", weights=4)
    policy = load_policy(folder, deterministic=True)
    with gymnasium.make("CartPole-v1") as env:
        alone = [play(policy, env, seed) for seed in (1, 2, 3)]
    assert all(len(actions) == total > 5 for actions, total in alone)
    # The three at the same time; each is reset when it ends.
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    observations, _ = envs.reset(seed=[1, 2, 3])
    policy.reset()
    for step in range(min(len(actions) for actions, _ in alone)):
        chosen = policy.act(observations)
        assert chosen.tolist() == [int(actions[step]) for actions, _ in alone]
        observations, *_ = envs.step(chosen)
    envs.close()


def test_memory_is_forgotten_where_an_episode_begins_and_nowhere_else(experiment):
    _, folder = experiment("CartPole-v1", "--use_rnn=True", weights=1)
    policy = load_policy(folder, deterministic=True)
    observation = np.full((2, 4), 0.3, np.float32)

    def state():
        return policy._inference._state.clone()

    policy.act(observation)
    first = state()
    policy.act(observation)
    second = state()
    policy.reset([1])
    policy.act(observation)
    assert not np.allclose(first, second)
    assert np.allclose(state()[1], first[1]) and not np.allclose(state()[0], first[0])


def test_masks_of_infos_and_of_observations_are_kept(experiment):
    _, folder = experiment("synthetic_masked", weights=2)
    policy = load_policy(folder)
    space = policy.observation_space
    observation = space.sample()
    masks = np.eye(policy.action_space.n, dtype=np.int8)
    for choice, mask in enumerate(masks):
        if isinstance(space, gymnasium.spaces.Dict):
            observation = {**observation, "action_mask": mask}
            assert policy.act(observation) == choice
        else:
            assert policy.act(observation, action_mask=mask) == choice


def test_continuous_actions_are_those_of_the_space(experiment):
    _, folder = experiment("Pendulum-v1", weights=3)
    policy = load_policy(folder)
    action = policy.act(np.zeros(3, np.float32))
    assert action.shape == (1,) and policy.action_space.contains(action)
    batch = policy.act(np.zeros((5, 3), np.float32))
    assert batch.shape == (5, 1) and len(set(batch.ravel().tolist())) == 5, "drawn, each for itself"


def test_it_plays_in_a_sampler(experiment):
    _, folder = experiment("CartPole-v1", "--use_rnn=True", weights=4)
    policy = load_policy(folder, deterministic=True)
    with gymnasium.make("CartPole-v1") as env, SamplerRecipe("CartPole-v1", 3, 0, seed=8).build(policy) as sampler:
        batch = sampler.obtain_exact_episodes(1)
        for episode in batch:
            env.reset(seed=0)
            assert len(episode) > 5
            again = load_policy(folder, deterministic=True)
            chosen = [again.act(observation) for observation in episode.observations["obs"][:-1]]
            assert chosen == episode.actions.tolist()


def test_what_cannot_be_loaded_or_seen_is_refused(experiment, tmp_path):
    with pytest.raises(ConfigError, match=r"is no experiment"):
        load_policy(tmp_path / "nothing")
    _, folder = experiment("CartPole-v1")
    with pytest.raises(ConfigError, match="policy=3 of an experiment with 1"):
        load_policy(folder, policy=3)
    with pytest.raises(MisfitError, match="shape"):
        load_policy(folder).act(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="kind='bset' is unknown; there are latest, best"):
        load_policy(folder, kind="bset")
    with pytest.raises(ConfigError, match="'~nobody_of_this_name/first': there is no home folder"):
        load_policy("~nobody_of_this_name/first")


def test_a_folder_below_the_home_folder_is_found(experiment, monkeypatch):
    _, folder = experiment("CartPole-v1")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load_policy(f"~/{folder.name}").act(np.zeros(4, np.float32)) in (0, 1)


def test_rows_are_reset_before_the_first_batch_and_none_are_left_alone(experiment):
    _, folder = experiment("CartPole-v1", "--use_rnn=True")
    policy, observations = load_policy(folder, deterministic=True), np.full((4, 4), 0.3, np.float32)
    policy.reset(np.array([False, True, True, False]))
    policy.reset([])
    policy.act(observations)
    first = policy._inference._state.clone()
    policy.reset(np.zeros(4, np.bool_))
    policy.act(observations)
    second = policy._inference._state.clone()
    assert not np.allclose(first, second), "none forgot"
    with pytest.raises(MisfitError):
        policy.act(np.zeros((7, 3), np.float32))  # fits nothing, and changes nothing
    policy.reset(np.array([True, False, False, False]))
    policy.act(observations)
    after = policy._inference._state
    assert np.allclose(after[0], first[0]) and not np.allclose(after[3], first[3])


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        (lambda whole: whole["action_mask"], "'action_mask' should be in every observation, but is missing"),
        (lambda whole: {"nothing": whole["nothing"]}, "'action_mask' should be in every observation, but is missing"),
        (lambda whole: whole | {"action_mask": [[1], [1, 0]]}, "'action_mask' should be an array, but is a sequence"),
        (lambda whole: whole | {"action_mask": whole["action_mask"][None]}, "'nothing' should be of shape"),
    ],
)
def test_what_is_no_observation_of_a_dict_is_refused(experiment, damaged, told):
    _, folder = experiment("synthetic_masked", weights=2)
    policy = load_policy(folder)
    with pytest.raises(MisfitError, match=told):
        policy.act(damaged(policy.observation_space.sample()))
