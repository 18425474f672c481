"""The frame of a run as a pure function of its state and the room: what is in it, and what is left out first."""

import itertools
import re

import pytest
from rich.cells import cell_len

from appo.algorithms.reporting.bottleneck import Finding
from appo.algorithms.reporting.snapshot import Point, PolicySnapshot, RunSnapshot
from appo.algorithms.reporting.view import DROPPED_FIRST, as_text, render, sparkline
from appo.algorithms.reporting.view_state import Course, ViewHistory, ViewState
from appo.algorithms.reporting.wording import in_digits, time_left

TAGS = {
    "0_aux/avg_reward_min": -1234.5,
    "0_aux/avg_reward_max": 98765.4,
    "0_aux/avg_len": 432.0,
    "0_aux/master_process_memory_mb": 61.8,
    "train/lr": 1e-3,
    "train/loss": 0.05,
    "train/policy_loss": -0.01041,
    "train/value_loss": 1.2345e-7,
    "train/entropy": 0.6931,
    "train/kl_divergence": 0.0038,
    "stats/actor_env_step": 0.71,
    "stats/actor_simulate": 0.65,
    "stats/actor_wait_policy": 0.29,
    "stats/learner_wait_batch": 0.4,
    "stats/learner_train": 0.6,
    "stats/learner_collate_ahead": 0.5,
    "stats/actor_memory_mb": 39.9,
}
HEADS = {
    "return": r"^return ",
    "losses": r"^losses ",
    "time": r"^time ",
    "limit": r"^limit ",
    "memory": r"^memory ",
    "faults": r"^faults ",
}


LIMIT = Finding(
    "environments", "environments take 99 % of the actors' time, and both cores are busy", {}, "env_frameskip"
)


def state(
    policies=1, points=12, *, faults=2, spent=0.62, left=118.0, phase="training", silent_s=0.0, limit=LIMIT
) -> ViewState:
    of_policy = PolicySnapshot(1_240_000, 370, 404, 151.38, 151.38, 15.97)
    snapshot = RunSnapshot(
        state=phase,
        time=1.7e9,
        env_frames=1_240_000,
        train_seconds=192.4,
        fps={10: 6450.0, 60: 6310.0, 300: 6200.0},
        seconds_left=left,
        budget_spent=spent,
        faults={"restarts": faults, "env_crashes": 0},
        blocks={},
        policies=(of_policy,) * policies,
        bottleneck=limit,
    )
    history = ViewHistory("first · doom_basic")
    for number, policy in itertools.product(range(points), range(policies)):
        mean = 148.6 if number == points - 1 else float(number)
        history.add(Point(policy, number, {"0_aux/avg_reward": mean} | TAGS))
    return history.state(snapshot, silent_s)


def shown(width, height, **numbers):
    return as_text(render(state(**numbers), width, height), width, is_terminal=False)


def panels(lines):
    return {name for name, head in HEADS.items() if any(re.match(head, line) for line in lines)}


@pytest.mark.parametrize("policies", [1, 8])
@pytest.mark.parametrize("width", [1, 7, 20, 40, 60, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 7, 8, 12, 24, 60])
def test_no_line_is_wider_and_no_frame_higher_than_the_room(width, height, policies):
    lines = shown(width, height, policies=policies)
    assert 1 <= len(lines) <= height
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("points", [0, 1, 12])
def test_every_number_of_a_frame_is_whole_however_narrow_it_is(points):
    whole = set(re.split(r"\s+", " ".join(shown(250, 60, points=points))))
    for width in range(20, 130, 3):
        words = re.split(r"\s+", " ".join(shown(width, 60, points=points)))
        assert {word for word in words if re.search(r"\d", word)} <= whole | {"6.45k"}, width


def test_names_are_neither_markup_nor_emojis():
    history = ViewHistory("[bold]first[/bold] · old:Leaves: :leaves:")
    frame = as_text(render(history.state(state().snapshot, 0.0), 79, 23), 79, is_terminal=False)
    assert frame[0].startswith("[bold]first[/bold] · old:Leaves: :leaves: ─")


