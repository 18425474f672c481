"""Names that options have in other programs: those that mean the same are understood, others lead to ours.

From stable-baselines3 and its zoo, CleanRL, RLlib, OpenAI baselines and Sample Factory 1 and 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from appo.utils.cli import VERSION, typed_word

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
    "gae_lam": "gae_lambda",
    "lam": "gae_lambda",
    "lr": "learning_rate",
    "max_gradient_norm": "max_grad_norm",
    "minibatch_size": "batch_size",
    "n_epochs": "ppo_epochs",
    "noptepochs": "ppo_epochs",
    "normalize_obs": "normalize_input",
    "num_env_steps": "train_for_env_steps",
    "num_sgd_iter": "ppo_epochs",
    "num_timesteps": "train_for_env_steps",
    "total_timesteps": "train_for_env_steps",
    "update_epochs": "ppo_epochs",
    "value_coef": "value_loss_coeff",
    "vf_coef": "value_loss_coeff",
    "vf_loss_coeff": "value_loss_coeff",
}

_ENVS = (
    "here environments are spread over processes: --num_workers times --num_envs_per_worker; both are chosen for this "
    "machine and environment unless typed"
)
_ROLLOUT = (
    "here --rollout is the length of the trajectories (32, where others take 128 to 2048), and an iteration takes "
    "--batch_size times --num_batches_per_iteration steps of all environments"
)
_DEVICE = "here it is --device=auto, cpu, gpu or cuda:N"
_SCHEDULE = "here it is --lr_schedule=linear_decay"
_KL = "here it is --lr_schedule=kl_adaptive_epoch with --lr_schedule_kl_threshold"
_SAVING = "here it is a time: --save_every_sec, with --keep_checkpoints and --save_milestones_sec"
_EVALUATION = "here it is --eval_every_sec=60 with --eval_episodes"
_LAYERS = "here it is --mlp_layers=64,64, behind another encoder --encoder_extra_fc_layers"
_FRAMESKIP = "here it is --env_frameskip, an option of Doom and Atari, and for any environment --wrap_action_repeat"
_VIDEO = "here it is enjoy_appo.py --save_video, after or during training"
# Theirs -> what does it here.
HINTS = {
    "algo": "there is one algorithm here, asynchronous PPO: leave it out",
    "anneal_lr": _SCHEDULE,
    "capture_video": _VIDEO,
    "checkpoint_freq": _SAVING,
    "cuda": _DEVICE,
    "eval_freq": _EVALUATION,
    "frame_skip": _FRAMESKIP,
    "frameskip": _FRAMESKIP,
    "fcnet_hiddens": _LAYERS,
    "gpu": _DEVICE,
    "horizon": _ROLLOUT,
    "linear_decay": _SCHEDULE,
    "n_envs": _ENVS,
    "n_steps": _ROLLOUT,
    "net_arch": _LAYERS,
    "nsteps": _ROLLOUT,
    "num_envs": _ENVS,
    "num_gpus": _DEVICE,
    "num_minibatches": "here the size of a minibatch is told: --batch_size, and --num_batches_per_iteration of them",
    "num_steps": _ROLLOUT,
    "policy_kwargs": "here each of them is an option, for example --mlp_layers=64,64 and --nonlinearity=tanh",
    "rollout_fragment_length": _ROLLOUT,
    "save_freq": _SAVING,
    "save_interval": _SAVING,
    "target_kl": _KL,
    "tensorboard_log": "every run writes TensorBoard's files: tensorboard --logdir <train_dir>",
    "train_batch_size": _ROLLOUT,
    "unroll_length": _ROLLOUT,
    "use_gae": "here it is --with_vtrace=False, with --gae_lambda",
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
        if _is_argument(flag) and (equals or rest):
            kwargs[flag.partition(".")[2]] = _value_of(value if equals else rest.pop(0))
        else:
            words.append(word)
    if kwargs:
        typed = _object_in(typed_word(words, "env_kwargs"))
        words.append(f"--env_kwargs={json.dumps(typed | kwargs)}")
    return words, notes


def _is_argument(flag: str) -> bool:
    """`--env_kwargs.<name>`, also with hyphens."""
    return flag.partition(".")[0].replace("-", "_") == "__env_kwargs" and "." in flag


def _object_in(text: str | None) -> dict[str, Any]:
    """The JSON object of a word; what is none is refused where all options are."""
    found = _value_of(text) if text else {}
    return found if isinstance(found, dict) else {}


def _value_of(text: str) -> Any:
    """A number, a truth value, a list or a dict where it is one, as JSON or Python write it; else the text."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text
