"""Statistics of an iteration against plain Python."""

import math
import statistics

import pytest
import torch

from appo.algorithms.learning.learner import Learner
from appo.algorithms.learning.metrics import ContinuousColumns, ratio_range, to_floats
from appo.algorithms.specs import ActionSpec
from appo.envs.api import ActionLeaf
from tests.learning.learning_cases import TinyModel, acted_out, config_for

TAGS = (
    "loss policy_loss value_loss exploration_loss kl_loss entropy value adv_min adv_max adv_std grad_norm "
    "grad_norm_clipped kl_divergence kl_divergence_max fraction_clipped ratio_mean ratio_min ratio_max value_delta "
    "value_delta_max valids_fraction same_policy_fraction version_diff_min version_diff_avg version_diff_max "
    "discarded_rollouts lr adam_max_second_moment num_sgd_steps"
)


def metrics_of(batch, policy_version=0, action_spec=None, **options):
    torch.manual_seed(1)
    learner = Learner(TinyModel(), config_for(6, 4, **options), "cpu", action_spec=action_spec)
    return learner.train(batch, policy_version, 0.0).metrics


def test_every_promised_tag_is_there_and_finite():
    metrics = metrics_of(acted_out(TinyModel()), kl_loss_coeff=0.1)
    assert set(TAGS.split()) | {"skipped_steps"} == set(metrics)
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_without_a_single_valid_row_nothing_is_told_of_what_was_not_learned():
    batch = acted_out(TinyModel())
    batch.own[:] = False
    metrics = metrics_of(batch, kl_loss_coeff=0.1)
    assert all(math.isfinite(value) for value in metrics.values())
    of_batch = {"valids_fraction", "same_policy_fraction", "discarded_rollouts"}
    lags = {"version_diff_min", "version_diff_avg", "version_diff_max"}
    of_steps = {"grad_norm", "grad_norm_clipped", "lr", "num_sgd_steps", "skipped_steps", "adam_max_second_moment"}
    assert set(metrics) == of_batch | lags | of_steps
    assert (metrics["valids_fraction"], metrics["same_policy_fraction"], metrics["version_diff_max"]) == (0.0, 0.0, 0.0)


def test_lags_and_fractions_are_counted_over_the_rows_that_acted():
    batch = acted_out(TinyModel())
    batch.policy_version[:] = torch.arange(4)
    batch.policy_version[3, 1] = -1000  # the final row
    metrics = metrics_of(batch, policy_version=10, max_policy_lag=9)
    acted = [6, 5, 4, 6]  # rows of each column: none masked, one final, two inactive, none masked
    lags = [10 - column for column, count in enumerate(acted) for _ in range(count)]
    assert metrics["version_diff_min"] == 7
    assert metrics["version_diff_max"] == 10
    assert metrics["version_diff_avg"] == pytest.approx(statistics.fmean(lags))
    assert metrics["discarded_rollouts"] == 1
    assert metrics["valids_fraction"] == pytest.approx((5 + 4 + 6) / 24)
    assert metrics["same_policy_fraction"] == 1.0


def test_the_share_of_own_rows_leaves_out_the_row_that_only_bootstraps():
    batch = acted_out(TinyModel())
    batch.own[4:, 0] = False
    assert metrics_of(batch)["same_policy_fraction"] == pytest.approx(22 / 24)


def test_masked_rows_count_in_no_statistic():
    batch = acted_out(TinyModel())
    before = metrics_of(batch)
    for row, column in ((3, 1), (2, 2), (3, 2)):  # final, inactive, inactive
        batch.behaviour_value[row, column] = 500.0
        batch.behaviour_log_prob[row, column] = -9.0
        batch.behaviour_parameters[row, column] = torch.tensor([9.0, 0.0, 0.0])
    assert metrics_of(batch) == pytest.approx(before)
    batch.behaviour_value[0, 0] = 500.0
    assert metrics_of(batch)["value_delta_max"] > 400.0


def test_the_ratios_extremes_cover_all_minibatches_and_valid_rows_only():
    log_ratios = [torch.tensor([[0.1, -9.0]]), torch.tensor([[0.3, 0.2]])]
    valids = [torch.tensor([[True, False]]), torch.tensor([[True, True]])]
    extremes = to_floats(ratio_range(log_ratios, valids))
    assert extremes == pytest.approx({"ratio_min": math.exp(0.1), "ratio_max": math.exp(0.3)})


def test_what_is_not_finite_is_left_out():
    assert to_floats({"a": torch.tensor(1), "b": torch.tensor(math.nan), "c": torch.tensor(math.inf)}) == {"a": 1.0}


def test_continuous_actions_report_the_policys_mean_and_deviation():
    spec = ActionSpec((ActionLeaf("discrete", 1), ActionLeaf("continuous", 1)))
    batch = acted_out(TinyModel(), ends=False)
    metrics = metrics_of(batch, action_spec=spec)  # parameters: one logit, one mean, one log deviation
    torch.manual_seed(1)
    parameters = TinyModel().unroll(batch.observations, batch.recurrent_state[0], batch.is_first).parameters[:-1]
    assert metrics["action_mean"] == pytest.approx(parameters[..., 1].mean().item(), rel=1e-4)
    assert metrics["action_stddev"] == pytest.approx(parameters[..., 2].exp().mean().item(), rel=1e-4)
    assert "action_mean" not in metrics_of(batch)


def test_each_continuous_action_has_a_mean_and_a_deviation_among_the_parameters():
    leaves = [ActionLeaf("continuous", 2), ActionLeaf("discrete", 3), ActionLeaf("continuous", 1)]
    columns = ContinuousColumns(ActionSpec(tuple(leaves)))
    assert (columns.means, columns.log_stddevs) == ([0, 1, 7], [2, 3, 8])


def test_losses_spread_and_clipping_are_those_of_the_valid_rows():
    batch = acted_out(TinyModel(), ends=False)
    metrics = metrics_of(batch, exploration_loss="symmetric_kl")
    torch.manual_seed(1)
    model = TinyModel()
    output = model.unroll(batch.observations, batch.recurrent_state[0], batch.is_first)
    ratio = (model.distribution.log_prob(output.parameters[:-1], batch.actions) - batch.behaviour_log_prob).exp()
    outside = ((ratio < 1 / 1.1) | (ratio > 1.1)).float().mean().item()
    assert 0.0 < outside < 1.0
    assert metrics["fraction_clipped"] == pytest.approx(outside)
    assert metrics["entropy"] == pytest.approx(model.distribution.entropy(output.parameters[:-1]).mean().item())
    assert metrics["value"] == pytest.approx(output.values[:-1].mean().item(), rel=1e-4, abs=1e-6)
    assert metrics["ratio_max"] == pytest.approx(ratio.max().item(), rel=1e-4)
    moved = (output.values[:-1] - batch.behaviour_value).abs()
    assert metrics["value_delta"] == pytest.approx(moved.mean().item(), rel=1e-4)
    assert metrics["value_delta_max"] == pytest.approx(moved.max().item(), rel=1e-4)
    kl = model.distribution.kl(batch.behaviour_parameters, output.parameters[:-1])
    assert metrics["kl_divergence"] == pytest.approx(kl.mean().item(), rel=1e-4)
    assert metrics["kl_divergence_max"] == pytest.approx(kl.max().item(), rel=1e-4)
    assert metrics["adv_min"] < 0.0 < metrics["adv_max"]
    assert 0.0 < metrics["adv_std"] < metrics["adv_max"] - metrics["adv_min"]
