"""Defaults chosen for an environment without family defaults: typed options stay, and all of them are compatible."""

import dataclasses
import itertools

import pytest

from appo.algorithms.config import FITTED, fitted, resolve
from appo.algorithms.fitted_defaults import choose
from appo.algorithms.train_config import check_with_spec
from appo.envs.api import ActionLeaf, EnvProfile, EnvSpec, ObservationLeaf
from appo.utils.options import ConfigError

VECTOR = ObservationLeaf("obs", (4,), "float32", "vector")
CATEGORY = ObservationLeaf("obs", (), "int64", "categorical", 500)
IMAGE = ObservationLeaf("obs", (3, 128, 160), "uint8", "image")
CHOICE = ActionLeaf("discrete", 3)
NUMBERS = ActionLeaf("continuous", 2, (-1.0, -1.0), (1.0, 1.0))
UNKNOWN = "--env=tests.config.unknown_env:make_env"


def spec_of(*leaves, actions=(CHOICE,), agents=1):
    return EnvSpec(leaves, actions, agents)


def values_of(spec, profile=EnvProfile(step_s=1e-5), num_workers=2, **given):  # noqa: B008 - a plain value
    choices = choose(spec, profile, given, num_workers=num_workers, usual_policy_lag=1000)
    return {name: choice.value for name, choice in choices.items()}


def options(tmp_path, *typed):
    return [UNKNOWN, f"--train_dir={tmp_path}", "--num_workers=2", *typed]


TYPED = [
    {"actor_critic_share_weights": True},
    {"critic_sees_time": True},
    {},
    {"rollout": 48},
    {"rollout": 7},
    {"with_vtrace": True},
    {"with_vtrace": True, "rollout": 20},
    {"use_rnn": True},
    {"use_rnn": True, "rollout": 24},
    {"recurrence": 12},
    {"recurrence": -1},
    {"batch_size": 100},
    {"batch_size": 96, "rollout": 20},
    {"batch_size": 100, "use_rnn": True},
    {"batch_size": 100, "use_rnn": True, "rollout": 48},
    {"batch_size": 1000, "with_vtrace": True},
    {"batch_size": 1000, "num_batches_per_iteration": 1},
    {"batch_size": 1000, "num_batches_per_iteration": 3, "recurrence": 5},
    {"batch_size": 16},
    {"num_envs_per_worker": 1},
    {"num_envs_per_worker": 7, "batch_size": 77, "use_rnn": True},
    {"num_batches_per_iteration": 3},
    {"num_envs_per_worker": 6},
    {"num_envs_per_worker": 1, "worker_num_splits": 1},
    {"worker_num_splits": 4},
    {"num_policies": 3},
    {"async_rl": False},
    {"async_rl": False, "num_policies": 2},
    {"async_rl": False, "num_batches_per_iteration": 16},
    {"async_rl": False, "batch_size": 1000},
    {"use_rnn": True, "recurrence": -1, "batch_size": 100},
    {"recurrence": -1, "batch_size": 100},
    {"with_vtrace": True, "recurrence": 16},
]


@pytest.mark.parametrize("typed", TYPED, ids=str)
def test_whatever_is_typed_the_rest_fits_it(typed, tmp_path):
    resolved = resolve(options(tmp_path, *[f"--{name}={value}" for name, value in typed.items()]))
    specs = [spec_of(leaf, agents=agents) for leaf, agents in itertools.product((VECTOR, CATEGORY, IMAGE), (1, 3, 40))]
    for spec, step_s in itertools.product(specs, (1e-5, 1e-3, 1.0)):
        found = fitted(resolved, spec, EnvProfile(step_s=step_s))
        check_with_spec(found.config, spec)
        values = {name: getattr(room, name) for name in typed for room in rooms(found.config) if hasattr(room, name)}
        assert values == typed
        assert not {name for name in typed if found.origins[name].startswith(FITTED)}


def rooms(config):
    return [getattr(config, field.name) for field in dataclasses.fields(config)]


