"""Write a trained policy to a file that runs without this project: `appo-tools export train_dir/first policy.onnx`.

The file is checked against the policy before it is kept; a card beside it says what goes in and out. docs/export.md.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from appo.envs.api import EnvError, UnsupportedSpaceError
from appo.tools.arguments import EXIT_OK, EXIT_REFUSED, OneLineParser, Refused, as_program
from appo.tools.experiments import place_of
from appo.utils.options import ConfigError


def main(argv: Sequence[str]) -> int:
    """Export what the command line asks for; the exit code."""
    try:
        chosen = _parse(argv)
    except Refused as error:
        print(f"export: {error}", file=sys.stderr)
        return EXIT_REFUSED
    from appo.algorithms.evaluation.export import ExportError, export_policy, require_format
    from appo.algorithms.evaluation.loading import restore_policy
    from appo.algorithms.evaluation.model_card import model_card

    command = shlex.join(["appo-tools", "export", *argv])
    try:
        require_format(chosen.file)
        restored = restore_policy(chosen.folder, policy=chosen.policy_index, kind=chosen.load_checkpoint_kind)
        for warning in restored.checkpoint.warnings:
            print(f"export: {warning}", file=sys.stderr)
        exported = export_policy(restored, chosen.file, lambda written: model_card(restored, written, command))
    except (ExportError, ConfigError, UnsupportedSpaceError, EnvError, OSError) as error:
        print(f"export: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return EXIT_REFUSED
    print(f"{exported.path}\n{exported.path}.md")
    return EXIT_OK


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="appo-tools export", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=place_of, help="of the experiment, or its name")
    parser.add_argument("file", type=Path, help="policy.onnx for ONNX, policy.pt2 for torch.export")
    parser.add_argument("--load_checkpoint_kind", choices=("latest", "best"), default="latest", help="which checkpoint")
    parser.add_argument("--policy_index", type=int, default=0, help="which of several policies")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(as_program(main))
