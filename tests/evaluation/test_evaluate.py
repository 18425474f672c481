"""Which episodes count and what they earned: against playing them one after the other in a plain loop."""

import csv
import dataclasses
import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from appo.algorithms.config import resolve
from appo.algorithms.evaluation.evaluate import choose_num_envs, evaluate_policy, summarize
from appo.algorithms.evaluation.report import Conditions, save_result
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.specs import action_spec
from appo.algorithms.workers.evaluation_worker import report_of
from appo.envs.adapters import first_seed
from appo.envs.api import EnvContext
from appo.envs.faults import Restarts
from appo.envs.registry import make_batch_env
from appo.envs.vector.make import make_vec_env
from appo.envs.vector.serial import SerialVecEnv


class Countdown(gymnasium.Env):
    """Ends after `length` steps; each is worth 1, covers 2 frames and shows how many are left."""

    metadata = {"render_modes": []}  # noqa: RUF012
    action_mask_in_info = False

    def __init__(self, length, truncates=False, agent=None):
        self.observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.length, self.truncates = length, truncates
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.actions.append(int(action))
        self.left -= 1
        has_ended = self.left == 0
        info: dict[str, Any] = {"num_frames": 2}
        if has_ended:
            info |= {"true_reward": 10.0 * self.length, "episode_extra_stats": {"length": float(self.length)}}
        observation = np.array([self.left], np.float32)
        return observation, 1.0, has_ended and not self.truncates, has_ended and self.truncates, info


def side_by_side(*envs):
    return SerialVecEnv(envs, [EnvContext(env_id=i) for i in range(len(envs))])


def policy_for(env, rows=None, seed=0, **model):
    torch.manual_seed(1)
    small: dict[str, Any] = {"encoder": "mlp", "mlp_layers": "8", "hidden_size": 8, "use_rnn": False}
    config = ModelConfig(**(small | model))
    rows = env.num_envs * env.spec.agents_per_env if rows is None else rows
    return PolicyInference(build_actor_critic(config, env.spec), rows, "cpu", seed)


def build(name, number, seed, *argv):
    family = resolve([f"--env={name}", *argv]).config.family
    contexts = [EnvContext(vector_index=i, env_id=i, num_envs=number, seed=seed) for i in range(number)]
    return make_batch_env(name, family, contexts)


@pytest.mark.parametrize("truncates", [False, True])
def test_each_environment_plays_its_share_however_long_its_episodes_are(truncates):
    env = side_by_side(Countdown(1, truncates), Countdown(40, truncates), Countdown(3, truncates))
    result = evaluate_policy(policy_for(env), env, 8)
    assert sorted(result.returns) == [1, 1, 1, 3, 3, 40, 40, 40]
    assert sorted(result.lengths) == [2, 2, 2, 6, 6, 80, 80, 80]
    assert sorted(result.true_returns) == [10, 10, 10, 30, 30, 400, 400, 400]
    assert result.extra == {"length": pytest.approx(129 / 8)}
    first_to_end = [1, 1, 1, 3, 1, 1, 1, 3]
    assert result.mean > 2 * np.mean(first_to_end)  # what counting whatever ends first would have said


@pytest.mark.parametrize("num_episodes", [0, 1, 7])
def test_as_many_episodes_are_played_as_are_asked_for(num_episodes):
    env = side_by_side(*[Countdown(2) for _ in range(3)])
    told = []
    result = evaluate_policy(policy_for(env), env, num_episodes, on_episode=lambda agent, it: told.append((agent, it)))
    assert len(result.returns) == len(told) == num_episodes
    assert {agent for agent, _ in told} <= {0}


def by_hand(name, policy, number, shares, seed, *, forgets=False):
    """Lengths of all episodes: plain Gymnasium, one decision at a time, the memory passed along by hand."""
    model, lengths = policy.model, []
    for index in range(number):
        env = gymnasium.make(name)
        first = first_seed(EnvContext(env_id=index, seed=seed))
        for episode in range(shares[index]):
            observation, _ = env.reset(seed=first if episode == 0 else None)
            state, steps, has_ended = torch.zeros(1, model.state_size), 0, False
            while not has_ended:
                output = model.act({"obs": torch.from_numpy(observation)[None]}, state)
                state = torch.zeros_like(state) if forgets else output.state
                action = int(model.distribution.mode(output.parameters)[0, 0])
                observation, _, terminated, truncated, _ = env.step(action)
                steps, has_ended = steps + 1, terminated or truncated
            lengths.append(steps)
        env.close()
    return sorted(lengths)


