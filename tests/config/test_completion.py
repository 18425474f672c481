"""Scripts that complete options in a shell, and a help that is cut off by its reader."""

import shutil
import subprocess
import sys

import pytest

from tests.architecture.source_tree import ROOT


def printed(program, *words):
    command = [sys.executable, str(ROOT / program), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_for_a_shell_has_every_option(shell):
    done = printed("train_appo.py", f"--completion={shell}", "--env=doom_basic")
    assert done.returncode == 0 and not done.stderr
    assert "learning_rate" in done.stdout and "res_w" in done.stdout, "the family's as well"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_an_option_of_each_program(tmp_path):
    for program, begun, whole in [
        ("train_appo.py", "--learning_r", "--learning_rate"),
        ("train_appo.py", "--restart_behavior ov", "overwrite"),
        ("train_appo.py", "--use_rnn F", "False"),
        ("enjoy_appo.py", "--max_num_e", "--max_num_episodes"),
    ]:
        script = tmp_path / program
        script.write_text(printed(program, "--completion=bash").stdout)
        function = "_tyro_" + program.replace(".", "_")
        words = f"COMP_WORDS=({program} {begun}); COMP_CWORD={len(begun.split())}"
        asks = f"source {script}; {words}; {function}; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", asks], capture_output=True, text=True, timeout=20)
        assert done.stdout.split() == [whole], done.stderr
        assert f"complete -F {function} {program}" in script.read_text()


@pytest.mark.parametrize("word", ["--completion=tcsh", "--completion="])
def test_another_shell_is_refused_with_those_that_there_are(word):
    done = printed("train_appo.py", word)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"train_appo.py: error: {word}: there are bash, zsh, fish\n"
    if word.endswith("="):
        assert printed("train_appo.py", "--completion").stderr == done.stderr


@pytest.mark.parametrize("words", ["--help", "--completion=bash", "--version"])
def test_a_reader_that_goes_away_is_no_error(words):
    program = f"{sys.executable} {ROOT / 'train_appo.py'} {words}"
    done = subprocess.run(["sh", "-c", f"{program} | true"], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0 and not done.stderr
