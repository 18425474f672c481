"""Names that options have in other programs: those that mean the same are understood, others lead to ours.

From stable-baselines3 and its zoo, CleanRL, RLlib, OpenAI baselines and Sample Factory 1 and 2.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from typing import Any

from appo.utils.cli import COMMAND_LINE, VERSION, typed_word
from appo.utils.options import ConfigError

# Theirs -> ours, with the same meaning; what is not quite the same is told, see `_DIFFERENCES`.
SYNONYMS = {
    "clip_coef": "ppo_clip_ratio",
    "clip_param": "ppo_clip_ratio",
    "clip_range": "ppo_clip_ratio",
    "clip_range_vf": "ppo_clip_value",
    "cliprange": "ppo_clip_ratio",
    "discount": "gamma",
    "ent_coef": "exploration_loss_coeff",
    "entropy_coef": "exploration_loss_coeff",
    "entropy_coeff": "exploration_loss_coeff",
    "env_id": "env",
    "exp_name": "experiment",
    "gym_id": "env",
    "gae_lam": "gae_lambda",
    "lam": "gae_lambda",
    "lr": "learning_rate",
    "max_gradient_norm": "max_grad_norm",
    "minibatch_size": "batch_size",
    "n_epochs": "ppo_epochs",
    "n_eval_envs": "eval_envs",
    "n_lstm_layers": "rnn_num_layers",
    "noptepochs": "ppo_epochs",
    "normalize_obs": "normalize_input",
    "num_env_steps": "train_for_env_steps",
    "num_sgd_iter": "ppo_epochs",
    "num_timesteps": "train_for_env_steps",
    "stats_window_size": "stats_avg",
    "total_timesteps": "train_for_env_steps",
    "update_epochs": "ppo_epochs",
    "value_coef": "value_loss_coeff",
    "vf_coef": "value_loss_coeff",
    "vf_loss_coeff": "value_loss_coeff",
    "wandb_entity": "wandb_user",
    "wandb_project_name": "wandb_project",
}

_ENVS = (
    "here environments are spread over processes: --num_workers times --num_envs_per_worker; both are chosen for this "
    "machine and environment unless typed"
)
_ROLLOUT = (
    "here --rollout is the length of the trajectories, shorter than the 128 to 2048 steps of others, and an iteration "
    "takes --batch_size times --num_batches_per_iteration steps of all environments"
)
_DEVICE = "here it is --device=auto, cpu, gpu or cuda:N"
_SCHEDULE = "here it is --lr_schedule=linear_decay"
_KL = "here it is --lr_schedule=kl_adaptive_epoch with --lr_schedule_kl_threshold"
_SAVING = "here it is a time: --save_every_sec, with --keep_checkpoints and --save_milestones_sec"
_EVALUATION = "here it is --eval_every_sec=60 with --eval_episodes"
_LAYERS = "here it is --mlp_layers=64,64, behind another encoder --encoder_extra_fc_layers"
_FRAMESKIP = "here it is --env_frameskip, an option of Doom and Atari, and for any environment --wrap_action_repeat"
_VIDEO = "here it is --eval_every_sec=60 --eval_video_every_sec=600, and afterwards enjoy_appo.py --save_video"
_NO_SCHEDULE = "here it is --lr_schedule=constant"
_ADVANTAGES = "here advantages are always normalised, see --advantage_noise: leave it out"
_VALUE_CLIP = "here values are clipped by --ppo_clip_value; inf: not"
_WIDTH = "here it is --hidden_size, which is also the width of the fully connected layers"
_ENCODER = "here it is --encoder; auto, its default, picks one by the observations"
_REPEATS = "here a run repeats itself exactly with --serial_mode and --seed"
_NO_SDE = "there is no state-dependent noise here: leave it out; --initial_stddev is how far actions explore at first"
_SCREEN = "here what is printed of a run follows from --view=auto, full, lines or off"
_GPU_ENVS = "here environments exchange arrays of the CPU: leave it out"
_STEPS = "here budgets, curves and speeds always count the simulator's frames: leave it out"
_SILENCE = "here it is --heartbeat_timeout_seconds, after which a silent worker is replaced"
_SUMMARIES = "here it is a time: --experiment_summaries_interval, in seconds"
_FILE = "here each of them is an option, or a line of a file: --config=plan.toml"
_SEARCH = "here it is another command: appo-tools sweep"
_HUB = "here it is another command, after training: appo-tools hub"
_GOES_ON = "here the same command goes on where a run stopped; --restart_behavior says otherwise"
_WATCHED = "here it is enjoy_appo.py --eval_deterministic"
_BEST = "here it is enjoy_appo.py --load_checkpoint_kind=best"
_BUDGET = "here it is --train_for_env_steps, in frames of the simulator"
_SEEN = "here it is another command, also while a run goes on: enjoy_appo.py"
_FOLDER = "here it is --train_dir, in which each --experiment has a folder"
# Theirs -> what does it here.
HINTS = {
    "activation_fn": "here it is --nonlinearity=elu, relu or tanh",
    "algo": "there is one algorithm here, asynchronous PPO: leave it out",
    "anneal_lr": _SCHEDULE,
    "batched_sampling": "there is no such choice here: leave it out; vectorised environments are --env_backend=native",
    "capture_video": _VIDEO,
    "checkpoint": _GOES_ON,
    "checkpoint_freq": _SAVING,
    "clip": "here it is --ppo_clip_ratio",
    "clip_reward": "here it is --reward_clip",
    "clip_vloss": _VALUE_CLIP,
    "conf_file": _FILE,
    "continuous_tanh_scale": "there is no squashing of actions here: leave it out",
    "cuda": _DEVICE,
    "decoder_mlp_layers": "here no layers follow the core: leave it out; before it are --encoder_extra_fc_layers",
    "deterministic": _WATCHED,
    "encoder_conv_architecture": _ENCODER,
    "encoder_conv_mlp_layers": "here it is --encoder_extra_fc_layers, of --hidden_size",
    "encoder_custom": _ENCODER,
    "encoder_mlp_layers": "here it is --mlp_layers=64,64, with commas",
    "encoder_subtype": _ENCODER,
    "encoder_type": _ENCODER,
    "env_gpu_actions": _GPU_ENVS,
    "env_gpu_observations": _GPU_ENVS,
    "eval_env_frameskip": "here it is enjoy_appo.py --render_action_repeat",
    "eval_freq": _EVALUATION,
    "eval_interval": _EVALUATION,
    "evaluation_interval": _EVALUATION,
    "fcnet_hiddens": _LAYERS,
    "flush_summaries_interval": _SUMMARIES,
    "frame_skip": _FRAMESKIP,
    "frame_stack": "here it is --wrap_stack, and --env_framestack, an option of Doom and Atari",
    "frameskip": _FRAMESKIP,
    "gpu": _DEVICE,
    "gym_packages": "here the module stands before the id: --env=my_module:MyEnv-v0",
    "heartbeat_interval": _SILENCE,
    "heartbeat_reporting_interval": _SILENCE,
    "hf_entity": _HUB,
    "hf_repository": _HUB,
    "horizon": f"{_ROLLOUT}; a limit of episodes is --wrap_time_limit",
    "hyperparams": _FILE,
    "linear_decay": _SCHEDULE,
    "list_envs": "there is a table of them in docs/environments.md; any id of Gymnasium's will do, and my_file:MyEnv",
    "load": _GOES_ON,
    "load_best": _BEST,
    "load_path": _GOES_ON,
    "local_dir": _FOLDER,
    "log_dir": _FOLDER,
    "log_folder": "here it is --train_dir",
    "log_interval": _SUMMARIES,
    "log_std_init": "here it is --initial_stddev, and no logarithm",
    "log_to_file": "every run writes its log into its folder: leave it out",
    "logdir": _FOLDER,
    "lr_adaptive_max": "there are no bounds to choose here for --lr_schedule=kl_adaptive_epoch: leave it out",
    "lr_adaptive_min": "there are no bounds to choose here for --lr_schedule=kl_adaptive_epoch: leave it out",
    "lstm_hidden_size": _WIDTH,
    "max_steps": _BUDGET,
    "max_timesteps": _BUDGET,
    "n_envs": _ENVS,
    "n_steps": _ROLLOUT,
    "n_timesteps": "here it is --train_for_env_steps, in frames, and enjoy_appo.py --max_num_frames",
    "n_trials": _SEARCH,
    "name": "here it is --experiment",
    "net_arch": _LAYERS,
    "no_anneal_lr": _NO_SCHEDULE,
    "no_capture_video": "here videos are recorded only if --eval_video_every_sec asks for them: leave it out",
    "no_clip_vloss": "here it is --ppo_clip_value=inf",
    "no_cuda": "here it is --device=cpu",
    "no_norm_adv": "here advantages are always normalised: leave it out",
    "no_track": "here --with_wandb is off unless typed: leave it out",
    "norm_adv": _ADVANTAGES,
    "norm_obs": "here it is --normalize_input",
    "norm_reward": "here it is --normalize_returns, which scales what the critic learns instead of the rewards",
    "normalize": "here it is --normalize_input and --normalize_returns",
    "normalize_advantage": _ADVANTAGES,
    "normalize_input_keys": "here --normalize_input is for all vectors of an observation: leave it out",
    "nsteps": _ROLLOUT,
    "num_batches_to_accumulate": "here minibatches are counted: --num_minibatches_to_accumulate",
    "num_envs": _ENVS,
    "num_gpus": _DEVICE,
    "num_minibatches": "here the size of a minibatch is told: --batch_size, and --num_batches_per_iteration of them",
    "num_steps": _ROLLOUT,
    "num_threads": "here it is --learner_threads and --policy_worker_threads",
    "optimize_hyperparameters": _SEARCH,
    "optimizer": "here it is always Adam: leave it out",
    "ortho_init": "here it is --policy_initialization=orthogonal",
    "output_dir": _FOLDER,
    "pixel_format": "here the order of an image's axes is found by itself: leave it out",
    "policy_kwargs": "here each of them is an option, for example --mlp_layers=64,64 and --nonlinearity=tanh",
    "progress": _SCREEN,
    "progress_bar": _SCREEN,
    "push_to_hub": _HUB,
    "render": _SEEN,
    "reset_num_timesteps": _GOES_ON,
    "restore": _GOES_ON,
    "resume": _GOES_ON,
    "rnn_size": _WIDTH,
    "rollout_fragment_length": _ROLLOUT,
    "run_name": "here it is --experiment",
    "save_dir": _FOLDER,
    "save_freq": _SAVING,
    "save_interval": _SAVING,
    "save_model": "every run writes checkpoints, see --save_every_sec: leave it out",
    "save_path": _FOLDER,
    "sde_sample_freq": _NO_SDE,
    "share_features_extractor": "here it is --actor_critic_share_weights, encoder and core",
    "stop_reward": "here it is --stop_when='reward>=475'",
    "stop_timesteps": _BUDGET,
    "storage_path": _FOLDER,
    "summaries_use_frameskip": _STEPS,
    "target_kl": _KL,
    "tensorboard_log": "every run writes TensorBoard's files: tensorboard --logdir <train_dir>",
    "torch_deterministic": _REPEATS,
    "total_env_steps": _BUDGET,
    "total_steps": _BUDGET,
    "track": "here it is --with_wandb",
    "train_batch_size": _ROLLOUT,
    "trained_agent": _GOES_ON,
    "unroll_length": _ROLLOUT,
    "upload_model": _HUB,
    "use_cuda": _DEVICE,
    "use_env_info_cache": "here nothing is kept of an environment between runs: leave it out",
    "use_gae": "here it is --with_vtrace=False, with --gae_lambda",
    "use_gpu": _DEVICE,
    "use_record_episode_statistics": "every run keeps statistics of episodes: leave it out",
    "use_sde": _NO_SDE,
    "uuid": "here it is --experiment that tells runs apart",
    "value_bootstrap": "here values always stand for what a time limit cuts off: leave it out",
    "vec_env": "here it is --env_backend=serial, subproc or native",
    "verbose": _SCREEN,
    "video_frames": "here it is enjoy_appo.py --save_video --max_num_frames",
    "wandb_job_type": "there are --wandb_group and --wandb_tags instead",
}
_NETWORK = "here the network follows from the observations (--encoder=auto): leave it out"
_MEMORY = "here the network follows from the observations (--encoder=auto), and memory is --use_rnn=True"
# An option that we have as well -> values that it has only there -> what does it here.
VALUES = {
    "policy": {
        "MlpPolicy": _NETWORK,
        "CnnPolicy": _NETWORK,
        "MultiInputPolicy": _NETWORK,
        "MlpLstmPolicy": _MEMORY,
        "CnnLstmPolicy": _MEMORY,
        "MultiInputLstmPolicy": _MEMORY,
    }
}
# Options that some environments have -> what does the same for any.
FOR_ANY_ENV = {
    "env_frameskip": "--wrap_action_repeat",
    "env_framestack": "--wrap_stack",
    "res_w": "--wrap_resize",
    "res_h": "--wrap_resize",
}


# What is not quite the same.
_FRAMES = ", which counts the simulator's frames, those that a frameskip leaves out too"
_RATIO = ", which clips ratios to [1/(1+c), 1+c], symmetric in their logarithm"
_DIFFERENCES = {
    "total_timesteps": _FRAMES,
    "num_timesteps": _FRAMES,
    "num_env_steps": _FRAMES,
    "clip_coef": _RATIO,
    "clip_param": _RATIO,
    "clip_range": _RATIO,
    "cliprange": _RATIO,
    "clip_range_vf": ", in units of normalised returns where these are normalised",
}


def understood(words: Sequence[str], prog: str) -> list[str] | None:
    """A command line with our names; what was another is told. None: only the version was asked for, and printed."""
    if "--version" in words:
        print(f"appo {VERSION}")
        return None
    ours, notes = translated(words)
    for note in notes:
        print(f"{prog}: {note}", file=sys.stderr)
    return ours


def check_words(argv: Sequence[str]) -> None:
    """Refuse a value that an option has in another program only, and an argument of the environment without a value.

    Raises:
        ConfigError: says what to type.
    """
    for word in argv:
        if _is_argument(word) and "=" not in word:
            name = word.removeprefix("--").replace("-", "_")
            raise ConfigError(f"{COMMAND_LINE} sets {name} without a value; type --{name}=VALUE")
    for option, hints in VALUES.items():
        if (value := typed_word(argv, option)) in hints:
            raise ConfigError(f"{COMMAND_LINE} sets {option}={value!r}; {hints[value]}")


def translated(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line with our names, and a line for each that was another; words after the program's name.

    Arguments of the environment that are typed one by one become one JSON object, together with one that is typed.
    """
    words: list[str] = []
    notes: list[str] = []
    kwargs: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        theirs = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and theirs in SYNONYMS:
            ours = SYNONYMS[theirs]
            word = f"--{ours}{equals}{value}"
            notes.append(f"{flag} is --{ours} here{_DIFFERENCES.get(theirs, '')}")
        has_value = equals or (rest and not rest[0].startswith("--"))  # without one it is refused where all options are
        if _is_argument(flag) and has_value:
            kwargs[flag.partition(".")[2]] = _value_of(value if equals else rest.pop(0))
        else:
            words.append(word)
    if kwargs:
        typed = _value_of(typed_word(words, "env_kwargs") or "{}")
        if isinstance(typed, dict):  # what is no object is refused where all options are
            words.append(f"--env_kwargs={json.dumps(typed | kwargs)}")
    return words, notes


def _is_argument(flag: str) -> bool:
    """`--env_kwargs.<name>`, also with hyphens."""
    return flag.partition(".")[0].replace("-", "_") == "__env_kwargs" and "." in flag


_AS_JSON = {"true": "true", "yes": "true", "false": "false", "no": "false", "None": "null"}


def _value_of(text: str) -> Any:
    """A number, a truth value, a list or a dict where it is one, as JSON, Python or our options write it; or a text."""
    try:
        return json.loads(_AS_JSON.get(text, _AS_JSON.get(text.lower(), text)))
    except ValueError:
        pass
    try:
        return json.loads(json.dumps(ast.literal_eval(text))) if text[:1] in "[({" else text
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # nothing that JSON can hold
        return text
