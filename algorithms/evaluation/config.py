"""Options of watching, recording and scoring a trained policy."""

from __future__ import annotations

from dataclasses import dataclass

from appo.utils.options import ConfigError, option

VIDEOS = "videos"  # folder of an experiment's videos
_SLOWEST_FPS = 0.1  # an image every ten seconds


@dataclass(frozen=True)
class EvaluationConfig:
    """How a trained policy is watched, recorded or scored."""

    fps: float = option(
        0.0, "Frames shown per second, at least 0.1. 0: the environment's own pace", minimum=0.0, maximum=10_000.0
    )
    render_action_repeat: int = option(
        0, "Frames for which each action is repeated while watching. 0: as in training", minimum=0
    )
    no_render: bool = option(False, "Score without a window")
    save_video: bool = option(False, "Write the episodes into a video file in the experiment's folder")
    policy_index: int = option(0, "Which of several trained policies plays; -1: each of them in turn", minimum=-1)
    eval_num_envs: int = option(
        -1,
        "Environments that score side by side, with --no_render. -1: at most 8, in this process; with a number, they "
        "are spread over processes",
        minimum=-1,
    )
    eval_num_workers: int = option(
        -1, "Processes of --eval_num_envs. -1: one per CPU core; 0: none but this one", minimum=-1
    )
    eval_deterministic: bool = option(False, "Take the most likely action instead of drawing one")
    max_num_episodes: int = option(
        -1,
        "End after this many episodes. -1: no limit; without a window, and with no limit typed, 20",
        minimum=-1,
    )
    tournament: bool = option(
        False,
        "Play a tournament: each pair of the newest checkpoint of each policy, its past selves, its milestones and "
        "scripted players meets in --max_num_episodes matches, 100 if that is open",
    )
    tournament_players: str = option(
        "",
        "Players of the tournament: names or patterns, separated by commas, for example 'policy_0*,random'. Empty: all",
    )
    max_num_frames: int = option(-1, "End after this many environment frames. -1: no limit", minimum=-1)

    def check_combinations(self) -> None:
        """Refuse what would be left out, and a pace that is too slow to watch, which no video file can state.

        Raises:
            ConfigError: the message names the nearest value that works.
        """
        if self.tournament_players and not self.tournament:
            raise ConfigError("tournament_players is for --tournament=True")
        if self.tournament and (self.max_num_episodes == 0 or self.policy_index > 0):
            name = "policy_index" if self.policy_index > 0 else "max_num_episodes=0"
            raise ConfigError(
                f"{name} says nothing to --tournament=True; nearest: --tournament_players, or leave it out"
            )
        if self.tournament and (self.max_num_frames >= 0 or self.render_action_repeat):
            name = "max_num_frames" if self.max_num_frames >= 0 else "render_action_repeat"
            raise ConfigError(f"{name} is not for --tournament=True, which plays whole matches; leave it out")
        if self.eval_num_envs == 0:
            raise ConfigError("eval_num_envs=0 leaves nothing to score with; nearest: 1, or -1: as many as are of use")
        if self.tournament and self.eval_num_envs > 0:
            raise ConfigError("eval_num_envs is not for --tournament=True, which has its own; leave it out")
        if self.eval_num_envs > 0 and (self.save_video or not self.no_render):
            instead = " instead of --save_video" if self.save_video else ""
            raise ConfigError(f"eval_num_envs={self.eval_num_envs} scores without a window; add --no_render{instead}")
        if self.eval_num_workers > 0 and self.eval_num_envs < 0:
            raise ConfigError(
                f"eval_num_workers={self.eval_num_workers} is for environments whose number is typed; "
                + ("leave it out" if self.tournament else f"add --eval_num_envs={self.eval_num_workers}")
            )
        if 0.0 < self.fps < _SLOWEST_FPS:
            raise ConfigError(
                f"fps={self.fps:g} is slower than an image every ten seconds; nearest: {_SLOWEST_FPS:g}, or 0: the "
                "environment's own pace"
            )
