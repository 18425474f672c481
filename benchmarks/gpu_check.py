"""Does everything work on a GPU, and how fast is it there?

    python -m benchmarks.gpu_check [--device=cuda] [--out=gpu_check.json] [--tasks=cartpole,breakout,doom_basic]
        [--seconds=25] [--term_seconds=2] [--tests=EXPRESSION]

First the tests marked `gpu`: numbers equal to the CPU's for every encoder, core and action space, uploads, checkpoints
of other devices, workers killed while they hold the device, several policies on it. Then, for each task, what the
machine could do and what a run does: terms and LIMIT of `benchmarks.speed.roofline`, frames per second, and the share
of its time that each stage takes. A task whose simulator is not installed is left out, and named.

Needs the checkout and the packages of requirements-dev.txt, no network; at most 9 minutes with the defaults. With
`--device=cpu` it does all that without CUDA. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import torch

from appo.algorithms.config import resolve
from appo.algorithms.run.config import torch_device
from appo.algorithms.workers.process_launcher import RunFailed
from appo.utils.options import ConfigError
from appo.utils.processes import core_count
from benchmarks.measuring import POLL_S, MeasurementError, last_line, parser_of, refuse_output, show, started, tell
from benchmarks.speed import roofline

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
TESTS_LIMIT_S = 240.0
PASSED, SOME_FAILED = 0, 1  # exit codes of pytest
TASKS = {
    "cartpole": ("CartPole-v1", "gymnasium"),
    "breakout": ("atari_breakout", "ale_py"),
    "doom_basic": ("doom_basic", "vizdoom"),
}
STAGES = ("actor_", "policy_", "learner_")


class DeviceTests(NamedTuple):
    """What became of the tests marked `gpu`."""

    passed: int
    failed: list[str]  # each with the first line of what it told
    seconds: float
    problem: str = ""  # why they did not come to their end


class Speed(NamedTuple):
    """One task's measurement; what `roofline` found, or why it found nothing."""

    task: str
    found: dict[str, Any]
    missing: str = ""


def run_tests(device: str, expression: str, folder: Path) -> DeviceTests:
    """The tests marked `gpu` whose names the expression selects, one after the other: nothing else has the device."""
    report, log = folder / "tests.xml", folder / "tests.log"
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "-q", "-k", expression]
    command += [f"--gpu_device={device}", f"--junitxml={report}"]
    began, problem = time.monotonic(), ""
    with started(command, log) as (process, _):  # at its end nothing that a test began is left
        while process.poll() is None:
            if time.monotonic() - began > TESTS_LIMIT_S:
                problem = f"not done within {TESTS_LIMIT_S:g} s; last line: {last_line(log)}"
                break
            time.sleep(POLL_S)
    took_s = time.monotonic() - began
    if not problem and process.returncode not in (PASSED, SOME_FAILED):
        problem = f"exit code {process.returncode}; last line: {last_line(log)}"
    passed, failed = outcomes(report) if report.exists() else (0, [])
    return DeviceTests(passed, failed, took_s, problem)


def outcomes(report: Path) -> tuple[int, list[str]]:
    """How many tests passed, and which did not, of a report in JUnit's format."""
    passed, failed = 0, []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = [found for found in case if found.tag in ("failure", "error")]
        if bad:
            told = (bad[0].get("message") or "").splitlines() or [""]
            failed.append(f"{case.get('name')}: {told[0]}")
        elif case.find("skipped") is None:
            passed += 1
    return passed, failed


def measure_speed(task: str, device: str, seconds: float, term_seconds: float) -> Speed:
    """What `roofline` finds of one task with its own defaults.

    Raises:
        RunFailed, MeasurementError: something could not be measured.
        ConfigError: the environment cannot be trained on.
    """
    env, package = TASKS[task]
    if importlib.util.find_spec(package) is None:
        return Speed(task, {}, f"{package} is not installed")
    options = [f"--env={env}", f"--device={device}"]
    with tempfile.TemporaryDirectory() as nowhere:
        resolved = resolve([*options, f"--train_dir={nowhere}"], prog="gpu_check")
        result = roofline.find_out(resolved, options, seconds, term_seconds)
    return Speed(task, roofline.as_json(result))


