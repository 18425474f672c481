"""What the documents say is there, and what is there is in the documents."""

import pkgutil
import re
import shlex
import sys

import numpy as np
import pytest

import appo.algorithms.learning.auxiliary
import appo.algorithms.models.encoders
import appo.envs.families
from appo.algorithms.config import reference
from appo.algorithms.familiar_words import HINTS, SYNONYMS
from appo.algorithms.learning import auxiliary_loss
from appo.algorithms.models.encoder_registry import find_encoder
from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext
from appo.envs.registry import make_batch_env, resolve
from appo.utils.options import options_of
from tests.architecture.source_tree import ROOT, modules

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
ENVIRONMENTS = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
}
EXAMPLE = "corridor"
PLACEHOLDER = "name"
FOREIGN_FLAGS = {
    "rm", "interactive", "tty", "volume", "tag", "user", "shm-size", "gpus", "build-arg", "help", "logdir",
    "index-url", "local-dir", "workdir", "entrypoint", PLACEHOLDER,
}  # fmt: skip
COMMANDS = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
COMMANDS.append(ROOT / "algorithms" / "run" / "wandb_mirror.py")  # for one of the tools
BENCHMARKS = "\n".join(path.read_text() for path in COMMANDS)
BENCHMARK_FLAGS = set(re.findall(r'add_argument\(\s*"--(\w+)"', BENCHMARKS))


def files_of(package):
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def family_options():
    """family -> names of the options that it adds."""
    found = {}
    for name in files_of(appo.envs.families):
        module = __import__(f"appo.envs.families.{name}", fromlist=["FAMILY"])
        found[name] = [field.name for field, _ in options_of(module.FAMILY.config)]
    return found


def known_options():
    names = set(re.findall(r"^\| `--(\w+)`", reference(), flags=re.MULTILINE))
    names |= set(re.findall(r", `--(\w+)`", reference()))
    names |= {option for options in family_options().values() for option in options}
    names |= {"help", "version", "completion"} | SYNONYMS.keys() | HINTS.keys()
    return names | {
        field.name
        for name in files_of(appo.algorithms.learning.auxiliary)
        for field, _ in options_of(auxiliary_loss.load(name).config)
    }


def section(page, title):
    """From a heading to the next of its rank."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def code_blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The README's environment, saved in the current folder as a user would."""
    (code,) = code_blocks(README, "python")
    (tmp_path / f"{EXAMPLE}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield code
    sys.modules.pop(EXAMPLE, None)


def test_the_environment_of_the_readme_has_at_most_20_lines(example):
    assert 10 < example.count("\n") <= 20


def test_the_environment_of_the_readme_can_be_solved_as_its_command_names_it(example):
    (name,) = re.findall(rf"--env=({EXAMPLE}:\w+)", README)
    contexts = [EnvContext(env_id=i, num_envs=3, seed=5) for i in range(3)]
    env = make_batch_env(name, None, contexts)
    out = step_arrays(env.spec, 3)
    env.reset(out)
    places = out.observations["obs"][:, 0]
    arrived, steps_of_the_slowest = np.zeros(3, bool), int(np.round(10 * (1 - places.min())))
    for _ in range(steps_of_the_slowest):
        env.step(np.ones((3, 1), np.float32), out)
        arrived |= out.terminated == 1
        assert np.allclose(out.rewards, np.where(out.terminated == 1, 1.0, -0.01))
    assert arrived.all()
    env.reset(out)
    for step in range(1, 51):
        env.step(np.zeros((3, 1), np.float32), out)
        assert out.truncated.tolist() == [step == 50] * 3  # whoever never arrives is cut off, not ended
    assert not out.terminated.any()
    env.close()


def test_every_make_command_of_the_documents_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    assert {"train", "test", "test-slow", "lint", "docs"} <= targets
    text = "\n".join([*PAGES.values(), (ROOT / ".ci" / "run").read_text(), MAKEFILE])
    named = set(re.findall(r"(?:^|`|exec |&& )(?:\w+=\S+ )?make ([a-z-]+)", text, flags=re.MULTILINE))
    assert {"train", "test"} <= named
    assert named <= targets


def test_every_variable_given_to_make_in_the_documents_is_one_of_the_makefile():
    variables = set(re.findall(r"^([A-Z]+) \?=", MAKEFILE, flags=re.MULTILINE))
    commands = re.findall(r"make train (.*)$", README + MAKEFILE, flags=re.MULTILINE)
    named = {name for command in commands for name in re.findall(r"\b([A-Z]{3,})=", command)}
    assert {"ENV", "STEPS", "ARGS"} <= named <= variables


def test_every_program_that_the_readme_starts_exists():
    commands = [line for block in code_blocks(README, "sh") for line in block.splitlines()]
    words = [shlex.split(command, comments=True) for command in commands]
    scripts = {line[1] for line in words if line and line[0] == "python" and line[1] != "-m"}
    modules = set(re.findall(r"python -m (\w+(?:\.\w+)+)", "\n".join(PAGES.values())))
    assert {"train_appo.py", "enjoy_appo.py"} <= scripts
    assert "appo.tools.plot" in modules
    assert not [script for script in scripts if not (ROOT / script).exists()]
    places = {module: ROOT / module.replace(".", "/") for module in modules}
    assert not [name for name, at in places.items() if not at.with_suffix(".py").exists() and not at.is_dir()]


@pytest.mark.parametrize("page", sorted(map(str, PAGES)))
def test_every_option_that_a_page_names_exists(page):
    text = next(text for path, text in PAGES.items() if str(path) == page)
    named = set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)) - FOREIGN_FLAGS
    named -= set(re.findall(r"^    (\w+): \w+ = option\(", text, re.MULTILINE))  # that the page declares itself
    assert not named - known_options() - BENCHMARK_FLAGS


