"""Cutting a batch into minibatches and chunks."""

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.minibatches import (
    Estimates,
    _select,
    check_batch,
    minibatch_of,
    num_minibatches,
    split,
    whole_batch,
    with_estimates,
)
from tests.learning.learning_cases import TinyModel, acted_out, config_for


def numbered(steps=6, trajectories=4, chunks=1):
    """A batch whose reward tells row and column: 10 * row + column."""
    batch = acted_out(TinyModel(), steps, trajectories, chunks=chunks)
    rewards = 10.0 * torch.arange(steps)[:, None] + torch.arange(trajectories)
    states = 10.0 * torch.arange(0, steps, steps // chunks)[:, None] + torch.arange(trajectories)
    return batch._replace(rewards=rewards, recurrent_state=states.unsqueeze(-1))


def pieces(data, count, generator):
    return [minibatch_of(data, chosen) for chosen in split(len(data.columns), count, generator)]


def test_rewards_are_scaled_and_then_clipped():
    batch = numbered()._replace(rewards=torch.full((6, 4), -3.0))
    for scale, clip, expected in ((2.0, 100.0, -6.0), (2.0, 5.0, -5.0), (0.5, 5.0, -1.5)):
        data = whole_batch(batch, config_for(6, 4, reward_scale=scale, reward_clip=clip), 0)
        assert (data.rewards == expected).all()
    assert (batch.rewards == -3.0).all()  # the caller's array is untouched


def test_rows_older_than_the_limit_are_masked_but_keep_their_ratio():
    batch = numbered()
    batch.policy_version[:] = torch.arange(6)[:, None]
    data = whole_batch(batch, config_for(6, 4), 3)
    assert not data.valid[:3].any()
    assert_close(data.valid[3:], data.acted[3:])
    assert data.acted[:3].any()


def test_minibatches_hold_every_column_once_in_an_order_of_their_own():
    data = whole_batch(numbered(trajectories=8), config_for(6, 8), 0)
    generator = torch.Generator().manual_seed(0)
    seen = torch.cat([piece.rewards[0] for piece in pieces(data, 4, generator)]).tolist()
    assert sorted(seen) == list(range(8))
    assert seen != list(range(8))
    in_order = torch.cat([piece.rewards[0] for piece in pieces(data, 4, None)]).tolist()
    assert in_order == list(range(8))


def test_all_arrays_of_a_minibatch_are_of_the_same_columns():
    data = whole_batch(numbered(trajectories=8), config_for(6, 8), 0)
    for piece in pieces(data, 4, torch.Generator().manual_seed(0)):
        columns = piece.rewards[0].long()
        assert_close(piece.state, data.state[columns])
        assert_close(piece.observations["obs"], data.observations["obs"][:, columns])
        assert_close(piece.is_first, data.is_first[:, columns])
        assert_close(piece.behaviour_parameters, data.behaviour_parameters[:, columns])


def test_a_single_minibatch_is_the_data_itself():
    data = whole_batch(numbered(), config_for(6, 4), 0)
    assert pieces(data, 1, torch.Generator())[0] is data


def test_chunks_start_from_their_stored_state():
    batch = numbered(chunks=3)
    data = whole_batch(batch, config_for(6, 4), 0)
    estimates = Estimates(data.rewards + 0.5, data.rewards + 0.25)
    chunks = with_estimates(data, estimates, batch.recurrent_state)
    assert chunks.rewards.shape == (2, 12)
    assert_close(chunks.rewards[0], chunks.state.squeeze(-1))  # row 0 of a chunk is the row its state stands before
    assert_close(chunks.rewards[1], chunks.rewards[0] + 10.0)
    assert chunks.estimates is not None
    assert_close(chunks.estimates.value_targets, chunks.rewards + 0.5)
    row, column = 4, 3
    assert_close(chunks.observations["obs"][0, 2 * 4 + column], batch.observations["obs"][row, column])


def test_with_estimates_the_bootstrapping_observation_is_dropped():
    batch = numbered()
    data = whole_batch(batch, config_for(6, 4), 0)
    kept = with_estimates(data, Estimates(data.rewards, data.rewards), batch.recurrent_state)
    assert kept.unrolled_observations["obs"].shape[0] == kept.unrolled_is_first.shape[0] == 6
    assert data.unrolled_observations["obs"].shape[0] == data.unrolled_is_first.shape[0] == 7
    for minibatch in (kept, data):
        assert minibatch.observations["obs"].shape[0] == minibatch.is_first.shape[0] == 6


def test_minibatches_must_be_whole():
    data = whole_batch(numbered(), config_for(6, 4), 0)
    assert num_minibatches(data, 1, 12) == 2
    assert num_minibatches(data, 3, 8) == 3 and num_minibatches(data, 6, 3) == 8
    for chunks, batch_size in ((1, 10), (1, 18), (1, 3), (3, 3), (3, 10), (6, 5)):
        with pytest.raises(ValueError, match=f"4 trajectories of {chunks} times .* batch_size={batch_size}"):
            num_minibatches(data, chunks, batch_size)


@pytest.mark.parametrize("name", ["own", "actions", "rewards", "policy_version", "recurrent_state", "observations"])
def test_an_array_that_does_not_belong_is_refused_by_name(name):
    batch = numbered()
    value = getattr(batch, name)
    wrong = {"obs": value["obs"][:, :3]} if name == "observations" else value[:, :3]
    with pytest.raises(ValueError, match="obs" if name == "observations" else name):
        check_batch(batch._replace(**{name: wrong}))


def test_chunks_that_do_not_divide_the_rows_are_refused():
    batch = numbered()
    with pytest.raises(ValueError, match="4 chunks, which cannot divide 6 rows"):
        check_batch(batch._replace(recurrent_state=torch.zeros(4, 4, 1)))


def test_chosen_columns_of_images_lie_in_memory_as_before():
    images = torch.randn(3, 6, 5, 7, 2).permute(0, 1, 4, 2, 3)  # [R, M, C, H, W] with the channels last in memory
    chosen = torch.tensor([4, 0, 2])
    selected = _select(images, chosen)
    assert torch.equal(selected, images[:, chosen])
    assert selected.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    for rows in (torch.randn(3, 6), torch.randn(3, 6, 4), torch.randn(6, 3, 4).transpose(0, 1)):
        assert torch.equal(_select(rows, chosen), rows[:, chosen])
