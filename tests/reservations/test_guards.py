"""The refusals of the database itself, on both databases."""

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from reservations.checks import check_database_guards
from reservations.models import (
    Allocation,
    AuditEntry,
    LedgerEntry,
    Reservation,
    triggers,
)
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.reservations.conftest import at


def allocate(reservation, gpu, start, end, live=True):
    with transaction.atomic():
        return Allocation.objects.create(
            reservation=reservation, gpu=gpu, start=start, end=end, live=live
        )


def test_an_overlap_is_refused_by_the_database_itself(lab, alice, bob) -> None:
    make_reservation(alice, lab.gpus[:1], at(10), at(12))
    other = make_reservation(bob, [], at(9), at(13))
    for start, end in (
        (at(11), at(13)),
        (at(9), at(11)),
        (at(10), at(12)),
        (at(9), at(13)),
        (at(10, 30), at(11)),
    ):
        with pytest.raises(IntegrityError, match="allocation_no_overlap"):
            allocate(other, lab.gpus[0], start, end)
    assert allocate(other, lab.gpus[0], at(12), at(13))
    assert allocate(other, lab.gpus[0], at(9), at(10))
    assert allocate(other, lab.gpus[1], at(10), at(12))
    assert allocate(other, lab.gpus[0], at(10), at(12), live=False)


def test_moving_or_reviving_into_an_overlap_is_refused_too(lab, alice, bob) -> None:
    make_reservation(alice, lab.gpus[:1], at(10), at(12))
    other = make_reservation(bob, lab.gpus[:1], at(12), at(14))
    dead = make_reservation(
        bob, lab.gpus[:1], at(10), at(11), state=State.CANCELLED
    ).allocations.get()
    for pk, fields in (
        (other.allocations.get().pk, {"start": at(11)}),
        (dead.pk, {"live": True}),
    ):
        with (
            pytest.raises(IntegrityError, match="allocation_no_overlap"),
            transaction.atomic(),
        ):
            Allocation.objects.filter(pk=pk).update(**fields)


@pytest.mark.parametrize("model", [LedgerEntry, AuditEntry])
def test_ledger_and_audit_cannot_be_changed_or_deleted(lab, alice, model) -> None:
    lab.book(alice, lab.gpus[:1], at(14), 1)
    row = model.objects.get()
    for act in (
        lambda: model.objects.filter(pk=row.pk).update(reason="forged"),
        lambda: model.objects.filter(pk=row.pk).delete(),
        lambda: row.save(),
        lambda: row.delete(),
    ):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            act()
    assert model.objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize("model", [LedgerEntry, AuditEntry])
def test_no_row_of_the_ledger_is_replaced_by_another(lab, alice, model) -> None:
    """SQLite's INSERT OR REPLACE deletes the old row and fires no DELETE trigger."""
    lab.book(alice, lab.gpus[:1], at(14), 1)
    row = model.objects.values().get()
    table, columns = model._meta.db_table, [f.column for f in model._meta.fields]
    forged = ["'forged'" if name == "reason" else name for name in columns]
    insert = {
        "sqlite": "INSERT OR REPLACE INTO {0} ({1}) SELECT {2} FROM {0}",
        "postgresql": "INSERT INTO {0} ({1}) SELECT {2} FROM {0} "
        "ON CONFLICT (id) DO UPDATE SET reason = 'forged'",
    }[connection.vendor]
    quoted = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(f"{text}" if text[0] == "'" else f'"{text}"' for text in forged)
    with (
        pytest.raises(IntegrityError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(insert.format(table, quoted, values))
    assert model.objects.values().get() == row


def test_all_guards_are_there_and_the_check_misses_one_that_is_not(db) -> None:
    assert triggers.missing() == []
    assert check_database_guards(databases=["default"]) == []
    drops = {
        "sqlite": (
            "DROP TRIGGER reservations_ledgerentry_append_only_DELETE",
            "DROP TRIGGER allocation_no_overlap_UPDATE",
        ),
        "postgresql": (
            "DROP TRIGGER reservations_ledgerentry_append_only"
            " ON reservations_ledgerentry",
            "ALTER TABLE reservations_allocation DROP CONSTRAINT allocation_no_overlap",
        ),
    }[connection.vendor]
    for drop in drops:
        with connection.cursor() as cursor:
            cursor.execute(drop)
        errors = check_database_guards(databases=["default"])
        assert [error.id for error in errors] == ["reservations.E001"]
        triggers.install()
        assert triggers.missing() == []


@pytest.mark.django_db(transaction=True)
def test_the_guards_survive_a_rebuild_of_the_table(lab, alice) -> None:
    """SQLite drops a table's triggers when a migration alters a column."""
    field = Allocation._meta.get_field("weight")
    wider = field.clone()
    wider.set_attributes_from_name("weight")
    wider.default = 1
    wider.null = False
    wider.model = Allocation
    with connection.schema_editor() as editor:
        editor.alter_field(Allocation, field, wider, strict=False)
    if connection.vendor == "sqlite":
        assert triggers.missing()
    call_command("migrate", verbosity=0)
    assert triggers.missing() == []
    with connection.schema_editor() as editor:
        editor.alter_field(Allocation, wider, field, strict=False)
    call_command("migrate", verbosity=0)
    assert triggers.missing() == []


def test_an_illegal_move_is_a_mistake_of_ours(lab, alice) -> None:
    made = make_reservation(alice, lab.gpus[:1], at(10), at(12), state=State.ENDED)
    with pytest.raises(ValueError, match="cannot move"):
        Reservation.objects.move(made.pk, old=State.ENDED, new=State.ACTIVE)
    assert not Reservation.objects.move(made.pk, old=State.CONFIRMED, new=State.ACTIVE)
