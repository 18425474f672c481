"""What a learner writes down and takes up: never numbers that are not finite, never the weights of another network."""

import math
from pathlib import Path

import pytest
import torch

from appo.algorithms import checkpoints
from appo.algorithms.checkpoints import CheckpointError
from appo.algorithms.messages import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from tests.workers.core_cases import Case, Turns, run_state

GRU = {"rnn_type": "gru"}
SAVE = SaveCheckpoint(0, "latest", 77, run_state(77), 5, math.nan, "")


pytestmark = pytest.mark.usefixtures("one_thread")


def learner_of(folder, env="CartPole-v1", **model):
    return Turns(Case(env, **(GRU | model)), folder, with_splits=False).learners[0]


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["model", "moments"])
def test_numbers_that_are_not_finite_are_not_saved(tmp_path, bad, where):
    learner = learner_of(tmp_path)
    assert isinstance(learner.save(SAVE), CheckpointSaved)
    before = content(tmp_path)
    tensor = learner._flat if where == "model" else learner._learner.state_dict()["optimizer"]["exp_avg_sq"][0]
    tensor.view(-1)[3] = bad
    answer = learner.save(SAVE._replace(env_frames=78))
    assert isinstance(answer, CheckpointFailed) and answer.request == 5
    name = "checkpoint['model']['_trunks.0." if where == "model" else "checkpoint['learner']['optimizer']['exp_avg_sq']"
    assert name in answer.reason and "numbers that are not finite" in answer.reason
    assert content(tmp_path) == before
    tensor.view(-1)[3] = 0.0
    assert isinstance(learner.save(SAVE._replace(env_frames=79)), CheckpointSaved)


def test_what_is_encoded_does_not_follow_the_weights(tmp_path):
    learner = learner_of(tmp_path)
    weights, encoded = learner._flat.clone(), learner.encode(SAVE)
    learner._flat.fill_(3.0)
    path = checkpoints.write(tmp_path / "0", encoded, keep=1)
    restored = checkpoints.load(path).payload["model"]
    assert all((tensor != 3.0).all() for tensor in restored.values())
    again = learner_of(tmp_path)  # takes up what was written, and is then changed as every learner of these cases is
    again.restore()
    assert torch.equal(again._flat, weights)


@pytest.mark.parametrize(
    ("env", "model", "told"),
    [
        (
            "CartPole-v1",
            {"hidden_size": 24},
            r"core\._layers\.0\.input_weight is \(48, 16\) there and \(72, 16\) with .*compare --use_rnn, .*--hidden",
        ),
        (
            "CartPole-v1",
            {"mlp_layers": "32"},
            r"encoders\.0\.layers\.0\.weight is \(16, 4\) there and \(32, 4\).*--mlp_l",
        ),
        ("CartPole-v1", {"rnn_type": "lstm"}, r"\(48, 16\) there and \(64, 16\) .*--rnn_type"),
        ("CartPole-v1", {"use_rnn": False}, r"core\._layers.* there and missing with the options in force.*--use_rnn"),
        ("CartPole-v1", {"rnn_num_layers": 2}, r"core\._layers\.1.* is missing there and .*--rnn_num_layers"),
        ("CartPole-v1", {"normalize_input": True}, r"preprocessor.* is missing there and .*--normalize_input"),
        ("Acrobot-v1", {}, r"encoder.*is \(16, 4\) there and \(16, 6\) .*what the environment observes"),
    ],
)
def test_a_checkpoint_of_another_network_is_refused_in_words_and_stays(tmp_path, env, model, told):
    path = learner_of(tmp_path).save(SAVE).path
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match=told) as caught:
        learner_of(tmp_path, env, **model)
    assert str(caught.value).startswith(f"{path} is of another network")
    assert "Nothing was changed; leave out the options that differ" in str(caught.value)
    assert not caught.value.retryable
    assert content(tmp_path) == before
    learner_of(tmp_path)  # the options it was trained with still work


