"""Trials that are chosen by what earlier ones have reached, with Optuna, which is not installed with the rest.

Nothing is kept but the trials in `sweep.json`: the study is made anew from them for each choice, so that a search goes
on wherever it was stopped. Trials that still run count as bad ones until they are done: choices keep away from them.
With a cost, there are two objectives (the tree-structured Parzen estimator of Ozaki et al., 2022): trials are sought
than which no other is both better and cheaper.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from appo.tools.sweep_plan import Distribution, Search, our_name, typed
from appo.tools.sweep_state import DONE, FAILED, REFUSED, Record, Result
from appo.utils.options import ConfigError

_INSTALL = "pip install optuna==5.0.0"


def require_optuna() -> None:
    """Refuse a search that cannot be made.

    Raises:
        ConfigError: with the command that installs what is missing.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"[search] needs Optuna: {_INSTALL}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # trials are told of by the sweep


def choose(
    search: Search, direction: str, records: Mapping[str, Record], results: Mapping[str, Result], number: int
) -> dict[str, Any]:
    """The options of the next trial.

    Args:
        search: where they come from.
        direction: whether more of the objective is better, or less.
        records: trials so far; those with `varied` were chosen here, or injected with the same options. Nothing is
            learned from those outside of the present ranges.
        results: of the same trials.
        number: of the choice; with the same trials, another number gives another choice.
    """
    import optuna

    sampler = optuna.samplers.TPESampler(seed=search.seed + number, constant_liar=True)
    directions = [optuna.study.StudyDirection[each.upper()] for each in (direction, *["minimize"] * bool(search.cost))]
    study = optuna.create_study(directions=directions, sampler=sampler)
    space = {name: _for_optuna(source) for name, source in search.space.items()}
    names = {our_name(name): name for name in space}  # trials may be injected under others
    states = optuna.trial.TrialState
    for name, record in records.items():
        varied = {names.get(our_name(option), option): value for option, value in record.varied.items()}
        if varied.keys() != space.keys():
            continue
        values: list[Any] = [results[name].objective, *([results[name].cost(search.cost)] if search.cost else [])]
        is_over = record.state in (FAILED, REFUSED) or (record.state == DONE and None in values)
        state = states.FAIL if is_over else states.COMPLETE if record.state == DONE else states.RUNNING
        given = {option: _to_optuna(search.space[option], chosen) for option, chosen in varied.items()}
        told = values if state == states.COMPLETE else None
        with contextlib.suppress(ValueError):  # of ranges that have changed since, or injected from outside of them
            study.add_trial(optuna.trial.create_trial(state=state, params=given, distributions=space, values=told))
    chosen = study.ask(space).params
    return {name: search.space[name].rounded(_from_optuna(search.space[name], chosen[name])) for name in space}


def _for_optuna(source: Distribution) -> Any:
    from optuna import distributions

    if source.kind == "choice":
        return distributions.CategoricalDistribution([typed(value) for value in source.values])
    if source.kind == "int":
        return distributions.IntDistribution(*source.values)
    low, high = source.values
    return distributions.FloatDistribution(low, high, log=source.kind == "log_uniform")


def _to_optuna(source: Distribution, value: Any) -> Any:
    return typed(value) if source.kind == "choice" else value


def _from_optuna(source: Distribution, value: Any) -> Any:
    if source.kind != "choice":
        return value
    return next(each for each in source.values if typed(each) == value)
