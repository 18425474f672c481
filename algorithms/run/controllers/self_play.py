"""Self-play while a run goes on: when a policy joins the pool of past selves, how often each is met, who wins.

A policy joins as a checkpoint of kind "opponent", which the opponent worker reads. The pool is part of the policy's
other checkpoints: a resumed run goes on with the past selves whose files are still there.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.checkpoint_names import OPPONENT, file_name, folder_of, list_named, policy_folder, steps_of
from appo.algorithms.messages import (
    CheckpointFailed,
    CheckpointSaved,
    Command,
    MatchesFinished,
    MatchFinished,
    OpponentFailed,
    PolicyAdopted,
    PolicyRestored,
    Report,
    SaveCheckpoint,
    SetOpponent,
    SetOpponentShares,
    Setting,
    WorkerReady,
)
from appo.algorithms.population.opponents import PastSelf, RecentScore, sampling_weights, superfluous, win_rate
from appo.algorithms.population.ratings import PlacementRatings, WinMatrix, elo_ratings
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.workers.roster import LEARNER

ASK_AGAIN_S = 30.0
NOT_ASKED = -1
_ONLY_DRAWS = 200
# Shares follow the results this often, and self_play.json.
FOLLOW_EVERY_S, TELL_EVERY_S = 1.0, 5.0

log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    command: SaveCheckpoint
    ask_again: float  # at this moment


class _Side:
    """What self-play knows of one policy."""

    def __init__(self) -> None:
        self.pool: list[PastSelf] = []
        self.scores: dict[str, dict[int, RecentScore]] = {}  # by the opponent's name, by the own seat
        self.matches = 0
        # Train step and frames of past selves that have left -> checkpoints of the policy that were saved since one was
        # asked for that does not name them; NOT_ASKED: none was.
        self.left: dict[tuple[int, int], int] = {}


class SelfPlay(Controller):
    """Keeps the pool and follows the matches. Does nothing without `--self_play`."""

    def __init__(self, context: ControllerContext) -> None:
        """The pool is empty."""
        self._sampling = sampling = context.config.sampling
        self._statistics, self._roster, self._log = context.statistics, context.roster, context.population_log
        self._folders = [policy_folder(context.folder, policy) for policy in range(sampling.num_policies)]
        self._sides = [_Side() for _ in range(sampling.num_policies)] if sampling.self_play else []
        self._matrix = WinMatrix()
        self._placements: PlacementRatings | None = None  # where more than two meet
        self._number = self._requests = 0
        self._matches, self._has_winner = 0, False  # since this start
        self._asked: dict[int, _Asked] = {}  # by policy
        self._names: dict[int, str] = {}  # by number of a past self in the pool
        self._settings: list[Setting] = []  # to be sent
        # Where all is one process, nothing that is decided may depend on the clock.
        self._follow_every_s = 0.0 if context.config.workers.serial_mode else FOLLOW_EVERY_S
        self._next_follow = self._next_tell = 0.0
        self._rated: dict[str, float] = {}  # when self_play.json was told last
        self._kept: dict[int, Any] = {}  # of runs that go on without self-play: for those that go on with it again

    def note(self, report: Report) -> None:
        """Count matches, take policies into the pool, and go on with that of an earlier start."""
        if not self._sides:
            if isinstance(report, PolicyRestored):
                self._kept[report.policy] = report.run_state.get("self_play")
            return
        match report:
            case MatchesFinished():
                for finished in report.matches:
                    self._count(finished)
            case CheckpointSaved() if report.kind == OPPONENT:
                asked = self._asked.get(report.policy)
                if asked is not None and asked.command.request == report.request:
                    del self._asked[report.policy]
                    self._join(report.policy, Path(report.path))
            case CheckpointSaved() if report.kind == "latest":
                self._remove_files(report.policy)
            case OpponentFailed():
                self._leave(report)
            case PolicyAdopted():
                self._begin_anew(report.policy, report.source)
            case CheckpointFailed() if report.kind == OPPONENT:
                asked = self._asked.get(report.policy)
                if asked is not None and asked.command.request == report.request:
                    log.warning("policy %d did not join the pool of past selves: %s", report.policy, report.reason)
                    self._asked[report.policy] = asked._replace(ask_again=time.monotonic() + ASK_AGAIN_S)
            case PolicyRestored():
                self._restore(report)
            case WorkerReady():
                worker = self._roster.named(report.worker)
                if worker is not None and worker.kind == LEARNER and worker.policy in self._asked:
                    self._asked[worker.policy] = self._asked[worker.policy]._replace(ask_again=0.0)

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """Checkpoints for the pool, and what actors and the opponent worker are to know."""
        if snapshot.state != "training" or not self._sides:
            return ()
        now = time.monotonic()
        for policy, side in enumerate(self._sides):
            frames = self._statistics.env_frames(policy)
            if policy not in self._asked and frames >= self._next_frames(side):
                self._requests += 1
                command = SaveCheckpoint(policy, OPPONENT, frames, {}, self._requests, math.nan, "")
                self._asked[policy] = _Asked(command, 0.0)
        if now >= self._next_follow:
            self._next_follow = now + self._follow_every_s
            self._settings += [SetOpponentShares(policy, self._shares(policy)) for policy in range(len(self._sides))]
        if now >= self._next_tell:
            self._next_tell = now + TELL_EVERY_S
            self._tell()
        settings, self._settings = self._settings, []
        return [*settings, *self._requests_due(now)]

    def end(self, last: RunSnapshot) -> None:
        """Write the last results; where the run has not begun, those of an earlier start stay."""
        if self._sides and last.state != "starting":
            self._tell()

    def _tell(self) -> None:
        self._rated = self._ratings()
        self._log.matches(self._matrix.content(self._players(), self._rated))

    def state(self, policy: int) -> dict[str, Any]:
        """For the checkpoints of a policy; what belongs to all is in those of the first."""
        if not self._sides:
            kept = self._kept.get(policy)
            return {} if kept is None else {"self_play": kept}
        side = self._sides[policy]
        for steps, saves in side.left.items():
            side.left[steps] = max(saves, 0)
        state: dict[str, Any] = {
            "pool": [list(past) for past in side.pool],
            "scores": {
                name: [[seat, *score] for seat, score in by_seat.items()] for name, by_seat in side.scores.items()
            },
            "matches": side.matches,
            "left": [list(steps) for steps in side.left],
        }
        if policy == 0:
            state["matrix"] = self._matrix.state()
            state["placements"] = None if self._placements is None else self._placements.state()
        return {"self_play": state}

    def scalars(self, policy: int) -> dict[str, float]:
        """The `self_play/` tags of a policy."""
        if not self._sides:
            return {}
        side = self._sides[policy]
        tags = {"self_play/pool": float(len(side.pool)), "self_play/matches": float(side.matches)}
        rates = [win_rate(side.scores[past.name]) for past in self._pool() if past.name in side.scores]
        if rates:
            tags |= {"self_play/win_rate_pool": sum(rates) / len(rates), "self_play/win_rate_pool_min": min(rates)}
        for anchor in self._sampling.anchors:
            if anchor in side.scores:
                tags[f"self_play/win_rate_{anchor}"] = win_rate(side.scores[anchor])
        name = _name_of(policy)
        return tags | {"self_play/rating": self._rated[name]} if name in self._rated else tags

    def _requests_due(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for policy, asked in self._asked.items():
            if now >= asked.ask_again:
                commands.append(asked.command)
                self._asked[policy] = asked._replace(ask_again=now + ASK_AGAIN_S)
        return commands

    def _pool(self) -> list[PastSelf]:
        return [past for side in self._sides for past in side.pool]

    def _players(self) -> list[str]:
        policies = [_name_of(policy) for policy in range(len(self._sides))]
        return [*policies, *(past.name for past in self._pool()), *self._sampling.anchors]

    def _count(self, finished: MatchFinished) -> None:
        """A match of a past self that has left the pool meanwhile does not count."""
        names = [self._named(*seat) for seat in zip(finished.players, finished.numbers, strict=True)]
        known = [name for name in names if name is not None]
        if len(known) < len(names):
            return
        self._matrix.add_match(known, finished.outcomes)
        if len(set(known)) > 2:
            self._placements = self._placements or PlacementRatings()
            self._placements.add_match(known, finished.outcomes)
        self._warn_of_draws(finished)
        seats = range(len(known))
        for policy in {player for player in finished.players if player < len(self._sides)}:
            side = self._sides[policy]
            side.matches += 1
            own, seat = max((finished.outcomes[seat], seat) for seat in seats if finished.players[seat] == policy)
            for name, outcome in zip(known, finished.outcomes, strict=True):
                if name != _name_of(policy):
                    score = 0.5 * ((own > outcome) + (own >= outcome))
                    by_seat = side.scores.setdefault(name, {})
                    by_seat[seat] = by_seat.get(seat, RecentScore()).with_match(score)

    def _warn_of_draws(self, finished: MatchFinished) -> None:
        """Say once that the first matches had no winner."""
        self._matches += 1
        self._has_winner |= len(set(finished.outcomes)) > 1
        if self._matches == _ONLY_DRAWS and not self._has_winner:
            told = "self-play: the first %d matches were all drawn; where agents share one goal, nobody can be beaten"
            log.warning(told, _ONLY_DRAWS)

    def _named(self, player: int, number: int) -> str | None:
        acting = len(self._sides) + self._sampling.frozen_policies
        if player >= acting:
            return self._sampling.anchors[player - acting]
        return _name_of(player) if player < len(self._sides) else self._names.get(number)

    def _join(self, policy: int, path: Path) -> None:
        """A policy, as it is in this checkpoint, can be met from now on."""
        side, size = self._sides[policy], self._sampling.self_play_pool_size
        train_step, env_frames = steps_of(path)
        self._number += 1
        new = PastSelf(self._number, policy, train_step, env_frames, -1)
        leaves = superfluous([*side.pool, new], size)
        taken = {past.frozen for past in side.pool if past != leaves}
        new = new._replace(frozen=next(slot for slot in range(policy * size, (policy + 1) * size) if slot not in taken))
        side.pool = [*(past for past in side.pool if past != leaves), new]
        if leaves is not None:
            side.left[leaves.steps] = NOT_ASKED
        # Results since the policy joined the last time belong to this past self, at the end of that time.
        self._matrix.rename(_name_of(policy), new.name)
        if self._placements is not None:
            self._placements.rename(_name_of(policy), new.name)
        self._forget_others()
        self._settings.append(SetOpponent(new.frozen, new.number, train_step, env_frames))
        replaced = f" in the place of {leaves.name}" if leaves is not None else ""
        log.info("self-play: %s joins the pool%s", new.name, replaced)

    def _restore(self, report: PolicyRestored) -> None:
        """Go on with the pool of an earlier start, without those whose files are gone."""
        policy, state = report.policy, report.run_state.get("self_play")
        if state is None:
            return
        side, size = self._sides[policy], self._sampling.self_play_pool_size
        pool = [PastSelf(*past) for past in state["pool"]]
        missing = [past for past in pool if not self._path(policy, past.steps).is_file()]
        if missing:
            told = ", ".join(past.name for past in missing)
            log.warning("self-play: the files of %s are gone, so they have left the pool", told)
        pool = [past for past in pool if past not in missing]
        while (leaves := superfluous(pool, size)) is not None:
            log.info("self-play: %s leaves the pool, which has room for %d", leaves.name, size)
            pool.remove(leaves)
            side.left[leaves.steps] = NOT_ASKED
        side.pool = [past._replace(frozen=policy * size + place) for place, past in enumerate(pool)]
        side.matches = state["matches"]
        # With those who joined after this checkpoint, and are of a future that the run does not go on from.
        later = [n.steps for n in list_named(self._folders[policy], OPPONENT) if n.steps[0] > report.train_step]
        side.left |= dict.fromkeys([*map(tuple, state["left"]), *later], NOT_ASKED)
        side.scores = {
            name: {seat: RecentScore(*score) for seat, *score in scores} for name, scores in state["scores"].items()
        }
        if policy == 0:
            self._matrix.restore(state["matrix"])
            if state["placements"] is not None:
                self._placements = PlacementRatings()
                self._placements.restore(state["placements"])
        self._number = max([self._number, *(past.number for past in pool)])
        self._names |= {past.number: past.name for past in side.pool}
        self._settings += [SetOpponent(p.frozen, p.number, p.train_step, p.env_frames) for p in side.pool]

    def _forget_others(self) -> None:
        """Of players that have left the pool, nothing is kept."""
        players = set(self._players())
        self._names = {past.number: past.name for past in self._pool()}
        self._matrix.keep(players)
        if self._placements is not None:
            self._placements.keep(players)
        for side in self._sides:
            side.scores = {name: score for name, score in side.scores.items() if name in players}

    def _path(self, policy: int, steps: tuple[int, int]) -> Path:
        head = {"kind": OPPONENT, "train_step": steps[0], "env_steps": steps[1]}
        return folder_of(self._folders[policy], OPPONENT) / file_name(head)

    def _next_frames(self, side: _Side) -> int:
        """Frames of a policy at which it joins the pool again."""
        newest = max(map(_frames, side.pool), default=None)
        return 0 if newest is None else newest + self._sampling.self_play_save_every

    def _leave(self, report: OpponentFailed) -> None:
        """A past self that cannot be read leaves the pool; its file stays."""
        for side in self._sides:
            for past in [past for past in side.pool if past.number == report.number]:
                log.warning("self-play: %s leaves the pool, it cannot be read: %s", past.name, report.reason)
                side.pool.remove(past)
                self._settings.append(SetOpponent(past.frozen, 0, 0, 0))
        self._forget_others()

    def _begin_anew(self, policy: int, source: int) -> None:
        """A policy has become a copy of another: what it did before says nothing about it."""
        self._matrix.forget(_name_of(policy))
        if self._placements is not None:
            self._placements.become(_name_of(policy), _name_of(source))
        self._sides[policy].scores = {name: dict(by_seat) for name, by_seat in self._sides[source].scores.items()}

    def _remove_files(self, policy: int) -> None:
        """A checkpoint was saved: remove the files that none needs any more from which a run could go on.

        The first one that is saved after one was asked for without a past self may still be an earlier one.
        """
        side = self._sides[policy]
        side.left = {steps: saves + (saves >= 0) for steps, saves in side.left.items()}
        for steps in [steps for steps, saves in side.left.items() if saves >= 2]:
            del side.left[steps]
            if steps not in {past.steps for past in side.pool}:
                with contextlib.suppress(OSError):  # costs only space
                    self._path(policy, steps).unlink()

    def _shares(self, policy: int) -> list[float]:
        """How often a policy meets each frozen policy and each anchor, where it may meet either."""
        sampling, scores = self._sampling, self._sides[policy].scores
        shares = [0.0] * (sampling.frozen_policies + len(sampling.anchors))
        scripted = sampling.self_play_anchor_share if sampling.anchors else 0.0
        for side in self._sides:
            rates = [win_rate(scores.get(past.name, {})) for past in side.pool]
            weights = sampling_weights(rates, sampling.self_play_sampling)
            for past, weight in zip(side.pool, weights, strict=True):
                shares[past.frozen] = (1.0 - scripted) * weight
        for place in range(len(sampling.anchors)):
            shares[sampling.frozen_policies + place] = scripted / len(sampling.anchors)
        return shares

    def _ratings(self) -> dict[str, float]:
        players, anchors = self._players(), self._sampling.anchors
        oldest = min(self._pool(), key=_frames, default=None)
        zero = anchors[0] if anchors else oldest.name if oldest is not None else ""
        if self._placements is not None:
            return self._placements.of(players, zero)
        newest = {_name_of(p): max(side.pool, key=_frames).name for p, side in enumerate(self._sides) if side.pool}
        return elo_ratings(self._matrix, players, zero, newest)


def _frames(past: PastSelf) -> int:
    return past.env_frames


def _name_of(policy: int) -> str:
    return f"policy_{policy}"
