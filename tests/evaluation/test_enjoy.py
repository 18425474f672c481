"""`enjoy_appo.py` as a user meets it: what it prints, what it leaves behind, how it ends."""

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import psutil
import pytest

import enjoy_appo
from appo.algorithms import checkpoints
from appo.algorithms.config import resolve
from appo.algorithms.evaluation.report import EpisodeLines
from appo.algorithms.evaluation.window import Window
from appo.algorithms.messages import EpisodeFinished
from appo.algorithms.train_config import to_json
from appo.envs.families.doom import DoomOptions
from appo.utils.options import ConfigError

ENJOY = Path(enjoy_appo.__file__)
EPISODE = re.compile(r"^episode \d+: return (\S+), true return (\S+), length (\d+) frames$", re.MULTILINE)


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)


def enjoy(*argv):
    return enjoy_appo.main(["enjoy_appo.py", *map(str, argv)])


def refused(capsys, *argv):
    """The one line of a refusal."""
    assert enjoy(*argv) == 2
    printed = capsys.readouterr()
    assert "episode" not in printed.out.replace("max_num_episodes", "")
    assert printed.err.startswith("enjoy_appo.py: error: ") and printed.err.count("\n") == 1
    return printed.err


def episodes_of(text):
    return [tuple(map(float, found)) for found in EPISODE.findall(text)]


