"""The requirements on a run under faults, and what was found: one line per requirement, for table and exit code."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults import events
from benchmarks.faults.events import KINDS, Hit, Look, Loss, Sample, percentile
from benchmarks.measuring import show, tell

COLUMNS = ("what", "measured", "bar", "")
EXIT_CODE = 143  # of a run that SIGTERM ended after saving
EXIT_NOT_SAVED = 1  # of one that could not save


@dataclass(frozen=True)
class Bars:
    """Adjustable limits. Fixed ones: nothing hangs, nothing leaks, no counter goes back."""

    actor: float = 2.0  # seconds from a kill to the successor's first work, p95
    policy: float = 2.0
    learner: float = 5.0
    share: float = 0.0  # frames per second while disturbed, of undisturbed; 0: no bar
    end: float = 10.0  # seconds from SIGTERM to the end
    slope: float = 1.0  # MB per hour that a process may grow by

    @classmethod
    def parse(cls, text: str, **defaults: float) -> Bars:
        """Bars from `name=value,name=value`; defaults first.

        Raises:
            ValueError: there is no such bar, or the value is no number.
        """
        names, values = [field.name for field in fields(cls)], dict(defaults)
        for word in filter(None, text.split(",")):
            name, _, value = word.partition("=")
            if name not in names:
                raise ValueError(f"there is no bar {name!r}; there are {', '.join(names)}")
            values[name] = float(value)
        return cls(**values)


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    measured: str
    bar: str = ""  # empty: told for information
    is_met: bool = True

    def row(self) -> list[str]:
        """Its cells."""
        return [self.what, self.measured, self.bar, ("met" if self.is_met else "FAILED") if self.bar else ""]


@dataclass
class Findings:
    """Everything that one disturbed run left behind."""

    wanted_losses: int = 0  # how often failpoints were to fire
    failure: str = ""  # why the disturbance ended early: the run hung, or ended by itself
    samples: list[Sample] = field(default_factory=list)
    baseline: tuple[float, float] = (0.0, 0.0)  # wall clock, from and to
    fault_phase: tuple[float, float] = (0.0, 0.0)
    events: list[dict[str, Any]] = field(default_factory=list)
    told_to_end: float = math.inf  # wall clock; a worker that is lost later need not come back
    hits: list[Hit] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)  # the last one before the end
    looks: dict[tuple[int, str], list[Look]] = field(default_factory=dict)
    processes: tuple[Counter[str], Counter[str]] = (Counter(), Counter())  # at rest: before and after
    descriptors: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    booked: int | None = None  # frames that the environments themselves counted, at the end; None: they did not
    exit_code: int | None = None
    end_s: float = 0.0
    final: dict[str, Any] = field(default_factory=dict)  # status.json after the end
    saved_frames: int = -1  # of the newest checkpoint
    left_processes: list[str] = field(default_factory=list)
    left_shared_memory: list[str] = field(default_factory=list)
    left_files: list[str] = field(default_factory=list)

    @property
    def losses(self) -> list[Loss]:
        """Every worker that was lost."""
        return events.losses(self.events, self.hits)


def checks(found: Findings, bars: Bars) -> list[Check]:
    """Everything that was demanded and found, in reading order."""
    return [
        Check("the run", found.failure or "neither hung nor ended by itself", "lives", not found.failure),
        *_fault_checks(found),
        *_recoveries(found.losses, bars),
        *_speed(found, bars),
        *_truth(found),
        *_leaks(found, bars),
        *_ending(found, bars),
    ]


def failures(results: Iterable[Check]) -> list[str]:
    """Every bar that was missed, in words."""
    return [f"{c.what}: {c.measured}; demanded: {c.bar}" for c in results if not c.is_met]


def conclude(results: Sequence[Check], folder: Path) -> bool:
    """Print the table and what was missed; the folder of the runs is kept only then. Whether everything was met."""
    show(COLUMNS, [check.row() for check in results])
    missed = failures(results)
    if missed:
        tell("\n".join(["", *(f"FAILED  {line}" for line in missed), f"what was run is kept: {folder}"]))
    else:
        shutil.rmtree(folder)
    return not missed


def as_json(found: Findings, results: Iterable[Check]) -> dict[str, Any]:
    """Every number that a reader may want to look at again; samples and looks are summed up."""
    return {
        "checks": [check._asdict() for check in results],
        "hits": [hit._asdict() for hit in found.hits],
        "losses": [loss._asdict() for loss in found.losses],
        "frames_per_second": {"baseline": _fps(found, found.baseline), "fault_phase": _fps(found, found.fault_phase)},
        "descriptors": [dict(counts) for counts in found.descriptors],
        "processes": [dict(counts) for counts in found.processes],
        "slopes_mb_per_hour": {f"{title} ({pid})": slope for (pid, title), slope in _slopes(found.looks).items()},
        "final": found.final,
    }


def _fault_checks(found: Findings) -> list[Check]:
    kills = Counter(loss.kind for loss in found.losses if loss.how == "kill")
    sent = Counter(events.kind_of(hit.worker) for hit in found.hits if hit.signal == "kill")
    told = ", ".join(f"{kind} {kills[kind]} of {sent[kind]}" for kind in KINDS if sent[kind])
    others = Counter(hit.signal for hit in found.hits if hit.signal != "kill")
    by_itself = Counter(loss.kind for loss in found.losses if loss.how == events.ITSELF)
    missing = events.not_back(event for event in found.events if event["time"] < found.told_to_end)
    checked = [Check("kills that the run told of", told, "all", kills == sent)] if sent else []
    checked += [Check("other signals", _listed(others))] if others else []
    wanted = found.wanted_losses
    if by_itself or wanted:
        is_met = sum(by_itself.values()) >= wanted
        checked.append(Check("lost without a signal", _listed(by_itself), f">= {wanted}" if wanted else "", is_met))
    return [*checked, Check("lost and never back at work", ", ".join(missing) or "none", "none", not missing)]


def _recoveries(losses: Sequence[Loss], bars: Bars) -> list[Check]:
    checked = []
    for kind in KINDS:
        for how in sorted({loss.how for loss in losses if loss.kind == kind}):
            times = [loss.working_s for loss in losses if (loss.kind, loss.how) == (kind, how)]
            seconds = [time for time in times if time is not None]
            if not seconds:
                continue
            p50, p95 = percentile(seconds, 0.5), percentile(seconds, 0.95)
            measured = f"p50 {p50:.2f}, p95 {p95:.2f}, max {max(seconds):.2f}"
            # The others were lost again before they had done anything.
            measured += f" ({len(seconds)} of {len(times)})"
            # A stopped worker is found by its heartbeat: that time is an option of the run.
            bar_s = getattr(bars, kind) if how == "kill" else math.inf
            bar = f"p95 <= {bar_s:g}" if bar_s < math.inf else ""
            checked.append(Check(f"{kind}, {how}: seconds until work goes on", measured, bar, p95 <= bar_s))
    return checked


def _speed(found: Findings, bars: Bars) -> list[Check]:
    baseline, fault_phase = _fps(found, found.baseline), _fps(found, found.fault_phase)
    share = fault_phase / baseline if baseline else math.nan
    during = events.between(found.samples, *found.fault_phase)
    steps = [name for name in (during[0].counters if during else ()) if name.endswith("train_steps")]
    still = {"sampling": events.standstill(during, "env_frames")}
    still |= {"training": max(events.standstill(during, name) for name in steps)} if steps else {}
    bar = f">= {bars.share:g}" if bars.share else ""
    words = "not measured" if math.isnan(baseline) else f"{baseline:.0f}"
    share_words = "" if math.isnan(share) else f" ({share:.2f})"
    return [
        Check("frames per second, undisturbed", words),
        Check("frames per second, disturbed", f"{fault_phase:.0f}{share_words}", bar, not bar or share >= bars.share),
        # To the second at which status.json is written.
        Check("longest standstill, s", ", ".join(f"{name} {seconds:.1f}" for name, seconds in still.items())),
    ]


def _truth(found: Findings) -> list[Check]:
    back = events.backwards(found.samples)
    frames = found.final.get("env_frames", 0)
    checked = [Check("counters that went back", "; ".join(back) or "none", "none", not back)]
    if found.booked is not None:
        words = f"{frames} counted of {found.booked} stepped"  # the rest was lost with the process that had stepped it
        checked.append(Check("frames counted twice", words, "counted <= stepped", frames <= found.booked))
    if found.saved_frames >= 0:
        words = f"{found.saved_frames} of {frames}"
        checked.append(Check("frames in the last checkpoint", words, "all", found.saved_frames == frames))
    return checked


def _leaks(found: Findings, bars: Bars) -> list[Check]:
    lost = found.status.get("blocks", {}).get("lost")
    blocks = "status.json does not tell" if lost is None else str(lost)
    processes = events.grown(*found.processes)
    # Successors of workers with faults are other processes, in another state.
    faulted = {hit.worker for hit in found.hits} | {loss.worker for loss in found.losses}
    before, after = ({t: n for t, n in counts.items() if t not in faulted} for counts in found.descriptors)
    descriptors = events.grown(before, after)
    growth = {f"{title} ({pid})": slope for (pid, title), slope in _slopes(found.looks).items()}
    worst = max(growth, key=growth.__getitem__, default="")
    checked = [
        Check("blocks that no living process owns", blocks, "0", lost == 0),
        Check("processes too many, at rest", ", ".join(processes) or "none", "none", not processes),
        Check("open files too many, at rest", ", ".join(descriptors) or "none", "none", not descriptors),
    ]
    if worst:
        measured, bar = f"{growth[worst]:.2f} by {worst}", f"<= {bars.slope:g}"
        checked.append(Check("memory, MB per hour", measured, bar, growth[worst] <= bars.slope))
    return checked


def _ending(found: Findings, bars: Bars) -> list[Check]:
    if found.failure:
        return []
    code = "none: it did not end" if found.exit_code is None else str(found.exit_code)
    left = {
        "processes": found.left_processes,
        "shared memory": found.left_shared_memory,
        "temporary files": found.left_files,
    }
    returns = [policy.get("avg_reward") for policy in found.final.get("policies", [])]
    return [
        Check("exit code after SIGTERM", code, str(EXIT_CODE), found.exit_code == EXIT_CODE),
        Check("seconds from SIGTERM to the end", f"{found.end_s:.1f}", f"<= {bars.end:g}", found.end_s <= bars.end),
        *(Check(f"{what} left", ", ".join(names) or "none", "none", not names) for what, names in left.items()),
        Check("mean return at the end", " ".join("-" if value is None else f"{value:.1f}" for value in returns)),
        Check("what the run says of itself", _listed(found.final.get("faults", {}))),
    ]


def _fps(found: Findings, window: tuple[float, float]) -> float:
    return events.frames_per_second(events.between(found.samples, *window))


def _slopes(looks: Mapping[tuple[int, str], Sequence[Look]]) -> dict[tuple[int, str], float]:
    slopes = {process: events.slope_mb_per_hour(each) for process, each in looks.items()}
    return {process: slope for process, slope in slopes.items() if not math.isnan(slope)}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count) or "none"
