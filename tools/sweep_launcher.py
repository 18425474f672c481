"""The loop of a sweep: starts trials, tries those that fail again, and goes on after it has been killed itself.

What a start finds decides, not what an earlier one remembers: a trial is done when its `summary.json` says that its
stop condition was met and the plan types nothing else by now; it runs when its lock is held. Trials that run when the
launcher starts are waited for, and occupy the cores that they are on.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.config import resolve
from appo.algorithms.familiar_words import translated
from appo.algorithms.run.config import CONFIG_FILE
from appo.algorithms.run.experiment import LOCK_FILE
from appo.tools import sweep_processes as processes
from appo.tools.arguments import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, Refused
from appo.tools.experiments import find_experiments
from appo.tools.sweep_cluster import Cluster, ClusterProcess, unfinished_job
from appo.tools.sweep_plan import Plan, Search, Trial, by_our_names, checked_options, read_injected, typed
from appo.tools.sweep_screen import Screen
from appo.tools.sweep_search import choose, require_optuna
from appo.tools.sweep_state import (
    DONE,
    FAILED,
    REFUSED,
    RUNNING,
    STATE_FILE,
    WAITING,
    Record,
    Result,
    Sweep,
    is_met,
    last_line,
    read_sweep,
    result_of,
    results_of,
    write_sweep,
)
from appo.utils.cli import COMMAND_LINE
from appo.utils.files import DiskFaults
from appo.utils.options import ConfigError
from appo.utils.processes import describe_exit
from appo.utils.signals import StopSignals

INJECT_FILES = ("inject.toml", "inject.jsonl")
_LOOK_EVERY_S = 0.2
_SAVING_S = 120.0  # that trials have to save and end once they are asked to
_CHOICES = 20  # of a search that has chosen what was tried before
_DRAWS = 10  # from the ranges of a search, that the trainer is asked about before it begins
_DIGITS_OF_SEED = 10  # of one that may be too large
_SETTLED_S = 0.5  # an inject file that was written later may be written still
# Where a process could not be started or a job not be queued: mostly it is the whole machine or cluster, for a while.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_MOST_STARTS = 20  # that fail like that, of one trial or in a row: a quarter of an hour
_OUTPUT = "output"


class Settings(NamedTuple):
    """How a sweep is run, beside what it tries."""

    train_dir: str
    slots: tuple[processes.Slot, ...]
    retries: int  # of a trial that fails
    retry_failed: bool  # those too that an earlier start gave up
    program: tuple[str, ...]  # what starts a trial, without its options
    again: str  # the command that goes on with this sweep
    cluster: Cluster | None = None  # that trials are jobs of; None: they are processes of this machine


@dataclass
class _Run:
    """One trial that runs."""

    process: subprocess.Popen[bytes] | ClusterProcess | None  # None: an earlier launcher has started it
    slots: frozenset[int]  # that it occupies


class Launcher:
    """One start of a sweep."""

    def __init__(self, plan: Plan, settings: Settings, stop: StopSignals) -> None:
        """Check every trial; nothing is written or started.

        Raises:
            ConfigError: the trainer refuses one of them, the state in the folder is damaged, or the folder is that of
                an experiment.
        """
        self._plan, self._settings, self._stop = plan, settings, stop
        self._accepted: list[dict[str, str]] = []  # options without a seed that the trainer's parser takes
        self.folder = Path(settings.train_dir).expanduser() / plan.name
        earlier = read_sweep(self.folder)
        if earlier is None:
            _require_no_experiment(self.folder)
        self._before = before = earlier.records if earlier else {}
        self._trials = {trial.name: trial for trial in plan.trials()}
        for name, record in before.items():
            if record.is_injected or (plan.search is not None and record.varied):
                trial = plan.trial(record.varied, self._trials)
                self._trials[trial.name] = trial
            elif name not in self._trials and (self._job(name) or self._holder(name)):
                self._trials[name] = Trial(name, record.options)  # the plan has it no more, but it runs
        self._search_warning = "" if plan.search is None else self._check_search(plan.search)
        self._refused: dict[str, str] = {}  # trial that an earlier start has added -> why it cannot run by now
        self._changed = {name: self._has_changed(trial) for name, trial in self._trials.items()}
        self._sweep = Sweep(plan.objective, plan.direction, {}, plan.search.cost if plan.search else "")
        self._running: dict[str, _Run] = {}
        self._failed_starts: dict[str, int] = {}  # of trials that could not be started so far
        self._failed_in_a_row, self._next_start = 0, 0.0  # starts of any trials; when the next one is due
        self._injected: dict[Path, tuple[int, int]] = {}  # file -> time and size that were read last
        self._screen = Screen(self.folder)
        self._disk_faults = DiskFaults()

    def run(self) -> int:
        """Run all trials; the exit code.

        Raises:
            ConfigError: another launcher is at work in the folder.
            OSError: the folder cannot be written, or no trial could be started for long.
        """
        for folder in (self.folder, self.folder / processes.LOCKS, self.folder / _OUTPUT):
            folder.mkdir(parents=True, exist_ok=True)
        processes.take_folder(self.folder / processes.LOCKS / "launcher")  # until this process ends
        self._look()
        self._save()
        with self._screen:
            trials = len(self._trials) if self._plan.search is None else self._plan.search.trials
            words = f"{trials} trial{'' if trials == 1 else 's'}"
            self._screen.tell(f"{self.folder}: {words}, {len(self._settings.slots)} at a time")
            if self._search_warning:
                self._screen.tell(self._search_warning)
            while self._stop.received is None:
                self._take_injected()
                self._collect()
                self._choose()
                self._start_waiting()
                self._screen.show(self._sweep)
                if not self._running and not self._open():
                    break
                time.sleep(_LOOK_EVERY_S)
            else:
                self._end_running()
        return self._end()

    def _has_changed(self, trial: Trial) -> bool:
        """Whether its options are others than when it ran last.

        Raises:
            ConfigError: they are refused, and the plan has them; what was added to the plan costs that trial only.
        """
        before = self._before.get(trial.name)
        try:
            is_changed = self._check(trial)
        except ConfigError as error:
            if before is None or not before.varied:
                raise
            self._refused[trial.name] = str(error)
            return False
        return is_changed or (before is not None and _typed_options(before.options) != _typed_options(trial.options))

    def _check_search(self, search: Search) -> str:
        """Ask the trainer about some trials that the search might choose; a warning where it refuses some of them.

        Raises:
            ConfigError: it refuses most of them, so that little would be tried; or there is no Optuna.
        """
        require_optuna()
        numbers, refused = random.Random(search.seed), []
        for _ in range(_DRAWS):
            try:
                self._check(self._plan.trial({name: each.draw(numbers) for name, each in search.space.items()}, {}))
            except ConfigError as error:
                refused.append(str(error))
        if not refused:
            return ""
        if len(refused) == _DRAWS:
            raise ConfigError(refused[0])
        told = f"{len(refused)} of {_DRAWS} trials drawn from [search] are refused, such as {refused[0]}"
        if len(refused) > _DRAWS / 2:
            raise ConfigError(told)
        return f"{told}; such trials are not run, but count as trials of the search"

    def _record(self, trial: Trial) -> Record:
        """Where a trial that does not run stands at the start of the launcher."""
        before, is_changed = self._before.get(trial.name), self._changed[trial.name]
        record = Record(trial.options)
        if before is not None:
            record = dataclasses.replace(before, options=trial.options, state=WAITING)
            if before.state in (FAILED, REFUSED):
                is_given_up = not is_changed and not self._settings.retry_failed
                record.state, record.failures = (before.state, before.failures) if is_given_up else (WAITING, 0)
        if trial.name in self._refused:
            record.state, record.said = REFUSED, self._refused[trial.name]
        elif is_met(self._result(trial.name)) and not is_changed:
            record.state = DONE
        return record

    def _check(self, trial: Trial) -> bool:
        """Ask the trainer's own parser; whether the trial types anything that its folder does not have.

        Raises:
            ConfigError: it refuses.
        """
        options = _typed_options(trial.options)
        if len(options.get("seed", "")) < _DIGITS_OF_SEED:  # any such seed is as good as another
            options.pop("seed", None)
        if options in self._accepted and not (self.folder / trial.name / CONFIG_FILE).exists():
            return False
        words, _ = translated(self._words(trial))
        try:
            is_changed = bool(resolve(words).changed)
            self._accepted.append(options)
            return is_changed
        except ConfigError as error:
            # Nobody has typed its words on a command line.
            told = str(error).replace(f"{COMMAND_LINE} sets ", "the trial sets ", 1)
            raise ConfigError(f"{trial.name}: {told}") from error

    def _words(self, trial: Trial, slot: processes.Slot | None = None) -> list[str]:
        words = [f"--train_dir={self._settings.train_dir}", f"--experiments_root={self._plan.name}"]
        words += [f"--experiment={trial.name}"]
        words += [f"--{name}={value}" for name, value in _typed_options(trial.options).items()]
        if slot is not None and "num_workers" not in trial.options:
            words.append(f"--num_workers={len(slot.cores)}")
        return words

    def _look(self) -> None:
        """Find out where all trials stand, and take over those that an earlier launcher has left running."""
        for name, trial in self._trials.items():
            lock, job = processes.lock_file(self.folder, name), self._job(name)
            is_running = processes.is_locked(lock)  # first: where it does not run, its files are its last ones
            self._sweep.records[name] = record = self._record(trial)
            if job is not None:
                taken = {slot for run in self._running.values() for slot in run.slots}
                free = (slot for slot in range(len(self._settings.slots)) if slot not in taken)
                self._running[name] = _Run(job, frozenset(itertools.islice(free, 1)))
                record.state = RUNNING
                self._screen.tell(f"{name}: is queued, or runs already")
            elif is_running:
                cores = set(processes.cores_of(self._holder(name)))
                slots = [i for i, slot in enumerate(self._settings.slots) if cores & set(slot.cores)]
                self._running[name] = _Run(None, frozenset(slots))
                record.state = RUNNING
                self._screen.tell(f"{name}: runs already")

    def _holder(self, name: str) -> int | None:
        """The process of a trial that an earlier launcher has started, if it runs here."""
        return processes.holder(processes.lock_file(self.folder, name))

    def _job(self, name: str) -> ClusterProcess | None:
        """The job of a trial that an earlier launcher has queued, if it has not ended."""
        return unfinished_job(self.folder, processes.lock_file(self.folder, name)) if self._settings.cluster else None

    def _result(self, name: str) -> Result:
        return result_of(self.folder / name, self._plan.objective, self._plan.direction)

    def _take_injected(self) -> None:
        for path in (self.folder / name for name in INJECT_FILES):
            try:
                told = path.stat()
                version = (told.st_mtime_ns, told.st_size)
                if self._injected.get(path) == version or 0.0 <= time.time() - told.st_mtime < _SETTLED_S:
                    continue
                self._injected[path] = version
                added = read_injected(path)
            except FileNotFoundError:
                continue
            except (ConfigError, OSError) as error:
                self._screen.tell(f"{error}; nothing of it was added")
                continue
            for varied in added:
                self._add(varied)

    def _choose(self) -> None:
        """Let the search choose trials, as long as there are places for them."""
        search = self._plan.search
        while search is not None:
            chosen = sum(bool(r.varied) and not r.is_injected for r in self._sweep.records.values())
            has_place = len(self._running) + len(self._open()) < len(self._settings.slots)
            if chosen >= search.trials or not has_place or not self._choose_one(search):
                return

    def _choose_one(self, search: Search) -> bool:
        """Add a trial; False where the search only wants what it has tried."""
        results = results_of(self.folder, self._sweep)
        for attempt in range(_CHOICES):
            number = _CHOICES * len(self._trials) + attempt
            varied = choose(search, self._plan.direction, self._sweep.records, results, number)
            trial = self._plan.trial(varied, self._trials)
            if trial.name not in self._trials:
                break
        else:
            return False
        self._trials[trial.name] = trial
        self._sweep.records[trial.name] = record = Record(trial.options, varied=varied)
        try:
            self._check(trial)
        except ConfigError as error:
            record.state, record.said = REFUSED, str(error)
            self._screen.tell(f"{error}; not tried")
        self._save()
        return True

    def _add(self, given: Mapping[str, Any]) -> None:
        try:
            varied = checked_options(given, "[[trials]]")
            trial = self._plan.trial(varied, self._trials)
            if trial.name in self._trials:
                return
            same = [name for name, other in self._trials.items() if other.options == trial.options]
            if same:
                raise ConfigError(f"{trial.name} is the same as {same[0]}")
            self._check(trial)
        except ConfigError as error:
            self._screen.tell(f"{error}; this trial was not added")
            return
        self._trials[trial.name] = trial
        self._sweep.records[trial.name] = Record(trial.options, is_injected=True, varied=varied)
        self._save()
        self._screen.tell(f"{trial.name}: added")

    def _open(self) -> list[str]:
        """Trials that wait, those that have failed least first."""
        records, starts = self._sweep.records, self._failed_starts
        waiting = [name for name, record in records.items() if record.state == WAITING]
        return sorted(waiting, key=lambda name: (records[name].failures, starts.get(name, 0)))

    def _start_waiting(self) -> None:
        if time.monotonic() < self._next_start:
            return
        taken = {slot for run in self._running.values() for slot in run.slots}
        free = [slot for slot in range(len(self._settings.slots)) if slot not in taken]
        for name in self._open():
            if not free:
                return
            if processes.holder(self.folder / name / LOCK_FILE) is not None:
                continue  # somebody trains there without this sweep; its turn comes when that has ended
            number = free.pop(0)
            try:
                process, where = self._started(name, self._settings.slots[number])
            except (OSError, subprocess.SubprocessError) as error:
                self._put_off(name, " ".join(str(error).split()))
                return
            self._failed_in_a_row = 0
            self._failed_starts.pop(name, None)
            self._running[name] = _Run(process, frozenset({number} if process else ()))
            self._sweep.records[name].state = RUNNING
            self._save()
            self._screen.tell(f"{name}: {where}")

    def _started(self, name: str, slot: processes.Slot) -> tuple[subprocess.Popen[bytes] | ClusterProcess | None, str]:
        """A trial's process, None where another one has its lock, and where it runs.

        Raises:
            OSError, subprocess.SubprocessError: it could not be started, or not be queued.
        """
        lock, cluster = processes.lock_file(self.folder, name), self._settings.cluster
        if cluster is not None:
            command = [*self._settings.program, *self._words(self._trials[name])]
            return cluster.start(name, command, lock, self._output(name)), "queued"
        command = [*self._settings.program, *self._words(self._trials[name], slot)]
        process = processes.start(command, slot, lock, self._output(name))
        on_gpu = "" if slot.gpu is None else f", GPU {slot.gpu}"
        return process, f"started on cores {','.join(map(str, slot.cores))}{on_gpu}"

    def _put_off(self, name: str, problem: str) -> None:
        """Start nothing for a while, and then the other trials before this one, which could not be started.

        Told is the first time only: what the machine or the cluster lacks, it lacks for all trials.

        Raises:
            OSError: that has gone on for long, and nothing runs.
        """
        is_first = not self._failed_in_a_row and name not in self._failed_starts
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._failed_in_a_row, _MOST_STARTS), _LONGEST_PAUSE_S)
        self._next_start = time.monotonic() + pause_s
        self._failed_in_a_row += 1
        tries = self._failed_starts[name] = self._failed_starts.get(name, 0) + 1
        if tries >= _MOST_STARTS:
            record = self._sweep.records[name]
            record.state, record.said = FAILED, problem
            self._save()
            self._screen.tell(f"{name}: could not be started in {tries} tries, given up: {problem}")
        elif self._failed_in_a_row >= _MOST_STARTS and not self._running:
            raise OSError(
                f"no trial could be started in {self._failed_in_a_row} tries ({problem}); the same command goes on"
            )
        elif is_first:
            longest = f"{_LONGEST_PAUSE_S:.0f} s"
            self._screen.tell(f"{name}: could not be started ({problem}); tried again, at least every {longest}")

    def _collect(self) -> None:
        """Judge the trials that have ended."""
        for name, run in list(self._running.items()):
            if run.process is not None:
                code = run.process.poll()
                if code is None:
                    continue
            elif processes.is_locked(processes.lock_file(self.folder, name)):
                continue
            else:
                code = None
            del self._running[name]
            self._judge(name, code)
            self._save()

    def _judge(self, name: str, code: int | None) -> None:
        """Say how a trial has ended.

        Args:
            name: of the trial.
            code: its exit code; None: another launcher's child, so that its files have to tell.
        """
        record = self._sweep.records[name]
        result = self._result(name)
        if code == EXIT_OK or (code is None and is_met(result)):
            record.state = DONE
            objective = "none yet" if result.objective is None else f"{result.objective:.4g}"
            self._screen.tell(f"{name}: done, {self._plan.objective} {objective}")
            return
        if self._stop.received is not None:
            record.state = WAITING
            self._screen.tell(f"{name}: stopped")
            return
        record.failures += 1
        record.said = last_line(self._output(name))
        how = describe_exit(code) if code is not None else "ended before its stop condition was met"
        if code == EXIT_REFUSED:
            record.state, then = REFUSED, "not tried again"
        elif record.failures > self._settings.retries:
            record.state, then = FAILED, f"given up after {record.failures} tries"
        else:
            record.state, then = WAITING, f"will be tried again ({record.failures} of {self._settings.retries})"
        self._screen.tell(f"{name}: {how}, {then}: {record.said}")

    def _end_running(self) -> None:
        """Ask all trials to save and end, and wait for that."""
        received = self._stop.received
        assert received is not None
        self._screen.tell(f"{received.name}: {len(self._running)} trials save and end")
        asked: set[str] = set()
        patience = time.monotonic() + _SAVING_S
        while self._running and time.monotonic() < patience:
            # Until it is sent: a process that has only just been started has not told its number yet.
            asked.update(n for n in self._running.keys() - asked if self._send(n, signal.SIGTERM))
            self._collect()
            time.sleep(_LOOK_EVERY_S / 4)
        for name in self._running:
            self._send(name, signal.SIGKILL)
            self._screen.tell(f"{name}: did not end within {_SAVING_S:.0f} s, killed")

    def _send(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to a trial that runs; whether its process is known."""
        process = self._running[name].process
        if process is not None:
            process.send_signal(number)
            return True
        return processes.send(processes.lock_file(self.folder, name), number)

    def _end(self) -> int:
        self._screen.show_end(self._sweep)
        states = [record.state for record in self._sweep.records.values()]
        if self._stop.received is not None:
            print(f"go on with:  {self._settings.again}", flush=True)
            return self._stop.exit_code
        given_up = states.count(FAILED) + states.count(REFUSED)
        if given_up:
            print(f"{given_up} trials failed; after a repair:  {self._settings.again} --retry_failed", flush=True)
        return EXIT_FAILED if given_up else EXIT_OK

    def _save(self) -> None:
        with self._disk_faults.survived(STATE_FILE):
            write_sweep(self.folder, self._sweep)

    def _output(self, name: str) -> Path:
        return self.folder / _OUTPUT / f"{name}.txt"


def _typed_options(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: typed(value) for name, value in by_our_names(options).items()}


def _require_no_experiment(folder: Path) -> None:
    """Refuse to mix a sweep that begins with what a run has left in the same folder.

    Raises:
        ConfigError: with what to write into the plan.
    """
    try:
        experiments = find_experiments([folder])
    except Refused:  # there is no such folder, or no experiment in it
        return
    if folder in (experiment.folder for experiment in experiments):
        name = f'name = "{folder.name}_sweep"'
        raise ConfigError(f"{folder} is an experiment; give the sweep another name with {name} in the plan")
