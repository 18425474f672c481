"""A trained policy as a folder for the Hugging Face hub: `appo-tools hub train_dir/first hub/first`.

    appo-tools hub train_dir/first hub/first [--push=user/name] [--private] [--load_checkpoint_kind=best]

The folder holds a card, the options, one checkpoint of each policy, curves, the newest video and policies as ONNX
files; whoever has it plays on: `python enjoy_appo.py --experiment=first --train_dir=hub`. docs/export.md.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shlex
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appo.algorithms.checkpoint_names import policy_folder
from appo.algorithms.checkpoints import Checkpoint
from appo.algorithms.run.config import CONFIG_FILE, STATUS_FILE
from appo.algorithms.saved_config import LOCATION, parse_saved
from appo.envs.api import EnvError, UnsupportedSpaceError
from appo.tools.arguments import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, OneLineParser, Refused, as_program
from appo.tools.experiments import place_of
from appo.utils.files import atomic_write_json, atomic_write_text
from appo.utils.options import ConfigError, to_text

if TYPE_CHECKING:
    from appo.algorithms.evaluation.loading import RestoredPolicy

CARD, CURVES, VIDEO = "README.md", "curves.png", "replay.mp4"
_LIBRARY = "appo"  # as cards name it
INSTALL = "pip install huggingface_hub"
_CARD = """---
{head}
---

# {name}

Asynchronous PPO on `{env}`: return {score} (mean and standard deviation, actions drawn),
after {frames} frames of the simulator and {steps} optimizer steps.

{curves}## Use

```sh
hf download {repository} --local-dir train_dir/{name}
python enjoy_appo.py --experiment={name}      # watch it
```

```python
from appo.algorithms.evaluation import load_policy

policy = load_policy("train_dir/{name}")
action = policy.act(observation)
```

{onnx}{own}## Options

| option other than its default | value |
| --- | --- |
{options}

Written by `{command}`.
"""


def main(argv: Sequence[str]) -> int:
    """Write the folder, and push it where that is asked for; the exit code."""
    parser = OneLineParser(prog="appo-tools hub", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("experiment", type=place_of, help="folder of the experiment, or its name")
    parser.add_argument("folder", type=Path, help="to be written; it may exist from an earlier time")
    parser.add_argument("--load_checkpoint_kind", choices=("latest", "best"), default="latest", help="which checkpoint")
    parser.add_argument("--push", default="", metavar="USER/NAME", help="repository of the hub; made if it is new")
    parser.add_argument("--private", action="store_true", help="a new repository is seen by its owner only")
    try:
        chosen = parser.parse_args(argv)
        if chosen.push and importlib.util.find_spec("huggingface_hub") is None:
            raise Refused(f"--push needs the package huggingface_hub: {INSTALL}")
        if chosen.push and chosen.push.count("/") != 1:
            raise Refused(f"--push={chosen.push}: a repository is named user/name")
        command = shlex.join(["appo-tools", "hub", *argv])
        for line in write_folder(chosen.experiment, chosen.folder, chosen.load_checkpoint_kind, command, chosen.push):
            print(f"hub: {line}", file=sys.stderr)
    except (Refused, ConfigError, UnsupportedSpaceError, EnvError, OSError) as error:
        print(f"hub: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return EXIT_REFUSED
    print(chosen.folder)
    return push(chosen.folder, chosen.push, is_private=chosen.private) if chosen.push else EXIT_OK


def write_folder(experiment: Path, folder: Path, kind: str, command: str, repository: str = "") -> list[str]:
    """Write the folder; what was left out, and why.

    Args:
        experiment: whose policies they are.
        folder: to be written.
        kind: of checkpoint, latest or best.
        command: for the card.
        repository: of the hub, for the card; empty: not known.

    Raises:
        ConfigError: the experiment has no checkpoint that can be played.
        Refused: the folder holds something else.
        OSError: it cannot be written.
    """
    from appo.algorithms.evaluation.loading import restore_policy

    _require_own(folder, experiment)
    first = restore_policy(experiment, kind=kind)
    numbers = range(first.config.sampling.num_policies)
    restored = [first, *(restore_policy(experiment, policy=number, kind=kind) for number in numbers[1:])]
    folder.mkdir(parents=True, exist_ok=True)
    saved = parse_saved((experiment / CONFIG_FILE).read_text(encoding="utf-8"), str(experiment / CONFIG_FILE))
    options = {name: value for name, value in saved.options.items() if name not in LOCATION}
    atomic_write_json(folder / CONFIG_FILE, {"options": options, "typed": sorted(set(saved.typed) - set(LOCATION))})
    left_out = []
    for number, each in enumerate(restored):
        _replace_checkpoint(policy_folder(folder, number), each.checkpoint.path)
        left_out += _export(each, folder / (f"policy_{number:02d}.onnx" if len(restored) > 1 else "policy.onnx"))
    left_out += _copy_pictures(experiment, folder)
    best = max(restored, key=lambda each: _score(each.checkpoint)[0])
    files = sorted(path.name for path in folder.iterdir())
    atomic_write_text(folder / CARD, card(experiment.resolve().name, best, files, command, repository))
    return left_out


def _require_own(folder: Path, experiment: Path) -> None:
    """Refuse a folder whose content this command would destroy.

    Raises:
        Refused: it holds something else, or what was trained there.
    """
    is_trained = (folder / STATUS_FILE).exists()  # a folder from the hub in which training went on
    if is_trained or experiment.resolve().is_relative_to(folder.resolve()):
        raise Refused(f"{folder} holds an experiment, whose checkpoints would be deleted; name a new folder")
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not _is_own(folder / CARD))):
        raise Refused(f"{folder} holds something else; name a new folder")


def _is_own(card_file: Path) -> bool:
    """A card that this command has written, rather than the README of anybody else."""
    try:
        return f'library_name: "{_LIBRARY}"' in card_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _replace_checkpoint(place: Path, checkpoint: Path) -> None:
    """Put a checkpoint where those of an earlier time are; they stay when it cannot be copied."""
    copied = place.with_name(f".{place.name}.part")
    try:
        shutil.copy2(checkpoint, copied)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        copied.replace(place / checkpoint.name)
    finally:
        copied.unlink(missing_ok=True)


def _export(restored: RestoredPolicy, path: Path) -> list[str]:
    from appo.algorithms.evaluation.export import ExportError, export_policy, require_format
    from appo.algorithms.evaluation.model_card import model_card

    try:
        require_format(path)
        export_policy(restored, path, lambda written: model_card(restored, written, f"appo-tools hub, {path.name}"))
    except (ExportError, ConfigError, OSError) as error:
        for old in (path, path.with_name(f"{path.name}.md")):  # of another checkpoint
            old.unlink(missing_ok=True)
        return [f"{path.name} is left out: {str(error).partition(chr(10))[0]}"]
    return []


def _copy_pictures(experiment: Path, folder: Path) -> list[str]:
    from appo.tools.curves import PlotError, read_curves
    from appo.tools.plot import draw

    videos = sorted(experiment.rglob("*.mp4"), key=lambda path: path.stat().st_mtime)
    if videos:
        shutil.copy2(videos[-1], folder / VIDEO)
    try:
        draw(read_curves(experiment), experiment.resolve().name).savefig(folder / CURVES, dpi=120)
    except PlotError as error:
        return [f"{CURVES} is left out: {error}"]
    return []


def _score(checkpoint: Checkpoint) -> tuple[float, float, int]:
    """Mean and standard deviation of the returns of the newest episodes that a checkpoint tells of, and how many."""
    from appo.algorithms.evaluation.model_card import training_returns

    returns = training_returns(checkpoint)
    if not returns:
        return -math.inf, math.nan, 0
    return statistics.fmean(returns), statistics.pstdev(returns), len(returns)


def card(name: str, restored: RestoredPolicy, files: Sequence[str], command: str, repository: str) -> str:
    """The page of the repository; what the hub reads of it comes first, as JSON, which is YAML as well."""
    from appo.algorithms.evaluation.model_card import changed_options

    env, checkpoint = restored.config.env.env, restored.checkpoint
    mean, deviation, number = _score(checkpoint)
    score = f"{mean:.2f} +/- {deviation:.2f}"
    onnx = ", ".join(f"[{file}]({file}.md)" for file in files if file.endswith(".onnx"))
    options = [f"| `{option}` | {to_text(value)} |" for option, value in changed_options(restored.config).items()]
    head: dict[str, Any] = {
        "library_name": _LIBRARY,
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "appo", env],
    }
    if number:
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": env, "type": env},
            "metrics": [{"type": "mean_reward", "value": score, "name": "mean_reward", "verified": False}],
        }
        head["model-index"] = [{"name": "APPO", "results": [result]}]
    return _CARD.format(
        head="\n".join(f"{key}: {json.dumps(value)}" for key, value in head.items()),
        name=name,
        repository=repository or f"<user>/{name}",
        env=env,
        score=f"{score}, of the newest {number} episodes of training" if number else "unknown, no episode had ended",
        frames=checkpoint.env_frames,
        steps=checkpoint.train_step,
        curves=f"![Curves]({CURVES})\n\n" if CURVES in files else "",
        onnx=f"Without this project: {onnx}.\n\n" if onnx else "",
        own=f"`{env}` is code of its author, which these files do not hold.\n\n" if ":" in env else "",
        options="\n".join(options),
        command=command,
    )


def push(folder: Path, repository: str, *, is_private: bool = False) -> int:
    """Send the folder to the hub; the exit code. Where that fails, the folder stays."""
    from huggingface_hub import HfApi

    try:
        api = HfApi(library_name=_LIBRARY)
        url = api.create_repo(repository, exist_ok=True, private=is_private)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"{folder.name}, from appo")
    except Exception as error:  # of the network, of the account, of the hub
        told = next(iter(str(error).strip().splitlines()), type(error).__name__)
        print(
            f"hub: {repository} was not pushed: {told}; type `hf auth login` if you have not, then `hf upload "
            f"{repository} {folder}`",
            file=sys.stderr,
        )
        return EXIT_FAILED
    print(url)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(as_program(main))
