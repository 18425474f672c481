"""What a learner writes down and takes up: never numbers that are not finite, never the weights of another network."""

import math

import pytest
import torch

from algorithms import checkpoints
from algorithms.checkpoints import CheckpointError
from algorithms.messages import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from tests.workers.core_cases import Case, Turns

GRU = {"rnn_type": "gru"}
SAVE = SaveCheckpoint("latest", 77, {"env_frames": 77}, 5, math.nan)


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
    path = checkpoints.write(tmp_path / "0", encoded)
    restored = checkpoints.load(path).payload["model"]
    assert all((tensor != 3.0).all() for tensor in restored.values())
    fresh = learner_of(tmp_path)  # takes up what was written, and is then changed as every learner of these cases is
    fresh.restore()
    assert torch.equal(fresh._flat, weights)


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
    assert caught.value.is_final
    assert content(tmp_path) == before
    learner_of(tmp_path)  # the options it was trained with still work


@pytest.mark.parametrize("missing", ["model", "learner", "run_state"])
def test_a_checkpoint_without_one_of_its_parts_is_refused(tmp_path, missing):
    learner = learner_of(tmp_path)
    payload = checkpoints.load(checkpoints.write(tmp_path / "other", learner.encode(SAVE))).payload
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
    payload = checkpoints.load(checkpoints.write(tmp_path / "other", learner.encode(SAVE))).payload
    damage(payload)
    checkpoints.save(tmp_path / "0", "latest", 1, 1, payload)
    with pytest.raises(CheckpointError, match=r"does not fit the learner|is of another network"):
        learner.restore()
