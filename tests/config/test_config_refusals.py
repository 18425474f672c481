"""Combinations that cannot run are refused before anything starts, each with the nearest value that works."""

import os
import re
from pathlib import Path

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.run import config as run_config
from appo.algorithms.run.config import torch_device
from appo.algorithms.train_config import check_with_spec
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from appo.utils.options import ConfigError


def spec(agents=1):
    return EnvSpec((ObservationLeaf("obs", (4,), "float32", "vector"),), (ActionLeaf("discrete", 2),), agents)


@pytest.mark.parametrize(
    "words, message",
    [
        ("--batch_size=1000", "batch_size=1000 is not a multiple of rollout=32; nearest: 992, 1024"),
        ("--batch_size=20", "batch_size=20 is not a multiple of rollout=32; nearest: 32"),
        ("--num_envs_per_worker=3", "num_envs_per_worker=3 cannot be divided into worker_num_splits=2 .*nearest: 2, 4"),
        ("--num_envs_per_worker=1", "num_envs_per_worker=1 cannot be .* nearest: 2, or --worker_num_splits=1"),
        ("--num_workers=0", "num_workers=0 leaves no actor to step environments; nearest: 1"),
        ("--recurrence=5 --with_vtrace=False", "recurrence=5 does not divide rollout=32; allowed: -1, 1, 2, 4"),
        ("--recurrence=16", "recurrence=16 is shorter than rollout=32, which V-trace cannot use"),
        ("--serial_mode --policy_workers_per_policy=2", "policy_workers_per_policy=2 cannot be; nearest: 1"),
        ("--policy=random", "policy=random plays actions that nothing is learned from; add --sampler_only=True"),
        ("--policy=random --sampler_only --serial_mode", "policy=random measures actor workers, .* leave one out"),
        ("--policy=random --sampler_only --eval_every_sec=9", "policy=random leaves nothing to evaluate"),
        ("--actor_worker_gpus=0,x,2", "actor_worker_gpus='0,x,2' does not list GPU numbers; nearest: 0,2"),
        ("--actor_worker_gpus=-1", "actor_worker_gpus='-1' does not list GPU numbers; nearest: 0,1"),
        ("--mlp_layers=64,x", "mlp_layers='64,x'; allowed: up to 32 widths of 1 to 32768, separated by commas"),
        (
            "--critic_sees_time",
            "critic_sees_time=True needs networks .* --actor_critic_share_weights=False",
        ),
        ("--experiment=a/b", "experiment='a/b' is no name of a folder; nearest: a_b; folders .*experiments_root"),
        ("--experiment=..", "experiment='..' is no name of a folder; nearest: default_experiment"),
        ("--experiment=", "experiment='' is no name of a folder; nearest: default_experiment"),
        ("--experiment=-rf", "experiment='-rf' is no name of a folder; nearest: rf"),
        ("--experiment=" + "x" * 300, "experiment is longer than 200 bytes; nearest: x+"),
        ("--experiments_root=../up", r"experiments_root='\.\.' is no name of a folder"),
        ("--train_dir=", r"train_dir is empty; nearest: \./train_dir"),
        ("--train_dir=~nobody_of_this_name/x", "train_dir='~nobody_of_this_name/x': there is no home folder"),
        ("--train_dir=/tmp/" + "x" * 300, "train_dir has a part of 300 bytes; file systems allow 255"),
        (
            "--train_dir=" + "/xxxxxxx" * 600,
            "folder has a path of 48.. bytes, at most 3800 can be used; type a shorter",
        ),
        ("--train_dir=/tmp/\udcff", r"command line holds '--train_dir=/tmp/\\udcff', which is no text in UTF-8"),
        ("--experiment=\udcff", r"command line holds '--experiment=\\udcff', which is no text in UTF-8"),
        ("batch_size=2048", r"command line holds 'batch_size=2048'; did you mean --batch_size=2048\?"),
        ("--rollout 32 foo", "command line holds 'foo', which belongs to no option"),
        ("--learning_rate=inf", "sets learning_rate='inf'; expected a finite number"),
        ("--learning_rate=nan", "sets learning_rate='nan'; expected a finite number"),
        ("--learning_rate=1e30", r"sets learning_rate=1e\+30; allowed: "),
        ("--reward_scale=inf", "sets reward_scale='inf'; expected a finite number"),
        ("--reward_scale=1e39", r"sets reward_scale=1e\+39; allowed: "),
        ("--gamma=nan", "sets gamma='nan'; expected a finite number"),
        ("--rnn_num_layers=1000", r"sets rnn_num_layers=1000; allowed: at least 1, at most 32"),
        ("--encoder_extra_fc_layers=1000", "sets encoder_extra_fc_layers=1000; allowed: "),
        ("--hidden_size=1e9", "sets hidden_size=1000000000; allowed: "),
        ("--mlp_layers=" + ",".join("8" * 99), "allowed: up to 32 widths of 1 to 32768"),
        ("--mlp_layers=1000000000", "mlp_layers='1000000000'; allowed: up to 32 widths"),
        ("--learner_threads=100000", "sets learner_threads=100000; allowed: "),
        ("--device=tpu", "device='tpu' is unknown; allowed: auto, cpu, gpu, cuda:N such as cuda:0"),
        ("--device=cuda:", "device='cuda:' is unknown"),
        ("--restart_behavior=again", "restart_behavior='again'; allowed: resume, restart, overwrite"),
        ("--auxiliary_loss=missing", "auxiliary_loss='missing' is neither a file"),
        ("--auxiliary_loss=action_smothness", "that can be imported; did you mean action_smoothness"),
        ("--use_gae", "sets unknown option 'use_gae'; here it is --with_vtrace=False"),
        ("--policy_kwargs=x", "here each of them is an option, for example --mlp_layers=64,64"),
        (
            "--env_framestack=4",
            r"it is an option of --env=atari_\.\.\. and --env=doom_\.\.\.; for any environment there is --wrap_stack",
        ),
        ("--synthetic_step_ms=4", r"it is an option of --env=synthetic_\.\.\.$"),
    ],
)
def test_is_refused(start, words, message):
    with pytest.raises(ConfigError, match=message):
        start(*words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--batch_size=992",
        "--num_envs_per_worker=4",
        "--num_envs_per_worker=1 --worker_num_splits=1",
        "--recurrence=16 --with_vtrace=False",
        "--recurrence=32",
        "--recurrence=8 --with_vtrace=False --use_rnn=False",
        "--serial_mode",
        "--actor_worker_gpus=0,2",
        "--experiment=a.b-c+1",
        "--experiments_root=one/two",
        "--train_for_env_steps=1e10 --train_for_seconds=1e10",
        "--train_for_seconds=inf --save_every_sec=inf --reward_clip=inf --ppo_clip_value=inf",
        "--heartbeat_timeout_seconds=inf --reset_timeout_seconds=inf --stall_timeout_seconds=inf",
        "--train_dir=~/x",
    ],
)
def test_what_the_refusals_recommend_is_accepted(start, words):
    start(*words.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n=5"], "'-n'; options are typed --name=value"),
        (["-e", "5"], "'-e'; options are typed --name=value"),
        (["-env", "Acrobot-v1"], "'-env'; type --env=VALUE"),
        (["-ppo-epochs=2"], "'-ppo-epochs'; type --ppo_epochs=VALUE"),
    ],
)
def test_a_word_with_one_hyphen_is_told_how_options_are_typed(words, told):
    with pytest.raises(ConfigError, match=f"sets unknown option {told}$"):
        resolve(["--env=CartPole-v1", *words])


