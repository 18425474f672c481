"""The comparison of ways to run environments: the rows, the files, and what waits overlaps."""

import csv

import pytest

from benchmarks.vector_envs import COLUMNS, Row, main, show


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_rows_and_files_of_an_environment_that_waits(tmp_path, capsys):
    """Steps of 1 ms and more, during which other processes go on."""
    words = ["--env=synthetic_slow", "--num_envs=4", "--seconds=0.2", "--turns=1"]
    ways = "serial,subproc sync,subproc async,SyncVectorEnv"
    files = [f"--out={tmp_path / 'rows.csv'}", f"--plot={tmp_path / 'rows.png'}"]
    assert main([*words, f"--ways={ways}", *files]) == 0
    rows = rows_of(tmp_path / "rows.csv")
    assert tuple(rows[0]) == COLUMNS and (tmp_path / "rows.png").stat().st_size > 10_000
    assert {row["way"] for row in rows} == {"reset", "step", *ways.split(",")}
    places = {(row["way"], row["processes"], row["envs"]): float(row["steps_per_s"]) for row in rows}
    assert {envs for way, _, envs in places if way == "serial"} == {"1", "2", "4"}
    assert places["subproc sync", "4", "4"] > 1.5 * places["serial", "0", "4"]
    assert "fastest of ours: subproc" in capsys.readouterr().out


def test_a_way_that_does_not_exist_is_refused_with_those_that_do(capsys):
    assert main(["--env=CartPole-v1", "--ways=serial,threads"]) == 2
    assert "ways=threads: there are AsyncVectorEnv" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--num_envs=0", "--turns=0", "--seconds=0", "--policy_ms=-1"])
def test_measurements_of_nothing_are_refused(word, capsys):
    with pytest.raises(SystemExit):
        main(["--env=CartPole-v1", word])
    assert "--num_envs and --turns are at least 1" in capsys.readouterr().err


def test_a_table_of_80_columns_keeps_names_whole_however_long_a_note_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    show([Row("DummyVecEnv", 0, 16, 123_456.7, 129.6, 1234.5, "ConfigError: not " + "installed " * 9)], "CartPole-v1")
    told = capsys.readouterr().out
    *table, note = told.splitlines()
    assert "DummyVecEnv" in "".join(table) and "123,457" in told and max(map(len, table)) <= 80
    assert note.startswith("DummyVecEnv, 0 processes, 16 envs: ConfigError: not installed")
