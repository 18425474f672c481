"""How fast is it beside another framework? Both train the same task with the same configuration, in alternation.

    python -m benchmarks.speed.side_by_side --peer=sample-factory --peer_python=PATH --env=cartpole --out=cartpole.json

Two actors' worth of environments, batches of 1024, rollouts of 32, one epoch, one batch per iteration, on the CPU. Each
run is a fresh tree of processes, watched from outside after a warm-up; ours comes first in each round. Options that are
not of this command are passed on to our `train_appo.py`, after `--` or without it. docs/benchmarks.md tells how to make
the peers' environments. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from benchmarks.measuring import ROOT, Measurement, MeasurementError, measure, parser_of, refuse_output, show
from benchmarks.ours import COMPARISON, FOR_EVER, TASKS, kind_of_ours, our_run

# Longer than our actors take to start at moments spread over a rollout, and than any of the programs takes to settle.
WARM_UP_S = 10.0
EXIT_OK, EXIT_FAILED = 0, 1
TOLD = r"(?m)^frames: (\d+)"  # by our programs in benchmarks/peers
FRAMES = r"Total num frames: (\d+)"  # in Sample Factory's log
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SETUP = 'how to make it: docs/benchmarks.md, "Speed"'

SAMPLE_FACTORY = (
    "--algo=APPO --device=cpu --serial_mode=False --async_rl=True --num_workers=2 --worker_num_splits=2 "
    "--policy_workers_per_policy=1 --rollout=32 --batch_size=1024 --num_batches_per_epoch=1 --num_epochs=1"
)
# Its workers run the top of this file as well, which registers Atari's games in them. Its log tells the frames every 5
# seconds, and no option changes that: too rough for a window of half a minute.
SAMPLE_FACTORY_PROGRAM = """\
import {package}
from {examples} import main

if __name__ == "__main__":
    from sample_factory.algo.runners.runner import Runner

    Runner.report_interval_sec = property(lambda self: 0.25, lambda self, value: None)
    main()
"""


class Task(NamedTuple):
    """One environment and network, in the peer's words; ours stand in `ours.TASKS`."""

    sample_factory: str
    sample_factory_examples: str  # module with the program for this kind of task
    package: str  # what the peer's Python needs besides the framework


PEERS_TASKS = {
    "cartpole": Task(
        "--env=CartPole-v1 --num_envs_per_worker=64 --use_rnn=False --recurrence=1 --encoder_mlp_layers 512 512 "
        "--nonlinearity=tanh",
        "sf_examples.train_gym_env",
        "gymnasium",
    ),
    "breakout": Task(
        "--env=atari_breakout --num_envs_per_worker=8 --use_rnn=False --recurrence=1 "
        "--encoder_conv_architecture=convnet_atari --encoder_conv_mlp_layers 512 --nonlinearity=relu",
        "sf_examples.atari.train_atari",
        "ale_py",
    ),
    "doom_basic": Task(
        "--env=doom_basic --num_envs_per_worker=8 --use_rnn=True --rnn_type=gru --rnn_size=512 --recurrence=32 "
        "--encoder_conv_architecture=convnet_simple --encoder_conv_mlp_layers 512 --res_w=128 --res_h=72",
        "sf_examples.vizdoom.train_vizdoom",
        "vizdoom",
    ),
}


class Program(NamedTuple):
    """Something that can be measured."""

    command: list[str]
    frames: Callable[[], float]  # counted so far
    kind_of: Callable[[psutil.Process], str]
    cwd: Path


class LoggedNumber:
    """The last number of a kind in a log that is being written; each line is read once."""

    def __init__(self, log: Path, pattern: str, before: float = 0.0) -> None:
        """`pattern`: its first group is the number. `before`: what holds as long as there is none."""
        self._log = log
        self._pattern = re.compile(pattern)
        self._position = 0
        self._last = before

    def __call__(self) -> float:
        """Read what is new; the last number so far."""
        with self._log.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]  # the end of a line that is being written may lack digits
        self._position += len(complete)
        counts = self._pattern.findall(COLOURS.sub("", complete.decode(errors="replace")))
        self._last = float(counts[-1]) if counts else self._last
        return self._last


def kind_of_peers(process: psutil.Process) -> str:
    """A peer's processes cannot be told apart, but for the simulators."""
    return "engine" if "vizdoom" in process.name() else "python"


def ours(task: str, folder: Path, options: Sequence[str]) -> Program:
    """Our program, with what was typed for it last."""
    run = our_run([*TASKS[task].split(), *COMPARISON.split(), *options], folder)
    return Program(run.command, run.frames, kind_of_ours, ROOT)


