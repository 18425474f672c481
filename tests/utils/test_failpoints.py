"""Places where a test can make a process die: armed through the environment, free of cost and effect otherwise."""

import ast
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from appo.utils.failpoints import FAILPOINTS, NAMES, VARIABLE, failpoint, parse
from tests.architecture.source_tree import modules


def run_armed(text, code):
    """Run code in a process with armed failpoints."""
    environment = {VARIABLE: text, "PATH": "/usr/bin:/bin"}
    program = "from appo.utils.failpoints import failpoint\n" + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def named_in_the_source():
    calls = [node for module in modules() for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == "failpoint"]


def test_every_place_in_the_source_is_known_and_every_known_place_is_there_once():
    assert sorted(named_in_the_source()) == sorted(NAMES)
    assert all(FAILPOINTS[name] for name in NAMES)


@pytest.mark.parametrize(
    ("action", "code"), [("kill", -signal.SIGKILL), ("exit", 9), ("raise", 1)], ids=["kill", "exit", "raise"]
)
def test_a_process_ends_at_an_armed_place_as_it_was_told(action, code):
    child = run_armed(
        f"actor-ask={action}@1", 'failpoint("policy-answer"); print("here", flush=True); failpoint("actor-ask")'
    )
    output, errors = child.communicate(timeout=30)
    assert (output, child.returncode) == ("here\n", code)
    assert ("RuntimeError: failpoint actor-ask" in errors) == (action == "raise")


def test_a_process_stops_at_an_armed_place_and_goes_on_when_it_is_continued():
    child = run_armed("actor-ask=stop@1", 'failpoint("actor-ask"); print("went on")')
    try:
        deadline = time.monotonic() + 30
        while " (stopped)" not in (state := _state(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "(stopped)" in state
        child.send_signal(signal.SIGCONT)
        assert child.communicate(timeout=30)[0] == "went on\n"
    finally:
        child.kill()


def _state(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("State:"))


def test_the_probability_is_that_of_one_visit():
    code = """
        died = 0
        for _ in range(2000):
            try:
                failpoint("actor-ask")
            except RuntimeError:
                died += 1
        print(died)
    """
    children = [run_armed("actor-ask=raise@0.25, policy-answer=kill@1", code) for _ in range(2)]
    first, second = (int(child.communicate(timeout=30)[0]) for child in children)
    assert 380 < first < 620 and 380 < second < 620  # 500 +- 19


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere=kill@1", "names the unknown place 'nowhere'; known: actor-block-begin, "),
        ("actor-ask=burn@1", "asks for 'burn' in 'actor-ask=burn@1'; known: kill, raise, stop, exit"),
        ("actor-ask", "asks for ''"),
        ("actor-ask=kill", "write place=action@probability, for example actor-block-begin=kill@0.1"),
        ("actor-ask=kill@often", "write place=action@probability"),
        ("actor-ask=kill@1.5", "write place=action@probability"),
        ("actor-ask=kill@nan", "write place=action@probability"),
    ],
)
def test_what_cannot_be_understood_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_nothing_is_armed_by_nothing():
    assert parse("") == parse(" , ") == {}
    assert list(parse("actor-ask=kill@0.5,policy-answer=stop@0")) == ["actor-ask", "policy-answer"]


def test_an_unarmed_place_costs_next_to_nothing(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)

    def seconds():
        began = time.perf_counter()
        for _ in range(100_000):
            failpoint("actor-ask")
        return (time.perf_counter() - began) / 100_000

    assert min(seconds() for _ in range(7)) < 500e-9  # a tenth of a microsecond on an idle machine
