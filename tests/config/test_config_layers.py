"""Layers and origins: which value wins, what is restored on resume, and what every layer refuses."""

import io
import json

import pytest
from rich.console import Console

from appo.algorithms.config import (
    CHOSEN,
    FAMILY_DEFAULTS,
    fitted,
    print_origins,
    resolve,
    resolve_evaluation,
    with_env_of_experiment,
)
from appo.algorithms.train_config import from_json, to_json, with_values
from appo.envs.api import ActionLeaf, EnvProfile, EnvSpec, ObservationLeaf
from appo.utils.options import ConfigError
from appo.utils.processes import core_count


def change(folder, **options):
    """Edit config.json as a user would."""
    path = folder / "config.json"
    document = json.loads(path.read_text())
    document["options"] |= options
    path.write_text(json.dumps(document))


def test_the_family_overrides_declared_defaults_and_the_user_overrides_the_family(start):
    config = start().config
    assert (config.learning.gamma, config.family.res_w, config.learning.gae_lambda) == (0.9, 64, 0.95)
    assert start("--gamma=0.5", "--res_w=32").config.learning.gamma == 0.5
    assert start("--gamma=0.5", "--res_w=32").config.family.res_w == 32


def test_every_set_option_has_the_layer_that_set_it_last(start, save_config):
    save_config(start("--gamma=0.5", "--rollout=16"))
    resolved = start("--rollout=8")
    assert {name: resolved.origins[name] for name in ("env", "rollout", "gamma", "res_w", "batch_size")} == {
        "env": "command line",
        "rollout": "command line",
        "gamma": "config.json",
        "res_w": FAMILY_DEFAULTS,
        "batch_size": "config.json",
    }
    is_first = start("--experiment=other")
    assert is_first.origins["gamma"] == FAMILY_DEFAULTS
    assert "batch_size" not in is_first.origins


def test_what_a_default_leaves_open_is_chosen_and_recorded(start, save_config):
    first = start()
    assert first.config.sampling.num_workers == core_count()
    assert first.config.run.seed >= 0
    assert first.config.run.seed != start().config.run.seed
    assert {first.origins["num_workers"], first.origins["seed"]} == {CHOSEN}
    save_config(first)
    assert start().config.run.seed == first.config.run.seed
    assert start("--seed=-1").config.run.seed != first.config.run.seed
    assert start("--seed=5").config.run.seed == 5


def test_an_experiment_that_exists_needs_no_env(start, save_config, tmp_path):
    save_config(start("--rollout=16"))
    words = ["--experiment=default_experiment", f"--train_dir={tmp_path}"]
    for more in ([], ["--restart_behavior=overwrite"]):  # for which the name would soon be gone
        assert with_env_of_experiment([*words, *more]) == ["--env=sample_task", *words, *more]
    assert resolve(with_env_of_experiment(words)).config == start().config
    for unchanged in (["--experiment=other", words[1]], words[1:], [*words, "--env=sample_task"], [*words, "--help"]):
        assert with_env_of_experiment(unchanged) == unchanged


def test_resume_restores_everything_but_what_is_typed_now(start, save_config):
    first = start("--learning_rate=0.01", "--hidden_size=32", "--res_w=16")
    save_config(first)
    resumed = start("--learning_rate=0.02")
    assert resumed.resumed
    assert not first.resumed
    assert resumed.config == with_values(first.config, {"learning_rate": 0.02})
    assert set(resumed.typed) == {"env", "train_dir", "learning_rate", "hidden_size", "res_w"}


def test_a_saved_value_outranks_the_default_of_the_family(start, save_config):
    folder = save_config(start())
    change(folder, gamma=0.7)
    assert start().config.learning.gamma == 0.7


def test_an_option_that_is_newer_than_the_saved_file_takes_its_default(start, save_config):
    folder = save_config(start("--batch_size=2048"))
    document = json.loads((folder / "config.json").read_text())
    del document["options"]["batch_size"]
    (folder / "config.json").write_text(json.dumps(document))
    assert start().config.learning.batch_size == 1024


def test_the_view_of_a_terminal_is_not_taken_over_by_the_next_start(start, save_config):
    save_config(start("--view=off"))
    assert start().config.run.view == "auto" and start("--view=lines").config.run.view == "lines"


def test_one_start_from_the_best_checkpoint_is_no_habit(start, save_config):
    save_config(start("--load_checkpoint_kind=best"))
    assert start().config.run.load_checkpoint_kind == "latest"