def sample_factory(task: str, folder: Path, python: Path, is_sampling_only: bool) -> Program:
    """Sample Factory: its own program for this task, or one of ours round its sampler."""
    options = [*PEERS_TASKS[task].sample_factory.split(), *SAMPLE_FACTORY.split()]
    options += [f"--train_dir={folder}", "--experiment=peer", f"--train_for_env_steps={FOR_EVER}"]
    log = folder / "log.txt"
    if is_sampling_only:
        sampler = ROOT / "benchmarks" / "peers" / "sample_factory_sampler.py"
        return Program([str(python), str(sampler), task, *options], LoggedNumber(log, TOLD), kind_of_peers, folder)
    package, examples = PEERS_TASKS[task].package, PEERS_TASKS[task].sample_factory_examples
    program = folder / "program.py"
    program.write_text(SAMPLE_FACTORY_PROGRAM.format(package=package, examples=examples))
    # In a folder of its own: our packages must not be taken for its modules.
    return Program([str(python), str(program), *options], LoggedNumber(log, FRAMES), kind_of_peers, folder)


def stable_baselines3(task: str, folder: Path, python: Path, is_sampling_only: bool) -> Program:
    """Stable-Baselines3, by a small program of ours."""
    program = ROOT / "benchmarks" / "peers" / "stable_baselines3_run.py"
    command = [str(python), str(program), f"--env={task}", *(["--sampler_only"] if is_sampling_only else [])]
    return Program(command, LoggedNumber(folder / "log.txt", TOLD), kind_of_peers, folder)


class Peer(NamedTuple):
    """Another framework."""

    title: str
    module: str
    tasks: tuple[str, ...]
    program: Callable[[str, Path, Path, bool], Program]


PEERS = {
    "sample-factory": Peer("Sample Factory", "sample_factory", tuple(TASKS), sample_factory),
    "stable-baselines3": Peer("Stable-Baselines3", "stable_baselines3", ("cartpole", "breakout"), stable_baselines3),
}


class Refusal(ValueError):
    """The command cannot be carried out. The message says why and what to do."""


def version_of(peer: str, python: Path, task: str) -> str:
    """The version of a framework in its own environment.

    Raises:
        Refusal: there is no such Python, or it lacks a package.
    """
    return imported_version(peer, python, [PEERS[peer].module, PEERS_TASKS[task].package])


def imported_version(peer: str, python: Path, modules: Sequence[str]) -> str:
    """The version of a framework in its own environment, where these modules can be imported.

    Raises:
        Refusal: there is no such Python, or it lacks a module.
    """
    if not python.is_file() or not os.access(python, os.X_OK):
        raise Refusal(f"--peer_python={python} is not a program; it is the python of {peer}'s environment; {SETUP}")
    code = f"import {', '.join(modules)}; from importlib.metadata import version; print(version({peer!r}))"
    try:
        # -I: our packages must not be taken for the peer's modules.
        result = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refusal(f"--peer_python={python} cannot be run ({error}); {SETUP}") from error
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise Refusal(f"--peer_python={python} cannot import {' and '.join(modules)} ({reason}); {SETUP}")
    return result.stdout.split()[-1]


def run(name: str, program: Program, folder: Path, seconds: float) -> Measurement:
    """Measure one run.

    Raises:
        MeasurementError: it could not be measured; names the program.
    """
    log = folder / "log.txt"
    try:
        return measure(
            program.command, log, program.frames, program.kind_of,
            warm_up_s=WARM_UP_S, seconds=seconds, cwd=program.cwd,
        )  # fmt: skip
    except MeasurementError as error:
        raise MeasurementError(f"{name}: {error}") from error


def describe(name: str, result: Measurement) -> str:
    """One run in a line."""
    kinds = ", ".join(f"{kind} {usage.cores:.2f}" for kind, usage in result.usage.items())
    return (
        f"{name}: {result.frames_per_second:.0f} frames/s, {result.cores:.2f} cores ({kinds}), "
        f"{result.peak_mb:.0f} MB, first frame after {result.first_frame_s:.1f} s"
    )


class Quantity(NamedTuple):
    """One row of the table."""

    name: str
    of: Callable[[Measurement], float]
    digits: int
    has_ratio: bool = False


class Round(NamedTuple):
    """Two runs, one after the other."""

    ours: Measurement
    peer: Measurement


QUANTITIES = (
    Quantity("frames per second", lambda result: result.frames_per_second, 0, has_ratio=True),
    Quantity("peak memory of all processes, MB", lambda result: result.peak_mb, 0, has_ratio=True),
    Quantity("cores kept busy", lambda result: result.cores, 2),
    Quantity("seconds from the command to the first frame", lambda result: result.first_frame_s, 1),
)


