"""The examples in docstrings are correct."""

import doctest
import importlib

import pytest

from tests.house.walk import APPS, python_files, short


def with_examples() -> list[str]:
    """Return the modules of the product whose docstrings have an example."""
    paths = [path for path in python_files(*APPS) if ">>> " in path.read_text()]
    return [short(path).removesuffix(".py").replace("/", ".") for path in paths]


def test_modules_with_examples_are_found():
    assert "placement.rules.log_progress" in with_examples()


@pytest.mark.parametrize("name", with_examples())
def test_the_examples_of_a_module_hold(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed
