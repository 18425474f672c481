"""All commands around runs under one name: `appo-tools plot ...`, or `python -m appo.tools plot ...`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from appo.tools.arguments import EXIT_OK, EXIT_REFUSED, as_program, nearest
from appo.utils.cli import VERSION

COMMANDS = {
    "export": "a trained policy as a file of ONNX or torch.export, with a card beside it",
    "hub": "a trained policy as a folder for the Hugging Face hub, and pushed there",
    "plot": "curves of an experiment, or of groups of seeds, as a picture",
    "population": "objectives, options and who copied whom; the win matrix of self-play",
    "runs": "list, compare, stop and save runs",
    "sweep": "many trainings: grids, draws and seeds, as many at a time as the cores allow",
    "timing": "where the time of each kind of process has gone",
    "view": "a frame of the numbers of runs, while they go on or afterwards",
    "wandb": "send runs to Weights & Biases, while they go on or afterwards",
}


def main(argv: Sequence[str]) -> int:
    """Run one of the commands; its exit code."""
    name, *words = argv or ["--help"]
    if name in COMMANDS:
        code: int = importlib.import_module(f"appo.tools.{name}").main(words)
        return code
    if name == "--version":
        print(f"appo {VERSION}")
        return EXIT_OK
    if name in ("-h", "--help"):
        print("usage: appo-tools <command> ...")
        print("\n".join(f"  {known:<12} {what}" for known, what in COMMANDS.items()))
        return EXIT_OK
    if name.startswith("--completion"):
        told = f"there is no {name}: `appo-train --completion=bash` completes the options of training, not commands"
    else:
        told = f"there is no command {name!r}{nearest(name, COMMANDS, else_first=False)}; --help lists them"
    print(f"appo-tools: {told}", file=sys.stderr)
    return EXIT_REFUSED


def command() -> int:
    """What a shell starts as `appo-tools`."""
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
