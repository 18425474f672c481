"""What somebody meets in the first hour: own files, familiar words, and what a run says when it goes on and ends."""

import json
import re
import subprocess
import sys

import pytest

from tests.end_to_end.conftest import ROOT, SMALL

ENCODER = """
from appo.algorithms.models.encoders.mlp import Encoder as Mlp

class Encoder(Mlp):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        open("encoder_was_built", "w").close()
"""
LOSS = """
from dataclasses import dataclass
from appo.algorithms.learning.auxiliary_loss import AuxiliaryLoss, AuxiliaryResult
from appo.utils.options import option

@dataclass(frozen=True)
class Options:
    my_loss_weight: float = option(0.5, "How much of it")

def compute(inputs, options):
    loss = options.my_loss_weight * inputs.parameters.mean() * 0.0
    return AuxiliaryResult(loss, {"seen": loss + options.my_loss_weight})

LOSS = AuxiliaryLoss(Options, compute)
"""


def test_files_beside_the_user_become_encoder_and_loss_and_the_end_says_how_to_go_on(start, tmp_path):
    (tmp_path / "my_encoder.py").write_text(ENCODER)
    (tmp_path / "my_loss.py").write_text(LOSS)
    options = ["--encoder=my_encoder", "--auxiliary_loss=my_loss", "--my_loss_weight=0.25", "--lr=0.002"]
    run = start(*SMALL, *options, "--total_timesteps=6000")
    assert run.end() == 0, run.output
    assert (tmp_path / "encoder_was_built").exists()
    assert '"train/aux_my_loss_seen":0.25' in (run.folder / "metrics.jsonl").read_text()
    assert "--lr is --learning_rate here" in run.output and "--total_timesteps is --train_for_env_steps" in run.output
    assert "mean return of the last" in run.output and " env frames in 0:00:" in run.output
    command = next(line for line in run.output.splitlines() if line.startswith("train on:"))
    assert "train_appo.py --env=CartPole-v1 --experiment=run" in command and "--train_for_env_steps=" in command
    words = command.removeprefix("train on:").split()
    again = subprocess.run(
        [sys.executable, *words[1:], "--learning_rate=0.001"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    said = again.stdout + again.stderr
    assert again.returncode == 0, said
    assert "changed since the last start: learning_rate 0.002 -> 0.001" in said
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    (event,) = [each for each in events if each["event"] == "options_changed"]
    assert event["options"]["learning_rate"] == {"before": 0.002, "now": 0.001}
    assert "family defaults" in said, "they are still told from what was typed"
    enjoy = [sys.executable, str(ROOT / "enjoy_appo.py"), "--experiment=run", f"--train_dir={tmp_path}"]
    enjoy += ["--no_render", "--max_num_episodes=2"]
    scored = subprocess.run(enjoy, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert scored.returncode == 0, scored.stdout + scored.stderr


def test_names_that_are_nearly_right_lead_to_what_is_installed(start):
    for typed, meant in [
        ("minigrid_empty", "MiniGrid-Empty-"),
        ("ALE/Pong-v6", "ALE/Pong-v5"),
        ("box2d_lunar", "LunarLander-v3"),
        ("pettingzoo_butterfly_knights_archers_zombies_v1", "pettingzoo_butterfly_knights_archers_zombies_v"),
    ]:
        run = start("--device=cpu", env=typed)
        assert run.end() == 2 and meant in run.output, run.output
        assert len(run.output.strip().splitlines()) == 1


def test_an_unsupported_group_is_named(start):
    run = start("--device=cpu", env="pettingzoo_atari_pong_v3")
    assert run.end() == 2
    assert "the group atari of PettingZoo is not supported; these are: classic, sisl, butterfly, mpe2" in run.output


CALLBACK = """
class Hears:
    def on_point(self, policy, env_frames, tags):
        with open("points", "a") as file:
            print(policy, env_frames, tags.get("train/lr"), file=file)

    def on_end(self):
        open("has_ended", "w").close()
"""


def test_a_run_ends_at_its_goal_and_tells_a_class_of_the_user(start, tmp_path):
    (tmp_path / "hears.py").write_text(CALLBACK)
    run = start(*SMALL, "--callback=hears:Hears", "--stop_when=reward>=25", "--stats_avg=20")
    assert run.end() == 0, run.output
    assert "reached stop_when=reward>=25: reward is " in run.output
    assert run.saved().env_frames > 0, "it has saved"
    assert (tmp_path / "points").read_text().startswith("0 ") and (tmp_path / "has_ended").exists()
    before = run.status()["env_frames"]
    again = start(*SMALL, "--stop_when=reward>=25", "--stats_avg=20")
    assert again.end() == 0 and again.status()["env_frames"] == before, again.output
    told = again.output.splitlines()[-1]
    assert re.search(r"reached stop_when=reward>=25: .* fps \(10/60/300 s\) [1-9]", run.output), "a run of seconds, too"
    assert " has reached stop_when=reward>=25: reward is " in told and "type another --stop_when, or" in told
    anew = start(*SMALL, "--train_for_env_steps=50", "--restart_behavior=restart")
    assert anew.end() == 0, anew.output
    [moved] = [path for path in run.folder.parent.iterdir() if path.name.startswith(f"{run.folder.name}.")]
    assert f"what lay in {run.folder} is in {moved} now" in anew.output
    overwritten = start(*SMALL, "--restart_behavior=overwrite", "--train_for_env_steps=300")
    assert overwritten.end() == 0, overwritten.output
    assert f"what lay in {run.folder} is deleted" in overwritten.output


def test_a_callback_that_cannot_be_imported_is_refused_before_anything_is_written(start):
    run = start(*SMALL, "--callback=hears:Nobody")
    assert run.end() == 2 and "callback='hears:Nobody' cannot be imported: ModuleNotFoundError" in run.output
    assert not run.folder.exists()


def test_a_budget_that_is_spent_before_anything_was_learned_is_told_as_such(start):
    # Steps so slow that a driver which looks late still comes before an iteration is full.
    slow = ["--synthetic_step_ms=5", "--batch_size=1024", "--num_batches_per_iteration=2"]
    run = start(*SMALL, *slow, "--train_for_env_steps=50", env="synthetic_slow")
    assert run.end() == 0, run.output
    lines = run.output.splitlines()
    warned = next(number for number, line in enumerate(lines) if "=50 may be spent before this start learns" in line)
    told = next(line for line in lines[warned:] if "reached train_for_env_steps=50, spent after " in line)
    assert "before this start learned anything: an iteration takes 2048 agent steps" in told
    assert "--train_for_env_steps=100" in run.output, "the command to go on with"


@pytest.mark.parametrize(
    ("word", "allowed"),
    [("--train_for_env_steps=0", "at least 1"), ("--train_for_seconds=0", "at least 0.001, or inf")],
)
def test_a_budget_of_nothing_is_refused(start, word, allowed):
    run = start(*SMALL, word)
    assert run.end() == 2 and f"allowed: {allowed}" in run.output and not run.folder.exists()
