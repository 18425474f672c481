"""The documentation as a site: every page is in it, and no link leads nowhere."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.source_tree import ROOT


def pages_of(nav):
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from [inside] if isinstance(inside, str) else pages_of(inside)


def test_every_page_is_in_the_navigation():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(pages_of(nav)) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_site_is_built_and_no_link_of_it_is_broken(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= built
