"""Every code of an error is in kebab-case, unique, and listed in docs/errors.md."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus

from telemetry.protocol.request_refusal import RequestRefused
from tests.house.walk import APPS, ROOT, nodes, python_files, short

PAGE = ROOT / "docs" / "errors.md"
ROW = re.compile(r"^\| `([^`]+)` \| (\d{3}|–) \| (\w+) \| (\S.*) \|$", re.MULTILINE)
KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
PER_ERROR = ("FileRefused", "OrderRefused", "SymbolicFailed")
"""Classes with a code for each error, given as the first argument."""
CHILDREN = {"problem": "SymbolicFailed", "refuse": "FileRefused"}
"""Functions with which a child process names such a code."""
SHARED = {"not-found": {"NotFound", "RequestRefused"}}
"""Codes of two classes, because they have one meaning for programs."""


@cache
def _classes() -> list[tuple[str, list[str], ast.ClassDef]]:
    """Return each class of the product: its name, its bases, and itself."""
    return [
        (node.name, [ast.unparse(base).rpartition(".")[2] for base in node.bases], node)
        for path in python_files(*APPS)
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    ]


@cache
def _coded() -> dict[str, ast.ClassDef]:
    """Return the classes below CodedError by name."""
    found: dict[str, ast.ClassDef] = {}
    more = True
    while more:
        fresh = {
            name: node
            for name, bases, node in _classes()
            if name not in found and {"CodedError", *found}.intersection(bases)
        }
        found |= fresh
        more = bool(fresh)
    return found


def _class_codes() -> Iterator[tuple[str, str]]:
    for name, node in _coded().items():
        for line in node.body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
                assert isinstance(line.value, ast.Constant), name
                yield str(line.value.value), name


def _given_codes() -> Iterator[tuple[str, str]]:
    for path in python_files(*APPS):
        for call in nodes(path):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name.lstrip("_") in CHILDREN and "planner" in short(path):
                name = CHILDREN[name.lstrip("_")]
            code = call.args[0]
            if name in PER_ERROR and isinstance(code, ast.Constant):
                yield str(code.value), name


@cache
def _known() -> dict[str, set[str]]:
    """Return every code with the classes that have it."""
    found: dict[str, set[str]] = {}
    refusals = ((code, "RequestRefused") for code in RequestRefused.statuses)
    for code, name in (*_class_codes(), *_given_codes(), *refusals):
        found.setdefault(code, set()).add(name)
    return found


def _rows() -> list[tuple[str, str, str, str]]:
    """Return the rows of the page: code, status, class and meaning."""
    return ROW.findall(PAGE.read_text())


def test_every_code_is_in_kebab_case() -> None:
    assert [code for code in _known() if not KEBAB.fullmatch(code)] == []


def test_no_two_classes_have_one_code() -> None:
    codes = Counter(code for code, _name in _class_codes())
    assert [code for code, times in codes.items() if times > 1] == []
    both = set(RequestRefused.statuses) & set(codes)
    assert both == set(SHARED)


def test_docs_list_every_code_and_no_other() -> None:
    listed = {(code, name): status for code, status, name, _ in _rows()}
    known = {(code, name) for code, names in _known().items() for name in names}
    assert set(listed) == known
    for code, status in RequestRefused.statuses.items():
        assert listed[code, "RequestRefused"] == str(status), code


def test_every_row_of_the_page_can_be_read() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(_rows())


def test_every_error_with_a_code_has_the_base() -> None:
    outside = [
        name
        for name, bases, node in _classes()
        if any(base.endswith(("Exception", "Error")) for base in bases)
        and name not in _coded()
        and name != "CodedError"
        and "self.code" in ast.unparse(node)
    ]
    assert outside == []


def test_no_title_is_the_phrase_of_a_status() -> None:
    """A person reads it above the sentence."""
    phrases = {status.phrase for status in HTTPStatus}
    assert RequestRefused.titles.keys() == RequestRefused.statuses.keys()
    titles = set(RequestRefused.titles.values())
    bare = set()
    for name, node in _coded().items():
        own = [
            ast.unparse(line.targets[0])
            for line in node.body
            if isinstance(line, ast.Assign)
        ]
        for line in node.body:
            if isinstance(line, ast.Assign) and "title" in ast.unparse(line.targets[0]):
                titles.add(ast.literal_eval(line.value.args[0]))
        bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        if "status" in own and "CodedError" in bases and "title" not in own:
            bare.add(name)
    assert bare - {"RequestRefused"} == set(), "they have a status and no title"
    assert not titles & phrases and "" not in titles
