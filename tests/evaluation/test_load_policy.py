"""A trained policy in a program of one's own: the same actions as evaluation, single and in batches."""

import logging

import gymnasium
import numpy as np
import pytest
import torch

from appo.algorithms.evaluation import load_policy
from appo.algorithms.run import config as run_config
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
    with pytest.raises(ConfigError, match=r"has no policy 3; it has only 0$"):
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


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_a_policy_computes_with_its_own_number_of_threads_and_leaves_the_callers_alone(experiment, monkeypatch):
    _, folder = experiment("CartPole-v1")
    observation = np.zeros(4, np.float32)
    for wanted, used in ((1, 1), (2, 2), (None, 3)):
        policy = load_policy(folder, num_threads=wanted)
        choose = policy._inference.choose
        seen: list[int] = []

        def recorded(*args, choose=choose, seen=seen):
            seen.append(torch.get_num_threads())
            return choose(*args)

        monkeypatch.setattr(policy._inference, "choose", recorded)
        policy.act(observation)
        policy.act_rows(np.zeros(1, np.int64), {"obs": observation[None]}, np.ones(1, np.bool_))
        assert seen == [used, used] and torch.get_num_threads() == 3
    monkeypatch.setattr(policy._inference, "choose", None)
    with pytest.raises(TypeError):
        policy.act(observation)
    assert torch.get_num_threads() == 3, "whatever went wrong"
    for wrong in (0, True):
        with pytest.raises(ConfigError, match=r"num_threads=.* has to be a whole number of at least 1, or None"):
            load_policy(folder, num_threads=wrong)


def test_a_mask_that_no_environment_asks_for_is_refused(experiment):
    _, folder = experiment("CartPole-v1")
    with pytest.raises(MisfitError, match="'action_mask' should be left out, as this environment tells no masks"):
        load_policy(folder).act(np.zeros(4, np.float32), action_mask=np.array([0, 1]))


def test_a_mask_that_does_not_fit_or_allows_nothing_is_refused(experiment):
    _, folder = experiment("synthetic_masked", weights=2)
    policy = load_policy(folder)
    one = policy.observation_space.sample()
    number = policy.action_space.n
    two = {name: np.stack([value, value]) for name, value in one.items()}
    for observation, mask, told in (
        (one, np.ones(number + 1), f"one entry for each of {number} choices"),
        (one, np.ones((1, number)), f"one entry for each of {number} choices"),
        (one, 1, f"one entry for each of {number} choices"),
        (two, np.ones(number), "one mask for each of 2 observations"),
        (two, 1, "one mask for each of 2 observations"),
        (two, np.ones((3, number)), "one mask for each of 2 observations"),
        (one, np.zeros(number), "1 for at least one choice, but is 0 for all$"),
        (two, np.eye(number)[:2] * [[1], [0]], "1 for at least one choice, but is 0 for all in row 1"),
        (one | {"action_mask": np.zeros(number, np.int8)}, None, "1 for at least one choice, but is 0 for all$"),
    ):
        with pytest.raises(MisfitError, match=told):
            policy.act(observation, action_mask=mask)
    assert policy.act(two, action_mask=np.eye(number)[[1, 0]]).tolist() == [1, 0]


def test_what_no_environment_shows_is_refused(experiment):
    _, folder = experiment("CartPole-v1")
    policy = load_policy(folder)
    with pytest.raises(MisfitError, match=r"first entry of what reset\(\) and step\(\) give, but is a tuple of 2"):
        policy.act((np.zeros(4, np.float32), {}))
    for observation in (np.array([0, np.nan, 0, 0], np.float32), np.full((2, 4), np.inf, np.float32)):
        with pytest.raises(MisfitError, match="'obs' should be finite, but is"):
            policy.act(observation)