def test_a_folder_that_was_moved_is_resumed_where_it_is_now(start, save_config, tmp_path):
    folder = save_config(start())
    (tmp_path / "elsewhere").mkdir()
    folder.rename(tmp_path / "elsewhere" / "renamed")
    argv = ["--env=sample_task", f"--train_dir={tmp_path}", "--experiments_root=elsewhere", "--experiment=renamed"]
    resumed = resolve(argv)
    assert resumed.resumed
    assert resumed.config.run.folder == tmp_path / "elsewhere" / "renamed"


def test_where_a_run_is_and_how_it_was_begun_is_not_taken_from_the_file(start, save_config):
    folder = save_config(start("--restart_behavior=restart"))
    change(folder, train_dir="/moved/away", experiments_root="elsewhere", experiment="renamed")
    resumed = start()
    assert resumed.resumed
    assert (resumed.config.run.folder, resumed.config.run.restart_behavior) == (folder, "resume")


@pytest.mark.parametrize("behavior", ["restart", "overwrite"])
def test_beginning_anew_takes_nothing_over(start, save_config, behavior):
    folder = save_config(start("--gamma=0.5"))
    resolved = start(f"--restart_behavior={behavior}")
    assert (resolved.config.learning.gamma, resolved.resumed) == (0.9, False)
    (folder / "config.json").write_text("broken")
    assert not start(f"--restart_behavior={behavior}").resumed


def test_resume_with_another_env_is_refused(start, save_config):
    save_config(start())
    with pytest.raises(ConfigError, match="was trained with env='sample_task', not 'sample_other'; type another"):
        start(env="sample_other")


def test_unknown_names_are_errors_in_every_layer(start, save_config):
    with pytest.raises(ConfigError, match="command line sets unknown option 'gama'; did you mean gamma"):
        start("--gama=1")
    with pytest.raises(ConfigError, match="family defaults sets unknown option 'lr'"):
        start(env="sample_unknown")
    change(save_config(start()), lr=1e-3)
    with pytest.raises(ConfigError, match=r"/config\.json sets unknown option 'lr'; repair it, or type"):
        start()


def test_ranges_and_types_are_checked_in_every_layer(start, save_config):
    with pytest.raises(ConfigError, match=r"command line sets hidden_size=0; allowed: at least 1, at most 32768"):
        start("--hidden_size=0")
    with pytest.raises(ConfigError, match=r"family defaults sets hidden_size=0; allowed: at least 1, at most 32768"):
        start(env="sample_range")
    with pytest.raises(ConfigError, match=r"program sets hidden_size=0; allowed: at least 1, at most 32768"):
        with_values(start().config, {"hidden_size": 0})
    folder = save_config(start())
    for value, message in [(0, "sets hidden_size=0; allowed: at least 1"), ("x", "sets hidden_size='x'; expected")]:
        change(folder, hidden_size=value)
        with pytest.raises(ConfigError, match=r"config\.json " + message):
            start()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"options": 3}', '{"options": {"env": "x"}, "typed": 1}', "\0"])
