"""The whole path of a decision, from the environment through blocks and batches to the learner, on unchanged weights.

What the policy worker wrote down when it acted must be what the learner computes: log-probabilities, distributions,
values and recurrent states, however requests were grouped, whichever policy played, and wherever episodes ended.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.masks import trajectory_structure
from appo.algorithms.workers.learner_core import _TORCH_DTYPES
from appo.algorithms.workers.policy_core import PolicyCore
from tests.workers.core_cases import ROLLOUT, Case, Turns

GRU: dict[str, Any] = {"rnn_type": "gru"}
LSTM: dict[str, Any] = {"rnn_type": "lstm"}
DEEP: dict[str, Any] = {"rnn_type": "gru", "rnn_num_layers": 2, "actor_critic_share_weights": False}
NO_RNN: dict[str, Any] = {"use_rnn": False}
SHORT = {"synthetic_episode_length": 4}  # with its reset row a truncated episode moves by one row in each rollout
IMAGES = {"synthetic_image_size": 40, **SHORT}
SEVERAL = {"synthetic_num_agents": 3, "synthetic_episode_length": 5}

CASES = {
    "terminations, no memory": lambda: Case("synthetic_identity", options=SHORT, **NO_RNN),
    "terminations, gru": lambda: Case("synthetic_identity", options=SHORT, **GRU),
    "terminations, lstm": lambda: Case("synthetic_identity", options=SHORT, **LSTM),
    "memory, chunks of 4": lambda: Case("synthetic_memory", options={"synthetic_delay": 3}, recurrence=4, **GRU),
    "truncations, no memory": lambda: Case("synthetic_truncation", options=SHORT, **NO_RNN),
    "truncations, gru": lambda: Case("synthetic_truncation", options=SHORT, **GRU),
    "truncations, lstm, chunks of 2": lambda: Case("synthetic_truncation", options=SHORT, recurrence=2, **LSTM),
    "truncations, chunks of 1": lambda: Case("synthetic_truncation", options=SHORT, recurrence=1, **GRU),
    "two layers and two trunks": lambda: Case("synthetic_identity", options=SHORT, recurrence=4, **DEEP),
    "action masks": lambda: Case("synthetic_masked", options=SHORT, **NO_RNN),
    "action masks in info, gru": lambda: Case("synthetic_masked_info", options=SHORT, **GRU),
    "tuple of actions": lambda: Case("synthetic_tuple", options=SHORT, **GRU),
    "continuous actions": lambda: Case("synthetic_continuous", options=SHORT, adaptive_stddev=False, **NO_RNN),
    "dict with an image": lambda: Case("synthetic_dict", options=IMAGES, obs_scale=255.0, precision="fp32", **GRU),
    "several agents": lambda: Case("synthetic_multi", options=SEVERAL, **GRU),
    "two policies, gru": lambda: Case("synthetic_truncation", options=SHORT, policies=2, **GRU),
    "two policies, lstm, chunks": lambda: Case("synthetic_identity", options=SHORT, policies=2, recurrence=2, **LSTM),
    "two policies, several agents": lambda: Case("synthetic_multi", options=SEVERAL, policies=2, recurrence=4, **GRU),
    "two policies and two frozen ones": lambda: Case("synthetic_multi", options=SEVERAL, policies=2, frozen=2, **GRU),
    "CartPole": lambda: Case("CartPole-v1", **GRU),
}
MEMORYLESS = {name for name in CASES if "no memory" in name or name in ("action masks", "continuous actions")}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=CASES)
def named_case(request):
    return request.param, CASES[request.param]()


@torch.no_grad()
def recomputed(model, batch, start, stop, state):
    """Log-probabilities, parameters and values of some rows, as the learner sees them."""
    rows = slice(start, stop)
    observations = {name: value[rows] for name, value in batch.observations.items()}
    output = model.unroll(observations, state, batch.is_first[rows])
    values = output.values if model.returns_normalizer is None else model.returns_normalizer.denormalize(output.values)
    return model.distribution.log_prob(output.parameters, batch.actions[rows]), output.parameters, values


def largest_ratio_error(model, batch, chunks, own):
    """Over all rows that this policy played; chunk after chunk, each from its stored state."""
    steps, worst = ROLLOUT // chunks, 0.0
    for chunk in range(chunks):
        rows = slice(chunk * steps, (chunk + 1) * steps)
        log_prob, _, _ = recomputed(model, batch, rows.start, rows.stop, batch.recurrent_state[chunk])
        errors = ((log_prob - batch.behaviour_log_prob[rows]).exp() - 1.0).abs()[own[rows]]
        worst = max(worst, errors.max().item() if errors.numel() else 0.0)
    return worst


@torch.no_grad()
def states_by_single_steps(model, batch):
    """[T, B, H] before each row, zero where `is_first`: one `act` after the other, as the policy worker does it."""
    state, states = batch.recurrent_state[0], []
    for row in range(ROLLOUT):
        state = state * (batch.is_first[row] == 0).unsqueeze(-1)
        states.append(state)
        observations = {name: value[row] for name, value in batch.observations.items()}
        state = model.act(observations, state).state
    return torch.stack(states)


def assert_written_down_as_computed(model, batch):
    own = batch.own[:-1]
    chunks = len(batch.recurrent_state)
    assert largest_ratio_error(model, batch, 1, own) < 1e-5
    assert largest_ratio_error(model, batch, chunks, own) < 1e-5
    _, parameters, values = recomputed(model, batch, 0, ROLLOUT, batch.recurrent_state[0])
    assert_close(batch.behaviour_parameters[own], parameters[own], rtol=1e-4, atol=1e-5)
    assert_close(batch.behaviour_value[own], values[own], rtol=1e-4, atol=1e-5)
    starts = slice(0, ROLLOUT, ROLLOUT // chunks)
    expected = states_by_single_steps(model, batch)[starts]
    played = own[starts]
    assert_close(batch.recurrent_state[played], expected[played], rtol=1e-4, atol=1e-5)
    assert not batch.recurrent_state[(batch.is_first[:-1][starts] != 0) & played].any()


def test_what_was_written_down_is_what_the_learner_computes(named_case, tmp_path):
    name, case = named_case
    turns = Turns(case, tmp_path)
    seen = {flag: torch.zeros(ROLLOUT + 1, dtype=torch.bool) for flag in ("is_first", "is_last")}
    num_batches = 0
    for number in range(24):
        policy = number % case.policies
        batch = turns.next_batch(policy)
        assert (batch.policy_version == 0).all()
        assert_written_down_as_computed(turns.learners[policy]._model, batch)
        for flag, rows in seen.items():
            rows |= getattr(batch, flag).bool().any(1)
        num_batches += bool(batch.own[:-1].any())
    turns.close()
    assert num_batches == 24
    if name == "CartPole":
        assert seen["is_first"].sum() > 4
        return
    assert seen["is_first"].all()  # episodes began in every row of a block,
    assert seen["is_last"].all() == ("truncation" in case.name)  # and were cut in every row, T among them
    assert turns.episodes > 50


@pytest.mark.parametrize("name", CASES)
def test_other_weights_other_states_or_forgotten_ends_would_be_noticed(name, tmp_path):
    """The guard of the test above: each of the things that it relies on matters by far more than its tolerance."""
    case = CASES[name]()
    turns = Turns(case, tmp_path)
    batches = [turns.next_batch(0) for _ in range(6)]
    turns.close()
    model, chunks = turns.learners[0]._model, len(batches[0].recurrent_state)

    def worst(change):
        return max(largest_ratio_error(model, change(batch), chunks, batch.own[:-1]) for batch in batches)

    assert worst(lambda batch: batch) < 1e-5
    if name not in MEMORYLESS:
        assert worst(lambda batch: batch._replace(recurrent_state=batch.recurrent_state.roll(1, 1))) > 1e-2
        if chunks < ROLLOUT:
            assert worst(lambda batch: batch._replace(is_first=torch.zeros_like(batch.is_first))) > 1e-2
    assert worst(lambda batch: batch._replace(actions=batch.actions.roll(1, 1))) > 1e-2
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.01)
    assert worst(lambda batch: batch) > 1e-3


def test_forbidden_choices_are_never_taken_and_masked_on_both_sides(tmp_path):
    for name in ("action masks", "action masks in info, gru"):
        turns = Turns(CASES[name](), tmp_path / name)
        batch = turns.next_batch(0)
        turns.close()
        mask = batch.observations["action_mask"][:-1]
        assert (mask == 0).any(-1).all()  # one choice is forbidden in every step
        assert mask.gather(-1, batch.actions.long()).all()
        assert (batch.behaviour_parameters.softmax(-1)[mask == 0] < 1e-6).all()


@pytest.mark.parametrize(
    ("name", "least", "most"), [("two policies, gru", 1.0, 1.0), ("two policies, several agents", 0.3, 0.9)]
)
def test_each_policy_gets_the_columns_it_played_and_knows_which_rows_are_its_own(name, least, most, tmp_path):
    turns = Turns(CASES[name](), tmp_path)
    batches = [[turns.next_batch(policy) for _ in range(8)] for policy in range(2)]
    turns.close()
    models = [learner._model for learner in turns.learners]
    for policy in range(2):
        for batch in batches[policy]:
            assert batch.own[:-1].any(0).all()  # no column without a row of this policy
            changes = batch.own[1:] != batch.own[:-1]
            assert not changes[batch.is_first[1:] == 0].any()
        own = torch.cat([batch.own for batch in batches[policy]], 1)
        assert least <= own.float().mean() <= most  # a split of single agents plays one policy
        others = [largest_ratio_error(models[1 - policy], batch, 1, batch.own[:-1]) for batch in batches[policy]]
        assert min(others) > 1e-3  # the other policy did not play these rows


@pytest.mark.parametrize(
    "model", [{"use_rnn": False}, {"rnn_type": "gru"}, {"normalize_input": True, "normalize_returns": True}]
)
def test_after_training_the_new_weights_and_normalizers_act_and_the_ratio_is_one_again(model, tmp_path):
    case = Case("synthetic_truncation", options=SHORT, **model)
    turns = Turns(case, tmp_path, learning_rate=1e-2)
    learner = turns.learners[0]
    before = learner._flat.clone()
    for iteration in range(1, 4):
        turns.next_batch(0)
        report = learner.train(turns.stagings[0])
        assert (report.policy, report.train_step, learner.policy_version) == (0, iteration, iteration)
    assert (learner._flat - before).abs().max() > 1e-3
    assert turns.weights[0].version == int(turns.arrays["train_steps"][0]) == 3
    batch = turns.next_batch(0)
    for _ in range(20):
        if (batch.policy_version == 3).all():
            break
        batch = turns.next_batch(0)
    policy = turns.policies[0]
    assert isinstance(policy, PolicyCore) and policy.version == 3
    assert (batch.policy_version == 3).all()
    assert_written_down_as_computed(learner._model, batch)
    metrics = learner.train(turns.stagings[0]).metrics
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["version_diff_max"] == 0.0


def test_a_learner_follows_the_progress_that_is_published_for_its_policy(tmp_path):
    turns = Turns(CASES["two policies, gru"](), tmp_path, lr_schedule="linear_decay", learning_rate=1e-2, adam_eps=0.0)
    turns.arrays["progress"][:] = 0.75, 1.0
    moved = []
    for policy, learner in enumerate(turns.learners):
        before = learner._flat.clone()
        turns.next_batch(policy)
        learner.train(turns.stagings[policy])
        moved.append((learner._flat - before).abs().max().item())
    turns.close()
    # Adam's first step is as long as the rate for every weight.
    assert moved == pytest.approx([0.25 * 1e-2, 0.0], rel=1e-3)


def test_the_learner_reads_rewards_ends_and_observations_as_the_environments_wrote_them(tmp_path):
    turns = Turns(Case("synthetic_identity", options=SHORT, use_rnn=False), tmp_path)
    for _ in range(5):
        batch = turns.next_batch(0)
        asked, answered = batch.observations["obs"][:-1, :, 0], batch.actions[..., 0]
        assert torch.equal(batch.rewards, (asked == answered).float())
        assert torch.equal(batch.is_first[1:], batch.terminated)
        assert not batch.is_last.any() and batch.active.all() and batch.own.all()
        masks = trajectory_structure(*batch[1:5], batch.terminated, gamma=0.9)
        assert masks.valid.all()
    turns.close()


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"])
def test_a_batch_has_room_for_observations_of_each_dtype(name):
    assert torch.zeros(1, dtype=_TORCH_DTYPES[name]).numpy().dtype == np.dtype(name)


def test_nothing_is_answered_before_weights_were_published(tmp_path):
    turns = Turns(CASES["terminations, gru"](), tmp_path)
    policy = turns.policies[0]
    assert isinstance(policy, PolicyCore)
    policy._weights = type(turns.weights[0]).create("empty")
    assert not policy.adopt_newest()
    assert policy.version == -1
    published = turns.learners[0]._flat
    policy._weights.publish(published.numpy(), 7)
    assert policy.adopt_newest() and policy.version == 7
    assert torch.equal(policy.inference.received, published)
