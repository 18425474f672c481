"""The page of troubleshooting quotes lines that the program says."""

import ast
import re

import pytest

from tests.architecture.source_tree import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTES = re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)
FOLDERS = ("algorithms", "envs", "utils", "tools")


def said():
    """Every text of the program in one: what stands between the values of an f-string is joined by dots."""
    texts = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [each.value if isinstance(each, ast.Constant) else "..." for each in node.values]
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                    text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
                    texts.append(re.sub(r"%[\d.]*[sdrgf]", "...", text))
    return "\n".join(texts)


SAID = said()


def test_there_are_quotes():
    assert len(QUOTES) >= 25


@pytest.mark.parametrize("quote", QUOTES)
def test_every_quoted_line_is_one_that_the_program_says(quote):
    pieces = [piece.strip() for piece in quote.split("...") if piece.strip(" ,;:()")]
    missing = [piece for piece in pieces if piece not in SAID]
    assert pieces and not missing, missing
