"""How much memory does a run take, and what does each further policy add?

    python -m benchmarks.speed.memory [--policies=1,2,4] [--seconds=10] [--out=FILE] --env=CartPole-v1 [options]

Trains with so many policies at a time and sums the proportional set size (PSS) of every process of the run `--seconds`
after all policies have learned something: what several processes share, such as the code of torch, counts once. The
resident memory (RSS) beside it counts it in every process. Other programs may run meanwhile.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from appo.algorithms.run.config import STATUS_FILE
from benchmarks.measuring import POLL_S, MeasurementError, last_line, parser_of, refuse_output, show, started, tell
from benchmarks.ours import kind_of_ours, our_run

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
START_LIMIT_S = 180.0
DEVICE = "--device=cpu"


class Memory(NamedTuple):
    """What a run takes, in MB of 10^6 bytes."""

    policies: int
    pss: float
    rss: float
    pss_by_kind: dict[str, float]


def measure_memory(policies: int, options: Sequence[str], seconds: float, folder: Path) -> Memory:
    """One run with so many policies.

    Raises:
        MeasurementError: it ended by itself, or some policy did not learn in time.
    """
    run, log = our_run([DEVICE, *options, f"--num_policies={policies}"], folder), folder / "log.txt"
    status = run.folder / STATUS_FILE

    def all_have_learned() -> bool:
        return status.exists() and all(p["train_steps"] > 0 for p in json.loads(status.read_text())["policies"])

    def wait(until: float) -> None:
        if process.poll() is not None:
            raise MeasurementError(f"the run ended with {process.returncode}: {last_line(log)}")
        if time.monotonic() > until:
            raise MeasurementError(f"some policy learned nothing within {START_LIMIT_S:g} s: {last_line(log)}")
        time.sleep(POLL_S)

    with started(run.command, log) as (process, _):
        deadline = time.monotonic() + START_LIMIT_S
        while not all_have_learned():
            wait(deadline)
        settled = time.monotonic() + seconds
        while time.monotonic() < settled:
            wait(deadline + seconds)
        return memory_of(process.pid, policies)


def memory_of(root: int, policies: int) -> Memory:
    """Of a process and everything below it, now."""
    pss = rss = 0.0
    by_kind: dict[str, float] = {}
    for member in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        try:
            kind, found = kind_of_ours(member), member.memory_full_info()
        except psutil.NoSuchProcess:
            continue  # it has ended since it was listed
        pss, rss = pss + found.pss / 1e6, rss + found.rss / 1e6
        by_kind[kind] = by_kind.get(kind, 0.0) + found.pss / 1e6
    return Memory(policies, pss, rss, by_kind)


def rows_of(found: Sequence[Memory]) -> list[list[str]]:
    """The table's cells, with what each further policy adds to the run before."""
    rows = []
    for before, memory in zip([None, *found], found, strict=False):
        added = "" if before is None else f"{(memory.pss - before.pss) / (memory.policies - before.policies):.0f}"
        kinds = ", ".join(f"{kind} {megabytes:.0f}" for kind, megabytes in sorted(memory.pss_by_kind.items()))
        rows.append([str(memory.policies), f"{memory.pss:.0f}", f"{memory.rss:.0f}", added, kinds])
    return rows


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = parser_of("benchmarks.speed.memory", __doc__)
    parser.add_argument("--policies", default="1,2,4", help="how many, ascending")
    parser.add_argument("--seconds", type=float, default=10.0, help="from the first learning to the measurement")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every number")
    chosen, options = parser.parse_known_args(argv)
    try:
        refuse_output(chosen.out)
        counts = [int(word) if word.isdecimal() else 0 for word in chosen.policies.split(",")]
        if counts != sorted(set(counts)) or counts[0] < 1:
            raise ValueError(f"--policies={chosen.policies}: give ascending numbers from 1, such as 1,2,4")
    except ValueError as error:
        print(f"memory: {error}", file=sys.stderr)
        return EXIT_REFUSED
    found: list[Memory] = []
    try:
        for policies in counts:
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure_memory(policies, options, chosen.seconds, Path(folder)))
            tell(f"{policies} policies: {found[-1].pss:.0f} MB")
    except MeasurementError as error:
        print(f"memory: {error}", file=sys.stderr)
        return EXIT_FAILED
    show(["policies", "PSS, MB", "RSS, MB", "PSS of each further policy, MB", "PSS by kind, MB"], rows_of(found))
    if chosen.out is not None:
        numbers = {"options": list(options), "runs": [memory._asdict() for memory in found]}
        chosen.out.write_text(json.dumps(numbers, indent=1) + "\n")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
