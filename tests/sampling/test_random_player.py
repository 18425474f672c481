"""Random actions in the actors: drawn evenly, from what a mask allows, without anybody being asked."""

import numpy as np

from appo.algorithms.memory.blocks import SplitBlocks
from appo.algorithms.sampling.random_player import RandomAnswers
from appo.algorithms.specs import TensorSpec
from appo.envs.api import ACTION_MASK
from tests.memory.memory_cases import ACTIONS, OBSERVATIONS, shared


def test_actions_are_drawn_into_the_row_that_asks_from_what_is_allowed():
    arrays = shared(observations=OBSERVATIONS | {ACTION_MASK: TensorSpec((3,), "uint8")})
    blocks = SplitBlocks(arrays, 1, 2)
    player = RandomAnswers(blocks, ACTIONS.leaves, np.random.default_rng(1))
    mask = arrays[f"obs/{ACTION_MASK}"][1, 2]
    mask[:] = 1
    mask[1, 3, :, 1] = 0
    drawn, elsewhere = [], arrays["answers"].copy()
    for _ in range(100):
        player.ask(1, 3)
        assert player.is_answered()
        drawn.append(blocks.actions[1, 3].copy())
    choices, continuous = np.stack(drawn)[..., 0], np.stack(drawn)[..., 1:]
    assert set(np.unique(choices)) == {0.0, 2.0}
    assert 0.4 < np.mean(choices == 0.0) < 0.6
    assert -1.0 <= continuous.min() < -0.9 and 0.9 < continuous.max() <= 1.0
    width = arrays.sizes.actions.width
    elsewhere[1, 2, 1, 3, :, :width] = arrays["answers"][1, 2, 1, 3, :, :width]
    assert np.array_equal(arrays["answers"], elsewhere), "nothing else was written"
    assert not arrays["asked"].any()
