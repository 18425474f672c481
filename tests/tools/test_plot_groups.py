"""Experiments compared: which of them are one group, what is drawn and written, and what is refused."""

import csv
import json
import time
from pathlib import Path

import numpy as np
import pytest

from appo.tools.curves import LAST_HOLDS, OF_NO_CONSEQUENCE, POINTS, _defaults, read_groups, read_points
from appo.tools.experiments import find_experiments
from appo.tools.plot import draw_groups, main
from tests.tools.experiment_files import append_points, write_experiment

RATES = (0.001, 0.01, 0.1)
SLOPES = (0, 1, 2, 3, 9)  # of the seeds


def line(slope, frames=range(100, 1001, 100)):
    return [(at, slope * at / 100) for at in frames]


@pytest.fixture(scope="module")
def fifteen(tmp_path_factory):
    """Three learning rates with five seeds each: one was resumed after a crash, one is shorter."""
    train_dir = tmp_path_factory.mktemp("fifteen")
    for number, rate in enumerate(RATES):
        for seed in range(5):
            end = 500 if (number, seed) == (1, 4) else 1000
            points = line(SLOPES[seed] + 10 * number, range(100, end + 1, 100))
            if (number, seed) == (0, 0):
                points = [*points[:6], (700, 999.0), (800, 999.0)]  # these came after the last checkpoint
            folder = write_experiment(train_dir, f"r{number}_s{seed}", points, learning_rate=rate, seed=seed)
            if (number, seed) == (0, 0):
                append_points(folder, line(0, range(700, 1001, 100)))
    return train_dir


def groups_of(*places, metric="0_aux/avg_reward", x="frames", smooth=0.0):
    return read_groups(find_experiments(places), metric, x, smooth)


