"""Where does it bend? Actors that sleep instead of computing, from 1 to 64 of them, and 1 to 512 environments.

    python -m benchmarks.speed.scale --out=scale.json --plot=docs/scale.png [--seconds=8] [--actors=1,2,4,8,16,32,64]

`synthetic_slow` sleeps a fixed time per step and needs no processor, so any number of actors fits on any machine, and
what is left is the system: the driver, the policy worker, the learner. The first series gives every actor 2
environments of 20 ms (one per split) and doubles the actors: frames per second should double as well. The second
gives 8 actors more and more environments, each the shorter, so that a split's step always takes 16 ms: what grows is
the number of rows that one policy worker and one learner have to take. The ideal is what the sleep of that length, as
this machine keeps it, would allow if nothing else took time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.measuring import Measurement, MeasurementError, markdown, measure
from benchmarks.ours import kind_of_ours, our_run

COMMON = (
    "--env=synthetic_slow --device=cpu --rollout=16 --use_rnn=False --mlp_layers=64,64 --encoder_extra_fc_layers=0 "
    "--num_batches_per_iteration=1 --ppo_epochs=1 --decorrelate_envs_on_one_worker=False"
)
SLEEP_MS = 20.0
MANY_ENVS_ACTORS, SPLIT_MS = 8, 16.0
WARM_UP_S = 4.0
COLUMNS = (
    "actors",
    "environments",
    "frames per second",
    "of the ideal",
    "cores",
    "driver",
    "policy",
    "learner",
)


class Point(NamedTuple):
    """One run."""

    actors: int
    envs: int  # of all actors
    ideal: float  # frames per second if nothing but sleeping took time
    run: Measurement

    @property
    def share(self) -> float:
        """Of the ideal that was reached."""
        return self.run.frames_per_second / self.ideal

    def row(self) -> list[str]:
        """Its cells."""
        cores = [f"{self.run.usage[kind].cores:.2f}" for kind in ("driver", "policy", "learner")]
        frames = f"{self.run.frames_per_second:.0f}"
        return [str(self.actors), str(self.envs), frames, f"{self.share:.2f}", f"{self.run.cores:.2f}", *cores]


def nap_s(sleep_ms: float, naps: int = 40) -> float:
    """How long this machine really sleeps when asked to sleep that long."""
    began = time.perf_counter()
    for _ in range(naps):
        time.sleep(sleep_ms / 1000.0)
    return (time.perf_counter() - began) / naps


def measured(actors: int, envs_per_actor: int, sleep_ms: float, seconds: float) -> Point:
    """Train on sleeping environments.

    The two splits of an actor take turns, so an actor always sleeps in one of them: its ideal is one step per sleep.

    Raises:
        MeasurementError: the run could not be measured.
    """
    trajectories = actors * envs_per_actor
    batch = 16 * max(4, trajectories // 2)
    options = [*COMMON.split(), f"--num_workers={actors}", f"--num_envs_per_worker={envs_per_actor}"]
    options += [f"--batch_size={batch}", f"--synthetic_step_ms={sleep_ms:g}"]
    with tempfile.TemporaryDirectory() as folder:
        run = our_run(options, Path(folder))
        log = Path(folder) / "log.txt"
        result = measure(run.command, log, run.frames, kind_of_ours, warm_up_s=WARM_UP_S, seconds=seconds)
    return Point(actors, trajectories, actors / nap_s(sleep_ms), result)


def draw(by_actors: Sequence[Point], by_envs: Sequence[Point]) -> Any:
    """A matplotlib figure: frames per second over actors, and over environments, with what sleeping allows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for panel, points, label in ((left, by_actors, "actors"), (right, by_envs, "environments, 8 actors")):
        x = [point.actors if panel is left else point.envs for point in points]
        panel.plot(x, [point.run.frames_per_second for point in points], "o-", label="measured")
        panel.plot(x, [point.ideal for point in points], "--", color="grey", label="if only sleeping took time")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(x, [str(value) for value in x])
        panel.set_xlabel(label)
        panel.set_ylabel("frames per second")
        panel.grid(alpha=0.3)
        shares = panel.twinx()
        for kind, color in (("driver", "C1"), ("policy", "C2"), ("learner", "C3")):
            shares.plot(x, [point.run.usage[kind].cores for point in points], ":", color=color, label=f"{kind} (right)")
        shares.set_ylim(0.0, 1.05)
        shares.set_ylabel("cores kept busy")
    lines = [*panel.get_lines(), *shares.get_lines()]  # the same in both panels
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines))
    return figure


def main(argv: Sequence[str]) -> int:
    """Measure both series, print the tables, draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", default="1,2,4,8,16,32,64", help="numbers of actors of the first series")
    parser.add_argument("--envs", default="16,32,64,128,256,512", help="numbers of environments of the second series")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each run's measured window")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every number")
    parser.add_argument("--plot", type=Path, default=None, help="PNG file for a plot of both series")
    chosen = parser.parse_args(argv)
    by_actors: list[Point] = []
    by_envs: list[Point] = []
    try:
        for actors in map(int, chosen.actors.split(",")):
            by_actors.append(measured(actors, 2, SLEEP_MS, chosen.seconds))
            Console().print(" ".join(by_actors[-1].row()), highlight=False)
        for envs in map(int, chosen.envs.split(",")):
            per_actor = envs // MANY_ENVS_ACTORS
            by_envs.append(measured(MANY_ENVS_ACTORS, per_actor, SPLIT_MS / (per_actor / 2), chosen.seconds))
            Console().print(" ".join(by_envs[-1].row()), highlight=False)
    except MeasurementError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    for points in (by_actors, by_envs):
        print(markdown(COLUMNS, [point.row() for point in points]))
    if chosen.plot is not None:
        draw(by_actors, by_envs).savefig(chosen.plot, dpi=120)
    if chosen.out is not None:
        series = {"by_actors": by_actors, "by_envs": by_envs}
        numbers = {
            name: [dict(zip(COLUMNS, point.row(), strict=True)) for point in each] for name, each in series.items()
        }
        chosen.out.write_text(json.dumps(numbers, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
