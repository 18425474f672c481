"""The table of the learning benchmark: what a row says of its seeds."""

from benchmarks.learning import Outcome, summarise


def test_a_row_tells_the_median_and_the_worst_seed_rounded_alike():
    runs = [(10_240, 6.0, True), (10_752, 5.5, True), (10_752, 5.8, False)]
    outcomes = [
        Outcome("image", seed, reached, frames, seconds, 18.5 + seed, 0)
        for seed, (frames, seconds, reached) in enumerate(runs)
    ]
    env, options, goal, reached, frames, seconds, best = summarise("image", outcomes)
    assert (env, options, goal) == ("synthetic_image", "", "18 in 50k")
    assert (reached, frames, seconds, best) == ("2 of 3", "11k (max 11k)", "6 (max 6)", "18.5 .. 20.5")