def rows_of(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_seeds_are_grouped_without_being_told_and_labels_are_what_differs(fifteen):
    groups = groups_of(fifteen)
    assert [group.label for group in groups] == ["learning_rate=0.001", "learning_rate=0.01", "learning_rate=0.1"]
    assert [group.num_runs for group in groups] == [5, 5, 5]
    assert all(len(group.x) == POINTS and group.x[-1] == 1000.0 for group in groups)


def test_an_option_that_has_come_since_has_its_default_in_older_experiments(tmp_path):
    write_experiment(tmp_path, "older", line(1), seed=1)
    write_experiment(tmp_path, "newer", line(2), seed=2, wrap_time_limit=0)
    write_experiment(tmp_path, "other", line(3), seed=3, wrap_time_limit=60)
    groups = groups_of(tmp_path)
    assert [group.num_runs for group in groups] == [2, 1]
    assert [group.label for group in groups] == ["wrap_time_limit=0", "wrap_time_limit=60"]


def test_frames_are_told_in_thousands(fifteen):
    figure = draw_groups(groups_of(fifteen), "0_aux/avg_reward", "frames")
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert "800" in labels and "1k" in labels


def test_numbers_of_fifteen_runs_are_those_computed_by_hand(fifteen, tmp_path):
    target = tmp_path / "table.csv"
    assert main([str(fifteen), str(target)]) == 0
    rows = {(row["group"], float(row["x"])): row for row in rows_of(target)}
    name = "env=CartPole-v1 learning_rate="

    def numbers(rate, frames):
        row = rows[f"{name}{rate}", frames]
        return int(row["n"]), float(row["mean"]), float(row["iqm"])

    # Return per 100 frames: 0, 1, 2, 3, 9, and 10 more with each learning rate; the IQM is of the middle three.
    assert numbers(0.001, 1000) == (5, 30.0, 20.0)
    assert numbers(0.001, 800) == (5, 24.0, 16.0)  # what the crash has lost is not among it
    assert numbers(0.01, 500) == (5, 65.0, 60.0)
    assert numbers(0.01, 1000) == (4, 115.0, 115.0)  # without the shorter one; of four the middle two
    assert numbers(0.1, 1000) == (5, 230.0, 220.0)
    for row in rows.values():
        assert float(row["low"]) <= float(row["iqm"]) <= float(row["high"])
    last = rows[f"{name}0.1", 1000]
    assert 200.0 <= float(last["low"]) < 220.0 < float(last["high"]) <= 290.0


def test_points_that_a_crash_has_lost_are_superseded(fifteen):
    points = read_points(fifteen / "r0_s0")[0]
    assert [point["env_frames"] for point in points] == list(range(100, 1001, 100))
    assert {point["0_aux/avg_reward"] for point in points} == {0.0}


def test_fifteen_runs_are_drawn_with_intervals_and_one_legend(fifteen):
    figure = draw_groups(groups_of(fifteen), "0_aux/avg_reward", "frames")
    (panel,) = figure.axes
    assert panel.get_title() == "CartPole-v1" and len(panel.lines) == 6 and len(panel.collections) == 3
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == [f"learning_rate={rate} (5 seeds)" for rate in RATES]


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_suffix_decides_about_the_format(fifteen, tmp_path, suffix, begins):
    target = tmp_path / f"plot.{suffix}"
    assert main([str(fifteen), str(target), "--x=hours"]) == 0
    assert target.read_bytes().startswith(begins)


def test_a_group_ends_where_fewer_than_half_of_its_seeds_have_data_and_one_seed_has_no_interval(tmp_path):
    write_experiment(tmp_path, "a", line(1), seed=1)
    write_experiment(tmp_path, "b", line(3, range(100, 701, 100)), seed=2)
    write_experiment(tmp_path, "c", line(5, range(100, 401, 100)), seed=3)
    (group,) = groups_of(tmp_path)
    counts, means = group.summary.num_seeds, group.summary.mean
    assert counts[[POINTS * 4 // 10 - 1, POINTS * 7 // 10 - 1, -1]].tolist() == [3, 2, 1]
    assert np.nanmax(group.x[~np.isnan(means)]) == 700.0 + LAST_HOLDS * 1000.0
    assert (np.isnan(group.summary.low) == np.isnan(means)).all()
    (pair,) = groups_of(tmp_path / "a", tmp_path / "b")
    alone = pair.x > 700.0 + LAST_HOLDS * 1000.0
    assert pair.summary.mean[alone][-1] == 10.0 and np.isnan(pair.summary.low[alone]).all()


def test_seeds_of_few_points_that_spent_the_same_budget_end_together(tmp_path):
    ends = {1: [(10_000, 20.0), (20_100, 60.0), (30_100, 158.0)], 2: [(10_000, 9.0), (22_000, 12.0), (30_700, 136.0)]}
    for seed, points in ends.items():
        write_experiment(tmp_path, f"s{seed}", points, seed=seed, train_for_env_steps=30_000)

    def told():
        (group,) = (group for group in groups_of(tmp_path) if group.label != "gamma=0.9")
        exists = ~np.isnan(group.summary.mean)
        return group.x[exists], group.summary.mean[exists]

    _, means = told()
    assert (np.diff(means) >= 0.0).all() and means[-1] == (158.0 + 136.0) / 2
    write_experiment(tmp_path, "long", line(1, range(1000, 100_001, 1000)), gamma=0.9, train_for_env_steps=100_000)
    places, means = told()
    assert 30_700 <= places[-1] <= 30_700 + LAST_HOLDS * 100_000 and means[-1] == (158.0 + 136.0) / 2
    # One that was stopped before says nothing of what comes after its end.
    write_experiment(tmp_path, "stopped", ends[1][:2], seed=3, train_for_env_steps=30_000)
    places, means = told()
    assert means[places > 21_200][0] == (60.0 + 9.0) / 2


@pytest.mark.parametrize("budget", ["inf", "many", None])
def test_a_budget_that_is_no_number_is_never_spent(tmp_path, budget):
    for seed, end in enumerate((700, 1000)):
        write_experiment(tmp_path, f"s{seed}", line(1, range(100, end + 1, 100)), train_for_seconds=budget)
    (group,) = groups_of(tmp_path, x="hours")
    assert group.summary.num_seeds[-1] == 1


def test_runs_that_overshoot_their_budget_by_different_amounts_have_all_seeds_at_the_end(tmp_path):
    for seed, end in enumerate((1000, 1003, 1004)):
        write_experiment(tmp_path, f"s{seed}", [*line(seed, range(100, 1000, 100)), (end, 10.0 * seed)], seed=seed)
    (group,) = groups_of(tmp_path)
    assert group.x[-1] == 1004.0 and group.summary.num_seeds[-1] == 3 and group.summary.mean[-1] == 10.0


def test_a_run_that_was_moved_aside_is_no_seed_unless_it_is_named(tmp_path, capsys):
    asides = ("first.20250101-120000", "first.20250101-120000.2", "gone.20250101-120000")
    for name in ("first", "second", *asides):
        write_experiment(tmp_path, name, line(1), seed=1)
    table = str(tmp_path / "table.csv")
    assert main([str(tmp_path), table]) == 0
    assert {row["n"] for row in rows_of(table)} == {"3"}, "the third has taken nobody's place"
    assert "without 2 that --restart_behavior=restart moved aside" in capsys.readouterr().err
    assert main([str(tmp_path), str(tmp_path / asides[0]), table]) == 0
    assert {row["n"] for row in rows_of(table)} == {"4"}


def test_other_folders_names_and_budgets_make_no_other_group(tmp_path):
    write_experiment(tmp_path, "one/a", line(1), seed=1, train_dir="here")
    write_experiment(tmp_path, "two/b", line(3), seed=2, train_dir="there", train_for_env_steps=5000)
    (group,) = groups_of(tmp_path / "one", tmp_path / "two" / "b")
    assert (group.num_runs, group.label) == (2, "")
    legend = draw_groups([group], "0_aux/avg_reward", "frames").legends[0]
    assert legend.texts[0].get_text() == "2 seeds" and "95 % interval" in legend.get_title().get_text()


def test_the_legend_explains_no_interval_where_each_group_has_one_seed(tmp_path):
    write_experiment(tmp_path, "a", line(1), seed=1)
    legend = draw_groups(groups_of(tmp_path), "0_aux/avg_reward", "frames").legends[0]
    assert legend.texts[0].get_text() == "1 seed" and legend.get_title().get_text() == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"view": "off"},
        {"debug": True},
        {"config": "other/config.json", "preset": "cartpole"},
        {"device": "cpu"},
        {"callback": "mine:Mine", "with_wandb": True, "wandb_tags": "a"},
        {"eval_every_sec": 60.0, "save_best_metric": "eval_reward", "stop_when": "reward>=475", "check_env": False},
    ],
)
def test_options_that_change_nothing_of_what_is_learned_make_no_other_group(tmp_path, changed):
    write_experiment(tmp_path, "a", line(1), seed=1)
    write_experiment(tmp_path, "b", line(3), seed=2, **changed)
    (group,) = groups_of(tmp_path)
    assert (group.num_runs, group.label) == (2, "")


