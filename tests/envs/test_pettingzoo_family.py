"""PettingZoo's environments by id: all that can be trained on are, all others are refused in one line."""

import importlib.util
import pkgutil
from pathlib import Path

import numpy as np
import pytest

from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext, EnvError, UnsupportedSpaceError
from appo.envs.families.pettingzoo import FAMILY, GROUPS
from appo.envs.preflight import check_environment
from appo.envs.registry import make_batch_env, probe, resolve
from appo.utils.options import ConfigError

REFUSED = {"hanabi", "chess", "leduc_holdem", "texas_holdem", "texas_holdem_no_limit", "pistonball"}
# They need packages that are not installed.


def environments():
    found = []
    for group in GROUPS:
        spec = importlib.util.find_spec("mpe2" if group == "mpe2" else "pettingzoo")
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent / ("" if group == "mpe2" else group)
        found += [f"pettingzoo_{group}_{module.name}" for module in pkgutil.iter_modules([str(folder)])]
    return [name for name in found if name[-1].isdigit()]


ALL = environments()


def test_there_are_as_many_as_expected_and_the_family_names_some_of_them():
    assert len(ALL) >= 25
    assert set(FAMILY.names) <= set(ALL)


@pytest.mark.filterwarnings("ignore")  # of the environments' own
@pytest.mark.parametrize("name", ALL)
def test_an_environment_can_be_trained_on_or_is_refused_in_one_line(name):
    is_refused = any(f"_{word}_v" in name for word in REFUSED)
    try:
        checked = check_environment(resolve(name), None, False)
    except (ConfigError, UnsupportedSpaceError) as error:
        assert is_refused and "\n" not in str(error), error
    else:
        assert not is_refused and checked.spec.agents_per_env >= 1 and not checked.warnings


@pytest.mark.parametrize(
    "name",
    [
        "pettingzoo_classic_nothing_v1",
        "pettingzoo_nowhere_rps_v2",
        "pettingzoo_classic",
        "pettingzoo_classic_rps",
        "pettingzoo_classic_rps_v",
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name):
    with pytest.raises((ConfigError, EnvError), match="did you mean pettingzoo_classic_"):
        probe(name)


def test_in_a_game_of_turns_one_agent_acts_at_a_time_among_allowed_moves_until_both_games_end():
    batch = make_batch_env("pettingzoo_classic_tictactoe_v3", None, [EnvContext(seed=3), EnvContext(seed=4, env_id=1)])
    out = step_arrays(batch.spec, 2)
    batch.reset(out)
    rng, games, turns = np.random.default_rng(0), 0, []
    for _ in range(60):
        active, masks = out.active.reshape(2, 2), out.observations["action_mask"].reshape(2, 2, 9)
        assert (active.sum(axis=1) == 1).all()
        turns.append(active.argmax(axis=1))
        actions = np.zeros((4, 1), np.float32)
        for row in np.flatnonzero(out.active):
            actions[row] = rng.choice(np.flatnonzero(masks.reshape(4, 9)[row]))
        batch.step(actions, out)
        ended = (out.terminated | out.truncated).reshape(2, 2)
        assert (ended[:, 0] == ended[:, 1]).all()
        games += int(ended[:, 0].sum())
        assert (out.rewards.reshape(2, 2).sum(axis=1) == 0.0).all(), "what one wins the other loses"
    assert games > 8 and {0, 1} <= {int(turn) for pair in turns for turn in pair}
    batch.close()