@pytest.mark.parametrize("model", [{"use_rnn": False}, {"use_rnn": True, "rnn_type": "lstm"}])
def test_episodes_side_by_side_equal_episodes_played_one_by_one(model):
    env = build("CartPole-v1", 3, 5)
    policy = policy_for(env, **model)
    with torch.no_grad():
        for weights in policy.model.parameters():
            weights *= 4  # decided actions, that change with what is seen and remembered
    policy.adopt_received()
    result = evaluate_policy(policy, env, 7, deterministic=True)
    with torch.no_grad():
        expected = by_hand("CartPole-v1", policy, 3, (3, 2, 2), seed=5)
        forgetful = by_hand("CartPole-v1", policy, 3, (3, 2, 2), seed=5, forgets=True)
    assert sorted(result.lengths) == expected
    assert len(set(expected)) > 2
    assert (forgetful == expected) == (not model["use_rnn"])
    np.testing.assert_array_equal(result.returns, result.lengths)


def test_the_same_seeds_draw_the_same_episodes_and_others_draw_others():
    def returns(env_seed, action_seed):
        env = build("CartPole-v1", 2, env_seed)
        return evaluate_policy(policy_for(env, seed=action_seed), env, 6).returns.tolist()

    assert returns(0, 0) == returns(0, 0)
    assert returns(0, 0) != returns(1, 0)
    assert returns(0, 0) != returns(0, 1)


def test_an_episode_of_several_agents_is_one_that_scores_each_of_them():
    env = build("synthetic_multi", 2, 0, "--synthetic_episode_length=6", "--synthetic_num_agents=3")
    agents = []
    result = evaluate_policy(policy_for(env), env, 3, on_episode=lambda agent, episode: agents.append(agent))
    assert sorted(result.lengths) == [2, 2, 2, 4, 4, 4, 6, 6, 6]
    assert sorted(agents) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert result.extra == {"lifetime": pytest.approx(4.0)}
    assert result.frames == 3 * 6, "three agents see the same frame, and who has played its share is left alone"
    assert np.bincount(result.matches).tolist() == [3, 3, 3]
    assert report_of(0, 1, result).episodes == 3
    lengths = result.summaries["length"]
    assert lengths.mean == 4.0 and lengths.std > 0 and lengths.sem == 0.0, "every match has the same mean"


class Match:
    """The first agent is out after one step, the second after three; `failures`: how often the second step raises."""

    possible_agents = ("first", "second")
    action_mask_in_info = False

    def __init__(self, failures):
        self.failures = failures

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-9, 9, (1,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, list(self.possible_agents)
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.time += 1
        if self.time == 2 and self.failures:
            raise RuntimeError(self.failures.pop())
        acting = list(actions)
        over = {agent: self.time >= {"first": 1, "second": 3}[agent] for agent in acting}
        self.agents = [agent for agent in acting if not over[agent]]
        seen = {agent: np.zeros(1, np.float32) for agent in acting}
        return seen, dict.fromkeys(acting, 1.0), over, dict.fromkeys(acting, False), {agent: {} for agent in acting}

    def close(self):
        pass


def test_of_a_match_that_is_lost_no_agent_counts_and_of_its_replay_each_once():
    failures = ["once", "twice"]
    with make_vec_env(lambda: Match(failures), 2, restarts=Restarts("restart", rate=-1)) as env:
        result = evaluate_policy(policy_for(env, rows=4), env, 4)
    assert not failures and result.aborted == 2
    counted = list(zip(result.env_ids.tolist(), result.agents.tolist(), result.lengths.tolist(), strict=True))
    assert sorted(counted) == [(env, agent, 1 + 2 * agent) for env in (0, 1) for agent in (0, 1) for _ in range(2)]


def test_agents_of_a_match_that_is_cut_off_do_not_count():
    with make_vec_env(lambda: Match([]), 1) as env:
        result = evaluate_policy(policy_for(env, rows=2), env, None, max_frames=5)
    assert result.agents.tolist() == [0, 1], "the second match had two of its three steps"


def test_a_vectorised_environment_whose_reset_is_a_step_counts_no_step_twice():
    env = build("CartPole-v1", 4, 0, "--classic_vectorized=True")
    result = evaluate_policy(policy_for(env), env, 12)
    assert len(result.lengths) == 12
    np.testing.assert_array_equal(result.returns, result.lengths)
    assert result.frames >= result.lengths.sum()


def test_a_limit_in_frames_drops_what_is_not_finished():
    env = side_by_side(Countdown(3))
    result = evaluate_policy(policy_for(env), env, None, max_frames=20)  # 6 frames an episode
    assert result.frames == 20
    assert result.lengths.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("episodes", "frames", "steps", "is_complete"),
    [(4, None, 99, True), (4, None, 4, False), (4, 10, 99, False), (None, 10, 99, True), (None, None, 8, False)],
)
def test_a_result_is_complete_when_all_that_was_asked_for_was_played(episodes, frames, steps, is_complete):
    env, left = side_by_side(Countdown(2), Countdown(5)), iter(range(steps))
    result = evaluate_policy(
        policy_for(env), env, episodes, max_frames=frames, after_step=lambda: next(left, None) is not None
    )
    assert result.is_complete == is_complete and len(result.returns) == len(result.episodes) > 0


