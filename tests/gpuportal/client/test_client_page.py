"""docs/client.md documents each command as the client's parser has it."""

import re

import pytest

from tests.gpuportal.client.client_page import MARK, PAGE, reference

pytestmark = pytest.mark.pure


def test_the_reference_is_that_of_the_parser():
    written = PAGE.read_text().partition(MARK)[2]
    assert written == "\n" + reference(), (
        "run: .venv/bin/python -m tests.gpuportal.client.client_page"
    )
    assert written.count("\n| `gp ") > 40


def test_the_examples_use_commands_that_exist():
    page = PAGE.read_text().partition(MARK)[0]
    known = set(re.findall(r"`gp ([a-z-]+)", reference()))
    shown = set(re.findall(r"(?m)(?:^|`|\$\()gp ([a-z][a-z-]*)", page))
    assert len(shown) > 8 and shown <= known, shown - known
