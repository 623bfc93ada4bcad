"""What the operator does to nodes and Gpus stands in the audit log."""

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.urls import reverse

from reservations.models import AuditEntry
from tests.factories import make_gpu

pytestmark = pytest.mark.django_db


def test_maintenance_of_a_gpu_is_audited(client, omar) -> None:
    gpu = make_gpu()
    client.force_login(omar)
    answer = client.post(
        reverse("admin:telemetry_gpu_changelist"),
        {"action": "begin_maintenance", ACTION_CHECKBOX_NAME: [gpu.pk]},
    )
    assert answer.status_code == 302
    gpu.refresh_from_db()
    assert gpu.maintenance
    entry = AuditEntry.objects.get(subject=f"gpu:{gpu.pk}")
    assert (entry.actor, entry.verb) == (omar, "admin.gpu.changed")
    assert entry.detail == {"fields": ["maintenance"]}


def test_a_changed_weight_is_audited(client, omar) -> None:
    pool = make_gpu().pool
    client.force_login(omar)
    answer = client.post(
        reverse("admin:telemetry_pool_change", args=[pool.pk]),
        {
            "gpu_class": pool.gpu_class,
            "weight": 7,
            "peak_flops": pool.peak_flops,
            "response": pool.response,
            "response_dry_run": "on",
        },
    )
    assert answer.status_code == 302
    assert AuditEntry.objects.filter(
        subject=f"pool:{pool.pk}", verb="admin.pool.changed"
    ).exists()


@pytest.mark.parametrize(
    "address",
    [
        "/admin/telemetry/gpu/?id__in=100000000000000000000000",
        "/admin/reservations/reservation/?id__in=100000000000000000000000",
    ],
)
def test_a_number_beyond_every_database_is_no_crash(client, omar, address) -> None:
    make_gpu()
    client.force_login(omar)
    answer = client.get(address)
    assert answer.status_code == 400
    assert "A number in the address is too large" in answer.content.decode()
