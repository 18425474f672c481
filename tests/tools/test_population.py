"""What the tool says a population did, from its history."""

import json

import pytest

from appo.algorithms.learning.config import LearningConfig, changed
from appo.algorithms.population.schedule import read_schedule, values_at
from appo.tools.population import best_policy, draw, main, read_history, schedule_of

A, B, C, D = ({"learning_rate": rate} for rate in (1e-6, 1e-3, 2e-3, 4e-3))


def row(policy, frames, kind, values, source=None, others=(0, 0)):
    both = list(others)
    both[policy] = frames
    source = policy if source is None else source
    told = {"policy": policy, "env_frames": frames, "all_env_frames": both, "kind": kind, "source": source}
    return told | {"values": values, "objectives": [1.0, 2.0], "time": 0.0, "decision": 0}


# Policy 0 begins badly, copies policy 1 after 1000 frames of its own and 1200 of the other, and is mutated once more.
HISTORY = [
    row(0, 0, "begin", A),
    row(1, 0, "begin", B),
    row(1, 800, "mutate", C, others=(700, 0)),
    row(0, 900, "mutate", A, others=(0, 1100)),
    row(0, 1000, "replace", D, source=1, others=(0, 1200)),
    row(1, 1500, "mutate", A, others=(1300, 0)),
    row(0, 1600, "mutate", B, others=(0, 1700)),
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pbt_history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in HISTORY))
    points = [
        {"policy": policy, "env_frames": frames, "0_aux/avg_reward": value, "0_aux/avg_true_reward": value}
        for policy, frames, value in ((0, 100, 1.0), (1, 100, 2.0), (0, 1700, 9.0), (1, 1700, 3.0))
    ]
    (tmp_path / "config.json").write_text('{"options": {"pbt_target_objective": "true_reward"}}')
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in points))
    return tmp_path


def test_the_schedule_of_a_copy_begins_with_its_sources_past_and_counts_the_frames_that_its_weights_have_seen():
    assert schedule_of(HISTORY, 0) == [(0, B), (800, C), (1200, D), (1800, B)]
    assert schedule_of(HISTORY, 1) == [(0, B), (800, C), (1500, A)]


def test_copies_of_copies_are_followed_to_the_first():
    twice = [
        *HISTORY,
        row(1, 2000, "replace", C, source=0, others=(2100, 0)),
        row(1, 2400, "mutate", D, others=(2500, 0)),
    ]
    assert schedule_of(twice, 1) == [(0, B), (800, C), (1200, D), (1800, B), (2300, C), (2700, D)]


def test_what_a_start_or_a_checkpoint_has_lost_is_not_followed():
    lost = [
        row(1, 100, "mutate", A),
        row(1, 0, "begin", B),
        row(1, 500, "mutate", C),
        row(1, 700, "replace", A, source=0),
    ]
    resumed = {"kind": "resume", "policy": 1, "env_frames": 600}
    assert schedule_of([*lost, resumed, row(1, 900, "mutate", D)], 1) == [(0, B), (500, C), (900, D)]


def test_the_schedule_can_be_followed(folder):
    schedule = folder / "schedule.json"
    weights = row(0, 1900, "mutate", {"learning_rate": 0.5, "reward:kill": 2.0})
    with (folder / "pbt_history.jsonl").open("a") as file:
        file.write(json.dumps(weights) + "\n")
    assert main([str(folder), f"--replay={schedule}"]) == 0
    steps = read_schedule(str(schedule), lambda values: changed(LearningConfig(), None, values))
    assert values_at(steps, 10_000) == weights["values"]


def test_the_best_policy_is_the_one_with_the_highest_objective_at_the_end(folder):
    assert best_policy(folder) == (0, {0: 9.0, 1: 3.0})
    assert len(read_history(folder)) == len(HISTORY)


def test_the_command_prints_draws_and_writes_the_schedule(folder, capsys):
    image, schedule = folder / "population.png", folder / "schedule.json"
    assert main([str(folder), str(image), f"--replay={schedule}"]) == 0
    assert image.read_bytes().startswith(b"\x89PNG")
    assert json.loads(schedule.read_text())[2] == {"env_frames": 1200, "values": D}
    assert main([str(folder), "--policy=1", f"--replay={schedule}"]) == 0
    assert json.loads(schedule.read_text())[2] == {"env_frames": 1500, "values": A}
    assert "policy 0 (best)" in capsys.readouterr().out


def test_only_options_that_went_far_are_drawn_on_a_logarithmic_scale(folder):
    both = [{**each, "values": {**each["values"], "adam_beta1": 0.9 + 0.01 * at}} for at, each in enumerate(HISTORY)]
    scales = {panel.get_ylabel(): panel.get_yscale() for panel in draw(folder, both, None).subfigs[0].axes}
    assert scales == {"objective": "linear", "adam_beta1": "linear", "learning_rate": "log"}


def test_the_last_values_of_an_option_are_drawn_to_the_end(folder):
    panel = draw(folder, HISTORY, None).subfigs[0].axes[1]
    last = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in panel.lines]
    assert last == [(1700, B["learning_rate"]), (1700, A["learning_rate"])]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "name the folder of a run with --with_pbt=True"),
        (["HERE", "--policy=7", "--replay=x.json"], "there is no policy 7; they end at 1"),
        (["HERE", "HERE/image.nothing"], "is not supported"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(folder, words, reason, capsys):
    assert main([word.replace("HERE", str(folder)) for word in words]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
