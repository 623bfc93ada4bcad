"""An alert rule is declared in one place, and no table repeats it."""

import ast
import importlib

import pytest

from telemetry.rules.alert_rules import AlertRule, Severity, alert_rules, declare
from tests.house.walk import nodes, python_files, short

DECLARED_IN = {
    "telemetry/rules/alert_rules.py",
    "reservations/rules/booking_alerts.py",
    "placement/rules/job_alerts.py",
}
MOST_IN_A_TABLE = 3
"""A list of the rules of one query is not a table of all rules."""
SELECTIONS: set[str] = set()


def names_of_rules() -> dict[str, str]:
    """Return the constant of each rule with the rule's name."""
    found = {}
    for path in DECLARED_IN:
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        for constant, value in vars(module).items():
            if constant.isupper() and isinstance(value, str) and value in alert_rules():
                found[constant] = value
    return found


def table_of(node: ast.AST, known: set[str]) -> list[str]:
    """Return the rules that a dict, tuple, list or set lists."""
    if isinstance(node, ast.Dict):
        entries: list[ast.expr | None] = list(node.keys)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        entries = list(node.elts)
    else:
        return []
    words = [
        entry.attr
        if isinstance(entry, ast.Attribute)
        else entry.id
        if isinstance(entry, ast.Name)
        else entry.value
        if isinstance(entry, ast.Constant)
        else None
        for entry in entries
    ]
    return [word for word in words if isinstance(word, str) and word in known]


def test_no_table_of_alert_rules_stands_outside_their_declarations():
    rules = names_of_rules()
    assert set(rules.values()) == set(alert_rules()), "declared in another file"
    known = {*rules, *rules.values()}
    found = {
        short(path)
        for path in python_files("gpuportal", "placement", "reservations", "telemetry")
        if short(path) not in DECLARED_IN
        for node in nodes(path)
        if len(table_of(node, known)) > MOST_IN_A_TABLE
    }
    assert found == SELECTIONS


@pytest.mark.parametrize(
    "source",
    [
        "{rules.LOST: 1, rules.ECC: 2}",
        '("lost", "overrun")',
        "[LOST, THERMAL]",
    ],
)
def test_a_table_of_alert_rules_is_noticed(source: str):
    rules = names_of_rules()
    known = {*rules, *rules.values()}
    found = [table_of(node, known) for node in ast.walk(ast.parse(source))]
    assert max(map(len, found)) == 2


@pytest.mark.parametrize("rule", alert_rules().values(), ids=alert_rules())
def test_a_rule_is_whole(rule: AlertRule):
    """A rule has a condition, or the function that finds it, and words for people."""
    assert rule.title and rule.sentence.endswith(".")
    assert not rule.advice or rule.advice.endswith(".")
    if rule.found_in:
        module, _, function = rule.found_in.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function))


def test_a_rule_that_nothing_finds_and_a_name_that_is_taken_are_refused():
    with pytest.raises(ValueError, match="needs a condition"):
        declare(AlertRule("dummy", "dummy", "Dummy.", Severity.INFO))
    with pytest.raises(ValueError, match="two alert rules"):
        declare(AlertRule("lost", "x", "X.", Severity.INFO, found_in="telemetry.x"))
    assert "dummy" not in alert_rules()