def test_losses_that_the_newest_iteration_does_not_tell_are_dashes():
    run = state()
    told = {tag: value for tag, value in run.scalars[0].items() if tag != "train/loss" and "_loss" not in tag}
    lines = as_text(render(run._replace(scalars=(told,)), 79, 23), 79, is_terminal=False)
    _, row = next(pair for pair in itertools.pairwise(lines) if pair[0].startswith("losses"))
    assert row.split()[:4] == ["policy", "0", "-", "-"]


def test_a_frame_of_a_usual_terminal_tells_everything():
    text = "\n".join(lines := shown(79, 23))
    assert lines[0].startswith("first · doom_basic ─") and lines[0].endswith("─ training 0:03:12")
    assert re.search(r"frames 1\.24M  ━+─+  62%  left 0:01:58", text)
    assert "fps (10/60/300 s) 6.45k/6.31k/6.20k  71% of what the simulators could do" in text
    head, row = next(pair for pair in itertools.pairwise(lines) if pair[0].startswith("return"))
    assert head.split()[:7] == ["return", "mean", "min", "max", "length", "lag", "steps"]
    assert row.split()[:7] == ["policy", "0", "148.6", "-1234", "98765", "432.0", "15.97"]
    assert row.split()[7].startswith("▁") and row.split()[7].endswith("█")
    head, row = next(pair for pair in itertools.pairwise(lines) if pair[0].startswith("losses"))
    assert head.split()[:5] == ["losses", "policy", "value", "entropy", "kl"]
    assert row.split()[:6] == ["policy", "0", "-0.0104", "1.23e-07", "0.6931", "0.0038"]
    assert re.search(r"^actor +━{7}─{3}  env step 71%  wait policy 29%$", text, re.MULTILINE)
    assert re.search(r"^learner +━{6}─{4}  train 60%  wait batch 40%$", text, re.MULTILINE)
    assert "limit     environments take 99 % of the actors' time, and both cores are busy" in text
    assert "driver 62 MB  actor 40 MB" in text
    assert "restarts 2" in text and "env crashes" not in text
    assert len(lines) <= 23 and "" in lines


def test_panels_are_dropped_in_the_stated_order_and_the_run_itself_never():
    left_out = []
    for height in range(40, 0, -1):
        lines = shown(79, height)
        assert lines[0].startswith("first")
        left_out += [name for name in DROPPED_FIRST if name not in panels(lines) and name not in left_out]
    assert tuple(left_out) == DROPPED_FIRST


def test_forty_columns_and_eight_rows_show_progress_speed_and_the_return():
    text = "\n".join(shown(39, 7))  # a column and a row are the cursor's
    for part in ("1.24M", "62%", "left 0:01:58", "6.45k/6.31k/6.20k", "148.6", "training 0:03:12"):
        assert part in text


def test_rows_of_policies_beyond_the_height_are_counted():
    lines = shown(79, 9, policies=8, faults=0)
    assert len(lines) == 9 and lines[-1] == "and 4 more"
    assert [line[:8] for line in lines[4:8]] == [f"policy {number}" for number in range(4)]


def test_without_a_budget_nothing_is_left_and_there_is_no_bar():
    text = "\n".join(shown(79, 23, left=1e9, spent=1e-4))
    assert "left" not in text and "%  " not in text.splitlines()[1] and "frames 1.24M" in text


def test_what_limits_the_speed_is_told_in_as_many_lines_as_it_needs_once_it_is_known():
    lines = shown(50, 40)
    place = next(number for number, line in enumerate(lines) if line.startswith("limit "))
    said = " ".join(line[10:].strip() for line in lines[place : place + 2])
    assert said == LIMIT.said and lines[place + 1].startswith(" " * 10)
    assert "limit" not in "\n".join(shown(79, 23, limit=None))


ALL_FAULTS = ("restarts", "quarantined_actors", "env_crashes", "env_bad_data", "skipped_steps", "rollbacks")