def test_what_episodes_tell_is_saved_for_each_and_takes_the_place_of_nothing(tmp_path):
    """The environment tells an extra of the name `length`, and its length counts two frames for each step."""
    env = side_by_side(Countdown(1), Countdown(3))
    result = evaluate_policy(policy_for(env), env, 2)
    silent = result.episodes[1]._replace(true_return=math.nan, extra={})
    result = dataclasses.replace(result, episodes=(result.episodes[0], silent))
    saved = tmp_path / "scores.json"
    assert not save_result(result, tmp_path / "scores", "title", Conditions(True, 1, 2, {}))
    told = json.loads(saved.read_text())
    assert told["summary"]["length"]["max"] == 6 and told["extra"]["length"]["max"] == 3
    with saved.with_suffix(".csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["length"], first["true_return"], first["extra_length"]) == ("2", "10.0", "1.0")
    assert (second["length"], second["true_return"], second["extra_length"]) == ("6", "", "")


def test_the_watcher_is_called_after_the_reset_and_every_step_and_can_end_the_episode():
    env = side_by_side(Countdown(2))
    answers = iter([True] * 5 + [False])
    result = evaluate_policy(policy_for(env), env, None, after_step=lambda: next(answers))
    assert result.frames == 5 * 2
    assert list(answers) == []


def test_an_action_is_held_for_the_frames_asked_for_and_an_episode_starts_with_a_new_one():
    env = Countdown(5)
    batch = side_by_side(env)
    policy = policy_for(batch)
    decided = []
    choose = policy.choose

    def note_and_choose(*args):
        decided.append(args)
        return choose(*args)

    policy.choose = note_and_choose
    evaluate_policy(policy, batch, 20, action_repeat=4)
    held = np.array(env.actions).reshape(20, 5)
    assert len(decided) == 20 * 3
    assert (held[:, 0] == held[:, 1]).all() and (held[:, 2] == held[:, 3]).all()
    assert (held[:, 1] != held[:, 2]).any() and (held[:-1, 4] != held[1:, 0]).any()


def test_only_rows_whose_action_is_due_decide():
    batch = side_by_side(Countdown(3), Countdown(4))
    policy = policy_for(batch, use_rnn=True)
    asked = []
    choose = policy.choose

    def note_and_choose(rows, *rest):
        asked.append(rows.tolist())
        return choose(rows, *rest)

    policy.choose = note_and_choose
    evaluate_policy(policy, batch, 4, action_repeat=100)
    assert asked == [[0, 1], [0], [1]]  # episodes of the first begin at steps 0, 3, 6, of the second at 0, 4


@pytest.mark.parametrize("num_episodes", range(1, 40))
def test_environments_are_as_few_as_the_fewest_rounds_allow(num_episodes):
    number = choose_num_envs(num_episodes, 8)
    rounds = math.ceil(num_episodes / number)
    assert number <= 8 and rounds == math.ceil(num_episodes / 8)
    assert number == 1 or math.ceil(num_episodes / (number - 1)) > rounds


def test_an_open_number_of_episodes_is_played_by_one_environment():
    assert choose_num_envs(None) == choose_num_envs(0) == 1


def test_a_summary_equals_its_definition():
    values = np.array([1.0, 4.0, 10.0])
    spread = math.sqrt(((1 - 5) ** 2 + (4 - 5) ** 2 + (10 - 5) ** 2) / 2)
    alone = np.arange(3)
    assert summarize(values, alone) == pytest.approx((5.0, spread, spread / math.sqrt(3), 1.0, 10.0))
    one, none = summarize(values[:1], alone[:1]), summarize(values[:0], alone[:0])
    assert one.mean == one.min == one.max == 1.0 and math.isnan(one.std) and math.isnan(one.sem)
    assert all(math.isnan(value) for value in none)


def test_the_standard_error_counts_a_match_once_however_many_agents_it_has():
    one_each = np.array([1.0, 4.0, 10.0])
    three_each = summarize(np.repeat(one_each, 3), np.repeat(np.arange(3), 3))
    assert three_each.sem == pytest.approx(summarize(one_each, np.arange(3)).sem)
    assert math.isnan(summarize(one_each, np.zeros(3, np.int64)).sem), "of a single match there is none"


def test_the_actions_have_the_width_of_the_action_space():
    env = build("synthetic_tuple", 2, 0, "--synthetic_episode_length=3")
    assert action_spec(env.spec).width > 1
    result = evaluate_policy(policy_for(env), env, 2)
    assert result.lengths.tolist() == [3, 3]
