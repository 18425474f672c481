"""One start of training, from an accepted command line to an exit code: what is checked, made, followed and ended."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from appo.algorithms.config import ResolvedConfig, fitted, print_origins
from appo.algorithms.memory import layout
from appo.algorithms.memory.layout import Sizes
from appo.algorithms.reporting.budget import Budget
from appo.algorithms.reporting.event_log import EventLog
from appo.algorithms.reporting.sinks.terminal import status_line
from appo.algorithms.run import ending, resources
from appo.algorithms.run.config import torch_device
from appo.algorithms.run.controllers.callbacks import load_callback, make_callback
from appo.algorithms.run.controllers.stopping import goal_reached_before
from appo.algorithms.run.driver import Driver, WorkerPool
from appo.algorithms.run.experiment import Experiment
from appo.algorithms.run.population_files import check_files
from appo.algorithms.run.wandb_mirror import require_package
from appo.algorithms.run_state import Spent
from appo.algorithms.train_config import TrainConfig, check_with_spec
from appo.algorithms.workers.jobs import ModelJob
from appo.algorithms.workers.process_launcher import ProcessEnded, ProcessLauncher, RunFailed, TimeLimit
from appo.algorithms.workers.restarts import RestartLimits
from appo.algorithms.workers.seeds import Seeds
from appo.algorithms.workers.supervisor import Supervisor
from appo.algorithms.workers.worker_handle import Limits
from appo.envs.api import EnvProfile, EnvSpec
from appo.envs.option_wrappers import layers_of
from appo.envs.own_code import raised_at
from appo.envs.preflight import Checked, check_environment
from appo.envs.registry import probe, resolve
from appo.envs.specs import in_words
from appo.utils.files import require_file_size
from appo.utils.logs import log_to_terminal_and_file, say_error
from appo.utils.options import ConfigError, to_text
from appo.utils.processes import set_title
from appo.utils.signals import StopSignals

EXIT_FAILED = 1
MIN_FILE_BYTES = 64 * 2**20  # of logs, metrics and checkpoints of a small run
MODEL_CHECK_S = 300.0  # as long as a learner may take to build the same
STOP_S, STOP_AFTER_FAILURE_S = 2.0, 0.4

_TRACEBACK = "Traceback (most recent call last):\n"
_CAUSE = re.compile(f"^{re.escape(_TRACEBACK)}", re.MULTILINE)

log = logging.getLogger(__name__)


def train(resolved: ResolvedConfig, argv: Sequence[str], stop: StopSignals) -> int:
    """Run an accepted configuration to its end; the exit code.

    Raises:
        ConfigError: the environment, or this machine, refuses it; nothing was written.
    """
    set_title("appo driver")
    if resolved.config.run.with_wandb:
        require_package()
    launcher = ProcessLauncher([str(Path.cwd()), *sys.path])
    stop.end_at_once = lambda: _end_at_once(launcher)
    try:
        if resolved.config.workers.serial_mode:
            launcher.mark_own_children()
        else:
            launcher.import_torch()
        if script := resolve(resolved.config.env.env).family.clear_up:
            launcher.clear_up_with(script)
        return _train(resolved, argv, launcher, stop)
    finally:
        stop.end_at_once = lambda: os._exit(128 + signal.SIGINT)  # the guardian does the rest
        launcher.kill_everything()
        stop.restore()


def profile_environment(resolved: ResolvedConfig, stop: StopSignals) -> tuple[EnvSpec, EnvProfile]:
    """Play an environment for a moment, in a process of its own: its spec and its profile.

    Raises:
        ConfigError: it cannot be trained on, does not start, or a signal came first.
    """
    launcher = ProcessLauncher([str(Path.cwd()), *sys.path])
    try:
        checked = _probe(resolved.config, launcher, stop)
    except RunFailed as error:
        raise ConfigError(str(error)) from error
    finally:
        launcher.kill_everything()
    if checked is None:
        raise ConfigError("a signal came before the environment had been checked")
    return checked.spec, checked.profile


def _train(resolved: ResolvedConfig, argv: Sequence[str], launcher: ProcessLauncher, stop: StopSignals) -> int:
    try:
        checked = _probe(resolved.config, launcher, stop)
        if checked is None:
            return stop.end_before_start()
        spec = checked.spec
        resolved = fitted(resolved, spec, checked.profile)
        device = torch_device(resolved.config.run.device)
        config = resources.with_pooled_policies(resolved.config, device)
        check_with_spec(config, spec)
        check_files(config, resumed=resolved.resumed)
        if config.run.callback:  # refused before the network is looked at; made once a budget is known to be left
            load_callback(config.run.callback)
        sizes = resources.sizes_of(config, spec)
        available_mb = resources.check_memory(config, sizes)
        resources.check_descriptors(sizes)
        require_file_size(max(layout.total_bytes(sizes), MIN_FILE_BYTES))
        job = resources.model_job(config, spec, device, available_mb)
        with _changes_named(resolved):
            spent = _check_model(job, config, launcher, stop)
    except RunFailed as error:
        if stop.received is not None:
            return stop.end_before_start()
        return _fail(str(error), resolved.config, program=argv[0])
    if spent is None or stop.received is not None:
        return stop.end_before_start()
    budget = Budget(config.run.train_for_env_steps, config.run.train_for_seconds)
    if spent.env_frames and budget.spent(*spent) >= 1.0:
        reason = budget.reason(spent.env_frames)
        option = reason.removeprefix("reached ").partition("=")[0]
        print(_tell_done(reason, spent, config, f"a larger --{option}"))
        return 0
    if spent.env_frames and (reason := goal_reached_before(config.run)):
        print(_tell_done(reason, spent, config, "another --stop_when, or --stop_when= for none"))
        return 0
    callback = make_callback(config.run.callback)
    if stop.received is not None:
        return stop.end_before_start()
    experiment = Experiment.open(resolved, argv)
    try:
        log_to_terminal_and_file(experiment.log_file("driver"))
        if experiment.moved_to is not None:
            log.info("what lay in %s is in %s now", experiment.folder, experiment.moved_to)
        if experiment.was_emptied:
            log.info("what lay in %s is deleted", experiment.folder)
        for warning in checked.warnings:
            log.warning("%s", warning)
        if warning := resources.too_small_budget(config, spec, spent.env_frames):
            log.warning("%s", warning)
        log.info("%s: %s", config.env.env, in_words(spec))
        if layers := layers_of(config.env):
            log.info("wrappers, from the inside out: %s", ", ".join(layer.told for layer in layers))
        print_origins(resolved)
        if budget.is_unset and not config.run.stop_when and not config.run.stop_after_no_progress:
            log.info("no limit is set: the run goes on until Ctrl+C, which saves, or --train_for_env_steps=...")
        with contextlib.closing(EventLog(experiment.events_file)) as event_log:
            event_log.tell_changed_options(resolved.changed)
        return _drive(config, spec, sizes, experiment, launcher, stop, callback)
    finally:
        experiment.close()


def _drive(
    config: TrainConfig,
    spec: EnvSpec,
    sizes: Sizes,
    experiment: Experiment,
    launcher: ProcessLauncher,
    stop: StopSignals,
    callback: Any,
) -> int:
    device = torch_device(config.run.device)
    shared = resources.allocate(config, sizes)
    folders = [experiment.checkpoint_dir(policy) for policy in range(config.sampling.num_policies)]
    plan = resources.plan_of(config, spec, device, folders, Seeds(config.run.seed, experiment.starts))
    pool: WorkerPool
    if config.workers.serial_mode:
        from appo.algorithms.run.serial import SerialWorkerPool

        pool = SerialWorkerPool(plan, shared)
    else:
        pool = supervisor = Supervisor(launcher, shared.arrays, shared.handle(), shared.bells, experiment.log_dir)
        options = config.workers
        supervisor.restarts.limits = RestartLimits(
            options.max_failures_in_a_row,
            options.max_setup_retries,
            options.restart_pause_seconds,
            options.max_quarantined_share,
        )
        supervisor.is_ending = lambda: stop.received is not None
        supervisor.limits = Limits(
            setup_s=max(300.0, config.sampling.reset_timeout_seconds),
            reset_s=config.sampling.reset_timeout_seconds,
            step_s=config.workers.heartbeat_timeout_seconds,
        )
        try:
            for worker_spec in resources.worker_specs(plan):
                supervisor.start(worker_spec)
            launcher.forget_torch()
        except (RunFailed, OSError) as error:  # OSError: no descriptors, or no memory for a queue
            if stop.received is not None:
                log.info("%s before the start", stop.reason)
                return stop.exit_code
            return _fail(f"a worker cannot be started: {error}", config, experiment.log_file("driver"))
    driver = Driver(config, experiment, pool, shared, stop, callback)
    if spec.reports_true_reward:
        driver.statistics.expect_true_rewards()
    return _follow(driver, config, experiment, stop)


def _follow(driver: Driver, config: TrainConfig, experiment: Experiment, stop: StopSignals) -> int:
    failure = ""
    try:
        reason = driver.run()
        driver.save()
    except RunFailed as error:
        failure = str(error)
    except Exception:  # a mistake of ours in this process is no reason to lose what was learned
        failure = traceback.format_exc()
    if failure:
        reason = failure
        driver.save_after(failure)
        if stop.received is not None and driver.is_saved:  # what sent the signal may have ended workers as well
            log.warning("%s", failure)
            failure, reason = "", stop.reason
    last = driver.end(reason, STOP_AFTER_FAILURE_S if failure else STOP_S)
    if failure:
        return _fail(failure, config, experiment.log_file("driver"))
    if why := driver.checkpoints.why_unsaved():  # asked for late: a slow disk had until now
        return _fail(f"the last checkpoint could not be written: {why}", config, experiment.log_file("driver"))
    log.info("%s; %s", reason, status_line(last))
    log.info("experiment folder: %s", experiment.folder)
    for line in ending.lines(config, experiment.folder, last, reason, unsaved=experiment.unsaved_words):
        print(line, flush=True)
    return stop.exit_code


def _probe(config: TrainConfig, launcher: ProcessLauncher, stop: StopSignals) -> Checked | None:
    """Check the environment in a process of its own: its spec and profile; None when a signal came first.

    Raises:
        RunFailed: the environment does not start.
        ConfigError: it cannot be trained on, or breaks the contract.
    """
    sampling, env = config.sampling, resources.resolved_env(config)
    limit = TimeLimit(sampling.reset_timeout_seconds, "--reset_timeout_seconds")

    def is_stopped() -> bool:
        return stop.received is not None

    def spec_alone() -> Checked | None:
        spec = launcher.run_once(probe, (env, config.family), limit, is_stopped)
        return None if spec is None else Checked(spec, [])

    if not sampling.check_env:
        return spec_alone()
    place = launcher.context.RawArray("c", 64)  # outlives the process, whatever becomes of it
    arguments = (env, config.family, sampling.on_bad_env_data == "drop", place)
    try:
        checked: Checked | None = launcher.run_once(check_environment, arguments, limit, is_stopped)
    except RunFailed as error:
        if "\n" in str(error) or not place.value:
            raise  # a traceback tells where
        where = place.value.decode()
        told = f"{error}; it was in {where} of --env={config.env.env}"
        if not isinstance(error, ProcessEnded) or not where.startswith("step"):
            raise RunFailed(told) from None
        if sampling.env_backend != "subproc":
            raise RunFailed(f"{told}; with --env_backend=subproc only such an environment is started anew") from None
        log.warning("%s; environments in processes of their own are started anew", told)
        return spec_alone()
    return checked


def _tell_done(reason: str, spent: Spent, config: TrainConfig, to_type: str) -> str:
    """For a run that has nothing left to do."""
    return (
        f"experiment {config.run.experiment} has {reason} before: {spent.env_frames} env frames in "
        f"{spent.train_seconds:.0f} s; nothing was changed. To go on, type {to_type}; to begin anew, "
        "--restart_behavior=restart"
    )


@contextlib.contextmanager
def _changes_named(resolved: ResolvedConfig) -> Iterator[None]:
    """Options that an experiment had not until now may be why it cannot go on."""
    try:
        yield
    except ConfigError as error:
        if not resolved.changed:
            raise
        changes = ", ".join(f"{name} {to_text(before)} -> {to_text(now)}" for name, before, now in resolved.changed)
        raise ConfigError(f"{error}. Changed since the last start: {changes}") from error


def _check_model(job: ModelJob, config: TrainConfig, launcher: ProcessLauncher, stop: StopSignals) -> Spent | None:
    """Build the networks once, in a process of their own, or here where everything is.

    What earlier starts have spent of the budget comes back; None when a signal came first.

    Raises:
        RunFailed: the process died.
        ConfigError: they cannot be built, cannot act, or are not those of the checkpoints; or evaluations are to be
            recorded and the environment cannot be drawn.
    """
    if config.workers.serial_mode:
        from appo.algorithms.workers.model_check import check_model

        return check_model(job)
    limit = TimeLimit(MODEL_CHECK_S)

    def is_stopped() -> bool:
        return stop.received is not None

    if config.workers.eval_video_every_sec:
        _require_images(config, launcher, is_stopped)
    spent: Spent | None = launcher.run_once(resources.CHECK_MODEL, (job,), limit, is_stopped, uses_torch=True)
    return spent


def _require_images(config: TrainConfig, launcher: ProcessLauncher, is_stopped: Callable[[], bool]) -> None:
    arguments = (resources.resolved_env(config), config.family)
    limit = TimeLimit(config.sampling.reset_timeout_seconds, "--reset_timeout_seconds")
    try:
        launcher.run_once(resources.REQUIRE_IMAGES, arguments, limit, is_stopped, uses_torch=True)
    except RunFailed as error:
        doing = f"--env={config.env.env} was to be drawn for --eval_video_every_sec"
        raise RunFailed(f"{doing}:\n{error}" if "\n" in str(error) else f"{doing}: {error}") from None


def _fail(cause: str, config: TrainConfig, log_file: Path | None = None, *, program: str = "train_appo.py") -> int:
    """Tell why the run failed, in the last line; the traceback, if there is one, is for the log and for --debug.

    Args:
        cause: what was done, a traceback and its error; or one line.
        config: of the run.
        log_file: the driver's; None: the run has not started.
        program: as it was called, where the run has not started.
    """
    told, *rest = _CAUSE.split(cause.strip(), maxsplit=1)
    if rest:
        level = logging.INFO if config.run.debug else logging.DEBUG
        if log_file is None and config.run.debug:
            print(cause.rstrip(), file=sys.stderr)
        log.log(level, "%s", cause.rstrip())
        see = f"{log_file} has the traceback" if log_file else "--debug prints the traceback"
        where = "; ".join(filter(None, (raised_at(cause), "" if config.run.debug else see)))
        doing = told.rstrip(": \n")
        told = (f"{doing}: " if doing else "") + _error_in(rest[0]) + (f" ({where})" if where else "")
    text = "run failed: " + " ".join(told.split())
    if log_file is None:
        say_error(Path(program).name, text)
    else:
        log.error("%s", text)
    return EXIT_FAILED


def _error_in(trace: str) -> str:
    """The error that a traceback ends with; of ours without the name of its class, which tells a user nothing."""
    last = trace.rpartition(_TRACEBACK)[2].splitlines()
    error = itertools.dropwhile(lambda line: line.startswith(" "), last)
    return re.sub(r"^appo\.[\w.]+: ", "", " ".join(error))


def _end_at_once(launcher: ProcessLauncher) -> None:
    launcher.kill_everything()
    with contextlib.suppress(OSError):  # not through Python's stream: the signal may have come while it was written to
        os.write(2, b"interrupted again: ended at once, nothing more is saved\n")
    os._exit(128 + signal.SIGINT)
