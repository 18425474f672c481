"""The suite's own environments: sound, repeatable, as hard as they say, and solvable by what an agent sees."""

import importlib
import re
import statistics

import numpy as np
import pytest

from appo.envs.preflight import check_environment
from appo.envs.registry import NoOptions, resolve
from benchmarks.learning.unseen.random_play import RandomScore, is_stale, random_returns
from benchmarks.learning.unseen.tasks import OURS, UNSEEN
from tests.benchmarks.unseen_policies import BEST_POLICIES

NUMBER = r"(-?\d+(?:\.\d+)?)"
OWN = [name for name, task in UNSEEN.items() if task.env.startswith(OURS) and ".others:" not in task.env]
EPISODES = 60


def maker(name):
    module, _, attribute = UNSEEN[name].env.partition(":")
    return getattr(importlib.import_module(module), attribute)


def told(name):
    """Optimum and random score, as the docstring says them."""
    found = re.search(rf"Optimum: {NUMBER}\.\s+Random play: {NUMBER}\.\s", maker(name).__doc__)
    assert found, f"{name} does not tell its optimum and what random play earns"
    return float(found[1]), float(found[2])


def play_several(env, policy, seed):
    """One return for each agent."""
    seen, _ = env.reset(seed=seed)
    acts = {agent: policy(env.action_space(agent)) for agent in env.possible_agents}
    returns = dict.fromkeys(env.possible_agents, 0.0)
    while env.agents:
        seen, rewards, *_ = env.step({agent: acts[agent](seen[agent]) for agent in env.agents})
        returns = {agent: total + rewards.get(agent, 0.0) for agent, total in returns.items()}
    return list(returns.values())


def play(env, policy, seed):
    """The return of one episode."""
    if hasattr(env, "possible_agents"):
        return play_several(env, policy, seed)
    seen, _ = env.reset(seed=seed)
    act, total, has_ended = policy(env.action_space), 0.0, False
    while not has_ended:
        seen, reward, terminated, truncated, _ = env.step(act(seen))
        total, has_ended = total + reward, terminated or truncated
    return [total]


def flat(observation):
    if isinstance(observation, dict):
        return np.concatenate([flat(part) for part in observation.values()])
    return np.ravel(observation).astype(float)


def trace(name, seed):
    """Everything that two steps of random play in an environment show."""
    env = maker(name)()
    is_parallel = hasattr(env, "possible_agents")
    seen, _ = env.reset(seed=seed)
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents} if is_parallel else {0: env.action_space}
    for number, space in enumerate(spaces.values()):
        space.seed(number)
    shown = [flat(seen)]
    for _ in range(2):
        actions = {agent: space.sample() for agent, space in spaces.items()}
        seen, reward, *_ = env.step(actions if is_parallel else actions[0])
        shown += [flat(seen), flat(reward)]
    return np.concatenate(shown)


def test_every_own_environment_has_a_best_policy():
    assert set(BEST_POLICIES) == set(OWN)
    assert len(OWN) >= 20


@pytest.mark.parametrize("name", [*OWN, "blackjack"])
def test_the_check_before_a_start_finds_nothing_wrong(name):
    assert check_environment(resolve(UNSEEN[name].env), NoOptions(), drops_bad_data=False).warnings == []


@pytest.mark.parametrize("name", OWN)
def test_random_play_earns_what_the_docstring_and_the_table_say(name):
    returns = random_returns(UNSEEN[name].env, 200)
    error = statistics.stdev(returns) / len(returns) ** 0.5
    measured = RandomScore(statistics.mean(returns), error, len(returns))
    _, random = told(name)
    assert not is_stale(random, measured), measured
    assert UNSEEN[name].random == pytest.approx(random, rel=0.01)


@pytest.mark.parametrize("name", OWN)
def test_the_best_policy_earns_the_optimum_and_the_good_score_lies_below(name):
    env = maker(name)()
    returns = [value for seed in range(EPISODES) for value in play(env, BEST_POLICIES[name], seed)]
    optimum, random = told(name)
    mean, error = statistics.mean(returns), statistics.stdev(returns) / len(returns) ** 0.5
    assert abs(mean - optimum) <= 4 * error + 0.02 * abs(optimum), (mean, error)
    assert random < UNSEEN[name].good < optimum
    # Neither within reach of luck nor so near to the optimum that learning could not show it.
    assert 0.8 <= (UNSEEN[name].good - random) / (optimum - random) <= 0.98


@pytest.mark.parametrize("name", OWN)
def test_a_seed_repeats_an_episode_and_another_seed_does_not(name):
    first = trace(name, 1)
    assert np.array_equal(first, trace(name, 1))
    # A task may begin alike now and then; not with each of many seeds.
    others = [trace(name, seed) for seed in range(2, 10)]
    has_luck = name != "near_or_far"  # a chain that always begins at the same place
    assert any(not np.array_equal(first, other) for other in others) == has_luck


@pytest.mark.parametrize(
    ("name", "ends"),
    [("t_maze", {"terminated", "truncated"}), ("gather", {"truncated"}), ("recall_cue", {"terminated"})],
)
def test_tasks_that_go_on_are_cut_and_others_end(name, ends):
    env, rng, seen = maker(name)(), np.random.default_rng(1), set()
    for seed in range(100):
        env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            _, _, terminated, truncated, _ = env.step(int(rng.integers(4)))
        seen.add("terminated" if terminated else "truncated")
    assert seen == ends


def test_the_mean_of_random_play_counts_each_environment_alike():
    returns = random_returns(UNSEEN["falling_walls"].env, 20)
    assert len(returns) == 24  # three episodes from each of eight


def test_a_random_score_that_is_no_longer_true_is_found():
    assert is_stale(1.0, RandomScore(1.5, 0.1, 200))
    assert not is_stale(1.0, RandomScore(1.3, 0.1, 200))