def test_rows_that_a_batch_has_not_are_not_reset(experiment):
    _, folder = experiment("CartPole-v1", "--use_rnn=True")
    policy = load_policy(folder)
    policy.act(np.zeros((4, 4), np.float32))
    for rows in ([99], [0, 4], [-1], np.ones(5, np.bool_), [1.5], ["1"]):
        with pytest.raises(ValueError, match=r"row|mask"):
            policy.reset(rows)
    assert not policy._is_first.any(), "what is refused changes nothing"
    policy.reset([3, 0])
    assert policy._is_first.tolist() == [True, False, False, True]
    policy.reset()
    policy.reset([5])  # of a batch that is yet to come
    assert policy.act(np.zeros((6, 4), np.float32)).shape == (6,)


def test_a_best_checkpoint_that_is_not_there_is_refused_and_damaged_ones_are_told(experiment, caplog):
    _, folder = experiment("CartPole-v1")
    with pytest.raises(ConfigError, match=r"no best checkpoint yet: .*; kind='latest' loads checkpoint_"):
        load_policy(folder, kind="best")
    experiment("CartPole-v1", kind="best", train_step=20)
    with caplog.at_level(logging.WARNING):
        assert load_policy(folder, kind="best").checkpoint.train_step == 20
        assert not caplog.records
        (best,) = (folder / "checkpoint_p0").glob("best_*")
        best.write_bytes(best.read_bytes()[:100])
        with pytest.raises(ConfigError, match=r"no best checkpoint that can be read; kind='latest' loads checkpoint_"):
            load_policy(folder, kind="best")
        assert load_policy(folder).checkpoint.train_step == 12
    assert [best.name in record.getMessage() for record in caplog.records] == [True]


def test_a_device_is_named_as_the_option_names_it(experiment, monkeypatch):
    _, folder = experiment("CartPole-v1")
    monkeypatch.setattr(run_config, "_NVIDIA_DRIVER_FILES", ("/does/not/exist",))
    for device in ("cpu", "auto", torch.device("cpu")):
        assert load_policy(folder, device=device).act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(ConfigError, match="device=gpu, but this machine has no NVIDIA driver; nearest: cpu"):
        load_policy(folder, device="gpu")
    with pytest.raises(ConfigError, match="device='gpus' is unknown; allowed: auto, cpu, gpu, cuda:N"):
        load_policy(folder, device="gpus")


def test_images_come_to_the_network_in_the_order_that_they_have_in_memory(experiment, monkeypatch):
    """Networks read channels last: writing them channels first would reorder every image twice."""
    _, folder = experiment("MiniGrid-Empty-5x5-v0")
    policy = load_policy(folder)
    shown: list[torch.Tensor] = []
    choose = policy._inference.choose

    def recorded(rows, observations, *rest):
        shown.append(observations["image"])
        return choose(rows, observations, *rest)

    monkeypatch.setattr(policy._inference, "choose", recorded)
    observations = [policy.observation_space.sample() for _ in range(2)]
    policy.act(observations[0])
    batch = {name: np.stack([each[name] for each in observations]) for name in observations[0]}
    policy.act(batch)
    assert [tuple(image.shape) for image in shown] == [(1, 3, 7, 7), (2, 3, 7, 7)]
    for image, number in zip(shown, (1, 2), strict=True):
        assert image.permute(0, 2, 3, 1).is_contiguous()
        stored = policy._layout.restored({"image": image.numpy(), "direction": np.zeros((number, 1), np.int32)})
        assert np.array_equal(stored["image"], batch["image"][:number])
    # Of arrays from elsewhere as well; but tensors cannot go backwards.
    array = shown[1].numpy()
    rows, direction, is_first = np.arange(2), np.zeros((2, 1), np.int32), np.ones(2, np.bool_)
    for given in (array, array[:, :, ::-1]):
        policy.act_rows(rows, {"image": given, "direction": direction}, is_first)
        assert np.array_equal(shown[-1].numpy(), given)
    assert shown[2].data_ptr() == shown[1].data_ptr()