def test_every_number_of_the_readmes_first_table_is_a_result_of_the_benchmarks():
    results = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = [line for line in README.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    cells = [cell for row in rows for cell in row.split("|")[2:4] if "not measured" not in cell]
    numbers = {number for cell in cells for number in re.findall(r"\d[\d.]*", cell)}
    assert len(rows) == 4 and len(numbers) > 15
    assert not [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", results)]


def test_the_readme_links_to_the_section_of_every_group_of_options():
    groups = re.findall(r"^## (\w+)$", reference(), flags=re.MULTILINE)
    assert len(groups) >= 7
    assert not [group for group in groups if f"docs/options.md#{group})" not in README]


def test_every_link_from_a_page_into_the_project_leads_somewhere():
    broken, count = [], 0
    for page, text in PAGES.items():
        for target in re.findall(r"(?<!!)\[[^\]]+\]\(([^)#]+)", text):
            if not target.startswith("http"):
                count += 1
                if not (ROOT / page).parent.joinpath(target).exists():
                    broken.append(f"{page}: {target}")
    assert count > 5
    assert not broken


def planned_files(plan):
    """Paths of the files that the tree names: by indentation, a folder in the first word of a line."""
    folders: list[tuple[int, str]] = []  # indentation, path
    for line in plan.splitlines():
        if not line.strip() or line.startswith("```"):
            continue
        indent, words = len(line) - len(line.lstrip()), line.split()
        while folders and folders[-1][0] >= indent:
            folders.pop()
        if words[0].endswith("/"):
            folders.append((indent, (folders[-1][1] if folders else "") + words[0]))
        for word in words:
            if re.fullmatch(r"\w+\.py[:;,]?", word):
                yield (folders[-1][1] if folders else "") + word.rstrip(":;,")


def test_the_floor_plan_names_every_file_at_its_place_and_no_other():
    plan = section((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), "2. The tree").partition("```")[2]
    named = set(planned_files(plan))
    files = {module.path for module in modules() if not module.is_package}
    assert len(files) > 150
    assert named == files


def test_a_file_of_the_plan_belongs_to_the_folder_above_it():
    plan = "a/\n  b.py c.py   what d is\n  e/       one per file: f.py\n           g.py\n  h.py\ni/\n  j/\n    k.py\n"
    assert list(planned_files(plan)) == ["a/b.py", "a/c.py", "a/e/f.py", "a/e/g.py", "a/h.py", "i/j/k.py"]


def test_every_family_has_a_section_that_names_all_its_options():
    families = family_options()
    assert sum(map(len, families.values())) > 20
    missing = [name for name in families if not section(ENVIRONMENTS, name)]
    assert not missing
    for name, options in families.items():
        text = section(ENVIRONMENTS, name)
        assert not [option for option in options if f"`--{option}`" not in text], name


def test_every_environment_that_a_family_suggests_is_named_or_stands_for_a_pattern():
    assert "doom_basic" in resolve("doom_basic").family.names
    for name in ("doom", "synthetic", "box2d"):
        module = __import__(f"appo.envs.families.{name}", fromlist=["FAMILY"])
        assert not [env for env in module.FAMILY.names if f"`{env}`" not in ENVIRONMENTS], name


def test_every_encoder_is_documented_in_the_readme_and_in_its_file():
    names = files_of(appo.algorithms.models.encoders)
    assert len(names) >= 5
    for name in names:
        assert f"| `{name}` |" in README, name
        assert find_encoder(name).__doc__, name


def test_every_auxiliary_loss_is_documented_in_the_readme():
    names = files_of(appo.algorithms.learning.auxiliary)
    assert names
    assert not [name for name in names if f"| `{name}` |" not in README]


def test_every_requirement_is_pinned_and_the_lists_build_on_each_other():
    lists = {}
    for path in sorted(ROOT.glob("requirements*.txt")):
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
        lists[path.name] = [line for line in lines if line]
    assert set(lists) == {f"requirements{of}.txt" for of in ("", "-envs", "-dev", "-tools")}
    loose = [line for lines in lists.values() for line in lines if not re.fullmatch(r"-r \S+|[\w.-]+==[\w.]+", line)]
    assert not loose
    assert "-r requirements.txt" in lists["requirements-envs.txt"]
    assert "-r requirements-envs.txt" in lists["requirements-dev.txt"]
    assert "torch==2.13.0" in lists["requirements.txt"]