def test_devices_make_other_groups_only_where_different_ones_were_named(tmp_path):
    for seed, device in enumerate(("auto", "cpu", "gpu")):
        write_experiment(tmp_path, device, line(1), seed=seed, device=device)
    assert [group.label for group in groups_of(tmp_path)] == ["device=auto", "device=cpu", "device=gpu"]


def test_what_is_left_out_of_comparisons_are_options_that_there_are():
    assert {name for name in OF_NO_CONSEQUENCE if name not in _defaults()} == set()


def test_a_budget_that_a_schedule_follows_makes_another_group(tmp_path):
    for name, frames in (("a", 1000), ("b", 5000)):
        write_experiment(tmp_path, name, line(1), lr_schedule="linear_decay", train_for_env_steps=frames)
    assert [group.label for group in groups_of(tmp_path)] == ["train_for_env_steps=1000", "train_for_env_steps=5000"]


def test_of_options_that_differ_those_that_were_typed_are_the_label_unless_others_are_needed(tmp_path):
    write_experiment(tmp_path, "a", line(1))
    write_experiment(tmp_path, "b", line(1), gamma=0.9)
    (tmp_path / "b" / "config.json").write_text(
        (tmp_path / "b" / "config.json").read_text().replace('"learning_rate": 0.001', '"learning_rate": 0.5')
    )
    assert [group.label for group in groups_of(tmp_path)] == ["gamma=0.99", "gamma=0.9"]
    write_experiment(tmp_path, "c", line(1), gamma=0.9)
    labels = [group.label for group in groups_of(tmp_path)]
    assert labels[1:] == ["learning_rate=0.5 gamma=0.9", "learning_rate=0.001 gamma=0.9"]


