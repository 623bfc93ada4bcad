"""Figures of a database by which a restored copy is compared with the original.

    python -m gpuportal.backup.facts INSTANT

prints them as JSON for the database of the settings, together with the findings of
`check_books`. ``INSTANT`` (ISO 8601, aware) is the time for which ranks are computed,
because usage decays over time.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

import django
from django.apps import apps
from django.db.models import Model

MOST_ROWS = 200_000
"""Most rows that are compared. Of a larger table, such as the minutes of telemetry,
they are the newest ones.
"""


def collect_facts(now: datetime) -> dict[str, Any]:
    """Return balances, quotas, ranks, and the number and the digest of all rows.

    Args:
        now: instant of the ranks.
    """
    return {
        "balances": balances(),
        "quotas": quotas(),
        "ranks": ranks(now),
        "tables": {table_name(model): _table(model) for model in sorted_models()},
    }


def balances() -> dict[str, int]:
    """Return weighted GPU-seconds by group, person and kind of ledger entry."""
    from django.db.models import Sum

    from reservations.models import LedgerEntry

    rows = (
        LedgerEntry.objects.order_by()
        .values_list("membership__account__name", "membership__user__username", "kind")
        .annotate(total=Sum("gpu_seconds"))
    )
    return {f"{group}/{user}/{kind}": total for group, user, kind, total in rows}


def quotas() -> dict[str, dict[str, Any]]:
    """Return shares and limits of every account and membership."""
    from reservations.models import Account, Membership

    found = {f"{one.name}": _values(one) for one in Account.objects.order_by("pk")}
    members = Membership.objects.select_related("account", "user").order_by("pk")
    return found | {
        f"{one.account.name}/{one.user.username}": _values(one) for one in members
    }


def ranks(now: datetime) -> list[dict[str, Any]]:
    """Return every row of the Fair Tree; none if there is no account."""
    from reservations.management.commands.fairshare import live_rows
    from reservations.models import Account

    if not Account.objects.exists():
        return []
    return [asdict(row) for row in live_rows(now)]


def sorted_models() -> list[type[Model]]:
    """Return every model with its own table, sorted by label."""
    models = apps.get_models(include_auto_created=True)
    return sorted(
        (m for m in models if m._meta.managed and not m._meta.proxy),
        key=lambda model: model._meta.label_lower,
    )


def table_name(model: type[Model]) -> str:
    """Return the name of a model's table in a backup, for example `auth.user`.

    It follows from the table, so that a backup from before a model was renamed can be
    compared. Tables of Django's own apps that have another prefix are named by model.
    """
    app, _, name = model._meta.db_table.partition("_")
    return f"{app}.{name}" if app == model._meta.app_label else model._meta.label_lower


def _values(row: Model) -> dict[str, Any]:
    names = [field.attname for field in row._meta.concrete_fields]
    return {name: _plain(getattr(row, name)) for name in names}


def _table(model: type[Model]) -> dict[str, Any]:
    names = [field.attname for field in model._meta.concrete_fields]
    rows = model._base_manager.order_by("-pk").values_list(*names)
    digest = hashlib.sha256()
    for row in rows[:MOST_ROWS].iterator(chunk_size=2000):
        text = json.dumps([_plain(value) for value in row], sort_keys=True)
        digest.update(text.encode())
    return {"rows": model._base_manager.count(), "sha256": digest.hexdigest()}


def _plain(value: object) -> object:
    """Return a value of a column in the form of JSON, the same for both databases."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if value is None or isinstance(value, bool | int | float | str | list | dict):
        return value
    return str(value)


def differences(
    original: dict[str, Any], restored: dict[str, Any], *, same_schema: bool
) -> Iterator[str]:
    """Yield one line for each different figure.

    Args:
        original: figures of the data that were backed up.
        restored: figures of the restored copy.
        same_schema: False if the copy was migrated to a newer schema. Then tables may
            have more rows, and other columns, than before.
    """
    for kind in ("balances", "quotas") if same_schema else ("balances",):
        for name in sorted(original[kind].keys() | restored[kind].keys()):
            was, now = original[kind].get(name), restored[kind].get(name)
            if was != now:
                yield f"{kind}: {name} is {now}, not {was}"
    if original["ranks"] != restored["ranks"]:
        yield "ranks: the rows of the Fair Tree are not the same"
    empty = {"rows": 0, "sha256": ""}
    for label, was in original["tables"].items():
        now = restored["tables"].get(label, empty)
        if now["rows"] < was["rows"] or (same_schema and now["rows"] > was["rows"]):
            yield f"{label} has {now['rows']} rows, not {was['rows']}"
        elif same_schema and now["sha256"] != was["sha256"]:
            yield f"{label} has the same number of rows with other contents"


def _main(instant: str) -> None:
    django.setup()
    from reservations.management.commands.check_books import findings

    facts = collect_facts(datetime.fromisoformat(instant))
    print(json.dumps({"facts": facts, "findings": list(findings())}))


if __name__ == "__main__":
    _main(sys.argv[1])
