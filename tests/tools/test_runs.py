"""Runs as they are listed, compared, saved and stopped: from files with chosen numbers, and one that really trains."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appo.algorithms.run import folder_lock
from appo.tools import runs
from appo.tools.experiments import find_experiments
from appo.tools.run_status import DIED, ENDED, STARTING, TRAINING, duration, status_of
from tests.architecture.source_tree import ROOT
from tests.tools.experiment_files import write_experiment, write_status

HEADS = ["name", "env", "state", "frames", "fps", "last", "best", "age", "options"]


@pytest.fixture
def train_dir(tmp_path):
    """One that has ended, one that died, and one of another environment that was never trained."""
    good = write_experiment(tmp_path, "good", [(500, 9.0), (1000, 7.0)], learning_rate=0.01, seed=1, gamma=0.9)
    write_status(good, state="ended", at=time.time() - 400, reason="reached train_for_env_steps=1000", frames=36_000,
                 returns=(7.0, None))  # fmt: skip
    dead = write_experiment(tmp_path, "group/dead", [(500, 20.5)], seed=2, gamma=0.9, env="Acrobot-v1")
    write_status(dead, at=time.time() - 7300, frames=72_000, returns=(3.0,))
    (dead / ".lock").write_text(f"process {os.getpid()} on elsewhere")  # but nobody holds it
    (tmp_path / "new").mkdir()
    started = "today  train_appo.py --env=x\nnow  train_appo.py --env=Acrobot-v1\n"
    (tmp_path / "new" / "command_lines.txt").write_text(started)
    (tmp_path / "notes").mkdir()
    return tmp_path


def looked_at(folder):
    (experiment,) = find_experiments([folder])
    return status_of(experiment)


def listed(capsys, *words):
    assert runs.main([str(word) for word in words]) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_are_listed_with_their_state_and_numbers(train_dir, capsys):
    assert runs.main([str(train_dir)]) == 0
    lines = [[cell for cell in line.split("  ") if cell] for line in capsys.readouterr().out.splitlines()]
    assert [cell.strip() for cell in lines[0]] == HEADS
    good, dead, new = ([cell.strip() for cell in line] for line in lines[1:])
    reached = "ended: reached train_for_env_steps=1000"
    assert good == ["good", "CartPole-v1", reached, "36,000", "5", "7", "9", "6 min", "learning_rate=0.01"]
    assert dead[:2] == ["group/dead", "Acrobot-v1"]
    assert dead[2] == "died: its process is gone and has saved nothing more; the same command goes on"
    assert dead[3:] == ["72,000", "10", "3", "20.5", "2 h"]  # nobody has typed its learning rate
    assert new[:3] == ["new", "Acrobot-v1", "ended: its last start did not come to training; see log/driver.txt"]
    assert new[3:7] == ["0", "-", "-", "-"]


def test_of_a_long_reason_its_beginning_and_its_end_are_listed(tmp_path, capsys):
    failed = write_experiment(tmp_path, "failed", [(500, 9.0)])
    reason = "learner-0 failed, 4 times in a row soon after its start, " + "and so on " * 20 + "KeyError: 'x'"
    write_status(failed, state="ended", at=time.time(), reason=reason, frames=500, returns=(9.0,))
    assert runs.main([str(tmp_path)]) == 0
    (row,) = capsys.readouterr().out.splitlines()[1:]
    assert len(row) < 160 and "ended: learner-0 failed, 4 times" in row and " so on KeyError: 'x'  " in row
    assert listed(capsys, tmp_path, "--json")[0]["reason"] == reason


def test_who_holds_the_lock_trains_whatever_the_files_say(train_dir):
    folder = train_dir / "group" / "dead"
    assert looked_at(folder).state == DIED
    lock = folder_lock.take(folder)
    try:
        assert looked_at(folder).state == STARTING  # status.json is older than this start
        write_status(folder, at=time.time() + 1.0, frames=80_000, returns=(4.0,))
        now = looked_at(folder)
        assert (now.state, now.reason, now.fps) == (TRAINING, "", 80.0)
        assert now.holder is not None and now.holder.pid == os.getpid() and now.holder.is_here
        long_ago = time.time() - 1000
        os.utime(folder / ".lock", (long_ago, long_ago))
        write_status(folder, at=time.time() - 700)
        assert looked_at(folder).told_state == "training: no sign of life for 11 min"
        write_status(folder, state="ended", at=time.time() + 1.0, reason="stopped by SIGINT")  # it lets go of it last
        assert looked_at(folder).told_state == "ended: stopped by SIGINT"
        (folder / "summary.json").unlink()
        write_status(folder)
    finally:
        os.close(lock)
    assert looked_at(folder).state == DIED


def test_asking_who_holds_a_lock_keeps_nobody_from_taking_it(tmp_path):
    os.close(folder_lock.take(tmp_path))
    asking = "import sys, pathlib; from appo.algorithms.run import folder_lock\n" + (
        "while True: folder_lock.holder(pathlib.Path(sys.argv[1]))"
    )
    other = subprocess.Popen([sys.executable, "-c", asking, str(tmp_path)], cwd=ROOT)
    try:
        time.sleep(0.5)
        for _ in range(200):
            os.close(folder_lock.take(tmp_path))
    finally:
        other.kill()
        other.wait()


def test_one_environment_in_another_order_for_a_program(train_dir, capsys):
    by_best = listed(capsys, train_dir, "--sort=best", "--json")
    assert [run["name"] for run in by_best] == ["group/dead", "good", "new"]
    assert [run["name"] for run in listed(capsys, train_dir, "--sort=age", "--json")] == ["new", "good", "group/dead"]
    assert by_best[2]["best_return"] is None and by_best[2]["fps"] is None
    assert by_best[1]["options"] == {"learning_rate": 0.01} and by_best[1]["state"] == ENDED
    assert [run["name"] for run in listed(capsys, train_dir, "--env=Cart*", "--json")] == ["good"]


def test_two_runs_are_compared_by_what_differs_and_how_they_ended(train_dir, capsys):
    assert runs.main([str(train_dir), "--compare", "good", "group/dead"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[:4] == [
        ["good", "group/dead"],
        ["seed", "1", "2"],
        ["env", "CartPole-v1", "Acrobot-v1"],
        ["learning_rate", "0.01", "0.001"],
    ]
    assert ["frames", "36,000", "72,000"] in rows and rows[-1] == ["best", "return", "9", "20.5"]
    compared = listed(capsys, train_dir, "--compare", "good", "group/dead", "--json")
    assert compared[0]["options"] == {"experiment": "good", "seed": 1, "env": "CartPole-v1", "learning_rate": 0.01}


def test_what_comes_from_the_config_of_another_experiment_is_not_told_as_typed(tmp_path, capsys):
    other = write_experiment(tmp_path / "there", "other", gamma=0.9)
    source = other / "config.json"
    inherited = json.loads(source.read_text())["options"] | {"learning_rate": 0.5}  # this one is typed beside it
    del inherited["experiment"]
    here = tmp_path / "here"
    write_experiment(here, "taken", config=str(source), **inherited)
    plain = write_experiment(here, "plain")
    values = json.loads((plain / "config.json").read_text())["options"] | {"lr_schedule": "linear_decay"}
    (plain / "config.json").write_text(json.dumps({"options": values, "typed": ["env"]}))
    assert listed(capsys, here, "--json")[1]["options"] == {"learning_rate": 0.5, "gamma": 0.9}
    taken = json.loads((here / "taken" / "config.json").read_text())
    started = f"now  train_appo.py --config={source} --lr=0.5\nlater  train_appo.py --experiment=taken\n"
    (here / "taken" / "command_lines.txt").write_text(started)
    resumed = {"options": taken["options"] | {"config": ""}, "typed": taken["typed"]}  # it went on without the file
    (here / "taken" / "config.json").write_text(json.dumps(resumed))
    assert listed(capsys, here, "--json")[1]["options"] == {"learning_rate": 0.5, "gamma": 0.9}
    (here / "taken" / "config.json").write_text(json.dumps(taken))
    source.unlink()
    started = f"now  train_appo.py --env=CartPole-v1 --config={source} --lr=0.5\n"
    (here / "taken" / "command_lines.txt").write_text(started)
    assert listed(capsys, here, "--json")[1]["options"] == {"learning_rate": 0.5}


def test_a_config_in_the_home_of_a_user_of_another_machine_is_one_that_is_gone(tmp_path, capsys):
    write_experiment(tmp_path, "taken", config="~nobody-here/other/config.json", gamma=0.9)
    write_experiment(tmp_path, "plain")
    assert listed(capsys, tmp_path, "--json")[1]["options"] == {"gamma": 0.9}


def test_of_each_run_those_options_are_listed_that_it_has_typed_itself(tmp_path, capsys):
    write_experiment(tmp_path, "rates", learning_rate=0.01, gamma=0.99)
    write_experiment(tmp_path, "memory", use_rnn=False, lr_schedule="constant")
    write_experiment(tmp_path, "plain", lr_schedule="constant")
    write_experiment(tmp_path, "files", schedule_file="")
    assert runs.main([str(tmp_path)]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    told = {name: options for name, *_, options in (line.split("  ") for line in rows)}
    # The same in all of them: gamma and lr_schedule.
    assert {name: text.strip() for name, text in told.items() if "=" in text} == {
        "rates": "learning_rate=0.01",
        "memory": "use_rnn=False",
    }


def shown(columns, *words):
    """The lines of a terminal of this width, without its styles."""
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "appo.tools.runs", *map(str, words)]
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=writer, cwd=ROOT, env=environment) as process:
        os.close(writer)
        text = b""
        try:
            while piece := os.read(reader, 4096):
                text += piece
        except OSError:  # Linux tells so that the other side is closed
            pass
        os.close(reader)
        assert process.wait() == 0
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).replace("\r", "").splitlines()]


def test_a_terminal_gets_a_table_that_fits(train_dir):
    lines = shown(70, train_dir)
    assert "36,000" in "\n".join(lines) and max(map(len, lines)) <= 70
    assert max(map(len, shown(70, train_dir, "--compare", "good", "group/dead"))) <= 70


OPTIONS = {
    "wrap_action_repeat": 2, "wrap_time_limit": 50, "wrap_grey": True, "self_play_anchors": "random,cautious",
    "env_kwargs": '{"is_slippery": false, "map_name": "8x8"}', "learning_rate": 0.0006537,
}  # fmt: skip


@pytest.fixture
def mixed(tmp_path):
    """Twenty runs, of which each has typed other options; the name of one is long, and one has failed."""
    for number in range(20):
        few = dict([*OPTIONS.items()][number % 7 :][: number % 4])
        name = f"run_{number}" if number != 7 else "sweep/learning_rate=0.0006537,gamma=0.9527"
        env = "CartPole-v1" if number != 8 else "pettingzoo_classic_connect_four_v3"
        folder = write_experiment(tmp_path, name, [(500, 9.0)], env=env, **few)
        reason = "reached train_for_env_steps=60000" if number != 9 else "learner-0 failed: ValueError: no such thing"
        write_status(folder, state="ended", at=time.time() - 400, reason=reason, frames=60_100, returns=(7.0,))
    return tmp_path


def test_many_runs_are_listed_in_eighty_columns_with_whole_words(mixed):
    lines = shown(80, mixed)
    assert max(map(len, lines)) <= 80 and len(lines) < 3 * 20 + 5
    heads, *lines = lines
    places = {head: heads.index(head) for head in HEADS[:-1]}
    first = {line.split()[0]: at for at, line in enumerate(lines) if not line.startswith(" ")}
    assert len(first) == 20
    for name, at in first.items():
        row = lines[at] if len(lines[at]) > places["frames"] else lines[at + 1]  # a long name has a line of its own
        assert row[places["state"] :].startswith("ended  ") and row[places["frames"] :].startswith("60,100  "), name
    text = " ".join("\n".join(lines).split())
    for option, value in OPTIONS.items():
        assert f" {option}={value} " in f"{text} "
    assert "pettingzoo_" in text and "…" in text, "the environment alone is cut"
    assert "learner-0 failed: ValueError: no such thing" in text


def test_in_a_wide_terminal_reasons_and_options_are_a_column_that_is_folded_at_blanks(mixed):
    heads, *lines = shown(170, mixed)
    place = heads.index("reason; options")
    assert max(map(len, lines)) <= 170 and len(lines) > 20
    rows = [line for line in lines if not line.startswith(" ")]
    assert len(rows) == 20 and all(row[:place].endswith(" min  ") for row in rows)
    text = " ".join(line[place:] for line in lines)
    for option, value in OPTIONS.items():
        assert f" {option}={value} " in f"{text} "
    assert rows[0][place:] == "reached train_for_env_steps=60000" and "…" not in "".join(lines)


@pytest.mark.parametrize("columns", [20, 40, 60])
def test_a_terminal_that_is_too_narrow_for_the_numbers_has_no_broken_lines(mixed, columns):
    lines = shown(columns, mixed)
    assert max(map(len, lines)) <= columns and len([line for line in lines if "run_" in line]) == 19


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["HERE", "--stop=god"], "there is no experiment 'god'; nearest: good"),
        (["HERE", "--stop=good"], "good does not run; ended: reached train_for_env_steps=1000"),
        (["HERE", "--save=group/dead"], "group/dead does not run; died"),
        (["HERE", "--stop=group/dead"], "one that has just been started is seen once its checks are through"),
        (["HERE", "--compare", "good", "dead"], "nearest: group/dead"),
        (["HERE", "--compare", "good"], "--compare needs two names or more"),
        (["HERE", "--stop=good", "--compare", "good", "new"], "not allowed with"),
        (["HERE", "--env=CartPole"], "nearest: CartPole-v1"),
        (["HERE", "--sort=speed"], "'fps'"),
        (["HERE/nowhere"], "nowhere does not exist"),
        (["HERE/notes"], "notes holds no experiment"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(train_dir, capsys, words, reason):
    assert runs.main([word.replace("HERE", str(train_dir)) for word in words]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1


def test_a_damaged_run_hides_no_other(train_dir, capsys):
    (train_dir / "good" / "config.json").write_text("{")
    good = listed(capsys, train_dir, "--json")[0]
    assert (good["name"], good["env"], good["frames"]) == ("good", "-", 36_000)
    (train_dir / "good" / "status.json").write_text("{")
    assert runs.main([str(train_dir)]) == 0
    told = capsys.readouterr()
    assert "runs: good is left out: " in told.err and "status.json cannot be read" in told.err
    assert told.err.count("\n") == 1 and "group/dead" in told.out
    assert runs.main([str(train_dir), "--compare", "good", "new"]) == 2


def test_where_no_run_can_be_read_there_is_no_table(tmp_path, capsys):
    (write_experiment(tmp_path, "only") / "status.json").write_text("{")
    assert runs.main([str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "only is left out" in told.err and "there is none that can be read" in told.err and not told.out


def test_a_run_of_another_machine_or_without_handlers_gets_no_signal(train_dir, capsys):
    folder = train_dir / "good"
    lock = folder_lock.take(folder)
    try:
        assert runs.main([str(train_dir), "--save=good"]) == 2  # this process has no handler for SIGUSR1
        assert "does not listen to SIGUSR1" in capsys.readouterr().err
        (folder / ".lock").write_text("process 1 on elsewhere")
        assert runs.main([str(train_dir), "--stop=good"]) == 2
        assert "good runs on elsewhere; type this there" in capsys.readouterr().err
    finally:
        os.close(lock)


class Asked:
    """`--save` or `--stop` of a run that no signal reaches; `happens`: what becomes of it while the command waits."""

    def __init__(self, train_dir, monkeypatch):
        self._train_dir, self._monkeypatch = train_dir, monkeypatch
        self._lock = folder_lock.take(train_dir / "good")
        monkeypatch.setattr(runs, "handles_signal", lambda pid, number: True)
        monkeypatch.setattr(runs.os, "kill", lambda pid, number: None)

    def __call__(self, word, happens):
        self._monkeypatch.setattr(runs.time, "sleep", lambda seconds: happens())
        return runs.main([str(self._train_dir), word])

    def end(self):
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@pytest.fixture
def asked(train_dir, monkeypatch):
    """A run that is asked for something."""
    run = Asked(train_dir, monkeypatch)
    yield run
    run.end()


def test_a_run_that_dies_while_it_is_asked_to_save_is_not_waited_for(asked, capsys):
    assert asked("--save=good", asked.end) == 1
    error = capsys.readouterr().err
    assert f"process {os.getpid()} of good is gone and has written no checkpoint; ended: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("word", ["--save=good", "--stop=good"])
def test_ctrl_c_while_it_waits_ends_the_command_in_one_line(asked, capsys, word):
    def interrupted():
        raise KeyboardInterrupt

    assert asked(word, interrupted) == 130
    assert capsys.readouterr().err.strip() == "runs: interrupted; good was sent the signal, and acts on it all the same"


def test_a_time_is_told_in_its_largest_unit():
    assert [duration(seconds) for seconds in (0.4, 59, 60, 7300, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


class Training:
    """A run of the real program, in one process."""

    def __init__(self, train_dir):
        self.train_dir, self.process = train_dir, None

    def start(self):
        words = ["--env=CartPole-v1", "--experiment=live", f"--train_dir={self.train_dir}", "--serial_mode=True"]
        words += ["--num_workers=1", "--num_envs_per_worker=4", "--device=cpu", "--experiment_summaries_interval=1"]
        program = [sys.executable, str(ROOT / "train_appo.py"), *words]
        self.process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while not self.has_learned():
            assert self.process.poll() is None and time.monotonic() < began + 90.0
            time.sleep(0.05)

    def has_learned(self):
        folder = self.train_dir / "live"
        return (folder / "config.json").exists() and looked_at(folder).state == TRAINING

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    training = Training(tmp_path_factory.mktemp("live"))
    training.start()
    yield training
    training.end()


def test_a_live_run_is_listed_saved_and_stopped(live, capsys):
    (run,) = listed(capsys, live.train_dir, "--json")
    assert (run["state"], run["pid"], run["reason"]) == (TRAINING, live.process.pid, "")
    assert runs.main([str(live.train_dir), "--save=live"]) == 0
    saved = capsys.readouterr().out.splitlines()
    assert len(saved) == 1 and Path(saved[0]).parent.samefile(live.train_dir / "live" / "checkpoint_p0")
    assert live.process.poll() is None
    assert runs.main([str(live.train_dir), "--stop=live"]) == 0
    assert capsys.readouterr().out.startswith("live ended: stopped by SIGTERM, after ")
    assert live.process.wait(10) == 128 + signal.SIGTERM
    (run,) = listed(capsys, live.train_dir, "--json")
    assert (run["state"], run["pid"], run["reason"]) == (ENDED, None, "stopped by SIGTERM")


@pytest.mark.slow
def test_a_run_that_was_killed_is_listed_as_dead(live, capsys):
    live.end()
    live.start()
    live.process.kill()
    live.process.wait()
    (run,) = listed(capsys, live.train_dir, "--json")
    assert (run["state"], run["pid"]) == (DIED, None)
