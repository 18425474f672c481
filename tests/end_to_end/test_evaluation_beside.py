"""Evaluation while training goes on: what it tells, that it dies without harm, and the best checkpoint by it."""

from __future__ import annotations

import contextlib
import signal
import warnings

import imageio.v2 as imageio
import psutil
import pytest

from appo.algorithms.evaluation.episode_video import MAX_HEIGHT, MAX_IMAGES
from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import PLAIN_ENV, SMALL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that TensorBoard's reader loads
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EVALUATED = ("--eval_every_sec=0.5", "--eval_episodes=4", "--use_rnn=False")


def evaluations(run):
    path = run.folder / "metrics.jsonl"
    points = list(read_json_lines(path)) if path.exists() else []
    return [point for point in points if "eval/reward" in point]


def test_each_evaluation_is_told_once_and_the_best_checkpoint_is_picked_by_it(start):
    best = ["--save_best_metric=eval_reward", "--save_best_after=5000", "--save_best_every_sec=0.5"]
    run = start(*SMALL, *EVALUATED, *best, "--train_for_env_steps=150000")
    assert run.end() == 0, run.output
    points = evaluations(run)
    versions = [point["eval/policy_version"] for point in points]
    assert len(points) >= 2 and versions == sorted(set(versions)), "each with newer weights than the one before"
    for point in points:
        assert point["eval/episodes"] == 4 and point["eval/reward"] == point["eval/len"] == point["eval/true_reward"]
        assert point["eval/reward_min"] <= point["eval/reward"] <= point["eval/reward_max"]
    assert points[-1]["eval/reward"] > 2 * 20, "it learns; a random policy reaches about 20"
    assert 0 < points[-1]["stats/evaluation_play"] <= 1
    names = [path.name for path in (run.folder / "checkpoint_p0").glob("best_*eval_reward*")]
    assert names and max(float(name.rpartition("_")[2].removesuffix(".pth")) for name in names) > 40


def test_an_evaluation_that_dies_is_replaced_and_one_that_cannot_live_is_left_out(start):
    run = start(*SMALL, *EVALUATED, "--max_failures_in_a_row=2", "--train_for_env_steps=1e9")
    run.wait_for(lambda: evaluations(run))
    before = len(evaluations(run))
    run.kill("evaluation")
    run.wait_for(lambda: len(evaluations(run)) > before)
    run.wait_for(lambda: kill_evaluation(run) or is_left_out(run))
    assert is_left_out(run)
    frames = run.status()["env_frames"]
    run.wait_for(lambda: run.status()["env_frames"] > frames + 5000)
    assert run.status()["faults"]["quarantined_actors"] == 0
    run.signal(signal.SIGINT)
    assert run.end() == 130, run.output


def kill_evaluation(run):
    """Kill it as soon as it is there, so that it never comes to work."""
    if (process := run.tree().get("evaluation")) is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def is_left_out(run):
    events = read_json_lines(run.folder / "events.jsonl")
    return any(event["event"] == "quarantined" and event["worker"] == "evaluation" for event in events)


@pytest.mark.parametrize("policies", [2])
@pytest.mark.slow
def test_each_policy_of_a_population_is_scored(start, policies):
    options = [*EVALUATED, f"--num_policies={policies}", "--train_for_env_steps=60000"]
    run = start(*SMALL, *options)
    assert run.end() == 0, run.output
    assert {point["policy"] for point in evaluations(run)} == set(range(policies))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--eval_every_sec=1", "--serial_mode=True"], "eval_every_sec=1 cannot be; nearest: 0"),
        (["--save_best_metric=eval_reward"], "needs evaluations beside training"),
        (["--eval_video_every_sec=9"], "records evaluations, and there are none; add --eval_every_sec=9"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(start, options, why):
    run = start(*SMALL, *options)
    assert run.end() == 2
    assert why in run.output and not run.folder.exists()


def test_an_episode_is_recorded_for_tensorboard(start):
    run = start(*SMALL, *EVALUATED, "--eval_video_every_sec=0.5")
    run.wait_for(lambda: list((run.folder / "videos").glob("eval_policy0_step*.gif")) and len(evaluations(run)) > 1)
    run.signal(signal.SIGINT)
    assert run.end() == 130, run.output
    files = sorted((run.folder / "videos").glob("eval_policy0_step*.gif"))
    images = imageio.mimread(files[0], memtest=False)
    assert 2 <= len(images) <= MAX_IMAGES and images[0].shape[0] == MAX_HEIGHT
    events = EventAccumulator(str(run.folder / ".summary" / "0"), size_guidance={"images": 0}).Reload()
    shown = events.Images("eval/video")
    assert files[0].read_bytes() in [image.encoded_image_string for image in shown]
    assert (shown[0].width, shown[0].height) == (images[0].shape[1], images[0].shape[0])


def test_what_draws_nothing_cannot_be_recorded(start, tmp_path):
    (tmp_path / "undrawn.py").write_text(PLAIN_ENV)
    run = start(*SMALL, *EVALUATED, "--eval_video_every_sec=9", env="undrawn:Base")
    assert run.end() == 2 and "--env=undrawn:Base draws no images" in run.output, run.output
    assert "; leave out --eval_video_every_sec" in run.output and not run.folder.exists()