def test_networks_follow_what_is_observed():
    assert values_of(spec_of(VECTOR))["mlp_layers"] == "64,64"
    assert values_of(spec_of(CATEGORY))["mlp_layers"] == "128,128"
    assert values_of(spec_of(VECTOR))["normalize_input"] is True
    assert "normalize_input" not in values_of(spec_of(IMAGE))
    profile = EnvProfile(step_s=1e-4, largest_pixel=255.0)
    assert values_of(spec_of(IMAGE), profile)["obs_scale"] == 255.0
    assert values_of(spec_of(IMAGE), profile._replace(largest_pixel=10.0))["obs_scale"] == 10.0
    assert values_of(spec_of(IMAGE), profile._replace(largest_pixel=0.0))["obs_scale"] == 1.0
    assert values_of(spec_of(IMAGE), EnvProfile())["obs_scale"] == 255.0  # bytes; --check_env=False measures nothing


def test_a_critic_of_its_own_sees_the_time():
    assert values_of(spec_of(VECTOR))["critic_sees_time"] is True
    assert values_of(spec_of(VECTOR)._replace(needs_memory=True))["critic_sees_time"] is False
    assert "critic_sees_time" not in values_of(spec_of(IMAGE))


@pytest.mark.parametrize("leaf", [VECTOR, IMAGE])
def test_a_critic_that_is_to_see_the_time_gets_a_network_of_its_own_and_a_shared_one_does_not_see_it(leaf, tmp_path):
    spec = spec_of(leaf)._replace(needs_memory=True)
    timed = fitted(resolve(options(tmp_path, "--critic_sees_time")), spec, EnvProfile(step_s=1e-5))
    assert timed.config.model.actor_critic_share_weights is False
    assert timed.origins["actor_critic_share_weights"].endswith("critic sees time")
    shared = fitted(resolve(options(tmp_path, "--actor_critic_share_weights")), spec, EnvProfile(step_s=1e-5))
    assert shared.config.model.critic_sees_time is False


def test_memory_is_for_environments_that_say_so():
    assert values_of(spec_of(VECTOR))["use_rnn"] is False
    remembers = values_of(spec_of(VECTOR)._replace(needs_memory=True))
    assert remembers["use_rnn"] is True and remembers["recurrence"] > 1
    assert remembers["rnn_chrono_init"] == remembers["rollout"]
    assert remembers["hidden_size"] > values_of(spec_of(VECTOR))["hidden_size"]
    assert values_of(spec_of(VECTOR))["recurrence"] == 1
    assert "rnn_chrono_init" not in values_of(spec_of(VECTOR))


def test_environments_are_as_many_as_their_speed_allows_and_agents_count():
    envs = [values_of(spec_of(VECTOR), EnvProfile(step_s=s))["num_envs_per_worker"] for s in (1e-5, 1e-3, 0.1)]
    assert envs == sorted(envs, reverse=True) and envs[0] > envs[-1]
    assert envs[0] > values_of(spec_of(VECTOR), EnvProfile())["num_envs_per_worker"] > envs[-1]
    assert values_of(spec_of(VECTOR, agents=8))["num_envs_per_worker"] == 2


def test_rollouts_of_large_observations_are_short_and_many_agents_need_no_long_ones():
    large = ObservationLeaf("obs", (3, 500, 500), "uint8", "image")
    assert values_of(spec_of(large))["rollout"] < values_of(spec_of(VECTOR))["rollout"]
    assert values_of(spec_of(VECTOR), num_workers=64)["rollout"] < values_of(spec_of(VECTOR))["rollout"]


def test_iterations_on_images_are_smaller_and_those_on_large_ones_more_careful():
    images, vectors = values_of(spec_of(IMAGE)), values_of(spec_of(VECTOR))
    assert images["rollout"] < vectors["rollout"] and images["learning_rate"] < vectors["learning_rate"]
    assert images["num_batches_per_iteration"] < vectors["num_batches_per_iteration"]
    small = values_of(spec_of(IMAGE._replace(shape=(3, 16, 16))))
    assert small["rollout"] == images["rollout"] and small["learning_rate"] == vectors["learning_rate"]


LATE = EnvProfile(num_steps=300, step_s=1e-5, episode_steps=101.0, rewards_end_only=True)


def test_where_only_the_end_of_long_episodes_pays_credit_reaches_their_start():
    usual, late = values_of(spec_of(VECTOR)), values_of(spec_of(VECTOR), LATE)
    assert late["gae_lambda"] == 0.99 and "gae_lambda" not in usual
    assert late["rollout"] >= 2 * 101 > usual["rollout"]
    assert values_of(spec_of(VECTOR), LATE._replace(episode_steps=60.0))["gae_lambda"] == 0.983
    assert values_of(spec_of(VECTOR), LATE._replace(rewards_end_only=False)) == usual


