"""One evaluation from a checkpoint to the table: its viewers, its environments, and when it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from appo.algorithms.checkpoint_names import policy_folder
from appo.algorithms.checkpoints import Checkpoint
from appo.algorithms.evaluation import tournament
from appo.algorithms.evaluation.config import VIDEOS, EvaluationConfig
from appo.algorithms.evaluation.evaluate import Player, choose_num_envs, evaluate_policy
from appo.algorithms.evaluation.loading import find_checkpoint, restore_model
from appo.algorithms.evaluation.report import Conditions, EpisodeLines, print_result, save_result, why_kept
from appo.algorithms.evaluation.screen import Screen, Viewer
from appo.algorithms.evaluation.seats import SeatedPolicies
from appo.algorithms.evaluation.video import VideoRecorder
from appo.algorithms.evaluation.win_table import WinTable, show_wins
from appo.algorithms.evaluation.window import NoWindowError, Window
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.sampling.config import SamplingConfig
from appo.envs.api import BatchEnv, EnvContext, EnvError
from appo.envs.faults import FaultPolicy, Restarts
from appo.envs.registry import ResolvedEnv, make_batch_env
from appo.envs.vector.make import make_vec_env, vec_env_of
from appo.envs.vector.vec_env import VecEnv
from appo.utils.files import atomic_write_json
from appo.utils.options import ConfigError
from appo.utils.processes import core_count
from appo.utils.signals import StopSignals

_EPISODES_UNWATCHED = 20  # where nothing limits them and no window shows them: nobody would end it
_RESTARTS = Restarts("restart", max_lifetime=1000, rate=-1)  # `evaluate_policy` ends what fails too often before
_EVALUATION = 0xE7A1  # tells these random numbers from those of training with the same seed

log = logging.getLogger(__name__)


class EvaluationJob(NamedTuple):
    """Which policy plays where, and how it is watched."""

    options: EvaluationConfig
    env: ResolvedEnv
    family_options: Any
    model: ModelConfig
    folder: Path  # of the experiment
    checkpoint_kind: str
    best_metric: str  # by which training picked its best checkpoint
    device: str  # as torch names it
    seed: int  # the same seed plays the same episodes
    sampling: SamplingConfig = SamplingConfig()
    wrap_action_repeat: int = 1  # steps of the environment that one action covers
    ends_unwatched: bool = True  # after some episodes, where there are neither limits nor a window
    is_policy_typed: bool = True  # else which of several plays is told

    @property
    def episodes(self) -> int | None:
        """How many are played; None: no limit."""
        return None if self.options.max_num_episodes < 0 else self.options.max_num_episodes

    @property
    def frames(self) -> int | None:
        """How many are played; None: no limit."""
        return None if self.options.max_num_frames < 0 else self.options.max_num_frames

    def check(self) -> None:
        """Refuse an action that is held for another time than whole steps, and seats that nobody else can have.

        Raises:
            ConfigError: with the nearest value that works.
        """
        if self.options.tournament and self.sampling.agent_policy_map:
            raise ConfigError(
                f"tournament=True lets players change seats, and agent_policy_map={self.sampling.agent_policy_map!r} "
                "trained each policy for its own agents; score them together without --tournament"
            )
        if self.sampling.agent_policy_map and self.is_policy_typed and self.options.policy_index >= 0:
            raise ConfigError(
                f"policy_index={self.options.policy_index} plays one policy, and agent_policy_map="
                f"{self.sampling.agent_policy_map!r} trained each for its own agents; leave it out: they play together"
            )
        name, skip = "env_frameskip", getattr(self.family_options, "env_frameskip", 1)
        if self.wrap_action_repeat > 1:  # not for families with a frameskip of their own
            name, skip = "wrap_action_repeat", self.wrap_action_repeat
        repeat = self.options.render_action_repeat
        if repeat % skip:
            nearest = max(skip, round(repeat / skip) * skip)
            raise ConfigError(
                f"render_action_repeat={repeat} is no multiple of {name}={skip}, the frames of one step; "
                f"nearest: {nearest}, or --{name}=1 as well, which draws every frame"
            )


def play(job: EvaluationJob) -> int:
    """Play, show and score; the exit code. A first Ctrl+C ends with the table, a second at once.

    Raises:
        ConfigError: there is nothing that could be played, or shown; the message says what would work.
        UnsupportedSpaceError: the environment's spaces are none that a policy could have been trained on.
        EnvError: an environment failed.
    """
    job.check()
    if job.options.tournament:
        return _until_stopped(functools.partial(_hold_tournament, job))
    everybody = range(job.sampling.num_policies)
    if job.sampling.agent_policy_map:  # each plays its own agents
        return _until_stopped(functools.partial(_play, job, [_find(job, policy) for policy in everybody]))
    if len(everybody) > 1 and not job.is_policy_typed:
        print(_tell_policy(job), flush=True)
    exit_code = 0
    for policy in everybody if job.options.policy_index < 0 else [job.options.policy_index]:
        one = job._replace(options=dataclasses.replace(job.options, policy_index=policy))
        exit_code = _until_stopped(functools.partial(_play, one, [_find(job, policy)]))
        if exit_code:
            break
    return exit_code


def _tell_policy(job: EvaluationJob) -> str:
    """Which of several policies plays, and how to have another one."""
    from appo.algorithms.evaluation.model_card import training_returns

    means: list[float] = []
    for policy in range(job.sampling.num_policies):
        with contextlib.suppress(ConfigError):  # it has no checkpoint yet, or none that can be read
            found = find_checkpoint(policy_folder(job.folder, policy), job.checkpoint_kind, job.best_metric)
            if returns := training_returns(found):
                means.append(sum(returns) / len(returns))
    played, count = job.options.policy_index, job.sampling.num_policies
    told, each = f"policy {played} of {count} policies plays", "--policy_index=-1 plays each in turn"
    if len(means) < count:
        return f"{told}; {each}"
    best, listed = max(range(count), key=means.__getitem__), ", ".join(f"{mean:.4g}" for mean in means)
    if best == played:
        return f"{told}, the best by their newest returns in training, {listed}; {each}"
    return (
        f"{told}; their newest returns in training are {listed}; --policy_index={best} plays the best, "
        "--policy_index=-1 each in turn"
    )


def _find(job: EvaluationJob, policy: int) -> Checkpoint:
    found = find_checkpoint(policy_folder(job.folder, policy), job.checkpoint_kind, job.best_metric)
    for warning in found.warnings:
        log.warning("%s", warning)
    return found


def _until_stopped(play_all: Callable[[StopSignals, contextlib.ExitStack], None]) -> int:
    """Play, and end in order at a signal; the exit code."""
    torch.set_num_threads(1)  # a few rows at a time: more threads wait for each other longer than they compute
    stop = StopSignals()
    try:
        with contextlib.ExitStack() as cleanup:
            play_all(stop, cleanup)
    finally:
        stop.restore()
    return stop.exit_code


def _play(job: EvaluationJob, found: list[Checkpoint], stop: StopSignals, cleanup: contextlib.ExitStack) -> None:
    checkpoint, agent_map = found[0], job.sampling.agent_policy_map
    window = _open_window(job, cleanup)
    asked, job = job, _with_an_end(job, window)
    name = "policies" if agent_map else f"policy{job.options.policy_index}"
    recorder = _open_recorder(job, f"{name}_step{checkpoint.train_step}", cleanup)
    screen = _screen(job, window, recorder)
    env_seed, action_seed = _seeds(job)
    env = _build_vec_env(job, screen, env_seed)
    cleanup.callback(_close_vec_env, env)
    rows = env.num_envs * env.spec.agents_per_env
    policies = [
        PolicyInference(restore_model(each, job.model, env.spec, job.device), rows, job.device, action_seed + number)
        for number, each in enumerate(found)
    ]
    policy: Player = SeatedPolicies(policies, job.sampling.policies_of(env.spec.agents)) if agent_map else policies[0]
    playing = f"policies {agent_map}" if agent_map else f"policy {job.options.policy_index}"
    title = f"{job.env.name}, {playing} after {checkpoint.train_step} training steps"
    print(f"{title}: {', '.join(str(each.path) for each in found)}", flush=True)
    if job is not asked:
        print(
            f"playing {job.episodes} episodes, as there is no window; --max_num_episodes=-1 plays until Ctrl+C",
            flush=True,
        )
    elif job.episodes is None and job.frames is None:
        print("playing until Ctrl+C; --max_num_episodes=10 would end it", flush=True)
    result = evaluate_policy(
        policy,
        env,
        job.episodes,
        max_frames=job.frames,
        deterministic=job.options.eval_deterministic,
        action_repeat=job.options.render_action_repeat,
        on_episode=EpisodeLines(env.spec.agents_per_env, job.episodes),
        after_step=_after_step(stop, window, screen),
    )
    print_result(result, title)
    if len(result.returns):
        path = job.folder / "evaluation" / f"{name}_step{checkpoint.train_step}"
        number = range(len(found)) if agent_map else [job.options.policy_index]
        played = {f"policy_{policy}": str(each.path) for policy, each in zip(number, found, strict=True)}
        reason = save_result(result, path, title, _conditions(job, env.num_envs, played))
        print(f"results: not saved; {reason}" if reason else f"results: {path}.json and .csv", flush=True)
    _close_recorder(recorder)


def _with_an_end(job: EvaluationJob, window: Window | None) -> EvaluationJob:
    """The same job where a user watches it or has said when it ends, else one of some episodes."""
    is_open = job.episodes is None and job.frames is None
    if window is not None or not is_open or not job.ends_unwatched:
        return job
    episodes = max(_EPISODES_UNWATCHED, job.options.eval_num_envs)
    return job._replace(options=dataclasses.replace(job.options, max_num_episodes=episodes))


def _conditions(job: EvaluationJob, num_envs: int, checkpoints: dict[str, str]) -> Conditions:
    return Conditions(job.options.eval_deterministic, job.seed, num_envs, checkpoints)


def _seeds(job: EvaluationJob) -> tuple[int, int]:
    """Of environments and of actions."""
    env_seed, action_seed = np.random.SeedSequence(job.seed, spawn_key=(_EVALUATION,)).generate_state(2).tolist()
    return env_seed, action_seed


def _close_recorder(recorder: VideoRecorder | None) -> None:
    if recorder is not None:
        recorder.close()
        print(f"video: {recorder.path} ({recorder.num_frames} images)", flush=True)


def _hold_tournament(job: EvaluationJob, stop: StopSignals, cleanup: contextlib.ExitStack) -> None:
    matches = tournament.MATCHES if job.episodes is None else job.episodes
    window, recorder = _open_window(job, cleanup), _open_recorder(job, "tournament", cleanup)
    screen = _screen(job, window, recorder)
    env_seed, action_seed = _seeds(job)
    env = _build_envs(job, screen, env_seed, choose_num_envs(matches, tournament.MAX_ENVS))
    cleanup.callback(_close, env)
    folders = [policy_folder(job.folder, policy) for policy in range(job.sampling.num_policies)]
    entrants = tournament.find_entrants(
        folders,
        job.checkpoint_kind,
        job.best_metric,
        env.spec.scripted_players,
        job.options.tournament_players,
        tournament.read_pool(job.folder),
    )
    rows = env.num_envs * env.spec.agents_per_env
    policies = tournament.load_entrants(entrants, job.model, env.spec, rows, job.device, action_seed)
    played = tournament.Tournament(
        env, policies, entrants.scripts, action_seed, deterministic=job.options.eval_deterministic
    )

    def tell(one: str, other: str) -> None:
        results = played.matrix.of(one, other)
        print(f"{one} - {other}: {results.wins} won, {results.draws} drawn, {results.losses} lost", flush=True)

    is_complete = played.play(matches, on_pair=tell, after_step=_after_step(stop, window, screen))
    show_wins(WinTable.of(played.content()))
    if not is_complete:
        print("stopped early: pairs have not met equally often, and short matches are over-represented", flush=True)
    path = job.folder / tournament.TOURNAMENT
    files = {name: str(file) for name, file in entrants.checkpoints.items() if name in policies}
    conditions = _conditions(job, env.num_envs, files)._asdict()
    content = played.content() | {"complete": is_complete, "matches_of_each_pair": matches} | conditions
    if reason := why_kept(path, content, "matches_of_each_pair"):
        print(f"results: not saved; {reason}", flush=True)
    else:
        try:
            atomic_write_json(path, content, durable=False)
            print(f"results: {path}", flush=True)
        except OSError as error:
            print(f"results: not saved; {error}", flush=True)
    _close_recorder(recorder)


def _open_window(job: EvaluationJob, cleanup: contextlib.ExitStack) -> Window | None:
    if job.options.no_render:
        return None
    try:
        window = Window(job.env.name)
    except NoWindowError as error:
        if not job.options.save_video:  # else nothing is missed
            log.warning(
                "no window: %s. Type --no_render to score only, or --save_video where the environment draws itself",
                error,
            )
        return None
    cleanup.callback(window.close)
    return window


def _open_recorder(job: EvaluationJob, what: str, cleanup: contextlib.ExitStack) -> VideoRecorder | None:
    if not job.options.save_video:
        return None
    env = re.sub(r"[^\w.-]+", "_", job.env.name)
    recorder = VideoRecorder(job.folder / VIDEOS, f"{env}_{what}")
    cleanup.callback(recorder.close)
    if recorder.path.suffix == ".gif":
        log.warning("ffmpeg is missing: recording a gif. For mp4: pip install imageio-ffmpeg")
    return recorder


def _screen(job: EvaluationJob, window: Window | None, recorder: VideoRecorder | None) -> Screen | None:
    viewers: list[Viewer] = [viewer for viewer in (window, recorder) if viewer is not None]
    return Screen(viewers, job.options.fps, may_open_windows=recorder is None) if viewers else None


def _build_envs(
    job: EvaluationJob, screen: Screen | None, seed: int, number: int, faults: FaultPolicy | None = None
) -> BatchEnv:
    """One environment to watch, or several side by side to score; without `faults`, every failure is raised."""
    if screen is not None:
        return screen.build(job.env, job.family_options, EnvContext(seed=seed))
    contexts = [EnvContext(vector_index=i, env_id=i, num_envs=number, seed=seed) for i in range(number)]
    return make_batch_env(job.env, job.family_options, contexts, faults=faults)


def _build_vec_env(job: EvaluationJob, screen: Screen | None, seed: int) -> VecEnv:
    """The same to be stepped apart, as many as are of use, in processes where a number was typed."""
    wanted = job.options.eval_num_envs
    number = choose_num_envs(job.episodes) if wanted < 0 else wanted
    if job.episodes:
        number = min(number, job.episodes)
    workers = job.options.eval_num_workers
    if screen is not None or wanted < 0 or workers == 0:
        drops = job.sampling.on_bad_env_data == "drop"
        faults = FaultPolicy(job.sampling.max_env_rebuilds, drops_bad_data=drops)
        return vec_env_of(_build_envs(job, screen, seed, number, faults))
    workers = min(number, core_count() if workers < 0 else workers)
    processes: Any = {"backend": "subproc", "num_workers": workers, "restarts": _RESTARTS}
    return make_vec_env(job.env, number, seed=seed, options=job.family_options, **processes)


def _close_vec_env(env: VecEnv) -> None:
    for failure in env.close().failures:
        log.warning("%s failed to close", failure)


def _close(env: BatchEnv) -> None:
    """Close the environments; a failure is logged and leaves the results valid."""
    try:
        env.close()
    except EnvError as error:
        log.warning("%s", error)


def _after_step(stop: StopSignals, window: Window | None, screen: Screen | None) -> Callable[[], bool]:
    def goes_on() -> bool:
        if screen is not None:
            screen.flush()
        return stop.received is None and (window is None or not window.is_closed)

    return goes_on