def test_a_group_is_called_by_what_it_has_typed_itself_unless_others_would_be_called_alike(tmp_path):
    write_experiment(tmp_path, "a", line(1))
    write_experiment(tmp_path, "b", line(1), gamma=0.9)
    write_experiment(tmp_path, "c", line(1), lr_schedule="kl_adaptive_epoch", learning_rate=0.01)
    write_experiment(tmp_path, "d", line(1), gamma=0.99, use_rnn=False)
    write_experiment(tmp_path, "a2", line(1), seed=1, learning_rate=0.001)  # as the others of its group have it
    assert [group.label for group in groups_of(tmp_path)] == [
        "defaults",
        "gamma=0.9",
        "learning_rate=0.01 lr_schedule=kl_adaptive_epoch",
        "gamma=0.99 use_rnn=False",
    ]
    for name, rate in (("e", 0.5), ("f", 0.7)):  # chosen by the environment: nobody has typed it
        path = write_experiment(tmp_path, name, line(1), gamma=0.9) / "config.json"
        path.write_text(path.read_text().replace('"learning_rate": 0.001', f'"learning_rate": {rate}'))
    labels = [group.label for group in groups_of(tmp_path)]
    assert labels[:2] == ["defaults", "learning_rate=0.001 gamma=0.9"]
    assert [group.num_runs for group in groups_of(tmp_path)] == [2, 1, 1, 1, 1, 1]
    assert labels[4:] == ["learning_rate=0.5 gamma=0.9", "learning_rate=0.7 gamma=0.9"]


def test_however_many_and_long_the_labels_are_the_legend_is_within_the_picture(tmp_path):
    names = ("wrap_action_repeat", "wrap_time_limit", "num_envs_per_worker", "self_play_save_every", "batch_size")
    for number in range(40):
        options = dict.fromkeys(names[: number % 6], 1000 + number)
        write_experiment(tmp_path, f"run_{number}", line(1), learning_rate=number / 1000, **options)
    long = json.dumps({"map": "SFFF" * 60, "is_slippery": False, "other": [1] * 20})
    write_experiment(tmp_path, "long", line(1), env_kwargs=long)
    for chosen in ([tmp_path], [tmp_path / "run_0", tmp_path / "long"], [tmp_path / f"run_{6 * n}" for n in range(7)]):
        figure = draw_groups(groups_of(*chosen), "0_aux/avg_reward", "frames")
        figure.draw_without_rendering()
        whole, (legend,) = figure.bbox, figure.legends
        box = legend.get_window_extent()
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1 and whole.y0 <= box.y0 < box.y1 <= whole.y1
        (panel,) = figure.axes
        assert panel.get_window_extent().height > 3.0 * figure.dpi, "there is room for the curves"
        assert box.y1 <= panel.get_window_extent().y0


def test_each_environment_has_a_panel_and_the_same_options_the_same_colour(tmp_path, capsys):
    for env in ("Acrobot-v1", "CartPole-v1", "Pendulum-v1", "synthetic_cue"):
        for rate in RATES[:2]:
            write_experiment(tmp_path, f"{env}_{rate}", line(1), env=env, learning_rate=rate)
    groups = groups_of(tmp_path)
    figure = draw_groups(groups, "0_aux/avg_reward", "frames")
    assert [panel.get_title() for panel in figure.axes] == sorted({group.env for group in groups})
    colours = [[each.get_color() for each in panel.lines] for panel in figure.axes]
    assert all(each == colours[0] for each in colours) and len(set(colours[0])) == 2
    assert [text.get_text() for text in figure.legends[0].texts] == [f"learning_rate={r} (1 seed)" for r in RATES[:2]]
    for number in range(3):
        write_experiment(tmp_path, f"more_{number}", line(1), env=f"more_{number}")
    write_experiment(tmp_path, "empty")  # which is left out of a plot, and told of only where there is one
    capsys.readouterr()
    assert main([str(tmp_path), str(tmp_path / "plot.png")]) == 2
    error = capsys.readouterr().err
    assert "7 environments do not fit into 6 panels; choose with --env=" in error and error.count("\n") == 1
    assert main([str(tmp_path), str(tmp_path / "plot.csv")]) == 0
    assert main([str(tmp_path), str(tmp_path / "plot.png"), "--env=more_*"]) == 0
    assert main([str(tmp_path), str(tmp_path / "few.csv"), "--env=[AC]*-v1"]) == 0
    names = {row["group"].split()[0] for row in rows_of(tmp_path / "few.csv")}
    assert names == {"env=Acrobot-v1", "env=CartPole-v1"}


