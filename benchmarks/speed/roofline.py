"""How close is a run to what this machine can do?

    python -m benchmarks.speed.roofline --env=atari_breakout [training options] [--seconds=60] [--out=FILE.json]

Measures every term of

    LIMIT = cores / (c_env + c_bookkeeping + c_inference + epochs * c_train)

alone, in core-seconds per agent step, each in a process of its own on one core; then trains for `--seconds` and prints
the terms, LIMIT, what was measured, R = measured / LIMIT, which judges the system, and R_env = measured / pure
simulation, which tells how much of the simulator is used. LIMIT has no waiting, no copying into batches and no wake-ups
in it; what those cost is listed below it. Nothing else should run on the machine.

On a GPU, inference and training are seconds of that one device, from the call to its result, and

    LIMIT = min(cores / (c_env + c_bookkeeping), 1 / (c_inference + epochs * c_train))
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.config import FITTED, ResolvedConfig, fitted, resolve
from appo.algorithms.run import resources
from appo.algorithms.run.config import torch_device
from appo.algorithms.train_config import TrainConfig, to_json
from appo.algorithms.workers.process_launcher import ProcessLauncher, RunFailed, TimeLimit
from appo.envs.api import EnvSpec
from appo.envs.option_wrappers import env_of
from appo.envs.preflight import check_environment
from appo.utils.options import ConfigError
from appo.utils.processes import core_count
from benchmarks.measuring import ROOT, Measurement, MeasurementError, measure, parser_of, show
from benchmarks.ours import kind_of_ours, our_run
from benchmarks.speed import terms

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
WARM_UP_S = 10.0
START_LIMIT = TimeLimit(300.0)
SUMMARIES_EVERY_S = 5.0


class Terms(NamedTuple):
    """Core-seconds per agent step, each measured alone."""

    environment_s: float
    bookkeeping_s: float
    inference_s: float
    train_s: float  # all epochs
    collate_s: float
    hand_over_s: float  # per wake-up, not per step
    frames_per_step: float
    cores: int
    is_on_gpu: bool = False  # inference and training

    @property
    def pure_simulation(self) -> float:
        """Frames per second of the environments alone on all cores."""
        return self.frames_per_step * self.cores / self.environment_s

    @property
    def limit(self) -> float:
        """Frames per second of a system that computes nothing but what must be computed."""
        return self._limit(self.inference_s + self.train_s)

    @property
    def limit_of_sampling(self) -> float:
        """The same without a learner."""
        return self._limit(self.inference_s)

    def _limit(self, networks_s: float) -> float:
        simulation_s = self.environment_s + self.bookkeeping_s
        if self.is_on_gpu:
            return self.frames_per_step * min(self.cores / simulation_s, 1.0 / networks_s)
        return self.frames_per_step * self.cores / (simulation_s + networks_s)


class Result(NamedTuple):
    """Everything that one call of this program found out."""

    terms: Terms
    run: Measurement
    stages: dict[str, float]
    is_sampling_only: bool

    @property
    def limit(self) -> float:
        """The bound of what was run."""
        return self.terms.limit_of_sampling if self.is_sampling_only else self.terms.limit

    @property
    def ratio(self) -> float:
        """R."""
        return self.run.frames_per_second / self.limit

    @property
    def ratio_env(self) -> float:
        """R_env."""
        return self.run.frames_per_second / self.terms.pure_simulation


def measure_terms(launcher: ProcessLauncher, config: TrainConfig, spec: EnvSpec, seconds: float) -> Terms:
    """Every term, one after the other, `seconds` each.

    Raises:
        RunFailed: one of them ended in an error.
    """

    def alone(function: Callable[..., Any], *arguments: Any) -> Any:
        return launcher.run_once(function, arguments, START_LIMIT, lambda: False)

    env = alone(terms.environment, config, spec, seconds)
    actor_s = alone(terms.with_bookkeeping, config, spec, seconds)
    inference_s = alone(terms.inference, config, spec, seconds)
    with tempfile.TemporaryDirectory() as folder:
        learner = alone(terms.learner, config, spec, seconds, Path(folder))
    return Terms(
        environment_s=env.seconds,
        bookkeeping_s=max(0.0, actor_s - env.seconds),
        inference_s=inference_s,
        train_s=learner.train_s,
        collate_s=learner.collate_s,
        hand_over_s=alone(terms.hand_over, 0.2 * seconds),
        frames_per_step=env.frames,
        cores=core_count(),
        is_on_gpu=torch_device(config.run.device) != "cpu",
    )


def train(options: Sequence[str], seconds: float, folder: Path) -> tuple[Measurement, dict[str, float]]:
    """A real run of these options, and the shares of its stages.

    Raises:
        MeasurementError: it ended by itself or made no frame.
    """
    run = our_run([*options, f"--experiment_summaries_interval={SUMMARIES_EVERY_S:g}"], folder)
    result = measure(run.command, folder / "log.txt", run.frames, kind_of_ours, warm_up_s=WARM_UP_S, seconds=seconds)
    return result, run.stages(seconds)


def find_out(resolved: ResolvedConfig, options: Sequence[str], seconds: float, term_seconds: float) -> Result:
    """The terms, then the run.

    Raises:
        RunFailed, MeasurementError: something could not be measured.
        ConfigError: the environment cannot be trained on.
    """
    launcher = ProcessLauncher([str(ROOT), *sys.path])
    try:
        arguments = (env_of(resolved.config.env), resolved.config.family, False)
        checked = launcher.run_once(check_environment, arguments, START_LIMIT, lambda: False)
        resolved, spec = fitted(resolved, checked.spec, checked.profile), checked.spec
        config = resources.with_pooled_policies(resolved.config, torch_device(resolved.config.run.device))
        # Step times differ from one moment to the next, and the run must not choose other options than the terms have.
        options = [*_chosen_words(resolved), *options]
        resources.check_memory(config, resources.sizes_of(config, spec))
        found = measure_terms(launcher, config, spec, term_seconds)
    finally:
        launcher.kill_everything()
    with tempfile.TemporaryDirectory() as folder:
        run, stages = train(options, seconds, Path(folder))
    return Result(found, run, stages, config.run.sampler_only)


def _chosen_words(resolved: ResolvedConfig) -> list[str]:
    """Options that were chosen for the environment, as a user would type them."""
    values = json.loads(to_json(resolved.config))["options"]
    chosen = [name for name, origin in resolved.origins.items() if origin.startswith(FITTED)]
    return [f"--{name}={values[name]}" for name in chosen]


def rows_of(result: Result) -> list[list[str]]:
    """The table's cells."""
    found, run = result.terms, result.run
    rows = [
        ["environment", f"{found.environment_s * 1e6:.1f} us a step"],
        ["bookkeeping", f"{found.bookkeeping_s * 1e6:.1f} us a step"],
        ["inference", f"{found.inference_s * 1e6:.1f} us a step"],
        ["training, all epochs", f"{found.train_s * 1e6:.1f} us a step"],
        ["pure simulation", f"{found.pure_simulation:.0f} frames/s on {found.cores} cores"],
        ["LIMIT, sampling only" if result.is_sampling_only else "LIMIT", f"{result.limit:.0f} frames/s"],
        ["measured", f"{run.frames_per_second:.0f} frames/s over {run.seconds:.0f} s"],
        ["R", f"{result.ratio:.2f}"],
        ["R_env", f"{result.ratio_env:.2f}"],
        ["not in LIMIT: into batches", f"{found.collate_s * 1e6:.1f} us a step"],
        ["not in LIMIT: a wake-up", f"{found.hand_over_s * 1e6:.0f} us"],
        ["cores kept busy", f"{run.cores:.2f} of {found.cores}"],
        *([f"  {kind}", f"{usage.cores:.2f} cores, {usage.peak_mb:.0f} MB"] for kind, usage in run.usage.items()),
        ["peak memory", f"{run.peak_mb:.0f} MB"],
        ["first frame", f"{run.first_frame_s:.1f} s after the command"],
    ]
    is_share = ("actor_", "policy_", "learner_")
    shares = {name: share for name, share in result.stages.items() if name.startswith(is_share) and 0 < share <= 1}
    rows += [[f"  share {name}", f"{share:.2f}"] for name, share in shares.items()]
    rows.append(["rows in a batch of actions", f"{result.stages.get('policy_batch_size', 0.0):.1f}"])
    return rows


def as_json(result: Result) -> dict[str, Any]:
    """Every number."""
    return {
        "terms": result.terms._asdict(),
        "limit": result.limit,
        "pure_simulation": result.terms.pure_simulation,
        "measured": result.run.frames_per_second,
        "R": result.ratio,
        "R_env": result.ratio_env,
        "run": result.run.as_json(),
        "stages": result.stages,
    }


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = parser_of("benchmarks.speed.roofline", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the measured window of the run")
    parser.add_argument("--term_seconds", type=float, default=5.0, help="time for each term")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every number")
    chosen, options = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as nowhere:
        try:
            resolved = resolve([*options, f"--train_dir={nowhere}"], prog=parser.prog)
            result = find_out(resolved, options, chosen.seconds, chosen.term_seconds)
        except ConfigError as error:
            print(f"limit: {error}", file=sys.stderr)
            return EXIT_REFUSED
        except (RunFailed, MeasurementError) as error:
            print(f"limit: {error}", file=sys.stderr)
            return EXIT_FAILED
    show([" ".join(options), ""], rows_of(result))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps({"options": list(options)} | as_json(result), indent=1) + "\n")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
