"""Code of the user's own that raises, or keeps to an old interface: one line that says what, where, and what to do."""

import pytest

from tests.end_to_end.conftest import PLAIN_ENV, SMALL

OWN = (
    PLAIN_ENV
    + """
class InMake(Base):
    def __init__(self):
        {}["missing"]  # line 14

class InReset(Base):
    def reset(self, *, seed=None, options=None):
        try:
            {}["missing"]
        except KeyError:
            raise ValueError("two\\nlines") from None  # line 21

class InStep(Base):
    def step(self, action):
        np.stack([])  # line 25

class FourTuple(Base):
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}

class OnlyObservation(Base):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)

class NoSeed(Base):
    def reset(self):
        return np.zeros(2, np.float32), {}
"""
)
MODEL = """
from dataclasses import dataclass
from appo.algorithms.learning.auxiliary_loss import AuxiliaryLoss, AuxiliaryResult
from appo.algorithms.models.encoders.mlp import Encoder as Mlp

class Encoder(Mlp):
    def forward(self, observation):
        return super().forward(observation).view(7, 7, 7, -1)  # line 7

@dataclass(frozen=True)
class Options:
    pass

def compute(inputs, options):
    {}["missing"]  # line 14

LOSS = AuxiliaryLoss(Options, compute)
"""
RAISES_LATER = """
from dataclasses import dataclass
from appo.algorithms.learning.auxiliary_loss import AuxiliaryLoss, AuxiliaryResult

@dataclass(frozen=True)
class Options:
    pass

def compute(inputs, options):
    if inputs.minibatch.observations["obs"].max() > 1:  # as those of the check before the start never are
        {}["missing"]  # line 10
    return AuxiliaryResult(inputs.values.mean() * 0.0, {})

LOSS = AuxiliaryLoss(Options, compute)
"""


@pytest.fixture
def mine(tmp_path, start):
    """Starts a run of the user's own environment; its output, which is one line."""
    (tmp_path / "own.py").write_text(OWN.lstrip())
    (tmp_path / "model.py").write_text(MODEL.lstrip())
    (tmp_path / "rows.py").write_text(
        MODEL.lstrip().replace('{}["missing"]', "return AuxiliaryResult(inputs.values, {})")
    )
    (tmp_path / "at_import.py").write_text("import json\njson.loads('{')\n")

    def begin(env, *options, code):
        run = start(*SMALL, *options, env=env)
        assert run.end() == code, run.output
        (line,) = run.output.strip().splitlines()
        assert line.startswith("train_appo.py: error: ") and not run.folder.exists()
        return line

    return begin


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("InMake", "failed in make: KeyError: 'missing' (own.py, line 14; --debug prints the traceback)"),
        ("InReset", "ValueError: two lines (own.py, line 21; --debug prints the traceback)"),
        ("InStep", "need at least one array to stack (own.py, line 25; --debug prints the traceback)"),
    ],
)
def test_an_environment_that_raises_before_the_start_is_told_in_one_line_with_its_place(mine, name, told):
    line = mine(f"own:{name}", code=1)
    assert f"run failed: environment 0 of own:{name} (worker 0, place 0 of its batch) failed in " in line
    assert line.endswith(told)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "FourTuple",
            "end step with: return observation, reward, terminated, truncated, info (truncated: a time limit, no end "
            "of the task)",
        ),
        ("OnlyObservation", "; end reset with: return observation, {}"),
        ("NoSeed", "'seed' should be an argument of reset: def reset(self, *, seed=None, options=None), but is "),
    ],
)
def test_an_old_interface_is_told_in_one_line_with_what_to_change(mine, name, told):
    line = mine(f"own:{name}", code=2)
    assert told in line and "shimmy" not in line


def test_own_modules_that_raise_are_refused_in_one_line_with_their_place(mine):
    line = mine("at_import:make_env", code=2)
    assert "cannot import 'at_import' from " in line and "JSONDecodeError: " in line
    assert "(at_import.py, line 2)" in line
    line = mine("CartPole-v1", "--encoder=at_import", code=2)
    assert "encoder='at_import' cannot be imported: JSONDecodeError: " in line and "(at_import.py, line 2)" in line


def test_an_own_encoder_that_raises_is_refused_with_its_place_not_that_of_the_library(mine):
    line = mine("CartPole-v1", "--encoder=model", code=2)
    assert "cannot be applied to observations: RuntimeError: " in line and line.endswith("(model.py, line 7)")


def test_an_own_loss_that_raises_is_refused_with_its_place(mine):
    line = mine("CartPole-v1", "--auxiliary_loss=model", code=2)
    assert "auxiliary_loss='model' failed with a made-up batch before the start: KeyError: 'missing'" in line
    assert line.endswith("(model.py, line 14)")


def test_an_own_loss_of_rows_is_told_that_it_should_be_their_mean(mine):
    line = mine("CartPole-v1", "--auxiliary_loss=rows", code=2)
    assert "ValueError: a loss should be a scalar, a mean over rows; it has the shape [" in line


@pytest.mark.parametrize("options", [(), ("--train_for_env_steps=3000", "--restart_pause_seconds=5")])
def test_an_own_loss_that_raises_later_ends_the_run_in_one_line_with_its_place(tmp_path, start, options):
    """Whether the learner has been given up by then, or the budget has been spent while it was replaced."""
    (tmp_path / "later.py").write_text(RAISES_LATER.lstrip())
    run = start(*SMALL, "--auxiliary_loss=later", *options)
    assert run.end() == 1 and "Traceback" not in run.output
    last, log = run.output.strip().splitlines()[-1], run.folder / "log" / "driver.txt"
    assert " error: run failed: learner-0 failed" in last and "KeyError: 'missing' (later.py, line 10" in last
    if options:
        assert last.endswith("reached train_for_env_steps=3000 before policy 0 learned anything")
    else:
        assert "4 times in a row soon after its start" in last and last.endswith(f"; {log} has the traceback)")
        assert "Traceback" in log.read_text()
    assert not list(run.folder.rglob("*.pth")) and not (run.folder / "config.json").exists()


@pytest.mark.parametrize(("env", "options", "code"), [("own:InStep", (), 1), ("CartPole-v1", ("--encoder=model",), 2)])
def test_debug_prints_the_traceback_before_the_line(mine, start, env, options, code):
    run = start(*SMALL, "--debug", *options, env=env)
    assert run.end() == code and not run.folder.exists()
    *before, last = run.output.strip().splitlines()
    assert "Traceback (most recent call last):" in before and last.startswith("train_appo.py: error: ")
    assert "# line " in run.output, "the line of the user's own file is shown"