def test_memory_of_every_process_and_every_fault_go_on_in_the_next_line():
    run = state()
    shares = {**run.scalars[0], "stats/policy_memory_mb": 274.0, "stats/learner_memory_mb": 381.0}
    faults = {name: 10 + number for number, name in enumerate(ALL_FAULTS)}
    run = run._replace(scalars=(shares,), snapshot=run.snapshot._replace(faults=faults))
    for width in (31, 40, 60, 120):
        text = "  ".join(line.strip() for line in as_text(render(run, width, 60), width, is_terminal=False))
        for told in ("driver 62 MB", "learner 381 MB", "quarantined actors 11", "rollbacks 15"):
            assert told in text, width

    def lines(name, width, height=60):
        shown = as_text(render(run, width, height), width, is_terminal=False)
        place = next((number for number, line in enumerate(shown) if line.startswith(f"{name} ")), len(shown))
        return shown[place : place + 1] + list(itertools.takewhile(lambda line: line[:1] == " ", shown[place + 1 :]))

    memory = "memory    driver 62 MB  actor 40 MB  policy 274 MB  learner 381 MB"
    assert lines("memory", len(memory)) == [memory]
    assert lines("memory", len(memory) - 1) == [memory[:-16], f"{'':10}learner 381 MB"]
    assert lines("memory", 24) == [
        "memory    driver 62 MB",
        *(f"{'':10}{word}" for word in ("actor 40 MB", "policy 274 MB", "learner 381 MB")),
    ]
    for width in range(24):  # what has no room is left out, and no line is left blank for it
        assert all(line[10:].strip() for name in ("memory", "faults") for line in lines(name, width))
    text = "\n".join(as_text(render(run, 39, 7), 39, is_terminal=False))
    assert "148.6" in text and "restarts 10" in text and "rollbacks" not in text


def test_faults_are_shown_only_where_there_were_some_and_silence_takes_the_place_of_the_state():
    assert "faults" not in "\n".join(shown(79, 23, faults=0))
    first = shown(79, 23, silent_s=42.4)[0]
    assert first.endswith("no news for 42 s 0:03:12") and "training" not in first


def test_a_run_without_points_is_shown():
    text = "\n".join(shown(79, 23, points=0, faults=0))
    assert "151.4" in text and panels(text.splitlines()) == {"return", "limit"}


def test_a_return_of_the_start_before_is_marked():
    one = state(policies=2)
    first, second = one.snapshot.policies
    mixed = one.snapshot._replace(policies=(first._replace(has_new_episodes=False), second))
    frame = as_text(render(one._replace(snapshot=mixed), 79, 23), 79, is_terminal=False)
    rows = [line for line in frame if "148.6" in line]
    assert [("148.6 (earlier)" in row) for row in rows] == [True, False]


def test_only_a_terminal_gets_escapes():
    frame = render(state(), 79, 23)
    assert "\x1b" not in "\n".join(as_text(frame, 79, is_terminal=False))
    assert as_text(frame, 79, is_terminal=True) != as_text(frame, 79, is_terminal=False)


def test_a_sparkline_goes_from_the_smallest_to_the_largest_mean():
    assert sparkline([0.0, 7.0], 10) == "▁█"
    assert sparkline([3.0] * 4, 10) == "▁▁▁▁"
    assert sparkline([0, 2, 3, 5, 13, 15], 3) == "▁▃█"
    assert sparkline([], 10) == sparkline([1.0], 0) == ""


def test_a_course_is_bounded_and_covers_everything_from_the_beginning():
    course = Course(most=8)
    for number in range(1000):
        course.add(float(number))
    values = course.values()
    assert 4 <= len(values) <= 8 and list(values) == sorted(values)
    assert values[0] < 250 and values[-1] > 750
    assert values[0] == sum(range(256)) / 256 or values[0] == sum(range(128)) / 128


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0"), (None, "-"), (float("nan"), "-"), (-0.01041, "-0.0104"), (3.14159, "3.14"), (421.07, "421.1"),
     (12345.6, "12346"), (1234567.0, "1.23e+06"), (-2.5e-5, "-2.50e-05")],
)  # fmt: skip
def test_numbers_are_told_in_about_four_digits(value, told):
    assert in_digits(value) == told


def test_a_month_and_more_is_no_time_that_is_left():
    assert time_left(None) == time_left(1e10) == "" and time_left(31.4) == "0:00:31"
