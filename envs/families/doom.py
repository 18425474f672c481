"""Doom through ViZDoom: the scenarios that come with it, and those of a folder of the user's own.

`doom_<x>` plays `<x>.cfg`, sought first in `--doom_scenarios_dir` and then among ViZDoom's scenarios. Each environment
is an engine process of its own. What the player can do and is told besides the image stands in
`envs/simulators/doom_scenarios.py`; a scenario that is not listed there gets both from its `.cfg`. Names for matches of
several players, agents or the game's bots, stand in `envs/simulators/doom_matches.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.utils.options import option

CLEAR_UP = str(Path(__file__).parents[1] / "simulators" / "doom_leftovers.py")
NAMES = (
    "doom_basic",
    "doom_my_way_home",
    "doom_deadly_corridor",
    "doom_defend_the_center",
    "doom_defend_the_line",
    "doom_health_gathering",
    "doom_health_gathering_supreme",
    "doom_take_cover",
    "doom_predict_position",
    "doom_deathmatch",
    "doom_duel",
    "doom_duel_bots",
    "doom_multi_deathmatch",
    "doom_deathmatch_bots",
)

# What pays most is rare: of 512 rows nearly none lead there, and they move weights by noise. Random play finds the vest
# of my_way_home in one of seven episodes of 525 steps; in deadly_corridor all who run for it die.
_PAYS_RARELY = ("doom_my_way_home", "doom_deadly_corridor")
_FOR_RARE_REWARDS: dict[str, Any] = {
    "num_envs_per_worker": 16,
    "batch_size": 512,
    "num_batches_per_iteration": 8,
    "gamma": 0.995,
}


@dataclass(frozen=True)
class DoomOptions:
    """What a policy sees of the game and how often it acts."""

    env_frameskip: int = option(4, "Tics, of 1/35 s, that one action covers", minimum=1)
    env_framestack: int = option(1, "Images of the last steps that the policy sees together", minimum=1)
    res_w: int = option(128, "Width of the image that the policy sees", minimum=8, maximum=1920)
    res_h: int = option(72, "Height of the image that the policy sees", minimum=8, maximum=1440)
    wide_aspect_ratio: bool = option(
        False,
        "Let the engine draw 16:9 instead of 4:3: the player sees more to both sides, and drawing takes about a "
        "quarter longer. The image is resized to res_w x res_h in either case",
    )
    doom_scenarios_dir: str = option(
        "", "Folder with scenarios of your own: <x>.cfg and the .wad that it names are played as doom_<x>"
    )
    doom_num_agents: int = option(
        0, "Agents in a match, each with an engine of its own. 0: as many as are usual in it", minimum=0, maximum=16
    )
    doom_num_bots: int = option(
        0, "The game's own players in a match. 0: as many as are usual in it", minimum=0, maximum=15
    )
    doom_match_minutes: float = option(0.0, "How long a match is, in minutes of the game. 0: 4 minutes", minimum=0.0)


def make(name: str, options: DoomOptions, context: EnvContext) -> Any:
    """Build one environment; its engine starts with the first reset.

    Raises:
        ConfigError: the scenario's files are missing or cannot be read.
    """
    from appo.envs.simulators import doom_matches

    scenario = name.removeprefix("doom_")
    if scenario in doom_matches.MATCHES:
        from appo.envs.simulators.doom_match_env import DoomBotsEnv, DoomMatchEnv

        plays_alone = doom_matches.party(scenario, options).num_agents == 1
        return (DoomBotsEnv if plays_alone else DoomMatchEnv)(scenario, options, context.render_mode)
    from appo.envs.simulators import doom_env, doom_shaped_env, doom_shaping

    doom_matches.refuse_match_options(scenario, options)
    is_shaped = scenario in doom_shaping.SHAPED_SCENARIOS
    env_class = doom_shaped_env.ShapedDoomEnv if is_shaped else doom_env.DoomEnv
    return env_class(scenario, options, context.render_mode)


def defaults(name: str) -> dict[str, Any]:
    """Values a Doom run starts from; returns of any size are brought to one, so nearly all scenarios share them."""
    values: dict[str, Any] = {
        "encoder": "conv_simple",
        "hidden_size": 512,
        "use_rnn": True,
        "rnn_type": "gru",
        "obs_scale": 255.0,
        "normalize_returns": True,
        "with_vtrace": False,
        "batch_size": 256,
        "num_batches_per_iteration": 2,
        "ppo_epochs": 1,
        # One iteration may wait: the data is younger, and on a small machine the learner is the slowest part anyway.
        "num_minibatches_to_accumulate": 2,
        "learning_rate": 5e-4,
        "max_grad_norm": 1.0,
        "exploration_loss": "symmetric_kl",
        "exploration_loss_coeff": 0.001,
        "num_envs_per_worker": 8,
    }
    return values | _FOR_RARE_REWARDS if name in _PAYS_RARELY else values


FAMILY = EnvFamily(make=make, config=DoomOptions, defaults=defaults, names=NAMES, has_engine=True, clear_up=CLEAR_UP)
