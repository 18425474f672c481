"""The command `hub`: a folder that plays on elsewhere, its card, and a push to a hub that answers, or does not."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from appo.algorithms import checkpoints
from appo.algorithms.evaluation import load_policy
from appo.tools.arguments import EXIT_FAILED, EXIT_OK, EXIT_REFUSED
from appo.tools.hub import main
from tests.architecture.source_tree import ROOT
from tests.evaluation.conftest import experiment  # noqa: F401 - a fixture
from tests.tools.experiment_files import append_points


def head_of(card):
    lines = card.partition("---\n")[2].partition("\n---\n")[0].splitlines()
    return {key: json.loads(value) for key, value in (line.split(": ", 1) for line in lines)}


def test_the_folder_plays_as_the_experiment_does_and_names_no_place(experiment, tmp_path, capsys):  # noqa: F811
    _, folder = experiment("CartPole-v1", weights=4)
    append_points(folder, [(100, 1.0), (200, 2.0)])
    (folder / "videos").mkdir()
    (folder / "videos" / "a.mp4").write_bytes(b"video")
    made = tmp_path / "hub" / "pole"
    assert main([str(folder), str(made)]) == EXIT_OK
    assert capsys.readouterr().err == ""
    found = {path.name for path in made.iterdir()}
    assert found == {
        *("README.md", "config.json", "checkpoint_p0", "curves.png"),
        *("policy.onnx", "policy.onnx.md", "replay.mp4"),
    }
    here, there = (load_policy(place, deterministic=True) for place in (folder, made))
    observations = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    assert [here.act(each) for each in observations] == [there.act(each) for each in observations]
    assert str(tmp_path) not in (made / "config.json").read_text()
    card = (made / "README.md").read_text()
    assert head_of(card)["tags"][-1] == "CartPole-v1" and "no episode had ended" in card
    assert main([str(folder), str(made)]) == EXIT_OK, "written once more"


def test_the_card_tells_the_score_as_the_hub_reads_it(experiment, tmp_path):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    newest = checkpoints.load_newest_valid(folder / "checkpoint_p0")
    assert newest is not None
    state = newest.payload["run_state"] | {"episodes": {"returns": [1.0, 3.0]}}
    checkpoints.save(folder / "checkpoint_p0", "latest", 13, 120, newest.payload | {"run_state": state})
    assert main([str(folder), str(tmp_path / "pole")]) == EXIT_OK
    (model,) = head_of((tmp_path / "pole" / "README.md").read_text())["model-index"]
    (result,) = model["results"]
    assert result["metrics"][0]["value"] == "2.00 +/- 1.00" and result["dataset"]["name"] == "CartPole-v1"


def test_every_policy_of_a_population_is_there(experiment, tmp_path):  # noqa: F811
    _, folder = experiment("CartPole-v1", "--num_policies=2")
    newest = checkpoints.load_newest_valid(folder / "checkpoint_p0")
    assert newest is not None
    checkpoints.save(folder / "checkpoint_p1", "latest", 12, 99, newest.payload)
    assert main([str(folder), str(tmp_path / "pole")]) == EXIT_OK
    found = {path.name for path in (tmp_path / "pole").iterdir()}
    assert {"checkpoint_p0", "checkpoint_p1", "policy_00.onnx", "policy_01.onnx"} <= found


@pytest.mark.parametrize("words", [[], ["nowhere", "made"], ["--push=name"]])
def test_wrong_words_are_refused_in_one_line(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert main(words) == EXIT_REFUSED
    told = capsys.readouterr().err
    assert told.startswith("hub: ") and told.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(experiment, tmp_path, capsys):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    (tmp_path / "mine").mkdir()
    for name in ("letter.txt", "README.md"):
        (tmp_path / "mine" / name).write_text("dear")
        assert main([str(folder), str(tmp_path / "mine")]) == EXIT_REFUSED
        assert "holds something else" in capsys.readouterr().err
    assert {path.read_text() for path in (tmp_path / "mine").iterdir()} == {"dear"}


def test_without_the_packages_of_onnx_the_rest_is_made(experiment, tmp_path, monkeypatch, capsys):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    made = tmp_path / "pole"
    assert main([str(folder), str(made)]) == EXIT_OK and (made / "policy.onnx.md").exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    capsys.readouterr()
    assert main([str(folder), str(made)]) == EXIT_OK
    told = capsys.readouterr().err
    assert "policy.onnx is left out: .onnx needs onnx" in told and "pip install onnx" in told
    assert not list(made.glob("policy.onnx*")) and list(made.rglob("*.pth"))


def test_what_was_trained_is_not_deleted(experiment, tmp_path, capsys):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    made = tmp_path / "hub" / "pole"
    assert main([str(folder), str(made)]) == EXIT_OK
    (made / "status.json").write_text("{}")  # as training there leaves it
    (made.parent / "README.md").write_text("of somebody")
    checkpoints_made = sorted((made / "checkpoint_p0").iterdir())
    for source, place in ((folder, made), (made, made), (made, made.parent)):
        capsys.readouterr()
        assert main([str(source), str(place)]) == EXIT_REFUSED
        assert "holds an experiment" in capsys.readouterr().err
    assert sorted((made / "checkpoint_p0").iterdir()) == checkpoints_made


def test_a_checkpoint_that_cannot_be_copied_leaves_the_one_before(experiment, tmp_path, monkeypatch, capsys):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    made = tmp_path / "pole"
    assert main([str(folder), str(made)]) == EXIT_OK
    before = sorted(made.rglob("*.pth"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    assert main([str(folder), str(made)]) == EXIT_REFUSED
    assert "No space left" in capsys.readouterr().err and sorted(made.rglob("*.pth")) == before != []
    assert not list(made.glob(".*"))


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a push of small files needs."""

    commits: list[str]

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer: dict[str, Any]
        if self.path == "/api/repos/create":
            answer = {"url": f"http://{self.headers['Host']}/user/{json.loads(body)['name']}"}
        elif self.path == "/api/validate-yaml":
            answer = {"errors": [], "warnings": []}
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer = {
                "files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]
            }
        else:
            assert "/commit/" in self.path
            lines = [json.loads(line) for line in body.splitlines()]
            self.commits += [line["value"]["path"] for line in lines if line["key"] == "file"]
            url = f"http://{self.headers['Host']}/user/pole/commit/1"
            answer = {"commitUrl": url, "commitOid": "1" * 40, "success": True}
        self.answer(answer)

    def do_GET(self):
        self.answer({"id": "user/pole", "sha": "0" * 40, "siblings": []})

    def answer(self, content):
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


PUSH = """
import sys
from appo.tools.hub import main
sys.exit(main(sys.argv[1:]))
"""


def pushed(folder, made, endpoint):
    """The command in a process of its own: the client reads where its hub is when it is imported."""
    given = os.environ | {"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_" + "0" * 34, "HF_HOME": str(made.parent / "home")}
    words = [sys.executable, "-c", PUSH, str(folder), str(made), "--push=user/pole"]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=given, timeout=120, check=False)


def test_every_file_is_pushed(experiment, tmp_path):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    Hub.commits = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = tmp_path / "pole"
    done = pushed(folder, made, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()
    assert done.returncode == EXIT_OK, done.stderr
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert set(Hub.commits) == files and re.search(r"user/pole", done.stdout)
    assert "hf download user/pole --local-dir" in (made / "README.md").read_text()


def test_without_a_hub_the_folder_stays_and_the_way_is_told(experiment, tmp_path):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    done = pushed(folder, tmp_path / "pole", "http://127.0.0.1:9")
    assert done.returncode == EXIT_FAILED and (tmp_path / "pole" / "README.md").is_file()
    assert "`hf upload user/pole" in done.stderr and "Traceback" not in done.stderr
