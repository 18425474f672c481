"""Win matrices, and ratings fitted to them."""

import math

import numpy as np
import pytest

from appo.algorithms.population.ratings import PlacementRatings, Results, WinMatrix, elo_ratings


def test_each_pair_of_seats_counts_once_for_both_sides():
    matrix = WinMatrix()
    matrix.add_match(["b", "a", "c"], [3.0, 1.0, 1.0])
    matrix.add_match(["a", "b"], [2.0, 2.0])
    assert matrix.of("b", "a") == Results(1, 1, 0) == matrix.of("a", "b").turned()
    assert matrix.of("a", "c") == Results(0, 1, 0) and matrix.of("a", "a") == Results()
    assert matrix.of("b", "a").score == 0.75 and math.isnan(Results().score)


def test_two_seats_of_one_player_are_no_match():
    matrix = WinMatrix()
    matrix.add_match(["a", "a"], [1.0, 0.0])
    assert matrix.state() == []


def test_a_player_can_be_renamed_and_forgotten_and_all_comes_back_from_a_state():
    matrix, other = WinMatrix(), WinMatrix()
    matrix.add("b", "a", Results(3, 1, 0))
    matrix.add("b", "c", Results(0, 0, 2))
    matrix.rename("b", "z")
    assert matrix.of("z", "a") == Results(3, 1, 0) and matrix.of("c", "z") == Results(2, 0, 0)
    assert matrix.of("b", "a") == Results(), "the old name begins anew"
    other.restore(matrix.state())
    assert other.state() == matrix.state() != []
    other.keep(["z", "a"])
    assert other.of("z", "c") == Results() and other.of("z", "a") == Results(3, 1, 0)


def play(strengths, rounds, seed=0):
    """Results of all pairs, drawn from a model in which strengths are Elo's."""
    rng, matrix = np.random.default_rng(seed), WinMatrix()
    for _ in range(rounds):
        for one, mine in strengths.items():
            for other, theirs in strengths.items():
                if one < other:
                    wins = rng.random() < 1 / (1 + 10 ** ((theirs - mine) / 400))
                    matrix.add_match([one, other], [float(wins), float(not wins)])
    return matrix


def test_ratings_are_the_strengths_that_results_were_drawn_from():
    strengths = {"a": 0.0, "b": 100.0, "c": 250.0, "d": -150.0}
    found = elo_ratings(play(strengths, 3000), list(strengths), "a")
    assert found == pytest.approx(strengths, abs=15) and found["a"] == 0.0


def test_ratings_compare_players_that_have_never_met_and_do_not_depend_on_who_met_the_weak():
    """An average of wins would call `idle` the best: it has met the weakest only."""
    matrix = WinMatrix()
    matrix.add("idle", "weak", Results(80, 0, 20))
    matrix.add("strong", "weak", Results(95, 0, 5))
    matrix.add("strong", "middle", Results(60, 0, 40))
    ratings = elo_ratings(matrix, ["idle", "weak", "strong", "middle"], "weak")
    assert ratings["strong"] > ratings["middle"] > ratings["idle"] > ratings["weak"] == 0.0


def test_a_player_who_has_won_all_matches_has_a_rating_and_one_without_any_an_average_one():
    matrix = WinMatrix()
    matrix.add("a", "b", Results(50, 0, 0))
    ratings = elo_ratings(matrix, ["a", "b", "new"], "nobody")
    assert ratings["a"] == pytest.approx(-ratings["b"], abs=1.0) and 400 < ratings["a"] < 1000
    assert abs(ratings["new"]) < 1.0 and elo_ratings(matrix, [], "a") == {}


def test_the_player_whose_rating_is_0_has_to_have_played():
    matrix = WinMatrix()
    matrix.add("a", "b", Results(5, 0, 5))
    matrix.add("a", "c", Results(9, 0, 1))
    assert elo_ratings(matrix, ["a", "b", "c", "new"], "c")["c"] == 0.0
    assert sum(elo_ratings(matrix, ["a", "b", "c", "new"], "new").values()) == pytest.approx(0.0, abs=1e-6)


def test_a_player_without_matches_is_as_strong_as_the_one_that_it_has_grown_from():
    matrix = WinMatrix()
    matrix.add("old", "b", Results(30, 0, 3))
    ratings = elo_ratings(matrix, ["old", "b", "now"], "b", {"now": "old"})
    assert ratings["now"] == pytest.approx(ratings["old"], rel=0.02) and ratings["old"] > 200


def test_placements_of_more_than_two_players_are_rated_in_their_order():
    ratings, rng = PlacementRatings(), np.random.default_rng(0)
    for _ in range(200):
        ratings.add_match(["a", "b", "c", "c"], [rng.normal(2), rng.normal(1), rng.normal(0), rng.normal(0)])
    found = ratings.of(["a", "b", "c", "unknown"], "c")
    assert found["a"] > found["b"] > found["c"] == 0.0 and "unknown" not in found
    other = PlacementRatings()
    other.restore(ratings.state())
    other.rename("a", "past")
    assert other.of(["past"], "")["past"] == other.of(["a"], "")["a"] > 0.0, "it goes on from what it was"
    other.keep(["b"])
    assert list(other.state()) == ["b"]
    other.add_match(["b", "b"], [1.0, 0.0])
    assert other.state() == {"b": ratings.state()["b"]}, "nobody is rated against itself"


def test_a_copy_has_the_rating_of_the_player_that_it_was_copied_from_or_none():
    ratings = PlacementRatings()
    ratings.add_match(["a", "b", "c"], [3.0, 2.0, 1.0])
    before = ratings.state()
    ratings.become("c", "a")
    assert ratings.state() == before | {"c": before["a"]} != before
    ratings.become("a", "who has not played")
    assert ratings.state() == {"b": before["b"], "c": before["a"]}
