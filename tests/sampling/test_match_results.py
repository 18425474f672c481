"""Matches in a split: who is told to have played whom, what counts, who acts for scripted players."""

import numpy as np
import pytest
from gymnasium import spaces

from appo.algorithms.memory.blocks import SplitBlocks
from appo.algorithms.memory.layout import SharedArrays, Sizes
from appo.algorithms.memory.request_table import PolicyRequests, SplitRequests
from appo.algorithms.messages import MatchFinished
from appo.algorithms.sampling.env_split import EnvSplit
from appo.algorithms.sampling.match_results import MatchBook, SplitMatches
from appo.algorithms.sampling.matchmaking import Draws, MatchAssignment, Opponents
from appo.algorithms.sampling.scripted_seats import ScriptedSeats
from appo.algorithms.specs import action_spec, observation_tensors
from appo.envs.api import EnvContext
from appo.envs.faults import FaultPolicy
from appo.envs.registry import make_batch_env, register_env

FROZEN = 2
RANDOM, CLIMBS = FROZEN + 1, FROZEN + 2  # numbers of the scripted players


class HigherWins:
    """Two agents choose numbers up to 9, three times; the higher sum wins. The script `climbs` chooses 7, 8, 9."""

    scripted_players = ("climbs",)
    made: list["HigherWins"] = []  # noqa: RUF012

    def __init__(self, crash_in=0):
        self.possible_agents, self.agents = ["left", "right"], []
        self.seen, self.steps, self.crash_in = [], 0, crash_in
        self.made.append(self)

    def observation_space(self, agent):
        return spaces.Dict({"time": spaces.Box(0, 3, (1,)), "action_mask": spaces.MultiBinary(10)})

    def action_space(self, agent):
        return spaces.Discrete(10)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        self.sums = dict.fromkeys(self.agents, 0)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.crash_in -= 1
        if self.crash_in == 0:
            raise RuntimeError("a crash that was asked for")
        self.steps += 1
        self.seen.append({agent: int(action) for agent, action in actions.items()})
        for agent, action in actions.items():
            self.sums[agent] += int(action)
        ends = self.steps == 3
        best = max(self.sums.values())
        rewards = {agent: float(ends and total == best) for agent, total in self.sums.items()}
        if ends:
            self.agents = []
        flags = dict.fromkeys(self.possible_agents, ends)
        return self._observe(), rewards, flags, dict.fromkeys(flags, False), {agent: {} for agent in flags}

    def scripted_action(self, name, agent):
        return 7 + self.steps

    def _observe(self):
        mask = np.array([0, 0, 1, 1, 1, 0, 0, 0, 0, 0], np.int8)  # a random player chooses 2, 3 or 4
        return {agent: {"time": np.array([self.steps], np.float32), "action_mask": mask} for agent in ["left", "right"]}

    def close(self):
        pass


class Table:
    """One split of three environments, whose actions are all 5; past selves 1 and 2 of the one policy are there."""

    def __init__(self, shares, share=1.0, crash_in=0):
        HigherWins.made = []
        register_env("higher_wins", lambda context: HigherWins(0 if context.attempt else crash_in * context.env_id))
        contexts = [EnvContext(env_id=i, seed=1) for i in range(3)]
        faults = FaultPolicy(5, drops_bad_data=False) if crash_in else None
        env = make_batch_env("higher_wins", None, contexts, faults)
        sizes = Sizes(
            actors=1,
            splits=1,
            blocks=2,
            rollout=4,
            recurrence=4,
            rows=6,
            acting_policies=1 + FROZEN,
            learning_policies=1,
            processes=1,
            state_size=0,
            observations=observation_tensors(env.spec.observations),
            actions=action_spec(env.spec),
            scripted_players=2,
        )
        self.arrays = arrays = SharedArrays.create(sizes)
        arrays["opponents"][:, 0] = arrays["opponents_loaded"][:] = [11, 12]
        arrays["opponent_shares"][:] = shares
        opponents = Opponents(arrays, share)
        self.requests = [PolicyRequests(arrays, policy, 0, 1) for policy in range(1 + FROZEN)]
        self.asked = [0] * (1 + FROZEN)
        scripted = ScriptedSeats(env, ("random", "climbs"), 1 + FROZEN, np.random.SeedSequence(2))
        self.split = EnvSplit(
            env,
            SplitBlocks(arrays, 0, 0),
            SplitRequests(arrays, 0, 0),
            MatchAssignment(1, np.random.SeedSequence(1), 2, Draws(), opponents),
            (arrays["env_frames"][0], arrays["agent_steps"][0]),
            matches=SplitMatches(MatchBook(3, 2, opponents), scripted, 3, 1),
        )
        self.split.start()

    def step(self):
        """Everybody who is asked plays 5; what the split told."""
        for policy, requests in enumerate(self.requests):
            slabs = requests.open()
            self.asked[policy] += len(slabs)
            for block, step in zip(slabs.block.tolist(), slabs.step.tolist(), strict=True):
                mine = self.arrays["policy_id"][0, 0, block, step] == policy
                self.arrays["answers"][0, 0, block, step, mine, 0] = 5.0
            requests.answer(slabs)
        assert self.split.is_answered()
        episodes = self.split.advance()
        if self.split.waits_for_block:
            self.arrays["taken_sequence"][:] = self.arrays["ready_sequence"]
            self.split.try_next_block()
        return episodes, self.split.pop_matches()


