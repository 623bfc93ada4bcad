"""A parallel strategy is described in the registry and nowhere else."""

import ast
from collections.abc import Iterable
from functools import cache

import pytest

from placement.planner.values.strategies import STRATEGIES
from tests.house.walk import nodes, python_files, short

REGISTRY = "placement/planner/values/strategies.py"
ALLOWED = {
    # Kinds of reference cases, which have names of their own beside "ddp".
    ("placement/planner/reference/memory_cases.py", "ddp"),
    # Axes of a grid of ranks, and degrees in a sentence, are not strategies.
    ("placement/agent/runtime/rank_groups.py", "tensor"),
    ("placement/planner/search/candidates/hybrid.py", "pipeline"),
    ("placement/planner/search/candidates/hybrid.py", "tensor"),
}


def entries(node: ast.AST) -> list[ast.expr | None]:
    """Return what a table lists: keys of a dict, elements, and what `==` compares."""
    if isinstance(node, ast.Dict):
        return list(node.keys)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return list(node.elts)
    if isinstance(node, ast.Compare) and "strategy" in ast.dump(node).lower():
        return [node.left, *node.comparators]
    return []


def strategies_in(source: Iterable[ast.AST]) -> set[str]:
    """Return the strategies that are literals in tables and comparisons."""
    return {
        str(entry.value)
        for node in source
        for entry in entries(node)
        if isinstance(entry, ast.Constant) and entry.value in STRATEGIES
    }


@cache
def found() -> set[tuple[str, str]]:
    """Return (file, strategy) for every literal of the product."""
    return {
        (short(path), key)
        for path in python_files("gpuportal", "placement", "reservations", "telemetry")
        if short(path) != REGISTRY
        for key in strategies_in(nodes(path))
    }


@pytest.mark.parametrize(
    "source",
    [
        'STAGED = ("pipeline", "gpipe")',
        'ZERO = {"zero1": 1}',
        'strategy == "fsdp"',
        'plan.strategy in {"ddp"}',
        'Literal["single", "ddp"]',
    ],
)
def test_a_table_of_strategies_is_noticed(source: str):
    assert strategies_in(ast.walk(ast.parse(source)))


def test_no_table_of_strategies_stands_outside_the_registry():
    assert sorted(found() - ALLOWED) == []


def test_every_exception_is_still_needed():
    assert sorted(ALLOWED - found()) == []
