"""The learner: what an iteration does to a small real network, and in which order."""

import dataclasses
import io

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.learner import Learner
from appo.utils.options import ConfigError
from tests.learning.learning_cases import Categorical, TinyModel, acted_out, config_for


def snapshot(model):
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


def test_training_makes_a_rewarded_action_more_likely_and_values_truer():
    torch.manual_seed(0)
    model = TinyModel()
    learner = Learner(model, config_for(6, 16, learning_rate=1e-2, gamma=0.0), "cpu")
    probabilities, value_losses = [], []
    for iteration in range(60):
        batch = acted_out(model, 6, 16, seed=iteration, ends=False)
        probabilities.append(batch.behaviour_parameters.softmax(-1)[..., 1].mean().item())
        batch = batch._replace(rewards=(batch.actions[..., 0] == 1).float())
        value_losses.append(learner.train(batch, learner.policy_version, 0.0).metrics["value_loss"])
    assert probabilities[0] < 0.6
    assert probabilities[-1] > 0.9
    assert value_losses[-1] < 0.5 * value_losses[0]


@pytest.mark.parametrize("state_size", [0, 8])
@pytest.mark.parametrize(
    ("chunks", "options"),
    [(1, {}), (1, {"with_vtrace": False}), (3, {"with_vtrace": False}), (6, {"with_vtrace": False})],
)
def test_on_unchanged_weights_every_ratio_is_one(state_size, chunks, options):
    model = TinyModel(state_size=state_size)
    learner = Learner(model, config_for(6, 4, **options), "cpu")
    metrics = learner.train(acted_out(model, chunks=chunks), 0, 0.0).metrics
    for name in ("ratio_min", "ratio_mean", "ratio_max"):
        assert metrics[name] == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl_divergence_max"] == pytest.approx(0.0, abs=1e-6)
    second = learner.train(acted_out(TinyModel(state_size=state_size), chunks=chunks), 0, 0.0).metrics
    assert second["ratio_max"] > 1.001  # data of another policy


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_every_epoch_and_minibatch_makes_one_step(with_vtrace):
    model = TinyModel()
    versions: list[int] = []
    config = config_for(6, 4, batch_size=6, ppo_epochs=3, with_vtrace=with_vtrace, num_minibatches_to_accumulate=8)
    learner = Learner(model, config, "cpu", on_step=versions.append)
    batch = acted_out(model)
    model.unrolled_rows.clear()
    result = learner.train(batch, 0, 0.0)
    assert result.num_sgd_steps == result.metrics["num_sgd_steps"] == learner.policy_version == 12
    assert versions == list(range(1, 13))
    minibatches = [(7 if with_vtrace else 6, 1)] * 12
    assert model.unrolled_rows == ([] if with_vtrace else [(7, 4)]) + minibatches


def test_gae_of_a_single_minibatch_needs_no_second_forward_pass():
    model = TinyModel()
    learner = Learner(model, config_for(6, 4, with_vtrace=False), "cpu")
    batch = acted_out(model)
    model.unrolled_rows.clear()
    learner.train(batch, 0, 0.0)
    assert model.unrolled_rows == [(7, 4)]


def test_minibatches_of_single_steps_need_not_hold_whole_rollouts_and_see_every_row_once():
    model = TinyModel()
    batch = acted_out(model, 6, 4, chunks=6, ends=False)
    config = config_for(6, 4, batch_size=3, recurrence=1, with_vtrace=False, ppo_epochs=2)
    model.unrolled_rows.clear()
    result = Learner(model, config, "cpu").train(batch, 0, 0.0)
    assert result.num_sgd_steps == 16
    assert model.unrolled_rows == [(7, 4)] + [(1, 3)] * 16  # the estimates, then what learns
    assert_close(model.observation_moments.mean, batch.observations["obs"][:-1].mean((0, 1)))
    assert model.observation_moments.count.sum() == 24