@pytest.mark.parametrize(
    ("env", "word", "told"),
    [
        ("FrozenLake-v1", "is_slippery", "an argument of the environment is typed --env_kwargs.is_slippery=..."),
        (
            "CartPole-v1",
            "max_episode_steps",
            "an argument of the environment is typed --env_kwargs.max_episode_steps=...",
        ),
        ("FrozenLake-v1", "is_slipery", "did you mean --env_kwargs.is_slippery?"),
        ("CartPole-v1", "size", "CartPole-v1 has no such argument, and --help lists all options"),
        ("tests.config.own_envs:named", "size", "an argument of the environment is typed --env_kwargs.size=..."),
        ("tests.config.own_envs:named", "verbose", "an argument of the environment is typed --env_kwargs.verbose=..."),
        (
            "tests.config.own_envs:named",
            "qqq",
            "tests.config.own_envs:named has no such argument, and --help lists all options",
        ),
        ("tests.config.own_envs:anything", "qqq", "an argument of the environment is typed --env_kwargs.qqq=..."),
        ("tests.config.own_envs:HandsOn", "size", "an argument of the environment is typed --env_kwargs.size=..."),
        (
            "tests.config.own_envs:HandsOn",
            "qqq",
            "tests.config.own_envs:HandsOn has no such argument, and --help lists all options",
        ),
        ("doom_basic", "size", "--help --env=doom_basic lists all options"),
    ],
)
def test_an_unknown_option_is_told_as_an_argument_of_the_environment_where_it_may_be_one(start, env, word, told):
    with pytest.raises(ConfigError) as refused:
        start(f"--{word}=5", env=env)
    assert str(refused.value) == f"command line sets unknown option {word!r}; {told}"


