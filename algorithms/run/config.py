"""Options of a run as a whole: its name and place, its device, when it ends, what it saves and reports."""

from __future__ import annotations

import difflib
import importlib.util
import math
import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from appo.utils.options import ConfigError, option

# In the experiment's folder.
CONFIG_FILE, SUMMARY_FILE, STATUS_FILE = "config.json", "summary.json", "status.json"
METRICS_FILE, COMMAND_LINES_FILE = "metrics.jsonl", "command_lines.txt"
# How --restart_behavior=restart renames an experiment's folder, whose `name` another one takes.
MOVED_ASIDE = re.compile(r"(?P<name>.+)\.\d{8}-\d{6}(\.\d+)?")
# The driver's marks on Linux, and under Windows' Linux; none of them, and no CUDA program can run.
_NVIDIA_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_DEVICE = re.compile(r"auto|cpu|gpu|cuda|cuda:\d+")
_UNFIT_FOR_A_FOLDER = re.compile(r"[^\w.+=@,-]")
_MOST_NAMES = 5  # of experiments in a message
_MAX_PART_BYTES = 255  # of a path, on the usual file systems
_MAX_NAME_BYTES = 200  # a run that is moved aside gets a longer name
_MAX_FOLDER_BYTES = 3800  # of 4096 that a path may have; files lie below


class Goal(NamedTuple):
    """What ends a run, when a policy has reached it."""

    metric: str  # reward, true_reward, or a tag
    comparison: str
    value: float

    def holds(self, value: float) -> bool:
        """This value of the metric is enough."""
        return _COMPARISONS[self.comparison](value, self.value)


def goal_of(text: str) -> Goal | None:
    """The goal that `--stop_when` states; None: none.

    Raises:
        ConfigError: it is no comparison.
    """
    if not text.strip():
        return None
    found = re.fullmatch(r"\s*([\w./-]+?)\s*(>=|<=|>|<)\s*(\S+)\s*", text)
    try:
        if found is None or not ("/" in found[1] or found[1] in ("reward", "true_reward")):
            raise ValueError
        value = float(found[3])
        if not math.isfinite(value):
            raise ValueError
        return Goal(found[1], found[2], value)
    except ValueError:
        raise ConfigError(
            f"stop_when={text!r} is no goal; for example 'reward>=475', 'true_reward>20' or 'eval/reward>=475', a tag "
            "of docs/metrics.md"
        ) from None


