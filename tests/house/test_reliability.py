"""docs/reliability.md: every row names an existing test, and no fault is left out."""

import ast
import re

from tests.house.walk import ROOT, tree

TEXT = (ROOT / "docs" / "reliability.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not re.match(r"\| (---|[a-z, ]* \| the owner)", line)
]
STATES = ("queued", "starting", "running", "moving", "stopping")
# Parts of the page by their first words: each has a row for every state.
KILLED = ("The node's worker", "The web", "The broker", "The database")


def _defined(path: str) -> set[str]:
    found = set()
    for item in tree(ROOT / path).body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(item.name)
        if isinstance(item, ast.ClassDef):
            inner = [x for x in item.body if isinstance(x, ast.FunctionDef)]
            inner += [x for x in item.body if isinstance(x, ast.AsyncFunctionDef)]
            found |= {f"{item.name}::{one.name}" for one in inner}
    return found


def test_every_row_names_tests_that_exist():
    assert len(ROWS) > 60
    missing = []
    for row in ROWS:
        names = re.findall(r"`(tests/[^`]+?\.py)::([^`]+)`", row[-1])
        assert len(row) == 4 and names and all(row[:3]), row
        missing += [f"{p}::{n}" for p, n in names if n not in _defined(p)]
    assert missing == []


def test_every_test_that_the_page_of_slurm_names_exists():
    text = (ROOT / "docs" / "slurm.md").read_text()
    names = re.findall(r"`(tests/[^`]+?\.py)::([^`]+)`", text)
    assert len(names) > 20
    assert [f"{p}::{n}" for p, n in names if n not in _defined(p)] == []


def test_every_process_is_killed_in_every_state():
    for words in KILLED:
        after = TEXT.split(f"\n{words}", 1)[1]
        part = re.split(r"\n\n[^|]", after.split("\n\n", 1)[1])[0]
        for state in STATES:
            assert f"\n| {state} |" in f"\n{part}", (words, state)
