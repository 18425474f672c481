"""`appo-tools`: every command around runs under one name."""

import importlib
import pkgutil

import appo.tools
from appo.tools.__main__ import COMMANDS, main


def test_every_module_with_a_main_is_a_command():
    modules = [module.name for module in pkgutil.iter_modules(appo.tools.__path__) if module.name != "__main__"]
    found = {name for name in modules if hasattr(importlib.import_module(f"appo.tools.{name}"), "main")}
    assert set(COMMANDS) == found


def test_words_go_to_the_command_and_others_are_refused(tmp_path, capsys):
    assert main(["timing", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["tining"]) == 2
    assert "there is no command 'tining'" in capsys.readouterr().err
    assert main([]) == 0 and main(["--help"]) == 0
    assert "population" in capsys.readouterr().out
