"""Sweeps from their start to their end: most with a program that stands in for the trainer, the slow one with that."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appo.tools import sweep_launcher
from appo.tools import sweep_processes as processes
from appo.tools.sweep import main, typed_as
from appo.tools.sweep_processes import slots_of
from appo.utils.options import ConfigError
from tests.reporting.terminal_emulator import PseudoTerminal
from tests.tools.sweep_cases import (
    FINISH,
    ROOT,
    STAND_IN,
    STARTS,
    TWICE,
    Launched,
    nothing_left_in,
    starts,
    states,
    wait_for,
)

needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores that can be chosen",
)
SEARCH = """train_for_seconds = 0.02
[search]
method = "optuna"
trials = 14
learning_rate = {log_uniform = [1e-4, 1]}
"""
BASE = '[base]\nenv = "CartPole-v1"\n'


@pytest.fixture
def launch(tmp_path):
    """Starts launchers of a plan in the test's folder; nothing of them is left afterwards."""
    with nothing_left_in(tmp_path) as launched:

        def begin(plan, *words, name="plan.toml", **keywords):
            (tmp_path / name).write_text(plan)
            launched.append(Launched(tmp_path / name, *words, **keywords))
            return launched[-1]

        yield begin


def overlaps(trials):
    """Pairs of trials that began on a common core, one before the other could have ended."""
    begun = sorted((start["at"], set(start["cores"])) for trial in trials for start in starts(trial))
    return [(a, b) for a, b in itertools.pairwise(begun) if b[0] - a[0] < 0.3 and a[1] & b[1]]


@needs_two_cores
def test_all_trials_run_on_cores_of_their_own_and_the_best_one_is_shown_first(launch, tmp_path):
    plan = "cores_per_run = 1\n" + BASE + "train_for_seconds = 0.4\n[grid]\nlearning_rate = [1e-3, 3e-3, 2e-3]\n"
    code, printed = launch(plan, "--parallel=2").end()
    assert code == 0
    sweep = tmp_path / "train_dir" / "plan"
    assert set(states(sweep).values()) == {"done"} and len(states(sweep)) == 3
    trials = [sweep / name for name in states(sweep)]
    first, second = ([start["cores"] for start in starts(trial)] for trial in trials[:2])
    assert len(first[0]) == len(second[0]) == 1 and first != second
    assert not overlaps(trials)
    assert all(starts(trial)[0]["options"]["num_workers"] == "1" for trial in trials)
    table = printed[printed.index("minutes") :]
    assert table.index("learning_rate=0.003") < table.index("learning_rate=0.002") < table.index("learning_rate=0.001")


def test_a_trial_that_fails_or_is_killed_is_tried_again_and_one_that_is_refused_is_not(launch, tmp_path):
    plan = BASE + '[grid]\ncallback = ["fails:2", "killed:1", "refused:9", "fails:9"]\n'
    code, printed = launch(plan).end()
    assert code == 1
    sweep = tmp_path / "train_dir" / "plan"
    ended = {name.removeprefix("callback="): state for name, state in states(sweep).items()}
    assert ended == {"fails_2": "done", "killed_1": "done", "refused_9": "refused", "fails_9": "failed"}
    tries = {name.removeprefix("callback="): len(starts(sweep / name)) for name in states(sweep)}
    assert tries == {"fails_2": 3, "killed_1": 2, "refused_9": 1, "fails_9": 3}
    assert "SIGKILL" in printed and "the stand-in is refused" in printed and "--retry_failed" in printed


def test_what_was_given_up_is_tried_again_only_when_that_is_asked_for(launch, tmp_path):
    plan = "retries = 0\n" + BASE + 'callback = "fails:1"\n'
    trial = tmp_path / "train_dir" / "plan" / "trial"
    assert [launch(plan).end()[0], launch(plan).end()[0]] == [1, 1]
    assert len(starts(trial)) == 1
    assert launch(plan, "--retry_failed").end()[0] == 0
    assert len(starts(trial)) == 2