def test_the_command_plays_as_many_episodes_as_asked_and_ends_with_a_table(experiment, tmp_path):
    place, folder = experiment("CartPole-v1")
    command = [sys.executable, ENJOY, *place, "--no_render", "--max_num_episodes=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    episodes = episodes_of(done.stdout)
    assert len(episodes) == 3
    assert all(episode_return == true_return == length > 5 for episode_return, true_return, length in episodes)
    for word in ("mean", "std", "std error", "min", "max", "episodes", "return", "true return", "frames"):
        assert word in done.stdout
    mean = sum(episode[0] for episode in episodes) / 3
    assert f"{mean:.3f}" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint_p0", "config.json", "evaluation"]


def test_of_many_episodes_a_line_is_printed_now_and_then(experiment, capsys):
    place, folder = experiment("CartPole-v1")
    for number, told in ((20, [*range(1, 21)]), (21, [*range(3, 22, 3)]), (40, [*range(4, 41, 4)])):
        assert enjoy(*place, "--no_render", f"--max_num_episodes={number}") == 0
        printed = capsys.readouterr().out
        assert [int(line) for line in re.findall(r"^episode (\d+): ", printed, re.MULTILINE)] == told
        assert len((folder / "evaluation" / "policy0_step12.csv").read_text().splitlines()) == number + 1


def test_lines_of_matches_that_are_told_are_those_of_all_their_agents(capsys):
    lines = EpisodeLines(2, 50)
    for _match in range(50):
        for agent in (0, 1):
            lines(agent, EpisodeFinished(0, 1.0, math.nan, 4, {}))
    told = re.findall(r"^episode (\d+), agent (\d):", capsys.readouterr().out, re.MULTILINE)
    assert told == [(str(10 * match + agent - 1), str(agent)) for match in range(1, 11) for agent in (0, 1)]


def test_the_first_ctrl_c_ends_with_the_table_and_a_complete_video(experiment):
    place, folder = experiment("CartPole-v1")
    command = [sys.executable, ENJOY, *place, "--save_video", "--max_num_episodes=-1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the group
        rest, complaints = process.communicate(timeout=60)
    assert process.returncode == 130 and complaints == ""
    assert "playing until Ctrl+C" in lines[1]
    assert "std error" in rest
    found = re.search(r"\((\d+) images\)", rest)
    assert found is not None
    told = int(found[1])
    images, _ = imageio_ffmpeg.count_frames_and_secs(str(next((folder / "videos").iterdir())))
    assert images == told > sum(length for _, _, length in episodes_of("".join(lines)))


@pytest.mark.parametrize("typed", [[], ["--no_render"], ["--save_video"], ["--no_render", "--eval_num_envs=2"]])
def test_where_nobody_watches_it_ends_after_some_episodes_by_itself(experiment, capsys, typed):
    place, _ = experiment("synthetic_identity" if "--save_video" not in typed else "CartPole-v1")
    assert enjoy(*place, *typed) == 0
    printed = capsys.readouterr().out
    assert len(episodes_of(printed)) == 20
    assert "playing 20 episodes, as there is no window; --max_num_episodes=-1 plays until Ctrl+C" in printed


def test_frames_that_are_limited_are_not_limited_by_episodes_too(experiment, capsys):
    place, _ = experiment("synthetic_identity")
    assert enjoy(*place, "--no_render", "--max_num_frames=500") == 0
    assert len(episodes_of(capsys.readouterr().out)) == 25  # of 20 frames


@pytest.mark.parametrize("typed", [["--max_num_episodes=-1"], ["--max-num-episodes", "-1"]])
def test_without_a_window_it_plays_until_ctrl_c_where_that_is_typed(experiment, typed):
    job = enjoy_appo.job_of([*experiment("CartPole-v1")[0], "--no_render", *typed])
    assert job.episodes is None and not job.ends_unwatched


def test_a_limit_in_a_file_counts_as_typed(experiment, tmp_path):
    (tmp_path / "plan.toml").write_text("max_num_episodes = -1\n")
    place = [*experiment("CartPole-v1")[0], "--no_render"]
    assert enjoy_appo.job_of(place).ends_unwatched
    assert not enjoy_appo.job_of([*place, f"--config={tmp_path / 'plan.toml'}"]).ends_unwatched


def test_a_seed_repeats_its_episodes_and_another_plays_others(experiment, capsys):
    place, _ = experiment("CartPole-v1")

    def played(*argv):
        assert enjoy(*place, "--no_render", "--max_num_episodes=4", *argv) == 0
        return episodes_of(capsys.readouterr().out)

    assert played() == played() != played("--seed=4")
    assert played("--eval_deterministic") == played("--eval_deterministic") != played()


def test_a_recurrent_policy_of_a_best_checkpoint_is_scored_with_its_statistics(experiment, capsys):
    place, _ = experiment("synthetic_identity", "--use_rnn=True", train_step=4, kind="best", weights=1)
    experiment("synthetic_identity", "--use_rnn=True", train_step=5)
    best = [*place, "--no_render", "--max_num_episodes=10", "--load_checkpoint_kind=best"]
    assert enjoy(*best) == 0
    out = capsys.readouterr().out
    assert "after 4 training steps" in out and "best_" in out
    lengths = [length for _, _, length in episodes_of(out)]
    assert lengths == [20.0] * 10
    assert re.search(r"right +│ +0\.\d{3}", out)
    assert enjoy(*best[:-1]) == 0
    assert "after 5 training steps" in capsys.readouterr().out


def test_frames_can_be_limited_instead_of_episodes(experiment, capsys):
    place, _ = experiment("synthetic_identity")
    assert enjoy(*place, "--no_render", "--max_num_frames=50") == 0
    assert len(episodes_of(capsys.readouterr().out)) == 2  # of 20 frames
    assert enjoy(*place, "--no_render", "--max_num_frames=10") == 0
    assert "no episode ended: 10 frames" in capsys.readouterr().out


def test_a_video_holds_every_step_and_its_path_is_printed(experiment, capsys, caplog):
    place, folder = experiment("CartPole-v1")
    assert enjoy(*place, "--save_video", "--max_num_episodes=2", "--fps=25") == 0
    out = capsys.readouterr().out
    path = folder / "videos" / "CartPole-v1_policy0_step12.mp4"
    assert f"video: {path}" in out
    images, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert images == sum(length for _, _, length in episodes_of(out)) + 2  # the first image of each as well
    assert seconds == pytest.approx(images / 25, abs=0.05)
    assert not caplog.records


def test_an_environment_that_cannot_be_closed_was_played_all_the_same(experiment, capsys, caplog, monkeypatch):
    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.close", lambda self: 1 / 0)
    place, _ = experiment("CartPole-v1")
    assert enjoy(*place, "--max_num_episodes=2", "--no_render") == 0
    assert len(episodes_of(capsys.readouterr().out)) == 2 and "failed in close: ZeroDivisionError" in caplog.text


def test_without_a_display_one_warning_says_what_to_do_and_the_policy_is_scored(experiment, capsys, caplog):
    place, _ = experiment("CartPole-v1")
    assert enjoy(*place, "--max_num_episodes=2") == 0
    assert len(episodes_of(capsys.readouterr().out)) == 2
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    for word in ("no display", "--save_video", "--no_render"):
        assert word in warnings[0].getMessage()


def test_with_a_display_every_step_is_shown_at_the_pace_asked_for(experiment, capsys, caplog, monkeypatch):
    shown = []
    show = Window.show

    def note_and_show(self, image):
        shown.append(self.frames_per_second)
        show(self, image)

    monkeypatch.setattr(Window, "show", note_and_show)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    place, _ = experiment("CartPole-v1")
    assert enjoy(*place, "--max_num_episodes=2", "--fps=5000") == 0
    lengths = [length for _, _, length in episodes_of(capsys.readouterr().out)]
    assert len(lengths) == 2 and len(shown) == sum(lengths) + 2
    assert set(shown) == {5000.0} and not caplog.records


def test_closing_the_window_ends_the_evaluation(experiment, capsys, monkeypatch):
    def close(window, image):
        window.is_closed = True

    monkeypatch.setattr(Window, "show", close)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    place, _ = experiment("CartPole-v1")
    assert enjoy(*place) == 0
    assert "no episode ended: 0 frames" in capsys.readouterr().out


def test_atari_is_scored_by_whole_games_unless_lives_are_asked_for(experiment):
    place, folder = experiment("CartPole-v1")
    place[0] = "--env=atari_breakout"
    config = resolve([*place, "--restart_behavior=restart"]).config
    assert config.family.atari_episodic_life
    (folder / "config.json").write_text(to_json(config))
    assert not enjoy_appo.job_of(place).family_options.atari_episodic_life
    assert enjoy_appo.job_of([*place, "--atari_episodic_life=True"]).family_options.atari_episodic_life
    assert enjoy_appo.job_of([*place, "--atari-episodic-life"]).family_options.atari_episodic_life
    (folder / "score.toml").write_text("atari_episodic_life = true")
    assert enjoy_appo.job_of([*place, f"--config={folder / 'score.toml'}"]).family_options.atari_episodic_life


def test_help_lists_the_options_of_watching(capsys):
    with pytest.raises(SystemExit) as ended:
        enjoy("--help")
    assert ended.value.code == 0
    assert "--max_num_episodes" in capsys.readouterr().out


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&- <&-"])
def test_an_output_that_takes_nothing_ends_no_evaluation_and_warnings_carry_their_level(experiment, redirection):
    place, _ = experiment("CartPole-v1")
    command = ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, str(ENJOY), *place]
    done = subprocess.run([*command, "--max_num_episodes=1"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: no window: .*\n", done.stderr)


def test_an_unknown_experiment_is_refused_with_its_neighbours(experiment, capsys, tmp_path):
    experiment("CartPole-v1", name="trained")
    told = refused(capsys, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=other")
    assert "there is no experiment" in told and "trained" in told


def test_of_many_neighbours_the_nearest_is_told_and_how_many_are_left_out(experiment, capsys, tmp_path):
    for number in range(7):
        experiment("CartPole-v1", name=f"run_{number}")
    experiment("CartPole-v1", name="zebra")
    told = refused(capsys, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=zebr")
    assert f"; did you mean zebra? {tmp_path} holds run_0, run_1, run_2, run_3, run_4 and 3 more" in told


def test_another_environment_than_trained_is_refused(experiment, capsys):
    place, _ = experiment("CartPole-v1")
    assert "CartPole-v1" in refused(capsys, "--env=Acrobot-v1", *place[1:])


def test_another_network_than_trained_is_refused(experiment, capsys):
    place, _ = experiment("CartPole-v1")
    told = refused(capsys, *place, "--no_render", "--mlp_layers=16")
    assert "another network" in told and "size mismatch" in told


@pytest.mark.parametrize(
    "word, told",
    [
        ("--fps=1e-9", "fps=1e-09 is slower than an image every ten seconds; nearest: 0.1"),
        ("--fps=inf", "fps='inf'; expected a finite number"),
        ("--fps=1e9", "fps=1000000000.0; allowed: "),
        ("fps=5", "holds 'fps=5'; did you mean --fps=5?"),
        ("--train_dir=~nobody_of_this_name", "there is no home folder of that user"),
    ],
)
def test_what_cannot_be_shown_is_refused(experiment, capsys, word, told):
    place, _ = experiment("CartPole-v1")
    assert told in refused(capsys, *place, word)


def test_the_slowest_and_the_fastest_pace_give_a_video(experiment, capsys):
    place, folder = experiment("CartPole-v1")
    for fps in ("0.1", "10000"):
        assert enjoy(*place, "--save_video", "--max_num_frames=3", f"--fps={fps}") == 0, capsys.readouterr().err
    assert len(list((folder / "videos").iterdir())) == 2


def test_a_policy_that_does_not_exist_is_refused(experiment, capsys):
    place, _ = experiment("CartPole-v1")
    assert "policy_index=1" in refused(capsys, *place, "--policy_index=1")


def test_an_experiment_without_a_checkpoint_is_refused(experiment, capsys):
    place, folder = experiment("CartPole-v1")
    next((folder / "checkpoint_p0").iterdir()).unlink()
    assert "no checkpoint in" in refused(capsys, *place, "--no_render")


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_refused_when_it_is_the_last(experiment, capsys, caplog):
    experiment("CartPole-v1", train_step=11)
    place, folder = experiment("CartPole-v1", train_step=12)
    older, newer = sorted((folder / "checkpoint_p0").iterdir())
    newer.write_bytes(newer.read_bytes()[:-200])
    assert enjoy(*place, "--no_render", "--max_num_episodes=1") == 0
    assert "after 11 training steps" in capsys.readouterr().out
    assert [newer.name in record.getMessage() for record in caplog.records] == [True]
    older.write_bytes(b"")
    assert "can be used" in refused(capsys, *place, "--no_render")


def test_a_checkpoint_without_a_network_is_refused(experiment, capsys):
    place, folder = experiment("CartPole-v1")
    checkpoints.save(folder / "checkpoint_p0", "latest", 13, 99, {"something": "else"})
    assert "holds no network" in refused(capsys, *place, "--no_render")


@pytest.mark.parametrize("is_named", [True, False])
def test_what_cannot_be_read_is_refused_with_its_path_and_without_the_advice_to_train_anew(
    experiment, capsys, is_named
):
    place, folder = experiment("CartPole-v1")
    words = [*place[0 if is_named else 1 :], "--no_render"]
    config = folder / "config.json"
    whole = config.read_text()
    for text, told in (("{", "is not JSON"), ("[]", "holds no {"), (whole.replace("CartPole", "Pole"), "CartPole-v1")):
        config.write_text(text)
        error = refused(capsys, *words)
        assert told in error and "restart_behavior" not in error
        assert str(config) in error or "experiment 'first' was trained with" in error or "Pole-v1" in error
    config.write_text(whole.replace('"gamma": 0.99', '"gamma": 7'))
    error = refused(capsys, *words)
    assert f"{config} sets gamma=7" in error and "restart_behavior" not in error
    config.unlink()
    assert "restart_behavior" not in refused(capsys, *words)
    config.write_text(whole)
    for file in (folder / "checkpoint_p0").iterdir():
        file.write_bytes(b"")
    error = refused(capsys, *words)
    assert "Nothing was changed; put back a copy\n" in error


@pytest.mark.parametrize("word", ["first", "HERE/first", "fps=5", "nothing"])
@pytest.mark.parametrize("has_experiment", [True, False])
@pytest.mark.parametrize("before", [[], ["--no_render"], ["--max_num_episodes", "3"]])
def test_a_word_of_no_option_is_refused_with_the_experiment_that_it_names(
    experiment, capsys, tmp_path, monkeypatch, word, has_experiment, before
):
    experiment("CartPole-v1", name="first")
    (tmp_path / "train_dir").mkdir()
    (tmp_path / "first").rename(tmp_path / "train_dir" / "first")
    if has_experiment:
        experiment("CartPole-v1", name="default_experiment")
        (tmp_path / "default_experiment").rename(tmp_path / "train_dir" / "default_experiment")
    monkeypatch.chdir(tmp_path)
    told = {
        "first": "'first', which belongs to no option; did you mean --experiment=first?",
        "HERE/first": "train_dir/first', which belongs to no option; did you mean --experiment=first?",
        "fps=5": "'fps=5'; did you mean --fps=5?",
        "nothing": "'nothing', which belongs to no option; options are typed --name=value",
    }[word]
    assert told in refused(capsys, *before, word.replace("HERE", "train_dir"))
    if word == "first":
        (tmp_path / "train_dir").rename(tmp_path / "other dir")
        assert told in refused(capsys, *before, word, "--train_dir=other dir")
        told = "did you mean '--train_dir=other dir' --experiment=first?"
        assert told in refused(capsys, *before, "other dir/first")


def test_values_behind_their_flags_are_no_words_of_no_option(experiment, capsys):
    place, _ = experiment("CartPole-v1")
    words = [part for word in place for part in word.split("=")]
    assert enjoy(*words, "--no_render", "True", "--max_num_episodes", "1", "--eval_deterministic") == 0
    assert len(episodes_of(capsys.readouterr().out)) == 1


def test_an_environment_that_draws_nothing_cannot_be_watched(experiment, capsys):
    place, _ = experiment("synthetic_identity")
    assert "draws no images" in refused(capsys, *place, "--save_video")


def test_an_action_cannot_be_held_for_a_part_of_a_step(experiment, capsys):
    place, _ = experiment("CartPole-v1")
    job = enjoy_appo.job_of([*place, "--render_action_repeat=6"])
    job.check()
    job._replace(family_options=DoomOptions(env_frameskip=3)).check()
    with pytest.raises(ConfigError, match="nearest: 8, or --env_frameskip=1"):
        job._replace(family_options=DoomOptions(env_frameskip=4)).check()
    with pytest.raises(ConfigError, match="nearest: 8, or --wrap_action_repeat=1"):
        enjoy_appo.job_of([*place, "--render_action_repeat=6", "--wrap_action_repeat=4"]).check()


def test_environments_that_always_fail_end_with_their_error(experiment, capsys, caplog):
    place, _ = experiment("synthetic_crashing")
    assert enjoy(*place, "--no_render", "--synthetic_fault_step=3") == 1
    told = (
        "enjoy_appo.py: error: environments fail too often to be scored: 1\\d\\d episodes were lost, and 0 played.+\n"
    )
    assert re.fullmatch(told, capsys.readouterr().err)
    assert "environment 0 of synthetic_crashing" in caplog.text and "failed in step: RuntimeError" in caplog.text


@pytest.mark.parametrize("more", [[], ["--eval_num_envs=2"]])
def test_an_environment_that_fails_now_and_then_is_scored_without_the_episodes_that_were_lost(experiment, more):
    place, folder = experiment("synthetic_unreliable_cartpole")
    words = [*place, "--no_render", "--max_num_episodes=60", "--synthetic_fault_probability=0.01", *more]
    done = subprocess.run([sys.executable, ENJOY, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "evaluation" / "policy0_step12.json").read_text())
    assert told["episodes"] == 60 and told["complete"]
    assert told["aborted"] >= 2 and "episodes were lost with their environment and played again" in done.stdout


def test_an_environment_that_changes_the_directory_moves_no_results(experiment, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wide.py").write_text(
        "from torch import nn\n"
        "class Encoder(nn.Module):\n"
        "    kind, minimum_size = 'vector', 1\n"
        "    def __init__(self, leaf, config):\n"
        "        super().__init__()\n"
        "        self.layer, self.output_size = nn.Linear(leaf.shape[0], 8), 8\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n"
    )
    (tmp_path / "moving.py").write_text(
        "import os, gymnasium\n"
        "def make_env():\n"
        "    env = gymnasium.make('CartPole-v1')\n"
        f"    os.chdir({str(tmp_path / 'elsewhere')!r})\n"
        "    return env\n"
    )
    words = ["--env=moving:make_env", "--experiment=first"]
    trained = [*words, "--encoder=wide", "--train_for_env_steps=3000", "--num_workers=1", "--device=cpu"]
    environment = os.environ | {"PYTHONPATH": str(ENJOY.parent / "src")}
    for program, more in ((ENJOY.with_name("train_appo.py"), trained), (ENJOY, [*words, "--no_render"])):
        done = subprocess.run(
            [sys.executable, program, *more], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "train_dir" / "first" / "evaluation").glob("*.json"))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_results_that_cannot_be_written_are_told_of_and_the_rest_is_played(experiment, capsys):
    place, folder = experiment("CartPole-v1")
    (folder / "evaluation").write_text("in the way")
    assert enjoy(*place, "--no_render", "--max_num_episodes=2") == 0
    assert "results: not saved; [Errno " in capsys.readouterr().out


def test_one_policy_cannot_be_asked_for_where_each_plays_its_own_agents(experiment, capsys):
    place, _ = experiment("synthetic_multi", "--num_policies=2", "--agent_policy_map=agent_0:0,agent_*:1")
    told = refused(capsys, *place, "--no_render", "--policy_index=1")
    assert "policy_index=1 plays one policy, and agent_policy_map=" in told


def test_nothing_of_the_evaluation_stays_behind_in_the_process(experiment):
    def state():
        return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), psutil.Process().num_fds()

    place, _ = experiment("CartPole-v1")
    before = state()
    assert enjoy(*place, "--save_video", "--max_num_episodes=1") == 0
    assert state() == before


def test_many_environments_score_in_processes_exactly_and_the_results_are_files(experiment, capsys):
    place, folder = experiment("CartPole-v1")
    scores = {}
    for workers in (0, 2):
        many = ["--eval_num_envs=3", f"--eval_num_workers={workers}"]
        assert enjoy(*place, "--no_render", "--max_num_episodes=7", *many) == 0
        scores[workers] = episodes_of(capsys.readouterr().out)
        assert len(scores[workers]) == 7
    assert scores[0] == scores[2], "the same episodes in processes and without"
    told = json.loads((folder / "evaluation" / "policy0_step12.json").read_text())
    mean = sum(episode[0] for episode in scores[2]) / 7
    assert told["complete"] and told["num_envs"] == 3 and told["seed"] == 3 and not told["deterministic"]
    assert told["checkpoints"] == {"policy_0": str(next((folder / "checkpoint_p0").iterdir()))}
    assert told["episodes"] == 7 and told["summary"]["return"]["mean"] == pytest.approx(mean)
    rows = (folder / "evaluation" / "policy0_step12.csv").read_text().splitlines()
    assert len(rows) == 8 and rows[0] == "episode,environment,agent,return,true_return,length"
    assert sorted(row.split(",")[1] for row in rows[1:]) == ["0", "0", "0", "1", "1", "2", "2"], "each its share"


def test_results_that_are_not_complete_say_so_and_replace_no_complete_ones(experiment, capsys):
    place, folder = experiment("CartPole-v1")
    file = folder / "evaluation" / "policy0_step12.json"
    score = [*place, "--no_render", "--eval_deterministic"]
    cut = [*score, "--max_num_episodes=400", "--max_num_frames=500"]
    assert enjoy(*cut) == 0
    assert "stopped early: short episodes are over-represented" in capsys.readouterr().out
    assert not json.loads(file.read_text())["complete"]
    assert enjoy(*score, "--max_num_episodes=3") == 0
    assert "stopped early" not in capsys.readouterr().out
    kept = file.read_text(), file.with_suffix(".csv").read_text()
    assert json.loads(kept[0])["complete"] and json.loads(kept[0])["deterministic"]
    assert enjoy(*cut) == 0
    assert f"not saved; {file} is complete" in capsys.readouterr().out
    assert kept == (file.read_text(), file.with_suffix(".csv").read_text())
    assert enjoy(*score, "--max_num_episodes=2") == 0
    assert f"not saved; {file} has 3 episodes, these are 2; delete it to keep these" in capsys.readouterr().out
    assert kept == (file.read_text(), file.with_suffix(".csv").read_text())
    assert enjoy(*score, "--max_num_episodes=4") == 0
    assert json.loads(file.read_text())["episodes"] == 4


def test_every_policy_of_a_population_is_scored(experiment, capsys):
    place, folder = experiment("CartPole-v1", "--num_policies=2")
    found = checkpoints.load_newest_valid(folder / "checkpoint_p0")
    assert found is not None
    checkpoints.save(folder / "checkpoint_p1", "latest", 30, 99, found.payload)
    assert enjoy(*place, "--no_render", "--max_num_episodes=2", "--policy_index=-1") == 0
    assert len(episodes_of(capsys.readouterr().out)) == 4
    assert "of 2 policies" not in capsys.readouterr().out
    names = sorted(path.name for path in (folder / "evaluation").glob("*.json"))
    assert names == ["policy0_step12.json", "policy1_step30.json"]


def test_which_of_several_policies_plays_is_told_unless_it_was_typed(experiment, capsys, tmp_path):
    place, folder = experiment("CartPole-v1", "--num_policies=2")
    found = checkpoints.load_newest_valid(folder / "checkpoint_p0")
    assert found is not None
    score = [*place, "--no_render", "--max_num_episodes=1"]

    def told(*words):
        assert enjoy(*score, *words) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "of 2 policies" in line]

    assert told() == [
        "policy 0 of 2 policies plays; --policy_index=-1 plays each in turn"
    ]  # the other has no checkpoint
    for policy, returns in ((0, [30.0, 34.0]), (1, [213.0, 214.0])):
        payload = found.payload | {"run_state": {"env_frames": 99, "episodes": {"returns": returns}}}
        checkpoints.save(folder / f"checkpoint_p{policy}", "latest", 30, 99, payload)
    assert told() == [
        "policy 0 of 2 policies plays; their newest returns in training are 32, 213.5; --policy_index=1 plays the "
        "best, --policy_index=-1 each in turn"
    ]
    assert told("--policy_index=1") == [] and told("--policy_index=0") == []
    (tmp_path / "plan.toml").write_text("policy_index = 0\n")
    assert told(f"--config={tmp_path / 'plan.toml'}") == []
    payload = found.payload | {"run_state": {"env_frames": 99, "episodes": {"returns": [300.0]}}}
    checkpoints.save(folder / "checkpoint_p0", "latest", 31, 99, payload)
    assert told() == [
        "policy 0 of 2 policies plays, the best by their newest returns in training, 300, 213.5; --policy_index=-1 "
        "plays each in turn"
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--eval_num_envs=0"], "eval_num_envs=0 leaves nothing to score with"),
        (["--eval_num_envs=2", "--tournament"], "eval_num_envs is not for --tournament=True"),
        (["--eval_num_envs=2"], "eval_num_envs=2 scores without a window; add --no_render\n"),
        (["--eval_num_envs=2", "--save_video", "--no_render"], "add --no_render instead of --save_video\n"),
        (["--eval_num_workers=2", "--no_render"], "number is typed; add --eval_num_envs=2\n"),
        (["--eval_num_workers=2", "--tournament"], "number is typed; leave it out\n"),
    ],
)
def test_environments_that_cannot_score_are_refused(experiment, capsys, words, told):
    place, _ = experiment("CartPole-v1")
    assert told in refused(capsys, *place, *words)
