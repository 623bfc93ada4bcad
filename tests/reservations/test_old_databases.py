"""Databases of early commits are repaired by ``migrate``."""

from importlib import import_module

import pytest
from django.apps import apps
from django.db import connection

from reservations.models import RefusedRequest

repair = import_module("reservations.migrations.0020_works_instead")
TABLE = RefusedRequest._meta.db_table


def columns() -> set[str]:
    with connection.cursor() as cursor:
        found = connection.introspection.get_table_description(cursor, TABLE)
    return {column.name for column in found}


def rename(old: str, new: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} RENAME COLUMN {old} TO {new}")


@pytest.fixture
def early(transactional_db):
    """A database whose refused requests have the column's first name."""
    rename("works_instead", "next_slot")
    yield
    if "next_slot" in columns():
        rename("next_slot", "works_instead")


def run_migration() -> None:
    with connection.schema_editor() as editor:
        repair.rename_where_needed(apps, editor)


def test_the_column_of_an_early_database_gets_its_name(early, alice, client):
    run_migration()
    assert "works_instead" in columns()
    assert "next_slot" not in columns()
    client.force_login(alice)
    assert client.get("/standing/").status_code == 200


def test_every_other_database_stays_as_it_is(transactional_db):
    before = columns()
    run_migration()
    assert columns() == before
