"""docs/metrics.md names every number that a run writes, and none that it does not."""

import re

import torch

from appo.algorithms.learning.learner import Learner
from appo.algorithms.messages import EpisodeFinished, EpisodesFinished, EvaluationFinished, TrainingReport
from appo.algorithms.population.opponents import PastSelf, RecentScore
from appo.algorithms.population.ratings import WinMatrix
from appo.algorithms.reporting.bottleneck import Finding
from appo.algorithms.reporting.sinks.status import as_json
from appo.algorithms.reporting.statistics import evaluation_tags
from appo.algorithms.run.controllers.population import Member, Population
from appo.algorithms.run.controllers.self_play import SelfPlay, _Side
from appo.algorithms.sampling.config import SamplingConfig
from appo.algorithms.specs import ActionSpec
from appo.envs.api import ActionLeaf
from tests.architecture.source_tree import ROOT
from tests.learning.learning_cases import TinyModel, acted_out, config_for
from tests.reporting.reporting_cases import small_statistics

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
LOSS = "action_smoothness"  # stands for every auxiliary loss


def documented():
    """Names in the first column of the tables."""
    rows = re.findall(r"^\| (`.*?) \|", PAGE, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def training_metrics():
    """What an iteration with every optional term measures; parameters are read as one mean and one deviation."""
    torch.manual_seed(0)
    model = TinyModel()
    options = {"kl_loss_coeff": 0.1, "exploration_loss_coeff": 0.1, "auxiliary_loss": LOSS}
    spec = ActionSpec((ActionLeaf("continuous", 1, (-1.0,), (1.0,)),))
    learner = Learner(model, config_for(6, 4, **options), "cpu", action_spec=spec)
    return learner.train(acted_out(model), 0, 0.0).metrics


def statistics():
    """The driver's numbers after an episode and an iteration."""
    numbers = small_statistics(10, opponents=1, evaluators=1)
    numbers.add(EpisodesFinished([EpisodeFinished(0, 1.0, 2.0, 30, {"kills": 4.0})]))
    numbers.add(TrainingReport(0, 1, training_metrics()))
    return numbers


def evaluation():
    """An evaluation beside training."""
    return EvaluationFinished(0, 7, 5, 1.0, 0.1, 0.5, 1.5, 1.0, 30.0, {"kills": 4.0}, 0.5)


def population_of_one():
    """The controller of a population, with a policy that tunes one option."""
    population = Population.__new__(Population)
    population.members = [Member({"learning_rate": 1e-4, "reward:kill": 1.0}, 0)]
    return population


def self_play_of_one():
    """The controller of self-play, with a policy that has met a past self and the random player."""
    play = SelfPlay.__new__(SelfPlay)
    play._sampling, play._sides, play._matrix, play._placements = (
        SamplingConfig(self_play=True),
        [_Side()],
        WinMatrix(),
        None,
    )
    past, play._rated = PastSelf(1, 0, 0, 0, 0), {"policy_0": 0.0}
    play._sides[0].pool, play._sides[0].scores = (
        [past],
        {name: {0: RecentScore(1.0, 2.0)} for name in (past.name, "random")},
    )
    return play


def test_every_key_of_a_report_is_on_the_page_and_every_key_on_the_page_is_reported():
    of_a_run = statistics()
    of_a_run.snapshot()  # speeds are known after two looks
    of_a_run.snapshot()
    written = set(of_a_run.scalars(0) | of_a_run.stage_scalars() | population_of_one().scalars(0))
    written |= set(self_play_of_one().scalars(0)) | set(evaluation_tags(evaluation()))
    assert {"0_aux/avg_kills", f"train/aux_{LOSS}", "train/action_stddev", "stats/actor_env_step"} <= written
    placeholders = {
        "0_aux/avg_kills": "0_aux/avg_<statistic>",
        "eval/kills": "eval/<statistic>",
        f"train/aux_{LOSS}": "train/aux_<name>",
        f"train/aux_{LOSS}_distance": "train/aux_<name>_<key>",
        "zz_pbt/cfg_learning_rate": "zz_pbt/cfg_<option>",
        "zz_pbt/rew_kill": "zz_pbt/rew_<weight>",
        "self_play/win_rate_random": "self_play/win_rate_<anchor>",
    }
    assert {placeholders.get(key, key) for key in written} == {key for key in documented() if "/" in key}


def test_every_key_of_the_status_is_on_the_page():
    of_a_run = statistics()
    of_a_run.bottleneck = Finding("balanced", "balanced", {})
    numbers = as_json(of_a_run.snapshot())
    keys = {*numbers, *numbers["policies"][0], *numbers["bottleneck"], "state", "reason", "best"}
    keys |= {"policy", "time", "train_seconds", "env_frames"}
    assert keys == {key for key in documented() if "/" not in key}
