"""config.json after a bad disk or an edit by hand: refused in one sentence, with a way out, and left as it is."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.train_config import from_json, to_json
from appo.utils.options import ConfigError

ROOT = Path(__file__).resolve().parents[2]
ARGV = ["--env=CartPole-v1", "--experiment=run", "--device=cpu"]


@pytest.fixture
def experiment(tmp_path):
    """An experiment as a run leaves it, with a checkpoint."""
    argv = [*ARGV, f"--train_dir={tmp_path}"]
    resolved = resolve([*argv, "--reward_clip=5"])
    folder = tmp_path / "run"
    (folder / "checkpoint_p0").mkdir(parents=True)
    (folder / "checkpoint_p0" / "checkpoint_000000000001_000000000000001.pth").write_bytes(b"precious")
    (folder / "config.json").write_text(to_json(resolved.config, resolved.typed))
    return folder


def content(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(folder):
    """What the next start says; fails where it says nothing."""
    before = content(folder.parent)
    with pytest.raises(ConfigError) as caught:
        resolve([*ARGV, f"--train_dir={folder.parent}"])
    assert content(folder.parent) == before
    return str(caught.value)


def with_options(folder, **options):
    document = json.loads((folder / "config.json").read_text())
    document["options"] |= options
    return json.dumps(document).encode()


@pytest.mark.parametrize("percent", [0, 10, 20, 30, 40, 50, 60, 70, 80, 90])
def test_a_file_that_is_cut_off_is_refused(experiment, percent):
    path = experiment / "config.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * percent // 100])
    assert re.search(
        r"config\.json is not JSON: .*; repair it, or type --restart_behavior=restart", refusal(experiment)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\0" * 4096, "is not JSON"),
        (b"\xff\xfe\x80", "cannot be read: .*utf-8"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"options": {"seed": ' + b"9" * 6000 + b"}}", "is not JSON"),
        (b"3", "holds no"),
        (b"null", "holds no"),
        (b'["options"]', "holds no"),
        (b'{"options": []}', "holds no"),
    ],
    ids=["zeros", "no text", "deep", "long number", "a number", "null", "a list", "options as a list"],
)
def test_what_is_no_configuration_is_refused(experiment, text, message):
    (experiment / "config.json").write_bytes(text)
    told = refusal(experiment)
    assert re.search(rf"config\.json {message}.*repair it, or type --restart_behavior=restart", told), told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamme": 0.9}, "sets unknown option 'gamme'; did you mean gamma"),
        ({"gamma": "x"}, "sets gamma='x'; expected a"),
        ({"gamma": None}, "sets gamma=None; expected a"),
        ({"gamma": 3.0}, "sets gamma=3.0; allowed: at least 0, at most 1"),
        ({"gamma": float("nan")}, "sets gamma=nan; expected a finite number"),
        ({"gamma": {"__class__": "os.system"}}, "sets gamma={'__class__': 'os.system'}; expected a"),
        ({"gamma": float("inf")}, "sets gamma=inf; expected a finite number"),
        ({"encoder": "\ud800"}, r"sets encoder='\\ud800'; expected text in UTF-8"),
        ({"\udcff": 1}, r"sets unknown option '\\udcff'"),
        ({"rollout": 1.5}, "sets rollout=1.5; expected"),
        ({"use_rnn": "perhaps"}, "sets use_rnn='perhaps'; expected"),
    ],
)
def test_what_no_option_allows_is_refused_by_name(experiment, options, message):
    (experiment / "config.json").write_bytes(with_options(experiment, **options))
    told = refusal(experiment)
    assert re.search(rf"/config\.json {message}.*repair it, or type --restart_behavior=restart", told), told


def test_a_flipped_bit_is_refused_or_changes_one_thing_that_a_user_could_have_changed(experiment):
    whole = (experiment / "config.json").read_bytes()
    before, rng = json.loads(whole)["options"], random.Random(1)
    refused = changed = 0
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        try:
            from_json(damaged.decode())
        except (ConfigError, UnicodeDecodeError):
            refused += 1
            continue
        after = json.loads(damaged)["options"]
        assert len([name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]) <= 2
        changed += 1
    assert refused > 5 * changed > 0


def test_the_program_says_so_in_one_line_and_exits_with_2(experiment):
    (experiment / "config.json").write_bytes((experiment / "config.json").read_bytes()[:100])
    before = content(experiment.parent)
    command = [sys.executable, str(ROOT / "train_appo.py"), *ARGV, f"--train_dir={experiment.parent}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "is not JSON" in done.stderr
    assert content(experiment.parent) == before