def test_gae_stays_fixed_for_the_iteration_and_is_the_same_in_chunks():
    """Chunks of the full length and of one row differ only in how far gradients flow, which nothing does here."""
    results = []
    for chunks in (1, 2, 6):
        torch.manual_seed(0)
        model = TinyModel()
        batch = acted_out(model, chunks=chunks)
        config = config_for(6, 4, with_vtrace=False, ppo_epochs=2, recurrence=6 // chunks, learning_rate=1e-2)
        Learner(model, config, "cpu").train(batch, 0, 0.0)
        results.append(snapshot(model))
    assert_close(results[1], results[0])
    assert_close(results[2], results[0])


def test_gradients_of_a_chunk_stop_at_its_first_row():
    gradients = []
    for chunks in (1, 6):
        torch.manual_seed(0)
        model = TinyModel(state_size=8)
        batch = acted_out(model, chunks=chunks)
        before = snapshot(model)
        config = config_for(6, 4, with_vtrace=False, recurrence=6 // chunks, learning_rate=1e-2)
        Learner(model, config, "cpu").train(batch, 0, 0.0)
        gradients.append(snapshot(model) - before)
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


def test_a_saved_learner_goes_on_bit_for_bit():
    config = config_for(6, 4, batch_size=6, lr_schedule="kl_adaptive_minibatch", learning_rate=1e-3)
    torch.manual_seed(0)
    model = TinyModel()
    learner = Learner(model, config, "cpu", seed=3)
    learner.train(acted_out(model), 0, 0.1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "learner": learner.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other_model = TinyModel()
    other = Learner(other_model, config, "cpu", seed=99)
    other_model.load_state_dict(state["model"])
    other.load_state_dict(state["learner"])
    batch = acted_out(model, seed=1)
    results = [one.train(batch, 4, 0.2) for one in (learner, other)]
    assert torch.equal(snapshot(model), snapshot(other_model))
    assert results[0] == results[1]
    assert other.policy_version == 8


def test_what_is_saved_keeps_its_names():
    """Checkpoints of earlier versions are read by them."""
    state = Learner(TinyModel(), config_for(6, 4), "cpu").state_dict()
    assert {name: sorted(part) if isinstance(part, dict) else () for name, part in state.items()} == {
        "optimizer": ["exp_avg", "exp_avg_sq", "step"],
        "schedule": ["adapted", "base", "progress"],
        "generator": (),
        "num_updates": (),
        "changed_options": [],
        "version_floor": (),
        "adoption": (),
    }


def test_options_in_force_win_over_saved_ones():
    model = TinyModel()
    saved = Learner(model, config_for(6, 4), "cpu")
    saved.train(acted_out(model), 0, 0.0)
    typed = Learner(model, config_for(6, 4, learning_rate=0.5, adam_beta1=0.5, adam_eps=1e-3), "cpu")
    typed.load_state_dict(saved.state_dict())
    result = typed.train(acted_out(model), 1, 0.0)
    assert (typed._optimizer.betas, typed._optimizer.eps) == ((0.5, 0.999), 1e-3)
    assert result.metrics["lr"] == 0.5


def test_new_hyperparameters_keep_the_optimizers_moments():
    model = TinyModel()
    learner = Learner(model, config_for(6, 4), "cpu")
    learner.train(acted_out(model), 0, 0.0)
    moments = [moment.clone() for moment in learner.state_dict()["optimizer"]["exp_avg"]]
    learner.set_config(dataclasses.replace(learner.config, learning_rate=0.01, gamma=0.5, adam_beta1=0.8))
    kept = learner.state_dict()["optimizer"]["exp_avg"]
    assert max(moment.abs().max() for moment in moments) > 0.0
    assert_close(kept, moments)
    assert learner.train(acted_out(model), 1, 0.0).metrics["lr"] == 0.01


def test_the_auxiliary_loss_cannot_change_while_training():
    learner = Learner(TinyModel(), config_for(6, 4), "cpu")
    with pytest.raises(ValueError, match="auxiliary_loss cannot change from '' to 'action_smoothness'"):
        learner.set_config(dataclasses.replace(learner.config, auxiliary_loss="action_smoothness"))


def test_an_auxiliary_loss_joins_the_sum_and_the_statistics():
    model = TinyModel()
    learner = Learner(model, config_for(6, 4, auxiliary_loss="action_smoothness"), "cpu")
    metrics = learner.train(acted_out(model), 0, 0.0).metrics
    assert metrics["aux_action_smoothness"] == pytest.approx(0.01 * metrics["aux_action_smoothness_distance"])
    terms = ("policy_loss", "value_loss", "exploration_loss", "aux_action_smoothness")
    assert metrics["loss"] == pytest.approx(sum(metrics[name] for name in terms), rel=1e-4)
    with pytest.raises(TypeError, match="action_smoothness takes a ActionSmoothnessConfig"):
        Learner(model, learner.config, "cpu", auxiliary_options=object())


def test_a_batch_that_is_too_old_changes_nothing():
    model = TinyModel()
    learner = Learner(model, config_for(6, 4, max_policy_lag=5, learning_rate=0.1), "cpu")
    learner.train(acted_out(model), 0, 0.0)  # gives Adam a momentum
    before = snapshot(model)
    result = learner.train(acted_out(model), 6, 0.0)
    assert torch.equal(snapshot(model), before)
    assert (result.num_sgd_steps, result.metrics["discarded_rollouts"], result.metrics["valids_fraction"]) == (0, 4, 0)
    assert not {"loss", "policy_loss", "entropy", "adv_min", "ratio_min"} & set(result.metrics), "of nothing"
    assert result.metrics["version_diff_max"] == 6
    assert learner.train(acted_out(model), 5, 0.0).num_sgd_steps == 1


def test_a_step_that_is_not_finite_is_skipped_and_counted():
    model = TinyModel()
    versions: list[int] = []
    config = config_for(6, 4, batch_size=12, shuffle_minibatches=False)
    learner = Learner(model, config, "cpu", on_step=versions.append)
    batch = acted_out(model, ends=False)
    batch.rewards[0, 0] = float("nan")  # in the first minibatch only
    result = learner.train(batch, 0, 0.0)
    assert (result.num_sgd_steps, result.metrics["skipped_steps"]) == (1, 1.0)
    assert snapshot(model).isfinite().all()
    assert versions == [1]
    assert all(torch.tensor(value).isfinite() for value in result.metrics.values())
    (mask,) = model.normalizer_calls
    assert not mask[:, :2].any() and mask[:, 2:].all()  # bad data would stay in the running statistics
    assert learner.train(acted_out(model), 1, 0.0).num_sgd_steps == 2


def test_a_minibatch_without_a_valid_row_does_not_end_a_row_of_steps_that_are_not_finite():
    model = TinyModel()
    learner = Learner(model, config_for(6, 4, batch_size=6, shuffle_minibatches=False), "cpu")
    batch = acted_out(model, ends=False)
    batch.rewards[0, [0, 2]] = float("nan")
    batch.own[:, [1, 3]] = False
    assert learner.train(batch, 0, 0.0).num_bad_steps == learner.bad_steps_in_a_row == 2
    learner.train(acted_out(model), 0, 0.0)
    assert learner.bad_steps_in_a_row == 0


@pytest.mark.parametrize("is_learned_from", [True, False])
def test_it_can_be_interrupted_after_every_minibatch_also_where_nothing_is_learned(is_learned_from):
    model = TinyModel()
    passed = []

    def note():
        passed.append(learner.policy_version)
        if len(passed) == 7:
            raise InterruptedError

    config = config_for(6, 4, batch_size=6, ppo_epochs=5)
    learner = Learner(model, config, "cpu", between_minibatches=note)
    batch = acted_out(model, ends=False)
    batch.own[:] = is_learned_from
    with pytest.raises(InterruptedError):
        learner.train(batch, 0, 0.0)
    assert passed == (list(range(1, 8)) if is_learned_from else [0] * 7)


def test_the_last_announcement_comes_after_the_normalisers():
    model = TinyModel()
    calls_seen = []
    learner = Learner(
        model, config_for(6, 4, batch_size=12), "cpu", on_step=lambda _: calls_seen.append(len(model.normalizer_calls))
    )
    learner.train(acted_out(model), 0, 0.0)
    assert calls_seen == [0, 1]


@pytest.mark.parametrize(("limit", "is_clipped"), [(1e-3, True), (0.0, False), (1e6, False)])
def test_long_gradients_are_scaled_down(limit, is_clipped):
    model = TinyModel()
    learner = Learner(model, config_for(6, 4, max_grad_norm=limit, adam_beta1=0.0), "cpu")
    metrics = learner.train(acted_out(model), 0, 0.0).metrics
    moments = learner.state_dict()["optimizer"]["exp_avg"]
    applied = torch.cat([moment.flatten() for moment in moments]).norm().item()
    assert metrics["grad_norm"] > 0.1
    assert metrics["grad_norm_clipped"] == pytest.approx(1e-3 if is_clipped else metrics["grad_norm"])
    assert applied == pytest.approx(metrics["grad_norm_clipped"], rel=1e-3)


def test_linear_decay_follows_the_progress_it_is_told():
    model = TinyModel()
    learner = Learner(model, config_for(6, 4, lr_schedule="linear_decay", learning_rate=1e-2), "cpu")
    rates = [learner.train(acted_out(model), 0, progress).metrics["lr"] for progress in (0.0, 0.5)]
    assert rates == pytest.approx([1e-2, 5e-3])


def test_a_kl_adaptive_rate_reacts_within_an_iteration():
    model = TinyModel()
    config = config_for(6, 4, batch_size=6, lr_schedule="kl_adaptive_minibatch", lr_schedule_kl_threshold=0.01)
    rate = Learner(model, config, "cpu").train(acted_out(model), 0, 0.0).metrics["lr"]
    # A step of 1e-4 changes the policy by far too little; the first minibatch says nothing of the step after it.
    assert rate == pytest.approx(1e-4 * 1.5**3)


@pytest.mark.parametrize("kind", ["minibatch", "epoch"])
def test_an_adaptive_rate_leaves_out_what_the_weights_that_learn_have_chosen_themselves(kind):
    model = TinyModel()
    learner = Learner(model, config_for(6, 4, lr_schedule=f"kl_adaptive_{kind}"), "cpu")

    def rate_after(*older):
        batch = acted_out(model, seed=learner.policy_version)
        batch.policy_version[:] = learner.policy_version
        for row in older:
            batch.policy_version[row] -= 1
        return learner.train(batch, learner.policy_version, 0.0).metrics["lr"]

    assert [rate_after() for _ in range(3)] == [1e-4] * 3
    assert rate_after((2, 2)) == 1e-4, "which is not learned from"
    assert rate_after((0, 3)) == pytest.approx(1.5e-4)
    learner.set_config(dataclasses.replace(learner.config, ppo_epochs=2))
    assert rate_after() == pytest.approx(1.5e-4 * 1.5)  # from the second pass over its rows


@pytest.mark.parametrize(("older", "told"), [((0, 1), 4), ((0, 2), 3), ((3, 0), 3)])
def test_whether_a_minibatch_tells_of_a_change_is_known_of_its_own_chunks(older, told):
    model = TinyModel()
    options = {"batch_size": 6, "recurrence": 3, "with_vtrace": False, "shuffle_minibatches": False}
    learner = Learner(model, config_for(6, 4, lr_schedule="kl_adaptive_minibatch", **options), "cpu")
    batch = acted_out(model, chunks=2, ends=False)
    batch.policy_version[:] = 1
    batch.policy_version[older] = 0
    assert learner.train(batch, 1, 0.0).metrics["lr"] == pytest.approx(1e-4 * 1.5**told)


@pytest.mark.parametrize("options", [{}, {"ppo_epochs": 3}])
def test_descriptions_that_are_not_requested_are_not_computed(options, monkeypatch):
    """The KL divergence costs about as much as the rest of a small network's loss."""
    model = TinyModel()
    asked = []

    def note_and_compute(p, q):
        asked.append(1)
        return Categorical().kl(p, q)

    monkeypatch.setattr(model.distribution, "kl", note_and_compute)
    learner = Learner(model, config_for(6, 4, **options), "cpu")
    assert learner.train(acted_out(model), 0, 0.0, with_metrics=False).metrics == {} and not asked
    assert learner.train(acted_out(model), 0, 0.0).metrics["kl_divergence"] >= 0.0 and len(asked) == 1


def test_the_order_of_minibatches_follows_the_seed():
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        model = TinyModel()
        Learner(model, config_for(6, 8, batch_size=6), "cpu", seed=seed).train(acted_out(model, 6, 8), 0, 0.0)
        results.append(snapshot(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_batch_elsewhere_is_refused():
    model = TinyModel()
    with pytest.raises(ValueError, match="the batch is on cpu, the learner on cuda"):
        Learner(model, config_for(6, 4), "cuda").train(acted_out(model), 0, 0.0)


def test_an_option_of_the_auxiliary_loss_changes_while_training_goes_on_and_is_kept():
    torch.manual_seed(0)
    model = TinyModel()
    config = config_for(6, 4, auxiliary_loss="action_smoothness")
    learner = Learner(model, config, "cpu")
    batch = acted_out(model)

    def weight(of):
        loss = of.train(batch, of.policy_version, 0.0).metrics
        return loss["aux_action_smoothness"] / loss["aux_action_smoothness_distance"]

    assert weight(learner) == pytest.approx(0.01)
    learner.change({"action_smoothness_coeff": 0.5, "learning_rate": 0.0})
    assert weight(learner) == pytest.approx(0.5)
    successor = Learner(model, config, "cpu")
    successor.load_state_dict(learner.state_dict())
    assert weight(successor) == pytest.approx(0.5) and successor.config.learning_rate == 0.0
    with pytest.raises(ConfigError, match=r"action_smoothness_coeff=-1\.0; allowed"):
        learner.change({"action_smoothness_coeff": -1.0})
