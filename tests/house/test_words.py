"""One word per concept in the names of models and their fields (docs/glossary.md)."""

import re

from django.apps import apps

from tests.house.walk import APPS

BANNED = {
    *("host", "server", "device", "card", "slot", "metric", "reading", "stat"),
    *("dto", "schema", "record", "team", "project", "queue", "priority", "karma"),
    *("credits", "budget", "balance", "booking", "lease", "period", "range"),
    *("assignment", "binding", "bill", "payment", "deployment", "task", "collector"),
    *("launcher", "partition", "incident", "footprint", "params"),
}


def words(name: str) -> set[str]:
    """Split CamelCase and snake_case into lower-case words."""
    return {w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_words_are_split_at_capitals_and_underscores():
    assert words("LedgerEntry") == {"ledger", "entry"}
    assert words("pci_bus_id") == {"pci", "bus", "id"}


def test_no_model_and_no_field_has_a_banned_name():
    found = []
    for label in APPS[1:]:
        for model in apps.get_app_config(label).get_models():
            own = [f.name for f in model._meta.get_fields() if not f.auto_created]
            found += [
                f"{model.__name__}.{name}"
                for name in ["", *own]
                if words(name or model.__name__) & BANNED
            ]
    assert found == []
