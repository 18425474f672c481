"""The files that a user writes for a population, or for a policy that follows one."""

import json

import pytest

from appo.algorithms.learning.config import LearningConfig, changed, changing_options
from appo.algorithms.population.schedule import read_schedule, values_at
from appo.algorithms.population.start_values import read_start_values
from appo.utils.options import ConfigError

USUAL = {name: option.value for name, option in changing_options(LearningConfig(), None).items()}


def check(values):
    return changed(LearningConfig(), None, values)


def read(file, policies=2):
    return read_start_values(file, policies, USUAL, check)


def written(folder, value):
    file = folder / "file.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(file)


def test_start_values_are_read_for_each_policy(tmp_path):
    file = written(tmp_path, [{"learning_rate": 1}, {}])
    assert read(file) == [{"learning_rate": 1.0}, {"learning_rate": 1e-4}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "cannot be read"),
        ({"learning_rate": 1.0}, "has to hold a list with an object per policy"),
        ([{}], "has 1 objects for num_policies=2"),
        ([{}, {"learning_rate": "fast"}], "policy 1, sets learning_rate='fast'; a number is needed"),
        ([{}, {"learning_rate": 10**400}], "sets learning_rate=1000"),
        ([{}, {"learning_rate": True}], "policy 1, sets learning_rate=True; a number is needed"),
        ([{}, {"learning_rate": -1.0}], "policy 1: .*learning_rate=-1.0; allowed"),
        ([{"rollout": 64}, {}], "policy 0: rollout cannot change while training goes on"),
        ([{}, {"learning_rat": 1.0}], "policy 1: learning_rat is no option; these can be changed: .*learning_rate"),
        ([{"reward:kill": 1.0}, {}], "policy 0: reward:kill is a weight of rewards, which begins as the environment"),
    ],
)
def test_start_values_that_cannot_be_in_force_are_refused(tmp_path, content, reason):
    with pytest.raises(ConfigError, match=reason):
        read(written(tmp_path, content))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"pbt_start_values=nowhere\.json cannot be read"):
        read("nowhere.json")
    with pytest.raises(ConfigError, match=r"schedule_file=nowhere\.json cannot be read"):
        read_schedule("nowhere.json", check)


def test_a_schedule_is_in_the_order_of_frames_and_what_all_steps_that_have_begun_say_counts(tmp_path):
    steps = [{"env_frames": 500, "values": {"gamma": 0.9}}, {"env_frames": 10, "values": {"learning_rate": 1e-3}}]
    schedule = read_schedule(written(tmp_path, steps), check)
    assert [step.env_frames for step in schedule] == [10, 500]
    assert values_at(schedule, 9) == {} and values_at(schedule, 10) == {"learning_rate": 1e-3} == values_at(
        schedule, 499
    )
    assert values_at(schedule, 10**9) == {"learning_rate": 1e-3, "gamma": 0.9}, "a step that was passed counts as well"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("no json", "has to hold a list of objects"),
        ([{"values": {}}], "an object has no 'env_frames'"),
        ([], "it holds none"),
        ({}, "it holds none"),
        ([{"env_frames": -1, "values": {}}], "env_frames=-1 is not a number of frames"),
        ([{"env_frames": 1.5, "values": {}}], "env_frames=1.5 is not a number of frames"),
        ([{"env_frames": 5, "values": {"gamma": 2.0}}], "env_frames=5: .*gamma=2.0; allowed"),
        ([{"env_frames": 5, "values": {"reward:kill": -(10**400)}}], "sets reward:kill=-1000"),
        ([{"env_frames": 5, "values": {"gamma": "high"}}], "sets gamma='high'; a number is needed"),
    ],
)
def test_a_schedule_that_cannot_be_in_force_is_refused(tmp_path, content, reason):
    with pytest.raises(ConfigError, match=reason):
        read_schedule(written(tmp_path, content), check)