def test_a_launcher_that_is_killed_finds_its_trials_again_and_none_runs_twice(launch, tmp_path):
    plan = BASE + "train_for_seconds = 60\n[grid]\nlearning_rate = [1e-3, 2e-3, 3e-3, 4e-3]\n"
    words = ("--parallel=2",) if len(os.sched_getaffinity(0)) > 1 else ()
    at_a_time = 2 if words else 1
    sweep = tmp_path / "train_dir" / "plan"

    def running():
        return len(list(sweep.glob(f"*/{STARTS}")))

    first = launch(plan, *words)
    wait_for(lambda: running() == at_a_time)
    first.process.kill()
    first.end()
    second = launch(plan, *words)
    wait_for(lambda: any("runs already" in line for line in itertools.islice(second.process.stdout, 2)))
    assert running() == at_a_time
    (sweep / FINISH).touch()
    assert second.end()[0] == 0
    assert list(states(sweep).values()) == ["done"] * 4
    assert [len(starts(sweep / name)) for name in states(sweep)] == [1, 1, 1, 1]
    assert not list(sweep.glob(f"*/{TWICE}"))


@pytest.mark.parametrize("number, expected", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_trials_save_and_the_same_command_goes_on(launch, tmp_path, number, expected):
    plan = BASE + "train_for_seconds = 1.5\n"
    trial = tmp_path / "train_dir" / "plan" / "trial"
    first = launch(plan)
    wait_for(lambda: starts(trial))
    first.process.send_signal(number)
    code, printed = first.end()
    assert code == expected and "go on with:  python -m appo.tools.sweep" in printed
    assert json.loads((trial / "summary.json").read_text())["reason"] == "stopped by SIGTERM"
    assert states(trial.parent) == {"trial": "waiting"}
    code, _ = launch(plan).end()
    assert code == 0 and states(trial.parent) == {"trial": "done"} and len(starts(trial)) == 2


def test_trials_are_added_while_a_sweep_runs_and_bad_ones_are_told(launch, tmp_path):
    plan = BASE + "train_for_seconds = 60\n"
    sweep = tmp_path / "train_dir" / "plan"
    running = launch(plan)
    wait_for(lambda: starts(sweep / "trial"))
    bad = "[[trials]]\nlearning_rat = 0.5\n[[trials]]\nexperiment = 'mine'\n[[trials]]\nexp_name = 'mine'\n"
    bad += "[[trials]]\nenv_kwargs = {until = 2026-01-01}\n"
    same = "[[trials]]\nlearning_rate = 0.5\n[[trials]]\nlr = 0.5\n"
    (sweep / "inject.toml").write_bytes("# \u00fc\n".encode("latin-1") + (bad + same).encode())
    wait_for(lambda: "save it as UTF-8" in running.process.stdout.readline())
    (sweep / "inject.toml").write_text(bad + same)
    wait_for(lambda: "learning_rate=0.5" in states(sweep))
    (sweep / FINISH).touch()
    code, printed = running.end()
    assert code == 0
    assert states(sweep) == {"trial": "done", "learning_rate=0.5": "done"}
    assert "did you mean learning_rate" in printed and printed.count("this trial was not added") == 5
    assert "lr=0.5 is the same as learning_rate=0.5" in printed
    assert "Traceback" not in printed
    assert launch(plan).end()[0] == 0
    assert len(starts(sweep / "learning_rate=0.5")) == 1


def test_a_larger_budget_lets_trials_that_were_done_go_on(launch, tmp_path):
    trial = tmp_path / "train_dir" / "plan" / "trial"
    assert launch(BASE + "train_for_seconds = 0.2\n").end()[0] == 0
    assert launch(BASE + "train_for_seconds = 0.4\n").end()[0] == 0
    assert len(starts(trial)) == 2


def test_a_sweep_without_its_state_finds_what_is_done_by_the_folders(launch, tmp_path):
    sweep = tmp_path / "train_dir" / "plan"
    assert launch(BASE).end()[0] == 0
    (sweep / "sweep.json").unlink()
    assert launch(BASE).end()[0] == 0
    assert len(starts(sweep / "trial")) == 1


def test_trials_whose_options_have_no_limit_are_found_again(launch, tmp_path):
    sweep = tmp_path / "train_dir" / "plan"
    sweep.mkdir(parents=True)
    (sweep / "inject.toml").write_text("[[trials]]\nsave_every_sec = inf\n")
    os.utime(sweep / "inject.toml", (0, 0))  # long ago: it is read at once
    plan = BASE + "ppo_clip_value = inf\n[grid]\nreward_clip = [1.0, inf]\n"
    assert [launch(plan).end()[0], launch(plan).end()[0]] == [0, 0]
    assert states(sweep) == dict.fromkeys(("reward_clip=1", "reward_clip=inf", "save_every_sec=inf"), "done")
    assert [len(starts(sweep / name)) for name in states(sweep)] == [1, 1, 1]
    assert starts(sweep / "reward_clip=inf")[0]["options"]["ppo_clip_value"] == "inf"


def test_a_plan_of_python_may_compute_its_numbers_with_numpy(launch, tmp_path):
    plan = "import numpy\nPLAN = {'base': {'env': 'CartPole-v1', 'seed': numpy.int64(1)}}\n"
    plan += "PLAN['grid'] = {'gamma': list(numpy.linspace(0.5, 1.0, 2))}\n"
    assert [launch(plan, name="plan.py").end()[0] for _ in range(2)] == [0, 0]
    sweep = tmp_path / "train_dir" / "plan"
    assert {name: len(starts(sweep / name)) for name in states(sweep)} == {"gamma=0.5": 1, "gamma=1": 1}


def test_a_trial_that_could_not_be_started_is_told_once_and_started_later(launch, tmp_path):
    program = tmp_path / "trainer"
    launched = launch(BASE, program=[str(program)])
    wait_for(lambda: "could not be started" in launched.process.stdout.readline())
    (tmp_path / "new").write_text(f'#!/bin/sh\nexec {STAND_IN[0]} {STAND_IN[1]} "$@"\n')
    (tmp_path / "new").chmod(0o755)
    (tmp_path / "new").rename(program)
    code, printed = launched.end()
    assert code == 0, printed
    assert states(tmp_path / "train_dir" / "plan") == {"trial": "done"}
    assert "could not be started" not in printed, "it is told once, and was above"


@pytest.fixture
def impatient(monkeypatch):
    """The launcher of this process waits hardly at all for what cannot be started."""
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S", "_LOOK_EVERY_S"):
        monkeypatch.setattr(sweep_launcher, name, 0.01)


def test_a_sweep_of_which_no_trial_can_be_started_ends_after_many_tries(tmp_path, impatient, capsys):
    (tmp_path / "plan.toml").write_text(BASE + "[grid]\ngamma = [0.5, 0.9]\n")
    assert main([str(tmp_path / "plan.toml"), f"--train_dir={tmp_path / 'runs'}"], [str(tmp_path / "missing")]) == 1
    said = capsys.readouterr()
    assert said.out.count("could not be started") == 1
    assert "no trial could be started in 20 tries" in said.err and said.err.count("\n") == 1
    assert list(states(tmp_path / "runs" / "plan").values()) == ["waiting", "waiting"]


def test_a_trial_that_can_never_be_started_is_given_up_and_does_not_keep_others_waiting(tmp_path, impatient, capsys):
    # More than one word of a command line may hold; the other trial is an ordinary one.
    (tmp_path / "plan.py").write_text(
        "def trials():\n    yield {'wandb_tags': 'x' * 2**18}\n    yield {'gamma': 0.5}\n"
        "PLAN = {'base': {'env': 'CartPole-v1'}, 'train_dir': " + repr(str(tmp_path / "runs")) + "}\n"
    )
    assert main([str(tmp_path / "plan.py"), "--parallel=1"], STAND_IN) == 1
    printed = capsys.readouterr().out
    assert sorted(states(tmp_path / "runs" / "plan").values()) == ["done", "failed"]
    assert printed.count("could not be started (") == 1 and printed.count("given up") == 1, printed
    assert printed.index("gamma=0.5: done") < printed.index("given up")


@pytest.mark.parametrize("mark", ["config.json", "metrics.jsonl", "status.json", "command_lines.txt"])
def test_a_sweep_is_not_made_in_the_folder_of_an_experiment(tmp_path, capsys, mark):
    folder = tmp_path / "runs" / "plan"
    folder.mkdir(parents=True)
    (folder / mark).write_text("{}")
    (tmp_path / "plan.toml").write_text(BASE)
    assert main([str(tmp_path / "plan.toml"), f"--train_dir={tmp_path / 'runs'}"], STAND_IN) == 2
    said = capsys.readouterr().err
    assert f"{folder} is an experiment" in said and 'name = "plan_sweep"' in said and said.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == [mark]


def test_a_sweep_that_has_begun_goes_on_although_somebody_trained_in_its_folder(launch, tmp_path):
    assert launch(BASE).end()[0] == 0
    (tmp_path / "train_dir" / "plan" / "command_lines.txt").touch()
    assert launch(BASE).end()[0] == 0


@pytest.mark.parametrize(
    "plan, words, told",
    [
        (BASE + "learning_rat = 1\n", [], "did you mean learning_rate"),
        (BASE + 'exp_name = "test"\n', [], "cannot set exp_name"),
        (BASE + "train_for_seconds = 2026-01-01\n", [], "[base] train_for_seconds"),
        (BASE + "[grid]\ngamma = [0.9, 2.0]\n", [], "gamma=2.0"),
        (BASE + "learnig_rate = 1\n", [], "trial: the trial sets unknown option 'learnig_rate'"),
        (BASE, ["--parallel=1000"], "cores"),
        (BASE, ["--parallel=0"], "at least 1"),
        (BASE, ["--paralel"], "--help"),
        ("[grid]\ngamma = [0.9]\n", [], "--env is required"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_before_anything_is_written(tmp_path, capsys, plan, words, told):
    (tmp_path / "plan.toml").write_text(plan)
    assert main([str(tmp_path / "plan.toml"), f"--train_dir={tmp_path / 'runs'}", *words]) == 2
    said = capsys.readouterr()
    assert told in said.err and said.err.count("\n") == 1 and not said.out
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


def test_a_second_launcher_of_a_sweep_is_refused(launch, tmp_path):
    plan = BASE + "train_for_seconds = 60\n"
    launch(plan)
    wait_for(lambda: starts(tmp_path / "train_dir" / "plan" / "trial"))
    code, printed = launch(plan).end()
    assert code == 2 and "another launcher is at work" in printed and printed.count("\n") == 1


def test_status_shows_a_sweep_and_that_what_ran_does_not_run_any_more(launch, tmp_path, capsys):
    sweep = tmp_path / "train_dir" / "plan"
    running = launch(BASE + "train_for_seconds = 60\n")
    wait_for(lambda: states(sweep)["trial"] == "running" and starts(sweep / "trial"))
    assert main(["--status", str(sweep)]) == 0
    assert "running" in capsys.readouterr().out
    with contextlib.chdir(tmp_path):  # a name below ./train_dir
        assert main(["--status", "plan"]) == 0
    assert "running" in capsys.readouterr().out
    running.process.kill()
    os.kill(starts(sweep / "trial")[0]["pid"], signal.SIGKILL)
    wait_for(lambda: main(["--status", str(sweep)]) == 0 and "1 waiting" in capsys.readouterr().out)
    assert main(["--status", str(tmp_path)]) == 2
    assert "not the folder of a sweep" in capsys.readouterr().err


def test_status_shows_that_a_trial_has_reached_its_goal_after_its_launcher_was_killed(launch, tmp_path, capsys):
    sweep = tmp_path / "train_dir" / "plan"
    running = launch(BASE + "train_for_seconds = 60\n")
    wait_for(lambda: states(sweep)["trial"] == "running" and starts(sweep / "trial"))
    running.process.kill()
    (sweep / FINISH).touch()
    wait_for((sweep / "trial" / "summary.json").exists)
    wait_for(lambda: main(["--status", str(sweep)]) == 0 and "1 running" not in capsys.readouterr().out)
    assert main(["--status", str(sweep)]) == 0
    assert "1 done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "told"),
    [("/opt/bin/appo-tools", "appo-tools sweep"), ("/src/appo/tools/sweep.py", "python -m appo.tools.sweep")],
)
def test_a_sweep_goes_on_with_the_command_that_was_typed(monkeypatch, program, told):
    monkeypatch.setattr(sys, "argv", [program])
    assert typed_as() == told


def test_a_sweep_loads_no_plots():
    code = "import sys, appo.tools.sweep; print('appo.tools.plot' in sys.modules)"
    path = os.environ | {"PYTHONPATH": str(Path(ROOT) / "src")}
    found = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_places_are_disjoint_and_gpus_are_dealt_in_turn():
    slots = slots_of(range(8), (0, 1), 4, None)
    assert [slot.gpu for slot in slots] == [0, 1, 0, 1]
    assert [slot.cores for slot in slots] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert len(slots_of(range(8), (), None, None)) == 4
    assert [slot.cores for slot in slots_of(range(8), (), None, 3)] == [(0, 1, 2), (3, 4, 5)]
    assert len(slots_of(range(8), (0, 1), None, None)) == 2
    assert len(slots_of(range(1), (), None, None)) == 1
    for parallel, cores_per_run in ((9, None), (2, 5), (None, 9)):
        with pytest.raises(ConfigError, match="nearest"):
            slots_of(range(8), (), parallel, cores_per_run)


def test_a_trial_sees_the_gpu_of_its_place(launch, tmp_path):
    assert launch("gpus = [3]\n" + BASE).end()[0] == 0
    assert starts(tmp_path / "train_dir" / "plan" / "trial")[0]["gpu"] == "3"


def test_a_search_without_optuna_is_refused_with_the_command_that_installs_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not installed
    (tmp_path / "plan.toml").write_text(BASE + SEARCH)
    assert main([str(tmp_path / "plan.toml"), f"--train_dir={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert "pip install optuna" in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def search_of(**space):
    return "train_for_seconds = 0.02\n[search]\nmethod = 'optuna'\ntrials = 1\n" + "".join(
        f"{name} = {source}\n" for name, source in space.items()
    )


def test_a_search_in_ranges_that_the_trainer_mostly_refuses_is_refused_before_anything_is_written(tmp_path, capsys):
    pytest.importorskip("optuna")
    # Of 49 numbers three divide the batches. The first draw is one of these: one draw alone would tell nothing.
    (tmp_path / "plan.toml").write_text(BASE + search_of(rollout="{int = [16, 64]}", seed=13))
    assert main([str(tmp_path / "plan.toml"), f"--train_dir={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert "of 10 trials drawn from [search] are refused, such as rollout=" in said and said.count("\n") == 1
    assert "is not a multiple of rollout=" in said
    assert not (tmp_path / "runs").exists()


def test_a_search_in_ranges_of_which_the_trainer_refuses_some_says_so_at_its_start(launch, tmp_path):
    pytest.importorskip("optuna")
    code, printed = launch(BASE + search_of(rollout="{choice = [16, 32, 64, 44]}", seed=1)).end()
    assert code == 0, printed
    told = "of 10 trials drawn from [search] are refused, such as rollout=44: batch_size=256 is not a multiple"
    assert printed.index(told) < printed.index("started on cores")
    assert list(states(tmp_path / "train_dir" / "plan").values()) == ["done"]


def test_a_search_that_weighs_cost_comes_to_its_end_in_a_terminal(launch):
    pytest.importorskip("optuna")
    terminal = PseudoTerminal(120, 30)
    # So long that the table of what runs is drawn again after the first trial is done.
    plan = SEARCH.replace("0.02", "1.2").replace("14", '3\ncost = "minutes"')
    launched = launch(BASE + plan, "--parallel=1", prints_to=terminal.descriptor)
    terminal.read(60.0, until=lambda: launched.process.poll() is not None)
    printed = terminal.read(0.3)
    terminal.close()
    assert launched.process.poll() == 0, printed
    while_it_ran, _, at_the_end = printed.rpartition("tries")  # a column of every table
    assert "1 running, 1 done" in while_it_ran
    assert "cheaper in minutes" not in while_it_ran, "what runs has no stars to be explained"
    assert " *" in at_the_end and "cheaper in minutes" in at_the_end and "3 done" in at_the_end


@pytest.mark.slow
def test_a_search_moves_towards_what_was_better_and_goes_on_where_it_was_stopped(launch, tmp_path):
    pytest.importorskip("optuna")
    sweep = tmp_path / "train_dir" / "plan"
    assert launch(BASE + SEARCH).end()[0] == 0
    first = list(states(sweep))
    assert len(first) == 14
    assert launch(BASE + SEARCH.replace("14", "18")).end()[0] == 0
    assert list(states(sweep))[:14] == first and len(states(sweep)) == 18
    assert all(len(starts(sweep / name)) == 1 for name in states(sweep))
    # The stand-in's return is its learning rate. The first ten choices are random; the median of such is 0.01.
    rates = [float(starts(sweep / name)[0]["options"]["learning_rate"]) for name in states(sweep)]
    assert sorted(rates[10:])[4] > 0.01


@pytest.mark.slow
@needs_two_cores
def test_twelve_real_trainings_survive_the_death_of_their_launcher(launch, tmp_path):
    crashing = '''
import os, pathlib, gymnasium
class Crashing(gymnasium.Wrapper):
    """Kills its process, the driver of a serial run, in the first two starts."""
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.steps = 0
    def step(self, action):
        self.steps += 1
        starts = pathlib.Path(__file__).with_name("crashes.txt")
        before = starts.read_text() if starts.exists() else ""
        if self.steps == 200 and len(before) < 2:
            starts.write_text(before + "x")
            os._exit(1)
        return self.env.step(action)
'''
    (tmp_path / "crashing.py").write_text(crashing)
    plan = (
        "cores_per_run = 1\nseeds = [1, 2, 3]\n[base]\nserial_mode = true\ntrain_for_env_steps = 6000\n"
        'device = "cpu"\ncheck_env = false\n[grid]\nenv = ["CartPole-v1", "crashing:Crashing"]\n'
        "learning_rate = [1e-3, 3e-3]\n"
    )
    trainer = [sys.executable, str(ROOT / "train_appo.py")]
    sweep = tmp_path / "train_dir" / "plan"
    first = launch(plan, "--parallel=2", program=trainer)
    wait_for(lambda: "done" in states(sweep).values(), 300)
    running = [processes.holder(lock) for lock in (sweep / ".locks").glob("*=*.lock")]
    cores = [os.sched_getaffinity(pid) for pid in running if pid is not None]
    assert all(len(each) == 1 for each in cores) and len(set(map(frozenset, cores))) == len(cores)
    first.process.kill()
    first.end()
    code, printed = launch(plan, "--parallel=2", program=trainer).end(900)
    assert code == 0, printed
    assert list(states(sweep).values()) == ["done"] * 12
    assert (tmp_path / "crashes.txt").read_text() == "xx"
    begun = [len((sweep / name / "command_lines.txt").read_text().splitlines()) for name in states(sweep)]
    assert sum(begun) == 14  # each once, and the two that crashed once more
    summaries = [json.loads((sweep / name / "summary.json").read_text()) for name in states(sweep)]
    assert all(summary["env_frames"] >= 6000 for summary in summaries)
