"""What the driver tells all workers by way of the shared table; without locks, each cell is old or new."""

from __future__ import annotations

from typing import assert_never

from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.messages import SetOpponent, SetOpponentShares, SetRewardShaping, Setting


def write_setting(arrays: SharedArrays, command: Setting) -> None:
    """Let workers see it from now on; reward weights that no environment has are ignored."""
    match command:
        case SetRewardShaping():
            for place, (name, _) in enumerate(arrays.sizes.reward_shaping):
                if name in command.weights:
                    arrays["reward_shaping"][command.policy, place] = command.weights[name]
        case SetOpponent():
            row = arrays["opponents"][command.frozen]
            row[0] = 0
            row[1:] = command.train_step, command.env_frames
            row[0] = command.number
        case SetOpponentShares():
            arrays["opponent_shares"][command.policy] = command.shares
        case _:
            assert_never(command)
