"""The comparison of ways to run environments: the rows, the files, and what waits overlaps."""

import csv

from benchmarks.vector_envs import COLUMNS, main


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
