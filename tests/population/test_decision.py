"""Who is kept, who mutates, and who is replaced by whom."""

import numpy as np
import pytest

from appo.algorithms.population.decision import KEEP, MUTATE, REPLACE, Gap, Rules, decide
from appo.algorithms.population.mutation import SCALE, Mutation, TunedOption

RATE = TunedOption("learning_rate", SCALE, 1e-4, 0.0, 10.0)
VALUES = [{"learning_rate": 10.0**-i} for i in range(1, 6)]
ALWAYS = Mutation(1.0, 0.0, 1.2, 1.2)
NEVER = Mutation(0.0, 0.0, 1.2, 1.2)
GAP = Gap(absolute=1e-6, deviations=0.5, relative=0.0)
RULES = Rules(0.3, GAP, ALWAYS, keeps_first=False)


def decided(policy, objectives, rules=RULES, seed=0):
    return decide(policy, objectives, VALUES[: len(objectives)], [RATE], rules, np.random.default_rng(seed))


def test_the_best_are_kept_the_worst_replaced_and_those_between_mutate():
    kinds = [decided(policy, [5.0, 1.0, 3.0, 4.0, 2.0]).kind for policy in range(5)]
    assert kinds == [KEEP, REPLACE, MUTATE, KEEP, REPLACE]


def test_a_replaced_one_takes_mutated_options_of_a_random_one_of_the_best():
    sources = set()
    for seed in range(40):
        decision = decided(1, [5.0, 1.0, 3.0, 4.0, 2.0], seed=seed)
        sources.add(decision.source)
        ratio = decision.values["learning_rate"] / VALUES[decision.source]["learning_rate"]
        assert ratio == pytest.approx(1.2) or ratio == pytest.approx(1 / 1.2)
    assert sources == {0, 3}


@pytest.mark.parametrize("shift", [0.0, -1000.0, 1e6])
def test_decisions_do_not_depend_on_where_an_objective_has_its_zero(shift):
    objectives = [1.0, 0.0, 0.6, 0.9]
    shifted = [objective + shift for objective in objectives]
    assert [decided(p, shifted)._replace(reason="") for p in range(4)] == [
        decided(p, objectives)._replace(reason="") for p in range(4)
    ]


def test_a_source_has_to_be_better_by_enough_deviations():
    close = Rules(0.3, GAP._replace(deviations=5.0), ALWAYS, keeps_first=False)
    decision = decided(1, [5.0, 1.0, 3.0, 4.0, 2.0], close)
    assert decision.kind == MUTATE and decision.source == 1 and decision.reason.endswith("too close")
    assert decision.values["learning_rate"] != VALUES[1]["learning_rate"]


def test_the_absolute_and_the_relative_gap_count_as_well():
    flat = Gap(absolute=0.5, deviations=0.0, relative=0.0)
    assert not flat.is_passed(1.0, 1.4, 0.2) and flat.is_passed(1.0, 1.6, 0.2)
    relative = Gap(absolute=0.0, deviations=0.0, relative=0.1)
    assert not relative.is_passed(-100.0, -95.0, 1.0) and relative.is_passed(-100.0, -85.0, 1.0)


def test_equals_are_never_replaced():
    assert {decided(policy, [2.0] * 4).kind for policy in range(4)} == {KEEP, MUTATE}


def test_the_first_may_copy_weights_and_keeps_its_options():
    rules = RULES._replace(keeps_first=True)
    decision = decided(0, [1.0, 5.0, 4.0, 3.0], rules)
    assert decision.kind == REPLACE and decision.values == VALUES[0]
    assert decided(0, [4.0, 5.0, 3.0, 1.0], RULES._replace(fraction=0.2, keeps_first=True)).kind == KEEP


def test_without_mutation_the_middle_is_kept_and_the_worst_copy():
    rules = RULES._replace(mutation=NEVER)
    assert decided(2, [5.0, 1.0, 3.0, 4.0, 2.0], rules).kind == KEEP
    copied = decided(1, [5.0, 1.0, 3.0, 4.0, 2.0], rules)
    assert copied.kind == REPLACE and copied.values == VALUES[copied.source]


def test_a_fraction_of_none_replaces_nobody():
    rules = RULES._replace(fraction=0.0)
    assert {decided(policy, [5.0, 1.0, 3.0], rules).kind for policy in range(3)} == {MUTATE}


def test_two_policies_are_one_best_and_one_worst():
    assert [decided(policy, [1.0, 2.0]).kind for policy in range(2)] == [REPLACE, KEEP]
