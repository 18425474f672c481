"""MiniGrid: small grid worlds (MiniGrid-DoorKey-5x5-v0 ...), of which the agent sees a square before it.

The mission text is dropped. Where it says nothing new, as in Empty, DoorKey, Unlock, KeyCorridor or Memory, nothing is
lost; where it chooses the goal, as in Fetch, GoToDoor, GoToObject or PutNear, the task becomes one of guessing.
"""

from __future__ import annotations

from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.factories import make_arguments
from appo.envs.family_defaults import SEVERAL_EPOCHS
from appo.envs.registry import NoOptions

NAMES = (
    "MiniGrid-Empty-5x5-v0",
    "MiniGrid-Empty-8x8-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-KeyCorridorS3R3-v0",
    "MiniGrid-LavaGapS7-v0",
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-MultiRoom-N2-S4-v0",
    "MiniGrid-SimpleCrossingS9N1-v0",
    "MiniGrid-Unlock-v0",
)

# What matters there is soon out of sight: a cue, a key's place, which rooms were visited.
_NEEDS_MEMORY = ("Memory", "FourRooms", "KeyCorridor", "LockedRoom", "MultiRoom", "ObstructedMaze", "RedBlueDoor")


def make(name: str, options: NoOptions, context: EnvContext) -> Any:
    """Build one task by its Gymnasium id.

    Its observations are `image`, uint8 [3, 7, 7]: the kind, colour and state of each cell in view as a small number
    (kinds count to 10), and `direction`, which way the agent looks.
    """
    import gymnasium
    import minigrid  # noqa: F401 - registers the ids

    from appo.envs.simulators.minigrid_view import SymbolsOnly

    return SymbolsOnly(gymnasium.make(name, disable_env_checker=True, **make_arguments(context)))


def defaults(name: str) -> dict[str, Any]:
    """Values a MiniGrid run starts from."""
    remembers = any(word in name for word in _NEEDS_MEMORY)
    # Random walks meet the goal once in thousands of steps: an iteration that saw no reward moves weights by noise.
    rollout = 32 if remembers else 128
    values: dict[str, Any] = {
        "encoder": "minigrid_tiny",
        "mlp_layers": "64,64",
        "encoder_extra_fc_layers": 1,
        "hidden_size": 128,
        "nonlinearity": "relu",
        "obs_scale": 10.0,
        "normalize_returns": True,
        "use_rnn": remembers,
        "num_envs_per_worker": 16,
        "rollout": rollout,
        "batch_size": 256,
        "num_batches_per_iteration": rollout // 8,  # all that 2 workers of 16 environments play meanwhile
        "num_minibatches_to_accumulate": rollout // 8,
        **SEVERAL_EPOCHS,
    }
    return values | {"rnn_chrono_init": rollout} if remembers else values


FAMILY = EnvFamily(make=make, config=NoOptions, defaults=defaults, names=NAMES, registers="minigrid", takes_kwargs=True)
