"""`--help`: fast, complete, grouped; and the reference page, which is made of the same declarations."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from appo.algorithms.config import reference, resolve
from appo.utils.cli import declared_options

ROOT = Path(__file__).parents[2]


def run_resolve(*words):
    """In a fresh process; its error output ends with the heavy packages that were loaded."""
    code = f"""
import sys
from appo.algorithms.config import resolve
try:
    resolve({list(words)!r})
finally:
    print(*[name for name in ("torch", "gymnasium") if name in sys.modules], "loaded", file=sys.stderr)
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done, time.monotonic() - began


def test_help_takes_under_two_seconds_and_loads_nothing_heavy():
    done, seconds = min((run_resolve("--help") for _ in range(3)), key=lambda result: result[1])
    assert done.returncode == 0, done.stderr
    assert done.stderr == "loaded\n"
    assert seconds < 2.0
    for group in ("run", "env", "sampling", "workers", "learning", "model"):
        assert f"{group} options" in done.stdout


def test_a_configuration_is_resolved_without_torch(tmp_path):
    done, _ = run_resolve("--env=CartPole-v1", f"--train_dir={tmp_path}")
    assert done.stderr.endswith("gymnasium loaded\n"), done.stderr


def test_help_with_an_environment_adds_its_options_and_shows_its_defaults(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        resolve(["--env=sample_task", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert caught.value.code == 0
    assert "--res_w INT Width of the image (default: 64 for this environment (family defaults); at least 8)" in text
    assert (
        "default: 0.9 for this environment (family defaults);"
        in text[text.index("--gamma") : text.index("--gae_lambda")]
    )


def test_help_ignores_a_saved_experiment(start, save_config, capsys, tmp_path):
    save_config(start(), text="broken")
    with pytest.raises(SystemExit) as caught:
        start("--help")
    assert caught.value.code == 0
    assert "--batch_size" in capsys.readouterr().out


def test_every_option_of_the_public_interface_is_there():
    declared = {word for part in reference().split("`--")[1:] for word in [part.partition("`")[0]]}
    promised = """env experiment train_dir experiments_root restart_behavior device seed train_for_env_steps
        train_for_seconds save_every_sec keep_checkpoints save_milestones_sec load_checkpoint_kind save_best_metric
        save_best_after save_best_every_sec num_workers num_envs_per_worker worker_num_splits policy_workers_per_policy
        async_rl serial_mode decorrelate_experience_max_seconds decorrelate_envs_on_one_worker reset_timeout_seconds
        set_workers_cpu_affinity force_envs_single_thread default_niceness actor_worker_gpus rollout recurrence
        batch_size num_batches_per_iteration num_batches_per_epoch ppo_epochs num_epochs num_minibatches_to_accumulate
        shuffle_minibatches max_policy_lag train_in_background_thread learning_rate lr_schedule lr_schedule_kl_threshold
        gamma gae_lambda with_vtrace vtrace_rho vtrace_c ppo_clip_ratio ppo_clip_value value_loss_coeff exploration_loss
        exploration_loss_coeff kl_loss_coeff max_grad_norm adam_eps adam_beta1 adam_beta2 reward_scale reward_clip
        normalize_input normalize_returns encoder encoder_extra_fc_layers hidden_size nonlinearity policy_initialization
        policy_init_gain use_rnn rnn_type rnn_num_layers rnn_chrono_init actor_critic_share_weights adaptive_stddev
        initial_stddev use_spectral_norm obs_subtract_mean obs_scale num_policies stats_avg
        experiment_summaries_interval sampler_only fps render_action_repeat no_render save_video policy_index
        eval_deterministic max_num_episodes max_num_frames"""
    assert not set(promised.split()) - declared


def test_the_reference_page_is_up_to_date():
    assert (ROOT / "docs" / "options.md").read_text() == reference(), "run: python -m appo.algorithms.config"


def test_every_option_has_a_help_that_says_something(start):
    config = start().config
    groups = {name: type(getattr(config, name)) for name in vars(config)}
    options = declared_options(groups)
    assert len(options) > 80
    for name, entry in options.items():
        assert len(entry.rule.help) > 10, name
        assert entry.rule.help[0].isupper() or entry.rule.help[0].isdigit(), name