def test_who_won_a_match_is_told_with_the_numbers_of_past_selves():
    table = Table([1, 0, 0, 0])
    episodes, matches = zip(*(table.step() for _ in range(3)), strict=True)
    assert [len(told) for told in matches] == [0, 0, 3] == [len(told) for told in episodes]
    assert {tuple(sorted(zip(m.players, m.numbers, m.outcomes, strict=True))) for m in matches[2]} == {
        ((0, 0, 1.0), (1, 11, 1.0))
    }, "both played 5 three times, a draw"
    assert {episode.policy for episode in episodes[2]} == {0}, "past selves have no curves"


def test_frames_and_steps_of_opponents_are_not_counted_as_the_policy_s():
    table = Table([0.5, 0.5, 0.25, 0.25])
    for _ in range(6):
        table.step()
    assert table.arrays["env_frames"].tolist() == [[18]], "each simulator frame once"
    assert table.arrays["agent_steps"].tolist() == [[18]], "the policy has one of two seats"
    alone = Table([0.5, 0.5, 0.25, 0.25], share=0.0)
    for _ in range(6):
        alone.step()
    assert (alone.arrays["env_frames"].tolist(), alone.arrays["agent_steps"].tolist()) == ([[18]], [[36]])


def test_scripted_players_act_by_themselves_and_nobody_is_asked_for_them():
    table = Table([0, 0, 0.5, 0.5])
    matches = [match for _ in range(30) for match in table.step()[1]]
    assert table.asked[0] == 30 and table.asked[1:] == [1, 1], "the first request wakes everybody"
    seen = [sorted(step.values()) for env in HigherWins.made for step in env.seen]
    by_random = {low for low, high in seen if high == 5}
    by_script = {high for low, high in seen if low == 5}
    assert by_random == {2, 3, 4}, "as the mask allows"
    assert by_script == {7, 8, 9}
    for match in matches:
        outcome = dict(zip(match.players, match.outcomes, strict=True))
        assert outcome in ({0: 1.0, RANDOM: 0.0}, {0: 0.0, CLIMBS: 1.0})
    assert {player for match in matches for player in match.players} == {0, RANDOM, CLIMBS}


def test_a_match_whose_past_self_was_replaced_or_whose_environment_failed_does_not_count():
    table = Table([1, 0, 0, 0])
    table.step()
    table.arrays["opponents_loaded"][0] = table.arrays["opponents"][0, 0] = 13
    told = [table.step()[1] for _ in range(5)]
    assert [len(matches) for matches in told] == [0, 0, 0, 0, 3]
    assert {number for match in told[-1] for number in match.numbers} == {0, 13}

    table = Table([1, 0, 0, 0])
    table.arrays["opponents_loaded"][0] = 0  # its file was gone when the worker was replaced
    assert [len(table.step()[1]) for _ in range(3)] == [0, 0, 0]
    assert not np.isin(table.arrays["policy_id"][0, 0, :, 3], [1, 2]).any(), "others play the next match"

    table = Table([1, 0, 0, 0], crash_in=2)  # the second environment in its second step, the third in its fourth
    told = [len(table.step()[1]) for _ in range(9)]
    assert told == [0, 0, 2, 0, 1, 1, 1, 1, 1]


def test_a_match_of_one_player_against_itself_is_not_told():
    book = MatchBook(1, 2, None)
    book.begin(0, [0, 0])
    book._outcomes[0] = [1.0, 0.0]
    assert book.end(0) is None
    book.begin(0, [0, 3])
    book._outcomes[0] = [1.0, np.nan]
    assert book.end(0) is None, "an agent that never took part has not lost"
    book.begin(0, [0, 3])
    book._outcomes[0] = [1.0, 0.5]
    assert book.end(0) == MatchFinished((0, 3), (0, 0), (1.0, 0.5))


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_match_that_began_unseen_is_not_told(is_whole):
    book = MatchBook(1, 2, None)
    book.begin(0, [0, 3], is_whole=is_whole)
    book._outcomes[0] = [1.0, 0.5]
    assert (book.end(0) is not None) == is_whole
