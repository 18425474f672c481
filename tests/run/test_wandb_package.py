"""A package of Weights & Biases that is missing or broken is refused before a run starts, whatever the network."""

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.run import session, wandb_mirror
from appo.algorithms.run.config import RunConfig
from appo.algorithms.run.wandb_mirror import Account, Mirror, MirrorError, require_package
from appo.utils.options import ConfigError
from tests.tools.experiment_files import write_experiment

INSTALL = "pip install wandb$"


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A package that is found, and says that it is not there."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'wandb'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("broken")
def test_what_cannot_be_imported_is_refused_before_any_process_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "ProcessLauncher", lambda _: pytest.fail("a process was started"))
    monkeypatch.setattr(session, "set_title", lambda _: None)
    resolved = resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}", "--with_wandb=True"])
    with pytest.raises(ConfigError, match=rf"cannot be imported .*No module named 'wandb'\): {INSTALL}") as refused:
        session.train(resolved, ["train_appo.py"], None)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("where", ["nowhere", "folder"])
def test_a_folder_of_its_name_is_no_package(tmp_path, monkeypatch, where):
    (tmp_path / "wandb").mkdir()  # as an offline run leaves it
    monkeypatch.setattr("sys.path", [str(tmp_path)] if where == "folder" else [])
    monkeypatch.delitem(wandb_mirror.sys.modules, "wandb", raising=False)
    with pytest.raises(ConfigError, match=INSTALL):
        RunConfig(train_dir=str(tmp_path), with_wandb=True, device="cpu").check_machine()


def test_a_package_that_is_there_needs_no_network(monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    require_package()
    monkeypatch.setattr(wandb_mirror, "IMPORT_S", 0.001)
    require_package()  # nor a fast disk


def test_a_package_that_goes_away_later_is_told_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setitem(wandb_mirror.sys.modules, "wandb", None)
    folder = write_experiment(tmp_path, "first", [(100, 1.0)])
    with pytest.raises(MirrorError, match=INSTALL):
        Mirror(folder, Account("appo"), print).send_new()
