"""The experiment with sleeping actors: its ideal, one real run, and the plot."""

import pytest

from benchmarks.measuring import Measurement, Usage
from benchmarks.speed.scale import COLUMNS, Point, draw, measured, nap_s

KINDS = ("actor", "driver", "policy", "learner")


def point(actors, envs, fps):
    usage = {kind: Usage(1, 1.0, 0.25, 50.0) for kind in KINDS}
    return Point(actors, envs, 100.0 * actors, Measurement(fps, 6.0, 2.0, usage, 500.0))


def test_a_nap_is_as_long_as_asked_for_and_a_little_longer():
    assert 0.002 <= nap_s(2.0, naps=10) < 0.01


@pytest.mark.alone
def test_sleeping_actors_make_as_many_frames_as_sleeping_allows():
    found = measured(actors=2, envs_per_actor=2, sleep_ms=20.0, seconds=2.0)
    assert 80.0 < found.ideal <= 100.0
    assert 0.7 < found.share < 1.2
    assert set(KINDS) <= set(found.run.usage)
    assert len(found.row()) == len(COLUMNS)


def test_the_plot_shows_both_series_beside_their_ideals():
    figure = draw([point(1, 2, 98.0), point(2, 4, 190.0)], [point(8, 16, 700.0)])
    panels = [axes for axes in figure.axes if axes.get_xlabel()]
    assert [axes.get_xlabel() for axes in panels] == ["actors", "environments, 8 actors"]
    measured_line, ideal_line = panels[0].get_lines()
    assert list(measured_line.get_ydata()) == pytest.approx([98.0, 190.0])
    assert list(ideal_line.get_ydata()) == pytest.approx([100.0, 200.0])
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[2:] == ["driver (right)", "policy (right)", "learner (right)"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["frames per second"] * 2 + ["cores kept busy"] * 2
