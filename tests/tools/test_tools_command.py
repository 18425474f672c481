"""`appo-tools`: every command around runs under one name."""

import importlib
import pkgutil

import pytest

import appo.tools
from appo.tools.__main__ import COMMANDS, main
from appo.utils.cli import VERSION


def test_every_module_with_a_main_is_a_command():
    modules = [module.name for module in pkgutil.iter_modules(appo.tools.__path__) if module.name != "__main__"]
    found = {name for name in modules if hasattr(importlib.import_module(f"appo.tools.{name}"), "main")}
    assert set(COMMANDS) == found


def test_words_go_to_the_command_and_others_are_refused(tmp_path, capsys):
    assert main(["timing", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["tining"]) == 2
    error = capsys.readouterr().err
    assert "there is no command 'tining'; nearest: timing" in error and error.count("\n") == 1
    assert main([]) == 0 and main(["--help"]) == 0
    assert "population" in capsys.readouterr().out


def test_version_and_completion_are_answered_in_one_line(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"appo {VERSION}\n"
    assert main(["--completion=bash"]) == 2
    error = capsys.readouterr().err
    assert "`appo-train --completion=bash`" in error and error.count("\n") == 1


@pytest.mark.parametrize("name", ["export", "hub", "plot", "population", "view", "wandb"])
def test_a_command_without_its_words_is_refused_in_one_line(capsys, name):
    assert main([name]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"{name}: ") and told.err.count("\n") == 1 and told.out == ""