def test_a_damaged_config_file_is_refused_with_a_remedy(start, save_config, text):
    folder = save_config(start())
    (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json (is not JSON|holds no).*restart_behavior=restart"):
        start()


def test_checkpoints_without_a_configuration_are_not_taken_for_a_new_run(start, tmp_path):
    checkpoints = tmp_path / "default_experiment" / "checkpoint_p0"
    checkpoints.mkdir(parents=True)
    assert not start().resumed
    (checkpoints / "checkpoint_1_2.pth").touch()
    with pytest.raises(ConfigError, match=r"holds checkpoints but no config\.json; put it back"):
        start()
    assert not start("--restart_behavior=restart").resumed


def test_resolving_writes_nothing(start, tmp_path):
    start()
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_survives_json(start):
    config = start("--reward_clip=inf", "--actor_worker_gpus=0,1", "--seed=3").config
    text = to_json(config, ["seed"])
    assert from_json(text) == config
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert json.loads(text)["typed"] == ["seed"]


def test_with_values_changes_a_copy_and_checks_it(start):
    config = start().config
    changed = with_values(config, {"learning_rate": 0.5, "res_w": 8})
    assert (changed.learning.learning_rate, changed.family.res_w) == (0.5, 8)
    assert config.learning.learning_rate == 1e-4
    with pytest.raises(ConfigError, match="nearest: 992, 1024"):
        with_values(config, {"batch_size": 1000})
    with pytest.raises(ConfigError, match="mutation sets unknown option 'lr'"):
        with_values(config, {"lr": 1}, layer="mutation")


def test_the_options_of_an_auxiliary_loss_come_and_go_with_it(start, save_config):
    first = start("--auxiliary_loss=action_smoothness", "--action_smoothness_coeff=0.5")
    assert first.config.auxiliary.action_smoothness_coeff == 0.5
    save_config(first)
    assert start().config.auxiliary.action_smoothness_coeff == 0.5
    without = start("--auxiliary_loss=")
    assert without.config.learning.auxiliary_loss == ""
    assert not hasattr(without.config.auxiliary, "action_smoothness_coeff")


def origins_of(resolved):
    """Option -> its row in the table of origins."""
    out = io.StringIO()
    print_origins(resolved, Console(file=out, width=120))
    return {line.split("│")[1].strip(): line for line in out.getvalue().splitlines() if line.startswith("│")}


def test_the_table_of_origins_shows_every_value_that_is_no_default(start):
    rows = origins_of(start("--gae_lambda=0.5", "--batch_size=1024"))
    assert "0.5" in rows["gae_lambda"]
    assert "command line" in rows["gae_lambda"]
    assert FAMILY_DEFAULTS in rows["gamma"]
    assert "batch_size" not in rows


def test_the_table_of_origins_shows_a_declared_default_that_stands_instead_of_another(start, save_config, tmp_path):
    rows = origins_of(start("--gamma=0.99", "--res_w=128", "--batch_size=1024"))
    assert "0.99" in rows["gamma"] and "command line" in rows["gamma"] and "128" in rows["res_w"]
    assert "batch_size" not in rows, "nothing else would be here"
    (tmp_path / "plan.toml").write_text("gamma = 0.99\n")
    assert "/" in origins_of(start(f"--config={tmp_path / 'plan.toml'}"))["gamma"], "the file set it"
    save_config(start("--gamma=0.99", "--batch_size=2048"))
    rows = origins_of(start("--batch_size=1024"))
    assert "config.json" in rows["gamma"] and "1024" in rows["batch_size"], "it was another one before"


def test_the_table_of_origins_shows_all_that_is_typed_where_options_are_fitted(tmp_path):
    words = [
        "--env=tests.config.unknown_env:make_env",
        "--use_rnn=True",
        "--hidden_size=512",
        f"--train_dir={tmp_path}",
    ]
    seen = EnvSpec((ObservationLeaf("obs", (4,), "float32", "vector"),), (ActionLeaf("discrete", 2),), 1)
    rows = origins_of(fitted(resolve(words), seen, EnvProfile(step_s=1e-5)))
    assert "command line" in rows["use_rnn"] and "command line" in rows["hidden_size"]
    assert any("fitted" in row for row in rows.values())


def test_what_a_user_has_typed_is_neither_markup_nor_an_emoji_in_the_table_of_origins(start, tmp_path):
    (tmp_path / "[bold]:Leaves:.toml").write_text("gamma = 0.5\n")
    out = io.StringIO()
    words = [f"--config={tmp_path}/[bold]:Leaves:.toml", "--wandb_group=[red]:Leaves:"]
    print_origins(start(*words, env="tests.config.own_envs:leaves"), Console(file=out, width=400))
    shown = out.getvalue()
    assert "tests.config.own_envs:leaves: options other than their defaults" in shown
    assert "[red]:Leaves:" in shown and "/[bold]:Leaves:.toml" in shown


def test_watching_takes_the_saved_configuration_and_its_own_options(start, save_config, tmp_path):
    save_config(start("--gamma=0.5"))
    argv = ["--env=sample_task", f"--train_dir={tmp_path}"]
    found = resolve_evaluation([*argv, "--max_num_episodes=1e1", "--no_render", "--load_checkpoint_kind=best"])
    assert (found.config.learning.gamma, found.config.run.load_checkpoint_kind) == (0.5, "best")
    assert (found.evaluation.max_num_episodes, found.evaluation.no_render) == (10, True)
    with pytest.raises(ConfigError, match="policy_index=1, but the policies end at 0; nearest: 0"):
        resolve_evaluation([*argv, "--policy_index=1"])
    with pytest.raises(ConfigError, match=r"there is no experiment in .*; .* holds default_experiment"):
        resolve_evaluation([*argv, "--experiment=missing"])