def test_where_most_ends_pay_and_nothing_else_an_iteration_has_twice_the_rows():
    usual, few = values_of(spec_of(VECTOR)), LATE._replace(num_episodes=10, episode_steps=30.0, num_gains=6)
    assert values_of(spec_of(VECTOR), few)["rollout"] == 2 * usual["rollout"]
    assert values_of(spec_of(VECTOR), few._replace(episode_steps=20.0))["rollout"] == usual["rollout"]
    assert values_of(spec_of(VECTOR), few._replace(num_gains=5))["rollout"] == usual["rollout"]
    several = spec_of(VECTOR, agents=2)
    assert values_of(several, few)["rollout"] == values_of(several)["rollout"], "6 of 20 ends"
    reason = choose(spec_of(VECTOR), few, {}, num_workers=2, usual_policy_lag=1000)["rollout"].reason
    assert reason == "few ends"
    assert values_of(spec_of(VECTOR), few._replace(rewards_end_only=False)) == usual
    assert values_of(spec_of(IMAGE), few)["rollout"] == values_of(spec_of(IMAGE))["rollout"]


def test_where_only_ends_pay_they_are_hardly_discounted():
    usual, ends = values_of(spec_of(VECTOR)), LATE._replace(episode_steps=20.0)
    assert values_of(spec_of(VECTOR), ends) == usual | {"gamma": 0.999}
    assert "gamma" not in values_of(spec_of(VECTOR), ends._replace(rewards_end_only=False))
    assert "gamma" not in values_of(spec_of(VECTOR), ends._replace(episode_steps=None)), "no end was seen"


def test_an_end_of_costs_that_random_play_has_not_found_is_searched_for():
    usual, search = values_of(spec_of(VECTOR)), EnvProfile(1000, 1e-5, rewards_only_cost=True)
    found = values_of(spec_of(VECTOR), search)
    assert found["exploration_loss_coeff"] == 3 * usual["exploration_loss_coeff"]
    assert found["rollout"] == 2 * usual["rollout"]
    assert values_of(spec_of(VECTOR), search._replace(num_episodes=2, episode_steps=60.0)) == found
    assert values_of(spec_of(VECTOR), search._replace(num_episodes=20, episode_steps=50.0)) == usual
    assert values_of(spec_of(VECTOR), search._replace(has_time_limit=True)) == usual
    assert values_of(spec_of(VECTOR), search._replace(rewards_only_cost=False)) == usual
    assert values_of(spec_of(VECTOR), search._replace(num_steps=10)) == usual
    for spec in (spec_of(VECTOR, actions=(NUMBERS,)), spec_of(IMAGE)):
        assert values_of(spec, search) == values_of(spec)


def test_rollouts_hold_late_rewards_only_where_that_is_cheap():
    usual, endless = values_of(spec_of(VECTOR)), LATE._replace(episode_steps=None)
    assert values_of(spec_of(VECTOR), endless)["rollout"] == usual["rollout"]
    assert values_of(spec_of(VECTOR), endless)["gae_lambda"] == 0.99
    assert values_of(spec_of(VECTOR), LATE._replace(episode_steps=150.0))["rollout"] == usual["rollout"]
    assert "gae_lambda" not in values_of(spec_of(VECTOR), endless._replace(num_steps=10))
    assert values_of(spec_of(IMAGE), LATE)["rollout"] == values_of(spec_of(IMAGE))["rollout"]
    assert values_of(spec_of(VECTOR)._replace(needs_memory=True), LATE)["rollout"] == usual["rollout"]


def test_all_rollouts_of_large_observations_stay_small_however_many_policies_share_them():
    large = ObservationLeaf("obs", (3, 500, 500), "uint8", "image")
    alone, shared = values_of(spec_of(large)), values_of(spec_of(large), num_policies=8)
    assert shared["rollout"] == alone["rollout"]


def test_data_are_young_enough_however_many_optimizer_steps_an_iteration_takes():
    assert "max_policy_lag" not in values_of(spec_of(VECTOR))
    many = values_of(spec_of(VECTOR), batch_size=16)
    assert many["max_policy_lag"] >= 3 * many["ppo_epochs"] * many["num_batches_per_iteration"] > 1000
    assert "max_policy_lag" not in values_of(spec_of(VECTOR), batch_size=16, max_policy_lag=5)


