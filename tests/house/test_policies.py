"""A rule of a policy is declared in its dataclass and nowhere else."""

import ast

import pytest

from placement.models import PlacementPolicy
from reservations.models import SitePolicy
from reservations.operations import policies
from telemetry.models import TelemetryPolicy
from telemetry.models.policy_row import PolicyRow
from tests.house.walk import nodes, python_files, short

DECLARED_IN = {
    "placement/rules/placement_policy.py",
    "placement/rules/rebalance_policy.py",
    "reservations/rules/policy.py",
    "telemetry/rules/thresholds.py",
    "telemetry/rules/retention.py",
}
SELECTIONS = {
    # The rules that a replay can tell apart, and their titles and units there.
    "reservations/reports/replay/comparison.py",
    "reservations/reports/replay/forms.py",
}
MOST_IN_A_TABLE = 3
ROWS = (SitePolicy, TelemetryPolicy, PlacementPolicy)


def rule_names() -> set[str]:
    """Return the name of every rule, and of its column."""
    return {
        name
        for row in ROWS
        for rule in row.declared.rules
        for name in (rule.name, rule.column)
    }


def table_of(node: ast.AST, known: set[str]) -> list[str]:
    """Return the rules that a dict, tuple, list or set names as text."""
    if isinstance(node, ast.Dict):
        entries: list[ast.expr | None] = list(node.keys)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        entries = list(node.elts)
    else:
        return []
    return [
        entry.value
        for entry in entries
        if isinstance(entry, ast.Constant) and entry.value in known
    ]


def test_no_table_of_rules_stands_outside_the_declarations():
    known = rule_names()
    found = {
        short(path)
        for path in python_files("gpuportal", "placement", "reservations", "telemetry")
        if short(path) not in DECLARED_IN and "/migrations/" not in short(path)
        for node in nodes(path)
        if len(table_of(node, known)) > MOST_IN_A_TABLE
    }
    assert found == SELECTIONS


@pytest.mark.parametrize("row", ROWS)
def test_every_column_of_a_policy_is_declared(row: type[PolicyRow]):
    columns = {field.name for field in row._meta.concrete_fields} - {"id", "version"}
    assert columns == {rule.column for rule in row.declared.rules}


@pytest.mark.parametrize("which", policies.MODELS)
def test_every_rule_has_words_and_limits_around_its_default(which: str):
    for rule in policies.MODELS[which].declared.rules:
        assert rule.label and rule.meaning.endswith((".", ")")), rule.name
        least, most = rule.row_limits
        if rule.kind in ("number", "ratio"):
            assert least is not None and most is not None, rule.name
            assert least <= rule.row_default <= most, rule.name