def spread(middle: float, values: Sequence[float], digits: int) -> str:
    """A number with the smallest and the largest of those that it stands for."""
    return f"{middle:.{digits}f} ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def summarise(rounds: Sequence[Round]) -> list[list[str]]:
    """The cells of every row: the quantity, ours, the peer's, and ours in units of the peer's."""
    rows = []
    for quantity in QUANTITIES:
        mine, theirs = [quantity.of(pair.ours) for pair in rounds], [quantity.of(pair.peer) for pair in rounds]
        middle, other = statistics.median(mine), statistics.median(theirs)
        cells = [quantity.name, spread(middle, mine, quantity.digits), spread(other, theirs, quantity.digits)]
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)] if quantity.has_ratio else []
        rows.append([*cells, spread(middle / other, ratios, 2) if ratios else ""])
    return rows


def as_json(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Every number of every run."""
    return [{"ours": pair.ours.as_json(), "peer": pair.peer.as_json()} for pair in rounds]


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, str]:
    """What was typed, with `options` for our program, and the peer's version; exits when it cannot be done."""
    parser = parser_of("benchmarks.speed.side_by_side", __doc__)
    parser.add_argument("--peer", choices=tuple(PEERS), default="sample-factory", help="the other framework")
    parser.add_argument("--peer_python", type=Path, required=True, help="the python of the peer's own environment")
    parser.add_argument("--env", choices=tuple(TASKS), required=True, help="the task")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in alternation")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measured window")
    parser.add_argument("--sampler_only", action="store_true", help="play and learn nothing, both of them")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every number")
    chosen, others = parser.parse_known_args(argv)
    chosen.options = [word for word in others if word != "--"]
    # The path as it is: the python of a virtual environment is a link, and not the same behind it.
    chosen.peer_python = chosen.peer_python.expanduser().absolute()
    try:
        _check(chosen)
        version = version_of(chosen.peer, chosen.peer_python, chosen.env)
    except Refusal as refusal:
        parser.error(str(refusal))
    if chosen.sampler_only:
        chosen.options = ["--sampler_only=True", *chosen.options]
    return chosen, version


def _check(chosen: argparse.Namespace) -> None:
    peer = PEERS[chosen.peer]
    if chosen.env not in peer.tasks:
        raise Refusal(f"--env={chosen.env} is not there for {chosen.peer}; there are {', '.join(peer.tasks)}")
    if chosen.rounds < 1 or not 0 < chosen.seconds < float("inf"):
        raise Refusal(f"--rounds={chosen.rounds} --seconds={chosen.seconds:g}: at least one round of some seconds")
    try:
        refuse_output(chosen.out)
    except ValueError as error:
        raise Refusal(str(error)) from error
    if stray := [word for word in chosen.options if not word.startswith("--")]:
        raise Refusal(f"{' '.join(stray)}: options of ours are typed --name=value")


def compare(chosen: argparse.Namespace, scratch: Path, tell: Callable[[str], None]) -> list[Round]:
    """Ours and the peer in alternation.

    Raises:
        MeasurementError: one of them could not be measured.
    """
    rounds = []
    for number in range(1, chosen.rounds + 1):
        our_folder, peer_folder = scratch / f"ours-{number}", scratch / f"peer-{number}"
        our_folder.mkdir()
        peer_folder.mkdir()
        ours_now = run("ours", ours(chosen.env, our_folder, chosen.options), our_folder, chosen.seconds)
        tell(describe(f"{number}. ours", ours_now))
        program = PEERS[chosen.peer].program(chosen.env, peer_folder, chosen.peer_python, chosen.sampler_only)
        peer_now = run(chosen.peer, program, peer_folder, chosen.seconds)
        tell(describe(f"{number}. {chosen.peer}", peer_now))
        rounds.append(Round(ours_now, peer_now))
    return rounds


def main(argv: Sequence[str]) -> int:
    """Measure in alternation, print the table, write the JSON."""
    chosen, version = parse(argv)
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            rounds = compare(chosen, Path(scratch), lambda line: console.print(line, soft_wrap=True, highlight=False))
        except MeasurementError as error:
            print(f"side_by_side: {error}", file=sys.stderr)
            return EXIT_FAILED
    columns = [chosen.env, "ours", f"{PEERS[chosen.peer].title} {version}", "ratio"]
    show(columns, summarise(rounds))
    if chosen.out is not None:
        heading = {"env": chosen.env, "peer": chosen.peer, "peer_version": version, "options": chosen.options}
        chosen.out.write_text(json.dumps(heading | {"rounds": as_json(rounds)}, indent=1) + "\n")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