def test_no_more_than_the_next_iteration_is_collected_while_one_is_learned_from():
    assert values_of(spec_of(VECTOR))["num_minibatches_to_accumulate"] == 8
    assert values_of(spec_of(VECTOR), num_batches_per_iteration=3)["num_minibatches_to_accumulate"] == 3
    assert "num_minibatches_to_accumulate" not in values_of(spec_of(VECTOR), num_minibatches_to_accumulate=-1)


def test_an_unknown_task_has_an_unknown_scale_and_noise():
    values = values_of(spec_of(VECTOR))
    assert values["normalize_returns"] and values["advantage_noise"] > 0.0 and values["max_grad_norm"] > 0.0
    assert (values["nonlinearity"], values_of(spec_of(CATEGORY))["nonlinearity"]) == ("tanh", "relu")


@pytest.mark.parametrize(("largest", "scale"), [(16.0, 16.0), (17.0, 255.0), (0.5, 1.0), (None, 255.0)])
def test_pixels_are_scaled_by_what_they_hold(largest, scale):
    assert values_of(spec_of(IMAGE), EnvProfile(step_s=1e-5, largest_pixel=largest))["obs_scale"] == scale


def test_the_reason_is_that_of_the_value_that_was_chosen():
    def reason(spec, profile, name="rollout", **given):
        return choose(spec, profile, given, num_workers=2, usual_policy_lag=1000)[name].reason

    remembering = spec_of(VECTOR)._replace(needs_memory=True)
    assert reason(spec_of(VECTOR), LATE) == "whole episodes"
    assert reason(remembering, LATE) == "memory"
    assert reason(spec_of(VECTOR), LATE, batch_size=1000, with_vtrace=True) == "fits what is set"
    assert reason(spec_of(VECTOR), LATE, "recurrence", with_vtrace=True) == "V-trace"


def test_values_are_clipped_as_usual_where_returns_are_not_normalised():
    assert values_of(spec_of(VECTOR))["ppo_clip_value"] == float("inf")
    assert "ppo_clip_value" not in values_of(spec_of(VECTOR), normalize_returns=False)


def test_what_cannot_be_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="recurrence=0 does not divide"):
        fitted(resolve(options(tmp_path, "--recurrence=0")), spec_of(VECTOR), EnvProfile(step_s=1e-5))


def test_the_help_does_not_look_at_experiments(tmp_path, capsys):
    (tmp_path / "default_experiment").mkdir()
    (tmp_path / "default_experiment" / "config.json").write_text('{"options": {"env": "CartPole-v1"}, "typed": []}')
    with pytest.raises(SystemExit) as ended:
        resolve(options(tmp_path, "--help"), profile=lambda unfitted: (spec_of(VECTOR), EnvProfile(step_s=1e-5)))
    assert ended.value.code == 0 and "steps of 10 us" in capsys.readouterr().out


def test_continuous_actions_explore_by_their_deviation_and_discrete_ones_by_entropy():
    assert values_of(spec_of(VECTOR, actions=(NUMBERS,)))["exploration_loss_coeff"] == 0.0
    assert values_of(spec_of(VECTOR, actions=(NUMBERS,)))["adaptive_stddev"] is False
    assert values_of(spec_of(VECTOR, actions=(NUMBERS,)))["initial_stddev"] < 1.0
    assert values_of(spec_of(VECTOR, actions=(NUMBERS,)))["ppo_epochs"] > values_of(spec_of(VECTOR))["ppo_epochs"]
    mixed = values_of(spec_of(VECTOR, actions=(NUMBERS, CHOICE)))
    assert mixed["exploration_loss_coeff"] > 0.0 and mixed["adaptive_stddev"] is False
    assert "adaptive_stddev" not in values_of(spec_of(VECTOR))


def test_a_family_with_defaults_keeps_them_and_every_choice_says_why(tmp_path):
    known = resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}"])
    assert fitted(known, spec_of(VECTOR), EnvProfile()) is known
    found = fitted(resolve(options(tmp_path, "--gamma=0.9")), spec_of(VECTOR), EnvProfile(step_s=1e-5))
    assert found.origins["num_envs_per_worker"] == "fitted: steps of 10 us"
    assert found.origins["gamma"] == "command line"
    assert fitted(found, spec_of(IMAGE), EnvProfile()) is found
