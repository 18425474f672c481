"""Atari games through the Arcade Learning Environment, with the preprocessing of the DQN and PPO benchmarks.

`atari_<game>` (atari_breakout, atari_space_invaders) repeats no action by chance, as in those benchmarks;
`ALE/<Game>-v5` repeats the previous one with probability 0.25, as that version prescribes. Nothing else differs:
frame skip, pooling and stacking are this family's in either case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.utils.options import option

# The games on which results are usually compared; every other game of the ALE works as well.
_BENCHMARK_GAMES = """
    alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing breakout
    centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby freeway frostbite
    gopher gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master montezuma_revenge ms_pacman
    name_this_game phoenix pitfall pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris
    space_invaders star_gunner surround tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor
    yars_revenge zaxxon
""".split()  # noqa: SIM905 - a list of 57 quoted words reads worse


@dataclass(frozen=True)
class AtariOptions:
    """How the console's screen and score become observations, episodes and rewards."""

    env_frameskip: int = option(
        4, "Frames that one action covers; the observation is the brighter of the last two, pixel by pixel", minimum=1
    )
    env_framestack: int = option(
        4, "Observations of the last steps that the policy sees together; 1 hides all motion", minimum=1
    )
    atari_noop_max: int = option(
        30, "A game starts with 1 to this many idle frames, so that no two are alike; 0 starts at once", minimum=0
    )
    atari_episodic_life: bool = option(
        True,
        "End the episode when a life is lost, and let the next one continue the same game. Losing a life then costs "
        "the policy its future; scores of whole games are the statistic game_score",
    )
    atari_fire_reset: bool = option(
        True,
        "Press FIRE once when an episode starts, in the games that have that button: many wait for it. Where a lost "
        "life does not end the episode, as in evaluation, after each lost life too",
    )
    atari_repeat_action_probability: float = option(
        0.0,
        "Chance, each frame, that the console repeats the previous action instead of taking the new one. 0.25 makes "
        "memorised sequences fail; ALE/<Game>-v5 starts from it",
        minimum=0.0,
        maximum=1.0,
    )
    atari_max_frames: int = option(108_000, "Truncate a game after this many frames; 108000 is half an hour", minimum=1)


def make(name: str, options: AtariOptions, context: EnvContext) -> Any:
    """Build one game.

    Raises:
        ConfigError: there is no such game.
    """
    from appo.envs.simulators.atari_env import AtariEnv

    return AtariEnv(name, options, context.render_mode)


def defaults(name: str) -> dict[str, Any]:
    """Values an Atari run starts from."""
    values: dict[str, Any] = {
        "encoder": "conv_nature",
        "nonlinearity": "relu",
        "hidden_size": 512,
        "use_rnn": False,
        "obs_scale": 255.0,
        "reward_clip": 1.0,
        "normalize_returns": True,
        "with_vtrace": False,
        "ppo_clip_ratio": 0.2,
        "exploration_loss_coeff": 0.01,
        "rollout": 64,
        "batch_size": 256,
        "num_batches_per_iteration": 4,
        "num_minibatches_to_accumulate": 4,
        # A second pass costs two fifths of the frames per second, and Pong needs a third of the frames.
        "ppo_epochs": 2,
        "learning_rate": 1e-3,
        "adam_eps": 1e-5,
        "max_grad_norm": 0.5,
        "num_envs_per_worker": 8,
    }
    if name.endswith(("-v5", "-v0")):
        values["atari_repeat_action_probability"] = 0.25
    return values


FAMILY = EnvFamily(
    make=make,
    config=AtariOptions,
    defaults=defaults,
    names=(*(f"atari_{game}" for game in _BENCHMARK_GAMES), "ALE/Breakout-v5", "ALE/Pong-v5"),
    evaluation={"atari_episodic_life": False},  # a score is that of a whole game
    registers="ale_py",
)
