"""Which budgets leave time for decisions about a population, and what is said where they do not."""

import dataclasses
import re
from typing import Any

import pytest

from appo.algorithms.population.config import PopulationConfig

USUAL = PopulationConfig(with_pbt=True)


@pytest.mark.parametrize(
    ("start", "period", "budget", "told"),
    [
        (20_000_000, 5_000_000, 30_000, "too few for a decision, the first after 20000000 (pbt_start_mutation); for"),
        (4000, 5_000_000, 30_000, "too few for a second decision, 5000000 after the first (pbt_period_env_steps); for"),
        (20_000_000, 2000, 30_000, "for example: --train_for_env_steps=40004000, or --pbt_start_mutation=3000"),
        (14_000, 5000, 30_000, "for example: --train_for_env_steps=38000, or --pbt_start_mutation=3000"),
        (14_000, 14_000, 30_000, "or --pbt_start_mutation=3000 --pbt_period_env_steps=3000"),
        (0, 20_000, 30_000, "for example: --train_for_env_steps=40000, or --pbt_period_env_steps=3000"),
        (4000, 4000, 16_000, ""),
        (4000, 4000, 15_999, "leaves each of 2 policies about 7999 frames"),
        (20_000_000, 5_000_000, 10_000_000_000, ""),
        (5, 5, 3, "for example: --train_for_env_steps=20, or --pbt_start_mutation=1 --pbt_period_env_steps=1"),
    ],
)
def test_a_budget_within_which_no_two_decisions_come_is_told_with_options_that_would_work(start, period, budget, told):
    options = dataclasses.replace(USUAL, pbt_start_mutation=start, pbt_period_env_steps=period)
    warning = options.too_late(budget, 0, 2, start, has_decided=False)
    assert told in warning and bool(warning) == bool(told) and "\n" not in warning
    words: dict[str, Any] = {name: int(value) for name, value in re.findall(r"--(\w+)=(\d+)", warning)}
    larger = words.pop("train_for_env_steps", budget)
    assert not options.too_late(larger, 0, 2, start, has_decided=False)
    shorter = dataclasses.replace(options, **words)
    is_enough = not shorter.too_late(budget, 0, 2, shorter.pbt_start_mutation, has_decided=False)
    assert is_enough == (budget > 2 * 2), "a frame for each wait of two policies"


def test_where_decisions_were_made_before_only_the_next_one_has_to_come():
    options = dataclasses.replace(USUAL, pbt_period_env_steps=5000)
    assert not options.too_late(100_000, 80_000, 4, 5000, has_decided=True)
    warning = options.too_late(100_000, 84_000, 4, 5000, has_decided=True)
    assert "leaves each of 4 policies about 4000 frames, too few for the next decision, after 5000" in warning
    assert (
        "--train_for_env_steps=104000, or --pbt_period_env_steps=800" in warning and "pbt_start_mutation" not in warning
    )