@dataclass(frozen=True)
class RunConfig:
    """Name, place, device and end of a run; what it saves and reports."""

    experiment: str = option("default_experiment", "Name of the run and of its folder")
    train_dir: str = option("./train_dir", "Folder of all experiments")
    experiments_root: str = option("", "Folder below train_dir that groups experiments")
    preset: str = option(
        "",
        "An environment with options that have reached a known score, such as lunarlander, see docs/presets.md. They "
        "count as typed before the file of --config and the words of the command line, which win. Empty: none",
    )
    config: str = option(
        "",
        "TOML or JSON file of options, such as plan.toml or the config.json of another experiment. They count as typed "
        "before the words of the command line, which win. Empty: none",
    )
    restart_behavior: str = option(
        "resume",
        "What happens when the experiment exists. resume: go on; restart: move the old folder aside; overwrite: "
        "delete it",
        choices=("resume", "restart", "overwrite"),
    )
    device: str = option(
        "auto", "Where policies compute and learn: auto (a GPU when there is one), cpu, gpu, or cuda:N for GPU number N"
    )
    seed: int = option(
        -1, "Where all randomness starts. -1: drawn anew, and recorded in config.json", minimum=-1, maximum=2**32 - 1
    )
    train_for_env_steps: int = option(
        10_000_000_000, "End after this many environment frames, over all resumes", minimum=1
    )
    train_for_seconds: float = option(
        1e10, "End after this many seconds, summed over all resumes; inf: no limit", minimum=0.001, may_be_infinite=True
    )
    stop_when: str = option(
        "",
        "End when a policy has reached this, such as 'reward>=475': reward or true_reward, as the mean of --stats_avg "
        "episodes, or any tag, such as 'eval/reward>=475'; with >=, <=, > or <. Empty: no goal",
    )
    stop_after_no_progress: int = option(
        0, "End when the best mean return has not become better for so many environment frames. 0: never", minimum=0
    )
    callback: str = option(
        "", "A class of your own that hears of the run, my_module:MyCallback, see docs/metrics.md. Empty: none"
    )
    save_every_sec: float = option(
        120.0, "Seconds between checkpoints; inf: only at the end", minimum=0.0, may_be_infinite=True
    )
    keep_checkpoints: int = option(3, "How many of the newest checkpoints stay on disk", minimum=1)
    save_milestones_sec: float = option(
        -1.0,
        "Seconds of training, over all resumes, between checkpoints that are kept for good, in milestones/. 0 or -1: "
        "none",
        minimum=-1.0,
    )
    load_checkpoint_kind: str = option(
        "latest",
        "Which checkpoint a resumed run, or a watched policy, starts from. latest: whichever was written last, the "
        "best one included",
        choices=("latest", "best"),
    )
    save_best_metric: str = option(
        "reward",
        "What decides which policy is the best: reward, true_reward, len, or a statistic of the environment; or the "
        "same of evaluations beside training, as eval_reward",
    )
    save_best_after: int = option(100_000, "No best checkpoint before this many environment frames", minimum=0)
    save_best_every_sec: float = option(5.0, "Seconds between looks at whether the policy is the best yet", minimum=0.0)
    stats_avg: int = option(100, "Episodes over which reported returns and lengths are averaged", minimum=1)
    experiment_summaries_interval: float = option(
        20.0, "Seconds between points in TensorBoard and metrics.jsonl; at first more often", minimum=0.1
    )
    view: str = option(
        "auto",
        "What the terminal shows of a run. full: a frame of its numbers, drawn anew once a second, which needs a "
        "terminal; lines: a line every few seconds; off: only warnings, errors and the end; auto: full in a terminal, "
        "else lines, and lines with --serial_mode. Not kept for a resume",
        choices=("auto", "full", "lines", "off"),
    )
    with_wandb: bool = option(
        False,
        "Send the run's numbers to Weights & Biases as well, from a process of its own that the run never waits for. "
        "Without a network, or with WANDB_MODE=offline, they are kept in wandb/ for `wandb sync`",
    )
    wandb_project: str = option("appo", "Project at Weights & Biases")
    wandb_user: str = option("", "User or team at Weights & Biases. Empty: who has logged in")
    wandb_group: str = option("", "Group of runs at Weights & Biases")
    wandb_tags: str = option("", "Tags at Weights & Biases, with commas")
    sampler_only: bool = option(False, "Sample with the policy as it is and learn nothing: measures sampling alone")
    benchmark: bool = option(
        False,
        "Measure instead of training: run for ten seconds and then for --train_for_seconds (50 unless typed) in a "
        "folder that goes away; print frames per second, memory and where the time went, and save that as "
        "benchmark_<env>.json in --train_dir, or as benchmark_sampler_<env>.json or benchmark_random_<env>.json "
        "where nothing is learned",
    )
    debug: bool = option(
        False,
        "Print the whole traceback of what fails, also before the start, instead of one line with its file and line; "
        "what fails in a run is in log/ as well",
    )
    autotune: bool = option(
        False,
        "Before the run, try numbers of workers, environments and splits for at most a minute, and take those that "
        "make the most frames per second here; what is typed stays",
    )

    @property
    def folder(self) -> Path:
        """The experiment's folder."""
        return Path(self.train_dir).expanduser() / self.experiments_root / self.experiment

    @property
    def config_file(self) -> Path:
        """What its options are kept in."""
        return self.folder / CONFIG_FILE

    def checkpoint_dir(self, policy: int) -> Path:
        """Where a policy's checkpoints lie."""
        return self.folder / f"checkpoint_p{policy}"

    def neighbours(self) -> str:
        """For the message that this experiment does not exist: the ones beside it."""
        beside = self.folder.parent
        names = sorted(path.parent.name for path in beside.glob(f"*/{CONFIG_FILE}"))
        if not names:
            return "; train one with train_appo.py, or type --train_dir"
        close = difflib.get_close_matches(self.experiment, names, n=1, cutoff=0.5)
        told = f"; did you mean {close[0]}? {beside} holds " if close else f"; {beside} holds "
        more = len(names) - _MOST_NAMES
        return told + ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

    def check_combinations(self) -> None:
        """Refuse names, goals and devices that no machine understands.

        Raises:
            ConfigError: the message names the nearest value that works.
        """
        goal_of(self.stop_when)
        _check_train_dir(self.train_dir)
        _check_name("experiment", self.experiment)
        for part in self.experiments_root.split("/") if self.experiments_root else []:
            _check_name("experiments_root", part)
        length = len(os.fsencode(self.folder.absolute()))
        if length > _MAX_FOLDER_BYTES:
            raise ConfigError(
                f"the experiment's folder has a path of {length} bytes, at most {_MAX_FOLDER_BYTES} can be used; type "
                "a shorter --train_dir or --experiments_root"
            )
        if not _DEVICE.fullmatch(self.device):
            raise ConfigError(f"device={self.device!r} is unknown; allowed: auto, cpu, gpu, cuda:N such as cuda:0")

    @property
    def torch_device(self) -> str:
        """`cpu` or `cuda:N`.

        Raises:
            ConfigError: that GPU does not exist.
        """
        return torch_device(self.device)

    def check_machine(self) -> None:
        """Refuse a device or a folder that this machine does not offer. Writes nothing.

        Raises:
            ConfigError: the message names the nearest value that works.
        """
        torch_device(self.device)
        if self.with_wandb and not _is_installed("wandb"):
            raise ConfigError("with_wandb=True needs the package wandb: pip install wandb")
        try:
            existing = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
        except OSError as error:
            raise ConfigError(f"{self.folder} cannot be used: {error}; type another --train_dir") from error
        if not existing.is_dir():
            raise ConfigError(f"{self.folder} cannot be made: {existing} is a file; type another --train_dir")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise ConfigError(
                f"{self.folder} cannot be written: no permission in {existing}; type another --train_dir, for example "
                "--train_dir=/tmp/train_dir"
            )


