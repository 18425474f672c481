"""`--config`: options of a TOML or JSON file, as if typed before the words of the command line."""

import json
import re

import pytest

from appo.algorithms.config import CHOSEN, resolve, resolve_evaluation, with_env_of_experiment
from appo.algorithms.train_config import to_json, values_of
from appo.utils.options import ConfigError

PLAN = """
env = "sample_task"
learning_rate = 1e-3
train_for_seconds = inf
mlp_layers = [64, 32]
env_kwargs = {size = 3, name = "x"}
use_rnn = false

[learning]
gamma = 0.5
rollout = 16
"""


@pytest.fixture
def write(tmp_path):
    """Write a file of options; its path."""

    def written(text, name="plan.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def test_a_file_outranks_the_family_and_the_command_line_outranks_the_file(start, write):
    path = write("gamma = 0.5\nres_w = 16\nrollout = 16\nnum_epochs = 3\nhidden_size = 8\nserial_mode = true\n")
    resolved = start(f"--config={path}", "--rollout=8", "--ppo-epochs=2", "--hidden_size", "4")
    config = resolved.config
    assert (config.learning.gamma, config.family.res_w, config.learning.rollout) == (0.5, 16, 8)
    assert (config.learning.ppo_epochs, config.model.hidden_size, config.workers.serial_mode) == (2, 4, True)
    origins = {name: resolved.origins[name] for name in ("gamma", "res_w", "rollout", "ppo_epochs")}
    assert origins == {"gamma": str(path), "res_w": str(path), "rollout": "command line", "ppo_epochs": "command line"}


def test_values_of_every_kind_are_read_with_the_environment_and_groups_may_be_tables(write, tmp_path):
    config = resolve([f"--config={write(PLAN)}", f"--train_dir={tmp_path}"]).config
    assert config.env.env == "sample_task" and config.run.train_for_seconds == float("inf")
    assert (config.learning.gamma, config.learning.rollout, config.learning.learning_rate) == (0.5, 16, 1e-3)
    assert config.model.mlp_widths == (64, 32) and config.model.use_rnn is False
    assert config.env.kwargs == {"size": 3, "name": "x"}


def test_a_table_may_be_called_as_an_option_of_its_group_is(write, tmp_path):
    path = write("[env]\nenv = 'sample_task'\nwrap_time_limit = 9\n")
    config = resolve([f"--config={path}", f"--train_dir={tmp_path}"]).config
    assert (config.env.env, config.env.wrap_time_limit) == ("sample_task", 9)


def test_options_of_what_the_experiment_names_are_known_to_a_file(start, save_config, write, tmp_path):
    save_config(start("--auxiliary_loss=action_smoothness"))
    path = write("res_w = 16\naction_smoothness_coeff = 0.25\n")
    words = with_env_of_experiment(["--experiment=default_experiment", f"--train_dir={tmp_path}", f"--config={path}"])
    resumed = resolve(words)
    assert resumed.resumed and resumed.config.family.res_w == 16
    assert values_of(resumed.config)["action_smoothness_coeff"] == 0.25
    watched = resolve_evaluation([f"--train_dir={tmp_path}", f"--config={path}"])
    assert watched.config.family.res_w == 16
    path.write_text(f"train_dir = '{tmp_path}'\nexperiment = 'default_experiment'\nres_w = 24\n")
    assert resolve_evaluation([f"--config={path}"]).config.family.res_w == 24


def test_what_a_file_sets_is_saved_as_typed_and_changes_a_resumed_run(start, save_config, write):
    first = start(f"--config={write('gamma = 0.5')}")
    assert {"gamma", "config"} <= set(first.typed)
    folder = save_config(first)
    assert "gamma" in json.loads((folder / "config.json").read_text())["typed"]
    again = start()
    assert again.config.learning.gamma == 0.5 and again.config.run.config == "", "the file is not read again"
    resumed = start(f"--config={write('gamma = 0.25')}")
    assert resumed.changed == (("gamma", 0.5, 0.25),)
    assert start("--gamma=0.75", f"--config={write('gamma = 0.25')}").config.learning.gamma == 0.75


def test_the_config_of_another_experiment_gives_all_but_its_place(start, write):
    other = start("--experiment=other", "--gamma=0.5", "--seed=7", "--res_w=16", "--rnn_type=lstm")
    path = write(to_json(other.config, other.typed), "config.json")
    config = start(f"--config={path}", "--experiment=mine").config
    assert config.run.experiment == "mine"
    assert (config.learning, config.model, config.family) == (
        other.config.learning,
        other.config.model,
        other.config.family,
    )
    assert config.run.seed == 7
    assert start(f"--config={path}").config.run.experiment == "default_experiment"


def test_the_config_of_another_experiment_leaves_out_its_terminal_and_what_was_chosen_for_it(start, write):
    other = start("--view=off", "--debug", "--hidden_size=16")
    path = write(to_json(other.config, other.typed), "config.json")
    taken = start(f"--config={path}", "--experiment=mine")
    assert taken.config.model.hidden_size == 16
    assert (taken.config.run.view, taken.config.run.debug) == ("auto", False)
    assert taken.config.run.seed != other.config.run.seed
    assert taken.origins["seed"] == taken.origins["num_workers"] == CHOSEN
    typed = start("--num_workers=3")
    path = write(to_json(typed.config, typed.typed), "config.json")
    assert start(f"--config={path}").config.sampling.num_workers == 3


@pytest.mark.parametrize("text", ["lr = 5e-4\nn_epochs = 3\n", "[learning]\nlr = 5e-4\nn_epochs = 3\n"])
def test_words_of_other_programs_hold_in_a_file_as_they_do_on_the_command_line(start, write, text):
    learning = start(f"--config={write(text)}").config.learning
    assert (learning.learning_rate, learning.ppo_epochs) == (5e-4, 3)


def test_a_watched_policy_takes_options_of_a_file(start, save_config, write, tmp_path):
    save_config(start())
    path = write("max_num_episodes = 3\nseed = 4\n")
    watched = resolve_evaluation([f"--train_dir={tmp_path}", f"--config={path}"])
    assert watched.evaluation.max_num_episodes == 3 and watched.config.run.seed == 4


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("plan.toml", "lr = 0.1\nlearning_rate = 0.1", "{file} sets learning_rate twice; leave one of them out"),
        ("plan.toml", "lr = -1", "{file} sets learning_rate=-1.0; allowed: "),
        ("plan.toml", "[base]\nlr = 0.1", "{file} sets unknown option 'base'; this is a plan of another command"),
        ("plan.toml", "gama = 0.1", "{file} sets unknown option 'gama'; did you mean gamma"),
        ("plan.toml", "n_envs = 4", "{file} sets unknown option 'n_envs'; here environments are spread"),
        (
            "plan.toml",
            "qqqq = 4\ngama = 0.1",
            "{file} sets unknown options: 'qqqq', 'gama' (did you mean gamma?)",
        ),
        ("plan.json", '{"hidden_size": 0}', "{file} sets hidden_size=0; allowed: at least 1"),
        ("plan.json", '{"use_rnn": "perhaps"}', "{file} sets use_rnn='perhaps'; expected True or False"),
        ("plan.toml", "config = 'b.toml'", "{file} sets config; that is for the command line: leave it out"),
        ("plan.toml", "gamma = 0.9\n[learning]\ngamma = 0.8", "{file} sets gamma twice; leave one of them out"),
        ("plan.toml", "gamma 0.9", "{file} is no TOML: "),
        ("plan.json", "{", "{file} is no JSON: "),
        ("plan.json", "[1]", "{file} holds no names and values; for example"),
        ("plan.yaml", "gamma: 1", "config={file} is no file of options: write plan.toml"),
    ],
)
def test_errors_name_the_file(start, write, name, text, message):
    path = write(text, name)
    with pytest.raises(ConfigError, match=re.escape(message.format(file=path))) as error:
        start(f"--config={path}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_refused(start, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read: No such file"):
        start(f"--config={tmp_path / 'nowhere.toml'}")
