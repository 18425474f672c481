"""Population-based training while a run goes on: when each policy is decided about, and whether that was carried out.

Decisions are made by `algorithms.population`. One takes effect in the policy's learner, which answers; until then it
is open, and no other is made about this policy, nor about the one that it copies. The values of a policy and its open
decision are part of the policy's own checkpoints. After a resume, the options that the learner has in force show
whether the open decision was carried out, so weights, options and reward weights always belong together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from appo.algorithms.learning.config import changing_options
from appo.algorithms.messages import AdoptPolicy, Command, PolicyRestored, Report, SetHyperparameters, SetRewardShaping
from appo.algorithms.population.decision import KEEP, REPLACE, Decision, Gap, Rules, decide
from appo.algorithms.population.mutation import Mutation, TunedOption, mutated
from appo.algorithms.population.tuned import (
    is_reward_weight,
    learning_values,
    reward_weights,
    shaping_options,
    shaping_values,
    tuned_options,
)
from appo.algorithms.reporting.population_log import BEGIN
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.run.controllers.requests import ChangeRequests
from appo.algorithms.run.population_files import start_values
from appo.algorithms.workers.process_launcher import RunFailed
from appo.algorithms.workers.seeds import SeedKey
from appo.utils.options import ConfigError

LEAST_EPISODES = 10  # of which an objective is the mean, or fewer where --stats_avg is
MOST_DOUBLINGS = 3  # of a period

log = logging.getLogger(__name__)


class Member:
    """What a population knows of one policy; `state` is plain, for checkpoints."""

    def __init__(self, values: dict[str, float], next_frames: int) -> None:
        """`next_frames`: of this policy, when its turn comes."""
        self.values = values  # in force
        self.next_frames = next_frames
        self.has_begun = False  # its first values are in force
        self.doublings = 0  # of its period
        self.decisions = 0
        self.requests = 0  # adoptions that were asked for
        self.adoptions = 0
        self.best: float | None = None  # objective in the population at its last decision
        self.open: dict[str, Any] = {}  # decision that its learner has not answered

    def state(self) -> dict[str, Any]:
        """For `restore`."""
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in vars(self):
            setattr(self, name, state[name])


class Population(Controller):
    """Decides about each policy in its turn. Does nothing without `--with_pbt`."""

    def __init__(self, context: ControllerContext) -> None:
        """Every policy begins with what the run or the file says, or with mutations of that."""
        self._config = options = context.config.population
        self._run_config = context.config
        self._statistics = context.statistics
        self._log = context.population_log
        self.members: list[Member] = []
        self._requests = ChangeRequests(context.roster)
        self._shaping: list[SetRewardShaping] = []  # to be sent
        self._has_warned = False
        self._awaited: set[int] = set()  # policies that have not told where they begin
        if not options.with_pbt:
            return
        self._options = (
            *tuned_options(
                changing_options(context.config.learning, context.config.auxiliary),
                with_gamma=options.pbt_optimize_gamma,
            ),
            *shaping_options(context.arrays.sizes.reward_shaping),
        )
        mutation = Mutation(
            options.pbt_mutation_rate, options.pbt_reset_rate, options.pbt_perturb_min, options.pbt_perturb_max
        )
        gap = Gap(options.pbt_replace_reward_gap_absolute, options.pbt_replace_gap_std, options.pbt_replace_reward_gap)
        self._rules = Rules(options.pbt_replace_fraction, gap, mutation, options.pbt_keep_first)
        self._seed = context.config.run.seed
        self._defaults = {option.name: option.default for option in self._options}
        for _ in range(context.config.sampling.num_policies):
            self.members.append(Member(dict(self._defaults), max(options.pbt_start_mutation, 1)))
        self._awaited.update(range(len(self.members)))

    def note(self, report: Report) -> None:
        """Learn whether decisions were carried out, and where policies begin."""
        if not self.members:
            return
        if isinstance(report, PolicyRestored):
            self._restore(report)
            if report.policy in self._awaited:
                self._awaited.remove(report.policy)
                if not self._awaited:
                    self._warn_of_late_decisions()
        elif (answer := self._requests.note(report)) is not None:
            self._settle(answer.command.policy, was_refused=answer.was_refused)

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """What is to be changed now."""
        if snapshot.state != "training" or not self.members:
            return ()
        for policy, member in enumerate(self.members):
            if not member.open and self._statistics.env_frames(policy) >= member.next_frames:
                self._take_turn(policy)
        shaping, self._shaping = self._shaping, []
        return [*shaping, *self._requests.due()]

    def state(self, policy: int) -> dict[str, Any]:
        """For the checkpoints of a policy."""
        return {"population": self.members[policy].state()} if self.members else {}

    def scalars(self, policy: int) -> dict[str, float]:
        """The `zz_pbt/` tags of a policy."""
        if not self.members:
            return {}
        member = self.members[policy]
        tags = {f"zz_pbt/cfg_{name}": value for name, value in learning_values(member.values).items()}
        tags |= {f"zz_pbt/rew_{name}": value for name, value in shaping_values(member.values).items()}
        return tags | {"zz_pbt/decisions": float(member.decisions), "zz_pbt/adoptions": float(member.adoptions)}

    def _rng(self, policy: int, decision: int) -> np.random.Generator:
        """Of one decision: the same whatever happened before, so that nothing has to be kept of it."""
        return np.random.default_rng([self._seed, SeedKey.POPULATION, policy, decision])

    def _take_turn(self, policy: int) -> None:
        """Decide, and note what is to be carried out; without objectives of all, wait for these."""
        if any(each.open.get("source") == policy for each in self.members):
            return  # another one is about to copy it: first that
        objectives = [self._objective(each) for each in range(len(self.members))]
        known = [objective for objective in objectives if objective is not None]
        if len(known) < len(objectives):
            self._warn_of_missing_objective()
            return
        member = self.members[policy]
        values = [each.values for each in self.members]
        rng = self._rng(policy, member.decisions + 1)
        decision = decide(policy, known, values, self._options_of_decisions(), self._rules, rng)
        if decision.kind == REPLACE and self.members[decision.source].open:
            return  # it is about to become another one: after that
        self._open(policy, decision, known)

    def _open(self, policy: int, decision: Decision, objectives: Sequence[float]) -> None:
        """Ask the learner for what was decided."""
        member = self.members[policy]
        member.open = decision._asdict() | {"objectives": list(objectives), "request": 0}
        if decision.kind == KEEP:
            self._settle(policy, was_refused=False)
        elif decision.kind == REPLACE:
            member.requests += 1
            member.open["request"] = member.requests
            values = learning_values(decision.values)
            self._requests.ask(AdoptPolicy(policy, decision.source, values, member.requests))
        else:
            self._requests.ask(SetHyperparameters(policy, learning_values(decision.values)))

    def _settle(self, policy: int, *, was_refused: bool) -> None:
        """A decision is in force, or cannot be."""
        member = self.members[policy]
        decision, member.open = member.open, {}
        self._schedule_next(policy, decision)
        if not was_refused:
            before, member.values = member.values, decision["values"]
            member.has_begun = True
            member.adoptions += decision["kind"] == REPLACE
            if shaping_values(before) != shaping_values(member.values):
                self._shape_rewards(policy)
            self._tell(policy, decision, before)
        self._log.member(policy, member.state())

    def _schedule_next(self, policy: int, decision: dict[str, Any]) -> None:
        member, frames = self.members[policy], self._statistics.env_frames(policy)
        if decision["kind"] == BEGIN:
            member.next_frames = max(1, frames + self._config.pbt_start_mutation)
            return
        member.decisions += 1
        best = max(decision["objectives"])
        if self._config.pbt_double_period:
            has_risen = member.best is None or best > member.best
            member.doublings = 0 if has_risen else min(member.doublings + 1, MOST_DOUBLINGS)
        member.best = best  # the highest so far may have been luck, and would never be reached again
        member.next_frames = frames + self._period(member)

    def _period(self, member: Member) -> int:
        return self._config.pbt_period_env_steps * 2**member.doublings

    def _restore(self, report: PolicyRestored) -> None:
        """Take up where the policy's checkpoint was; the first values of a new one are set first."""
        policy, member = report.policy, self.members[report.policy]
        state = report.run_state.get("population")
        if state is not None:
            member.restore(state)
            self._settle_what_was_open(policy, report)
            if member.has_begun:  # what was typed for this start may let the turn come sooner
                usual = self._period(member) if member.decisions else max(1, self._config.pbt_start_mutation)
                member.next_frames = min(member.next_frames, self._statistics.env_frames(policy) + usual)
            # Options that were typed in the place of others are in force as well.
            member.values = self._defaults | reward_weights(member.values) | report.values
            self._log.resumed(policy, self._statistics.env_frames(policy), member.state())
        member.requests = max(member.requests, report.adoption)
        self._shape_rewards(policy)
        if not member.has_begun:
            self._begin(policy)
        self._log.member(policy, member.state())

    def _settle_what_was_open(self, policy: int, report: PolicyRestored) -> None:
        """The checkpoint may have been written before or after the learner did what was asked of it."""
        member = self.members[policy]
        if not member.open:
            return
        in_force = self._defaults | report.values
        values = learning_values(member.open["values"])
        if member.open["kind"] == REPLACE:
            is_done = report.adoption >= member.open["request"]
        else:
            is_done = all(in_force.get(name) == value for name, value in values.items())
        if not is_done:
            member.open = {}  # its turn comes again
            return
        if member.open["kind"] == REPLACE:
            self._statistics.episodes[policy].forget()
        self._settle(policy, was_refused=False)

    def _begin(self, policy: int) -> None:
        values = self._first_values(policy)
        member = self.members[policy]
        member.open = Decision(BEGIN, policy, values, "begins")._asdict() | {"objectives": [], "request": 0}
        self._requests.ask(SetHyperparameters(policy, learning_values(values)))

    def _first_values(self, policy: int) -> dict[str, float]:
        """What a new policy begins with.

        Raises:
            RunFailed: the file that says so has vanished since the start.
        """
        if self._config.pbt_start_values:
            try:
                start = start_values(self._run_config)
            except ConfigError as error:
                raise RunFailed(str(error)) from error
            return self._defaults | start[policy]
        if policy == 0:
            return dict(self._defaults)
        how = self._rules.mutation._replace(rate=1.0, reset_rate=0.0)
        return mutated(self._defaults, self._options, how, self._rng(policy, 0))

    def _objective(self, policy: int) -> float | None:
        return self._statistics.episodes[policy].average(self._config.pbt_target_objective, LEAST_EPISODES)

    def _options_of_decisions(self) -> Sequence[TunedOption]:
        """All; but no weights of a reward whose sum is what policies are ranked by: the largest would win."""
        is_shaped_return = self._config.pbt_target_objective == "reward" or (
            self._config.pbt_target_objective == "true_reward"
            and not any(window.reports_true_reward for window in self._statistics.episodes)
        )
        if not is_shaped_return:
            return self._options
        return [option for option in self._options if not is_reward_weight(option.name)]

    def _warn_of_late_decisions(self) -> None:
        """Where the budget ends before there is time for decisions."""
        # Actors may have begun by now: what earlier starts have spent is in the checkpoints.
        states = [report.run_state if report else {} for report in self._statistics.restored]
        spent = [int(state.get("env_frames", 0)) for state in states]
        waits = [
            member.next_frames - frames if member.has_begun else self._config.pbt_start_mutation
            for member, frames in zip(self.members, spent, strict=True)
        ]
        budget, has_decided = self._run_config.run.train_for_env_steps, any(m.decisions for m in self.members)
        told = self._config.too_late(budget, sum(spent), len(waits), max(0, min(waits)), has_decided=has_decided)
        if told:
            log.warning("%s", told)

    def _warn_of_missing_objective(self) -> None:
        """Once: episodes end, and do not tell what policies are to be ranked by."""
        name = self._config.pbt_target_objective
        for window in self._statistics.episodes:
            have_ended = window.average("reward", LEAST_EPISODES) is not None
            if have_ended and name not in window.known() and not self._has_warned:
                self._has_warned = True
                told = "population: no episode tells pbt_target_objective=%s, so nothing is decided; they tell %s"
                log.warning(told, name, ", ".join(window.known()))

    def _shape_rewards(self, policy: int) -> None:
        if weights := shaping_values(self.members[policy].values):
            self._shaping.append(SetRewardShaping(policy, weights))

    def _tell(self, policy: int, decision: dict[str, Any], before: dict[str, float]) -> None:
        frames = [self._statistics.env_frames(each) for each in range(len(self.members))]
        row = {"policy": policy, "env_frames": frames[policy], "all_env_frames": frames}
        self._log.decision(row | {"decision": self.members[policy].decisions, "before": before} | decision)
        changes = [
            f"{name} {before[name]:.4g} -> {value:.4g}" if name in before else f"{name} {value:.4g}"
            for name, value in decision["values"].items()
            if value != before.get(name)
        ]
        copies = f"copies policy {decision['source']}, " if decision["kind"] == REPLACE else ""
        what = ", ".join(changes) or ("options stay as they are" if copies else "goes on as it is")
        log.info("population: policy %d %s%s (%s)", policy, copies, what, decision["reason"])