def _is_installed(package: str) -> bool:
    """A folder that only has its name, as offline runs of Weights & Biases leave one, is no package."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def torch_device(device: str) -> str:
    """`cpu` or `cuda:N` for what a user typed.

    torch is imported only where a driver exists and torch was built for it, so that `auto` costs nothing elsewhere.

    Raises:
        ConfigError: that GPU does not exist.
    """
    if device == "cpu":
        return "cpu"
    count, reason = _cuda_devices()
    if device == "auto":
        return "cuda:0" if count else "cpu"
    index = int(device.partition(":")[2] or 0)
    if not count:
        raise ConfigError(f"device={device}, but {reason}; nearest: cpu")
    if index >= count:
        raise ConfigError(f"device={device}, but the GPUs end at cuda:{count - 1}; nearest: cuda:{count - 1}")
    return f"cuda:{index}"


def _cuda_devices() -> tuple[int, str]:
    """How many GPUs torch can use, and why there are none."""
    if not any(Path(path).exists() for path in _NVIDIA_DRIVER_FILES):
        return 0, "this machine has no NVIDIA driver"
    if not _torch_is_built_for_cuda():
        return 0, "the installed torch is built for the CPU only"
    import torch  # takes seconds

    count = torch.cuda.device_count()
    return count, "" if count else "torch sees no GPU (see nvidia-smi and CUDA_VISIBLE_DEVICES)"


def _torch_is_built_for_cuda() -> bool:
    """What torch/version.py says, without importing torch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    version = Path(found.origin).with_name("version.py")
    return re.search(r"^cuda\b.*=\s*['\"]", version.read_text(), re.MULTILINE) is not None


def _check_train_dir(train_dir: str) -> None:
    if not train_dir:
        raise ConfigError("train_dir is empty; nearest: ./train_dir")
    try:
        path = Path(train_dir).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"train_dir={train_dir!r}: there is no home folder of that user; type the whole path of a folder"
        ) from None
    longest = max(len(os.fsencode(part)) for part in (path.name, *path.parts))
    if longest > _MAX_PART_BYTES:
        raise ConfigError(f"train_dir has a part of {longest} bytes; file systems allow {_MAX_PART_BYTES}")


def _check_name(option_name: str, name: str) -> None:
    if name in ("", ".", "..") or _UNFIT_FOR_A_FOLDER.search(name) or name[0] == "-":
        nearest = _UNFIT_FOR_A_FOLDER.sub("_", name).strip("-.") or "default_experiment"
        hint = "; folders that group experiments belong into --experiments_root" if "/" in name else ""
        raise ConfigError(f"{option_name}={name!r} is no name of a folder; nearest: {nearest}{hint}")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ConfigError(f"{option_name} is longer than {_MAX_NAME_BYTES} bytes; nearest: {name[:40]}")
