"""Names of other programs: understood where they mean the same, explained where they do not."""

import dataclasses
import json
import re

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.evaluation.config import EvaluationConfig
from appo.algorithms.familiar_words import HINTS, SYNONYMS, VALUES, translated, understood
from appo.algorithms.train_config import groups_for
from appo.utils.cli import declared_options, typed_word
from appo.utils.options import ConfigError
from tests.architecture.source_tree import ROOT
from tests.in_process import exit_code_of

ENVS = ("CartPole-v1", "doom_basic", "atari_breakout", "HalfCheetah-v5", "MiniGrid-Empty-5x5-v0", "synthetic_slow")


def names(env):
    """Of every option that there is with this environment."""
    known = declared_options(groups_for(env, "")).values()
    return {name for entry in known for name in (entry.name, *entry.rule.aliases)}


@pytest.mark.parametrize("env", ENVS)
def test_every_synonym_is_an_option_and_hides_none(env):
    known = names(env)
    assert set(SYNONYMS.values()) <= known
    assert not (SYNONYMS.keys() | HINTS.keys()) & known


def rows_of_the_page():
    """(name in another program, what the page says is ours) of each row that has an option's name on its left."""
    page = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z]\w*)` \| ([^|]*)\|", page, flags=re.MULTILINE)


def test_the_page_for_those_who_come_from_another_program_has_every_word_and_says_what_is_done():
    rows, known = rows_of_the_page(), set().union(*map(names, ENVS))
    aliases = {
        alias: entry.name for entry in declared_options(groups_for("", "")).values() for alias in entry.rule.aliases
    }
    evaluated = {field.name for field in dataclasses.fields(EvaluationConfig)}
    assert not (SYNONYMS.keys() | HINTS.keys()) - {theirs for theirs, _ in rows}
    for theirs, told in rows:
        ours = re.findall(r"--(\w+)", told)
        assert set(ours) <= known | evaluated, theirs
        if theirs in HINTS:
            assert not ours or any(f"--{name}" in HINTS[theirs] for name in ours) or theirs == "tensorboard_log", theirs
        else:  # what sets it must be what the page names
            assert ours == [SYNONYMS.get(theirs, aliases.get(theirs, theirs))], theirs


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (["--lr=2e-3"], "learning_rate", 2e-3),
        (["--total-timesteps", "5e4"], "train_for_env_steps", 50_000),
        (["--n_epochs=3"], "ppo_epochs", 3),
        (["--ent-coef=0.01"], "exploration_loss_coeff", 0.01),
        (["--vf_coef=0.25"], "value_loss_coeff", 0.25),
        (["--clip-range=0.3"], "ppo_clip_ratio", 0.3),
    ],
)
def test_a_familiar_word_sets_the_right_option(words, option, value, capsys):
    found = understood(["--env=CartPole-v1", *words], "train_appo.py")
    assert found is not None
    config = resolve(found).config
    rooms = (config.run, config.learning)
    assert [getattr(room, option) for room in rooms if hasattr(room, option)] == [value]
    assert f"is --{option} here" in capsys.readouterr().err


@pytest.mark.parametrize("word", sorted(HINTS))
def test_a_word_of_another_meaning_leads_to_what_does_it_here(word):
    with pytest.raises(ConfigError, match=f"unknown option '{word}'; (here|there|every run)"):
        resolve(["--env=CartPole-v1", f"--{word.replace('_', '-')}=1"])


def test_options_that_hints_name_exist():
    known = set().union(*map(names, ENVS)) | {field.name for field in dataclasses.fields(EvaluationConfig)}
    for hint in HINTS.values():
        words = [word.partition("=")[0].strip(",.;:") for word in hint.split() if word.startswith("--")]
        named = {word.removeprefix("--") for word in words if not hint.startswith("every run writes")}
        assert named <= known, named - known


def test_arguments_of_an_environment_are_collected():
    words, notes = translated(["--env_kwargs.a=1", "--env=x", "--env_kwargs.b=True", "--env_kwargs.c=red"])
    assert words == ["--env=x", '--env_kwargs={"a": 1, "b": true, "c": "red"}'] and notes == []
    words, _ = translated(["--env_kwargs.a=no", "--env_kwargs.b=Yes", '--env_kwargs.c="no"', "--env_kwargs.d=FALSE"])
    assert words == ['--env_kwargs={"a": false, "b": true, "c": "no", "d": false}'], "as the program's own options"
    words, _ = translated(["--env_kwargs.a={'b': (1, None)}", "--env_kwargs.c=[1, True]", "--env_kwargs.d={1, 2}"])
    assert words == ['--env_kwargs={"a": {"b": [1, null]}, "c": [1, true], "d": "{1, 2}"}'], "as Python writes them"
    words, _ = translated(["--env_kwargs", '{"a": 1, "b": 2}', "--env-kwargs.b", "3", "--seed=1"])
    assert json.loads(typed_word(words, "env_kwargs") or "") == {"a": 1, "b": 3} and "--seed=1" in words


def test_arguments_beside_a_word_that_is_no_object_do_not_hide_it():
    with pytest.raises(ConfigError, match=r"^env_kwargs=\{size: 3\} is no JSON"):
        resolve(translated(["--env=CartPole-v1", "--env_kwargs={size: 3}", "--env_kwargs.a=1"])[0])


def test_an_argument_of_an_environment_without_a_value_is_refused_and_takes_no_other_word():
    for words in (["--env_kwargs.is_slippery", "--experiment=mine"], ["--env-kwargs.is_slippery"]):
        assert translated(words) == (words, [])
        told = "sets env_kwargs.is_slippery without a value; type --env_kwargs.is_slippery=VALUE"
        with pytest.raises(ConfigError, match=f"^command line {told}$"):
            resolve(["--env=FrozenLake-v1", *words])
    assert translated(["--env_kwargs.low", "-1"])[0] == ['--env_kwargs={"low": -1}']


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in VALUES for value in VALUES[option]])
def test_a_value_of_another_program_leads_to_what_does_it_here(option, value):
    with pytest.raises(ConfigError, match=f"command line sets {option}='{value}'; here the network follows from"):
        resolve(["--env=CartPole-v1", f"--{option}={value}"])


def test_all_words_of_another_program_are_answered_at_once():
    with pytest.raises(ConfigError) as refused:
        resolve(["--env=CartPole-v1", "--norm-adv", "--n_envs=8", "--verbose", "1", "--rnn_size=64"])
    told = str(refused.value)
    assert told.startswith("command line sets unknown options: 'norm_adv' (here advantages are always normalised")
    assert all(f"'{word}' ({HINTS[word]})" in told for word in ("norm_adv", "n_envs", "verbose", "rnn_size"))
    assert "env_kwargs" not in told and "\n" not in told


def test_the_version_and_the_help_of_one_group(capsys):
    assert exit_code_of(["--version"]) == 0
    assert capsys.readouterr().out.startswith("appo 0.")
    assert exit_code_of(["--env=CartPole-v1", "--help=population"]) == 0
    shown = capsys.readouterr().out
    assert "--pbt_mutation_rate" in shown and "--learning_rate" not in shown
    for word, told in (
        ("nothing", "there are run, env, sampling"),
        ("learning_rate", "that is an option of --help=learning\n"),
        (
            "auxiliary",
            "there are no such options yet; type what they belong to as well, --env=NAME or --auxiliary_loss",
        ),
    ):
        assert exit_code_of([f"--help={word}"]) == 2
        assert f"--help={word}: {told}" in capsys.readouterr().err
    assert exit_code_of(["--env=doom_basic", "--help=family"]) == 0
    assert "--doom_scenarios_dir" in capsys.readouterr().out
