"""The plot of a run: the points it is drawn from, and what is refused."""

import json

import pytest

from appo.tools.plot import FRAMES_PER_SECOND, HIGHEST, LOWEST, RETURN, PlotError, draw, main, read_curves
from appo.utils.files import JsonLines

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def record(policy, frames, mean=None, fps=1000.0):
    line = {"policy": policy, "time": 0.0, "env_frames": frames, FRAMES_PER_SECOND: fps}
    return line if mean is None else line | {RETURN: mean, LOWEST: mean - 1, HIGHEST: mean + 2}


def experiment(tmp_path, records):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    for entry in records:
        lines.append(entry)
    lines.close()
    return tmp_path


def test_points_are_those_of_the_file_by_policy(tmp_path):
    folder = experiment(tmp_path, [record(0, 100), record(1, 50, 7.0), record(0, 200, 3.0), record(0, 300, 4.5)])
    curves = read_curves(folder)
    assert curves[0][RETURN] == ([200, 300], [3.0, 4.5])  # the first line came before any episode had ended
    assert curves[0][FRAMES_PER_SECOND].frames == [100, 200, 300]
    assert curves[1][RETURN] == ([50], [7.0])


def test_a_line_that_was_cut_off_and_a_missing_number_cost_one_point(tmp_path):
    folder = experiment(tmp_path, [record(0, 100, 1.0), record(0, 200, float("nan")), record(0, 300, 2.0)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record(0, 400, 3.0))[:30])
    assert read_curves(folder)[0][RETURN] == ([100, 300], [1.0, 2.0])


def test_the_figure_shows_the_return_above_and_the_speed_below(tmp_path):
    folder = experiment(tmp_path, [record(p, 100 * i, float(i + p), fps=50.0 * i) for i in range(1, 5) for p in (0, 1)])
    upper, lower = draw(read_curves(folder), "a title").axes
    assert upper.get_title() == "a title"
    assert [line.get_ydata().tolist() for line in upper.lines] == [[1, 2, 3, 4], [2, 3, 4, 5]]
    assert [line.get_xdata().tolist() for line in lower.lines] == [[100, 200, 300, 400]] * 2
    assert lower.lines[0].get_ydata().tolist() == [50, 100, 150, 200]
    assert [text.get_text() for text in upper.get_legend().texts] == ["policy 0", "policy 1"]


def test_the_command_writes_the_plot(tmp_path, capsys):
    folder, plot = experiment(tmp_path, [record(0, 100, 1.0), record(0, 200, 2.0)]), tmp_path / "curve.png"
    assert main([str(folder), str(plot)]) == 0
    assert plot.read_bytes().startswith(PNG_SIGNATURE)
    assert capsys.readouterr().out.strip() == str(plot)


def test_a_folder_without_numbers_is_refused_with_the_reason(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path / "curve.png")]) == 2
    assert "holds no experiment" in capsys.readouterr().err
    with pytest.raises(PlotError, match="no episode has ended"):
        read_curves(experiment(tmp_path, [record(0, 100)]))
    assert not (tmp_path / "curve.png").exists()


def test_a_format_that_does_not_exist_is_refused_with_those_that_do(tmp_path, capsys):
    folder = experiment(tmp_path, [record(0, 100, 1.0)])
    assert main([str(folder), str(tmp_path / "curve.docx")]) == 2
    assert "png" in capsys.readouterr().err


def test_too_few_words_are_answered_with_the_usage(capsys):
    assert main(["only_one"]) == 2
    assert "usage" in capsys.readouterr().err