def machine(device: str) -> dict[str, Any]:
    """What everything was measured on."""
    found: dict[str, Any] = {"device": device, "cores": core_count(), "torch": torch.__version__}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(torch.device(device))
        found |= {"gpu": properties.name, "gpu_mb": properties.total_memory // 2**20, "cuda": torch.version.cuda}
    return found


def rows_of(tests: DeviceTests, speeds: Sequence[Speed]) -> list[list[str]]:
    """The table's cells."""
    told = tests.problem or f"{tests.passed} passed, {len(tests.failed)} failed in {tests.seconds:.0f} s"
    rows = [["tests marked gpu", told], *(["  failed", failed] for failed in tests.failed)]
    for speed in speeds:
        if speed.missing:
            rows.append([speed.task, speed.missing])
            continue
        found = speed.found
        terms = found["terms"]
        actor_s = terms["environment_s"] + terms["bookkeeping_s"]
        rows += [
            [speed.task, f"{found['measured']:.0f} frames/s; LIMIT {found['limit']:.0f}, R {found['R']:.2f}"],
            ["  environment and bookkeeping", f"{1e6 * actor_s:.1f} us a step"],
            ["  inference, training", f"{1e6 * terms['inference_s']:.1f}, {1e6 * terms['train_s']:.1f} us a step"],
            ["  first frame", f"{found['run']['first_frame_s']:.1f} s after the command"],
            ["  cores kept busy", f"{found['run']['cores']:.2f} of {terms['cores']}"],
        ]
        shares = {name: share for name, share in found["stages"].items() if name.startswith(STAGES) and 0 < share <= 1}
        rows += [[f"  share {name}", f"{share:.2f}"] for name, share in shares.items()]
    return rows


def main(argv: Sequence[str]) -> int:
    """Test, measure, print the table, write the JSON."""
    parser = parser_of("benchmarks.gpu_check", __doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for a rehearsal")
    parser.add_argument("--tasks", default=",".join(TASKS), help="whose speed is measured")
    parser.add_argument("--seconds", type=float, default=25.0, help="length of the measured window of each run")
    parser.add_argument("--term_seconds", type=float, default=2.0, help="time for each term of LIMIT")
    parser.add_argument("--tests", default="", metavar="EXPRESSION", help="only these, as pytest -k has it")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="JSON file for every number")
    chosen = parser.parse_args(argv)
    tasks = [task for task in chosen.tasks.split(",") if task]
    unknown = sorted(set(tasks) - set(TASKS))
    try:
        if unknown:
            raise ValueError(f"--tasks={chosen.tasks}: there is no {unknown[0]}; tasks: {', '.join(TASKS)}")
        refuse_output(chosen.out)
        device = torch_device(chosen.device)
        used = machine(device)
    except ValueError as error:  # ConfigError is one
        print(f"gpu_check: {error}", file=sys.stderr)
        return EXIT_REFUSED
    tell(", ".join(f"{name} {value}" for name, value in used.items()))
    with tempfile.TemporaryDirectory() as folder:
        tests = run_tests(device, chosen.tests, Path(folder))
    tell(rows_of(tests, [])[0][1])
    speeds: list[Speed] = []
    failures: list[str] = []
    for task in tasks:
        try:
            speeds.append(measure_speed(task, device, chosen.seconds, chosen.term_seconds))
        except (RunFailed, MeasurementError, ConfigError) as error:
            failures.append(f"{task}: {error}")
            speeds.append(Speed(task, {}, f"failed: {str(error).splitlines()[-1]}"))
        tell(f"{task} done")
    show(["gpu-check", used.get("gpu", "CPU")], rows_of(tests, speeds))
    numbers = {"machine": used, "tests": tests._asdict(), "speed": [speed._asdict() for speed in speeds]}
    chosen.out.write_text(json.dumps(numbers | {"failures": failures}, indent=1) + "\n")
    for failure in failures:
        print(f"gpu_check: {failure}", file=sys.stderr)
    return EXIT_FAILED if tests.failed or tests.problem or failures else EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