@pytest.mark.parametrize("missing", ["model", "learner"])
def test_a_checkpoint_without_one_of_its_parts_is_refused(tmp_path, missing):
    learner = learner_of(tmp_path)
    payload = checkpoints.load(checkpoints.write(tmp_path / "other", learner.encode(SAVE), keep=1)).payload
    del payload[missing]
    checkpoints.save(tmp_path / "0", "latest", 1, 1, payload)
    with pytest.raises(
        CheckpointError, match=f"holds no '{missing}', so training cannot go on from it; put back a copy"
    ):
        learner.restore()


@pytest.mark.parametrize(
    "damage",
    [
        lambda payload: payload["learner"].pop("optimizer"),
        lambda payload: payload["learner"]["optimizer"]["exp_avg"].pop(),
        lambda payload: payload["learner"].update(generator=torch.zeros(3)),
        lambda payload: payload["learner"].update(optimizer=7),
        lambda payload: payload["model"].update({next(iter(payload["model"])): "x"}),
    ],
    ids=["no optimizer", "fewer moments", "no generator", "a number as optimizer", "text as weights"],
)
def test_a_checkpoint_whose_parts_do_not_fit_is_refused(tmp_path, damage):
    learner = learner_of(tmp_path)
    payload = checkpoints.load(checkpoints.write(tmp_path / "other", learner.encode(SAVE), keep=1)).payload
    damage(payload)
    checkpoints.save(tmp_path / "0", "latest", 1, 1, payload)
    with pytest.raises(CheckpointError, match=r"does not fit the learner|is of another network"):
        learner.restore()


def garbled(state):
    return [
        {},
        {name: value for name, value in state.items() if name != "train_seconds"},
        state | {"env_frames": -1},
        state | {"env_frames": 10**30},
        state | {"train_seconds": math.nan},
        state | {"episodes": state["episodes"] | {"returns": ["x"]}},
    ]


@pytest.mark.parametrize("number", range(len(garbled(run_state(0)))))
def test_a_checkpoint_with_an_unusable_run_state_is_passed_over_with_a_warning(tmp_path, number):
    learner = learner_of(tmp_path)
    older = learner.save(SAVE).path
    newer = learner.save(SAVE._replace(env_frames=78, run_state=garbled(run_state(78))[number])).path
    before = content(tmp_path)
    restored = learner.restore()
    assert restored.checkpoint == older and restored.run_state == run_state(77)
    [warning] = restored.warnings
    assert warning.startswith(f"{newer} cannot be resumed from: run_state") and content(tmp_path) == before
    Path(older).unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*run_state.*Nothing was changed"):
        learner.restore()


def best(frames, metric, name="reward"):
    return SaveCheckpoint(0, "best", frames, run_state(frames), frames, metric, name)


def test_a_learner_tells_what_the_best_checkpoint_on_disk_has(tmp_path):
    learner = learner_of(tmp_path)
    assert math.isnan(learner.restore().best)
    learner.save(SAVE)
    assert math.isnan(learner.restore().best)
    learner.save(best(80, 3.25))
    learner.save(best(90, 1e9, "true_reward"))
    learner.save(SAVE._replace(env_frames=100))
    assert learner.restore().best == 3.25
    learner.job.best_metric = "true_reward"
    assert learner.restore().best == 1e9
    learner.job.best_metric = "unheard_of"
    assert math.isnan(learner.restore().best)


def test_a_best_checkpoint_that_cannot_be_used_sets_no_threshold(tmp_path):
    learner = learner_of(tmp_path)
    path = Path(learner.save(best(80, 3.25)).path)
    learner.save(SAVE._replace(env_frames=100))
    path.write_bytes(path.read_bytes()[:-1])
    assert math.isnan(learner.restore().best)


def test_a_best_checkpoint_that_is_newer_than_the_latest_is_resumed_with_its_own_run_state(tmp_path):
    learner = learner_of(tmp_path)
    learner.save(SAVE)
    newer = learner.save(best(90, 4.0)).path
    restored = learner.restore()
    assert (restored.checkpoint, restored.run_state, restored.best) == (newer, run_state(90), 4.0)
    assert restored.warnings == []