def test_hours_another_metric_and_smoothing(tmp_path):
    write_experiment(tmp_path, "a", line(1))
    (smooth,) = groups_of(tmp_path, metric="0_aux/avg_len", x="hours", smooth=0.2)
    assert smooth.x[-1] == pytest.approx(1.0)
    # The last 60 of 300 points: 29 of the point at 800 frames, 30 of that at 900, one of the last one.
    assert smooth.summary.iqm[-1] == pytest.approx((29 * 16 + 30 * 18 + 20) / 60, abs=0.1)
    (sharp,) = groups_of(tmp_path, metric="0_aux/avg_len", x="hours")
    assert sharp.summary.iqm[-1] == 20.0


def test_policies_of_a_run_are_averaged_and_are_no_seeds(tmp_path):
    folder = write_experiment(tmp_path, "a", line(1))
    append_points(folder, line(3), policy=1)
    (group,) = groups_of(tmp_path)
    assert group.num_runs == 1 and group.summary.num_seeds[-1] == 1 and group.summary.mean[-1] == 20.0
    assert np.isnan(group.summary.low[-1])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["HERE", "HERE/x.png", "--metric=0_aux/avg_rewrd"], "nearest: 0_aux/avg_reward"),
        (["HERE/nowhere", "HERE/x.png"], "nowhere does not exist"),
        (["HERE/runz", "HERE/x.png"], "nearest: runs"),
        (["HERE/empty", "HERE/x.png"], "holds no experiment"),
        (["HERE", "HERE/x.png", "--env=CartPol"], "no run has --env=CartPol; nearest: CartPole-v1"),
        (["HERE", "HERE/x.docx"], "has to end in .png, .jpg, .pdf, .svg or .csv"),
        (["HERE", "HERE/runs"], "is a folder; the last word is the file to write"),
        (["HERE", "HERE/missing/x.png"], "there is no folder"),
        (["HERE", "HERE/x.png", "--x=miles"], "'frames', 'hours'"),
        (["HERE", "HERE/x.png", "--smooth=3"], "--smooth=0.05"),
        (["HERE", "HERE/x.png", "--metrik=a"], "unrecognized arguments"),
        (["HERE/runs/b", "HERE/x.csv"], "no experiment has a point yet"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line_and_nothing_is_written(tmp_path, capsys, words, reason):
    write_experiment(tmp_path, "runs/a", line(1))
    write_experiment(tmp_path, "runs/b")
    (tmp_path / "runs" / "b" / "metrics.jsonl").touch()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main([word.replace("HERE", str(tmp_path)) for word in words]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_without_points_or_options_are_left_out_and_told(tmp_path, capsys):
    write_experiment(tmp_path, "a", line(1))
    write_experiment(tmp_path, "b")
    (write_experiment(tmp_path, "c", line(2)) / "config.json").write_text("{")
    assert main([str(tmp_path), str(tmp_path / "x.csv")]) == 0
    error = capsys.readouterr().err
    assert "plot: b is left out: " in error and "plot: c is left out: config.json cannot be read" in error
    assert {float(row["mean"]) for row in rows_of(tmp_path / "x.csv")} == set(range(1, 11))
    assert main([str(tmp_path / "c"), str(tmp_path / "x.csv")]) == 2


def test_hours_that_a_crash_has_lost_are_superseded_as_well(tmp_path):
    folder = write_experiment(tmp_path, "a", line(1, (100, 200)))
    lines = [{"policy": 0, "env_frames": 300, "train_seconds": 3600.0, "0_aux/avg_reward": 999.0},
             {"policy": 0, "env_frames": 310, "train_seconds": 1800.0, "0_aux/avg_reward": 7.0}]  # fmt: skip
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)
    (group,) = groups_of(tmp_path, x="hours")
    assert group.x[-1] == 0.5 and group.summary.mean[-1] == 7.0


def test_fifteen_runs_of_a_thousand_points_take_seconds(tmp_path):
    for number in range(15):
        write_experiment(tmp_path, f"r{number}", line(number, range(1, 1001)), gamma=0.9 + number // 5 / 100)
    began = time.process_time()
    assert main([str(tmp_path), str(tmp_path / "x.png")]) == 0
    assert time.process_time() - began < 3.0
