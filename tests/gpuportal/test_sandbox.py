"""The environment of the test suite: a sandbox, a broker, a database that empties."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from reservations.models import AuditEntry
from tests import early, factories


def test_the_settings_point_into_the_sandbox():
    assert str(settings.VAR_DIR) == str(Path(early.VAR).resolve())
    assert early.VAR in settings.REDIS_URL


def test_the_broker_is_a_real_server(redis_client):
    assert redis_client.info()["server_name"] == "valkey"


def test_alice_and_bob_share_an_account_and_carol_does_not(alice, bob, carol, omar):
    accounts = [u.memberships.get().account for u in (alice, bob, carol)]
    assert accounts[0] == accounts[1] != accounts[2]
    assert omar.is_operator
    assert not alice.is_operator


def test_the_factories_make_a_reservation_with_its_allocations(alice):
    start = timezone.now()
    made = factories.make_reservation(
        alice, end=start + timedelta(hours=2), start=start
    )
    assert made.allocations.count() == 1
    assert made.cost_gpu_seconds == 10 * 2 * 3600


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("round_", [1, 2])
def test_an_append_only_table_is_empty_again_and_still_guarded(round_):
    assert AuditEntry.objects.count() == 0
    entry = AuditEntry.objects.create(verb="test.made", subject="test:1")
    with pytest.raises(DatabaseError), transaction.atomic():
        entry.delete()
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditEntry.objects.update(reason="other")
    assert connection.vendor in ("sqlite", "postgresql")
