"""The plans of docs/sweeps.md: the trainer's parser takes every trial that follows from them."""

import random
import re
import tomllib

import pytest

from appo.algorithms.config import resolve
from appo.tools.sweep_plan import Plan, parse_plan, read_injected, read_plan, typed
from tests.tools.sweep_cases import ROOT

BLOCKS = re.findall(r"```(toml|python)\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8"), re.DOTALL)
DRAWS = 20  # of a search, which chooses its trials while it runs


def whole(document):
    """A plan of which the page shows a part: for the first plan's environment."""
    return document | {"base": {"env": "CartPole-v1"} | document.get("base", {})}


def trials_of(language, text, folder):
    path = folder / ("plan.py" if language == "python" else "inject.toml")
    path.write_text(text)
    if language == "python":
        return read_plan(path).trials()
    if "[[trials]]" in text:
        plan = Plan("plan", whole({})["base"], ())
        return [plan.trial(varied, {}) for varied in read_injected(path)]
    plan = parse_plan(whole(tomllib.loads(text)), "plan")
    if plan.search is None:
        return plan.trials()
    numbers = random.Random(plan.search.seed)
    space = plan.search.space.items()
    return [plan.trial({name: source.draw(numbers) for name, source in space}, {}) for _ in range(DRAWS)]


def test_the_page_shows_every_kind_of_plan():
    text = "".join(text for _, text in BLOCKS)
    assert {language for language, _ in BLOCKS} == {"toml", "python"}
    assert all(f"[{table}]" in text for table in ("base", "grid", "random", "search", "slurm", "[trials]"))


@pytest.mark.parametrize(("language", "text"), BLOCKS, ids=[text.split("\n")[0] for _, text in BLOCKS])
def test_the_trainer_takes_every_trial_of_a_plan_of_the_page(language, text, tmp_path):
    trials = trials_of(language, text, tmp_path)
    assert trials
    for trial in trials:
        resolve([f"--train_dir={tmp_path}", *(f"--{name}={typed(value)}" for name, value in trial.options.items())])