def test_env_is_required_and_typos_of_it_are_explained():
    with pytest.raises(ConfigError, match="--env is required; for example --env=CartPole-v1"):
        resolve([])
    with pytest.raises(ConfigError, match="unknown option 'evn'; did you mean env"):
        resolve(["--evn=sample_task"])
    with pytest.raises(ConfigError, match="nosuch"):
        resolve(["--env=nosuch-v9"])


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file; type another --train_dir"):
        resolve(["--env=sample_task", f"--train_dir={tmp_path}/file/below"])


def test_a_folder_that_cannot_be_looked_into_is_refused(monkeypatch, tmp_path):
    def exists(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", exists)  # root may look everywhere
    with pytest.raises(ConfigError, match=r"run cannot be used: .*Permission denied.*; type another --train_dir"):
        resolve(["--env=sample_task", f"--train_dir={tmp_path}", "--experiment=run"])


def test_a_working_directory_that_was_deleted_is_refused(tmp_path, monkeypatch):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    with pytest.raises(ConfigError, match="the working directory does not exist any more; cd to one that does"):
        resolve(["--env=sample_task", f"--train_dir={tmp_path}"])


def test_a_folder_without_permission_is_refused(start, tmp_path, monkeypatch):
    def access(path, mode):
        assert mode == os.W_OK | os.X_OK
        return Path(path) != tmp_path

    monkeypatch.setattr(os, "access", access)  # root may write anywhere
    with pytest.raises(ConfigError, match=f"no permission in {re.escape(str(tmp_path))}; type another --train_dir"):
        start()


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Pretend that this machine has a driver and torch sees so many GPUs."""

    def pretend(count, built_for_cuda=True):
        import torch

        monkeypatch.setattr(run_config, "_NVIDIA_DRIVER_FILES", (str(tmp_path),))
        monkeypatch.setattr(run_config, "_torch_is_built_for_cuda", lambda: built_for_cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


def test_a_gpu_is_refused_where_there_is_no_driver(start, monkeypatch):
    monkeypatch.setattr(run_config, "_NVIDIA_DRIVER_FILES", ("/does/not/exist",))
    for device in ("gpu", "cuda", "cuda:1"):
        with pytest.raises(ConfigError, match=f"device={device}, but this machine has no NVIDIA driver; nearest: cpu"):
            start(f"--device={device}")
    assert torch_device("auto") == torch_device("cpu") == "cpu"


def test_a_gpu_is_refused_where_torch_cannot_use_it(gpus):
    gpus(1, built_for_cuda=False)
    with pytest.raises(
        ConfigError, match="device=gpu, but the installed torch is built for the CPU only; nearest: cpu"
    ):
        torch_device("gpu")
    gpus(0)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        torch_device("cuda:0")
    assert torch_device("auto") == "cpu"


def test_a_gpu_is_named_by_its_number(gpus):
    gpus(2)
    assert [torch_device(device) for device in ("auto", "gpu", "cuda", "cuda:1")] == [
        "cuda:0",
        "cuda:0",
        "cuda:0",
        "cuda:1",
    ]
    with pytest.raises(ConfigError, match="device=cuda:2, but the GPUs end at cuda:1; nearest: cuda:1"):
        torch_device("cuda:2")


def test_how_torch_was_built_is_known_without_importing_it():
    import torch

    assert run_config._torch_is_built_for_cuda() == (torch.version.cuda is not None)


SYNCHRONOUS = ("--async_rl=False", "--num_workers=2", "--num_envs_per_worker=4")


def test_a_synchronous_batch_larger_than_all_blocks_is_refused(start):
    config = start(*SYNCHRONOUS, "--batch_size=1024").config  # 32 trajectories; there are 8
    with pytest.raises(ConfigError) as caught:
        check_with_spec(config, spec())
    assert "8 trajectories, but an iteration takes 32" in str(caught.value)
    assert str(caught.value).endswith("nearest: batch_size=256 or num_envs_per_worker=16")
    check_with_spec(start(*SYNCHRONOUS, "--batch_size=256").config, spec())
    check_with_spec(start(*SYNCHRONOUS[:2], "--num_envs_per_worker=16").config, spec())
    check_with_spec(config, spec(agents=4))
    check_with_spec(start(*SYNCHRONOUS[1:], "--batch_size=1024").config, spec())


def test_each_of_several_synchronous_policies_needs_its_share(start):
    words = (*SYNCHRONOUS, "--batch_size=256", "--num_policies=2")
    with pytest.raises(
        ConfigError, match=r"4 trajectories, .* of each of 2 policies takes 8 .*nearest: batch_size=128"
    ):
        check_with_spec(start(*words).config, spec())
    check_with_spec(start(*words).config, spec(agents=2))


ONE_STEP = {"num_workers": 2, "num_envs_per_worker": 16, "batch_size": 1024, "lr_schedule": "kl_adaptive_epoch"}


@pytest.mark.parametrize("option", [{"async_rl": False}, {"num_minibatches_to_accumulate": 0}])
def test_a_rate_that_follows_the_policy_needs_rows_of_older_weights(start, option):
    def check(**options):
        words = [f"--{name}={value}" for name, value in (ONE_STEP | options).items()]
        check_with_spec(start(*words).config, spec())

    ((name, value),) = option.items()
    message = f"lr_schedule=kl_adaptive_epoch has no change .* with {name}={value} and one .*; nearest: --ppo_epochs=2$"
    with pytest.raises(ConfigError, match=message):
        check(**option)
    with pytest.raises(ConfigError, match=message):
        check(num_envs_per_worker=8, **option)  # two rounds make a batch
    for other in (
        {"ppo_epochs": 2},
        {"num_batches_per_iteration": 2, "batch_size": 512},
        {"lr_schedule": "linear_decay"},
        {"num_envs_per_worker": 24},  # 16 of 48 trajectories are left for the next iteration
    ):
        check(**option, **other)
    check()


def test_where_no_batch_is_small_enough_more_environments_are_recommended(start):
    config = start("--async_rl=False", "--num_workers=1", "--num_batches_per_iteration=3", "--batch_size=32").config
    with pytest.raises(ConfigError, match=r"nearest: num_envs_per_worker=4$"):
        check_with_spec(config, spec())
