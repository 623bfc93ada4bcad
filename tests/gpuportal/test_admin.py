"""The operator's actions on nodes and Gpus are in the audit log."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connection
from django.urls import reverse
from django.utils import timezone, translation

from gpuportal.http import problems
from reservations.models import AuditEntry, User
from telemetry.alerts.service import open_alert
from telemetry.models import Alert, TelemetryPolicy, XidCount
from tests.factories import make_gpu
from tests.house.walk import APPS

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
    # PostgreSQL compares it as a number of any size and finds nothing.
    if connection.vendor == "postgresql":
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert "A number in the address is too large" in answer.content.decode()


@pytest.mark.once
def test_a_threshold_is_changed_with_a_reason_and_audited_with_what_it_was(
    client, omar
) -> None:
    policy = TelemetryPolicy.current()
    client.force_login(omar)
    url = reverse("admin:telemetry_telemetrypolicy_change", args=[policy.pk])
    page = client.get(url).content.decode()
    assert "How long a node must send no readings. Seconds. Default: 600." in page
    form = client.get(url).context["adminform"].form
    posted = {name: value for name, value in form.initial.items() if value is not None}
    posted |= {"silent_after_seconds": 120, "reason": "nodes are slow here"}
    assert client.post(url, posted).status_code == 302
    assert TelemetryPolicy.current().to_policy().silent_after_seconds == 120
    entry = AuditEntry.objects.get(verb="admin.telemetrypolicy.changed")
    assert (entry.actor, entry.reason) == (omar, "nodes are slow here")
    assert entry.detail["changes"] == {"silent_after_seconds": [600, 120]}


@pytest.mark.once
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("least_samples", 1, "Enter a whole number from 2 to 60"),
        ("xid_warning", "79", "names 79, which is critical"),
        ("xid_critical", "forty-eight", "no XID"),
        ("stop_after_seconds", 30, "comes before the warning"),
    ],
)
def test_a_threshold_that_cannot_be_meant_is_refused_at_its_field(
    client, omar, field, value, words
) -> None:
    policy = TelemetryPolicy.current()
    client.force_login(omar)
    url = reverse("admin:telemetry_telemetrypolicy_change", args=[policy.pk])
    form = client.get(url).context["adminform"].form
    posted = {name: value for name, value in form.initial.items() if value is not None}
    answer = client.post(url, posted | {field: value, "reason": "x"})
    assert answer.status_code == 200
    assert words in answer.content.decode()
    assert not AuditEntry.objects.exists()


def test_the_other_desks_of_judging_open_and_their_actions_are_audited(
    client, omar
) -> None:
    gpu, now = make_gpu(), timezone.now()
    open_alert(rule="lost", gpu_id=gpu.pk, now=now)
    open_alert(rule="no sample", node_id=gpu.node_id, now=now)
    count = XidCount.objects.create(gpu=gpu, code=79, first_at=now, last_at=now)
    client.force_login(omar)
    for name in ("alert", "xidcount", "response", "pool", "gpu"):
        url = reverse(f"admin:telemetry_{name}_changelist")
        assert client.get(url).status_code == 200, name
    url = reverse("admin:telemetry_xidcount_changelist")
    client.post(url, {"action": "clear", ACTION_CHECKBOX_NAME: [count.pk]})
    count.refresh_from_db()
    assert not count.is_uncleared
    assert AuditEntry.objects.filter(subject=f"xidcount:{count.pk}").exists()
    url = reverse("admin:telemetry_alert_changelist")
    pks = list(Alert.objects.values_list("pk", flat=True))
    client.post(url, {"action": "close", ACTION_CHECKBOX_NAME: pks})
    assert not Alert.objects.open().exists()


@pytest.mark.once
@pytest.mark.parametrize("value", ["9" * 30, "9" * 5000, "-1", "abc", "²", "999999"])
@pytest.mark.parametrize("name", ["user", "account"])
def test_a_tampered_choice_is_an_error_at_its_field(client, alice, omar, name, value):
    """The choices that are searched for: the form is shown again with the others."""
    member = alice.memberships.get()
    client.force_login(omar)
    good = {"user": alice.pk, "account": member.account_id, "shares": 1, "reason": "x"}
    for page, args in (("add", []), ("change", [member.pk])):
        address = reverse(f"admin:reservations_membership_{page}", args=args)
        answer = client.post(address, good | {name: value})
        assert answer.status_code == 200
        assert list(answer.context["adminform"].form.errors) == [name]


def test_a_number_of_a_form_that_no_database_keeps_is_no_crash(rf) -> None:
    """Where a check is missing: in words, and not as a crash."""
    number = OverflowError("Python int too large to convert to SQLite INTEGER")
    request = rf.post("/admin/", {"node": "9" * 30})
    found = problems.refusal_of(number, request)
    assert found is not None and (found.status, found.code) == (400, "bad-number")
    small = rf.post("/admin/", {"node": "7"})
    small.resolver_match = None
    assert problems.refusal_of(number, small) is None
    half = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    late = OverflowError("date value out of range")
    year = ValueError("year 10000 is out of range")
    for error, code in (
        (half, "bad-text"),
        (late, "bad-instant"),
        (year, "bad-instant"),
    ):
        found = problems.refusal_of(error, request)
        assert found is not None and (found.status, found.code) == (400, code)


@pytest.mark.parametrize(
    "address",
    [
        "/admin/telemetry/gpu/?id__range=99999",
        "/admin/reservations/account/x/history/",
        "/admin/reservations/account/%C2%B2/history/",
        "/admin/autocomplete/?app_label=reservations&model_name=user&field_name=history"
        "&term=x",
        "/admin/reservations/closure/1/history/x/",
        "/admin/reservations/user/add/?last_login=yesterday",
    ],
)
def test_an_address_of_the_admin_that_is_wrong_is_no_crash(client, omar, address):
    client.raise_request_exception = False
    make_gpu()
    client.force_login(omar)
    assert client.get(address).status_code < 500


def test_rows_that_are_no_numbers_are_refused_in_words(client, omar) -> None:
    """An action on a row whose box was tampered with; histories of no row."""
    client.force_login(omar)
    for key in ("x", "²", "9" * 5000, "0001-01-01"):
        sent = {"action": "delete_selected", ACTION_CHECKBOX_NAME: [key]}
        answer = client.post(reverse("admin:telemetry_gpu_changelist"), sent)
        assert answer.status_code == 400
        assert "There is no such entry" in answer.content.decode()


def test_failed_logins_that_count_no_more_are_cleaned_up(client, omar) -> None:
    long_ago = timezone.now() - timedelta(days=2)
    row = AccessAttempt.objects.create(username="x", failures_since_start=1)
    AccessAttempt.objects.filter(pk=row.pk).update(attempt_time=long_ago)
    client.force_login(omar)
    sent = {"action": "cleanup_expired_attempts", ACTION_CHECKBOX_NAME: [row.pk]}
    answer = client.post(reverse("admin:axes_accessattempt_changelist"), sent)
    assert answer.status_code == 302
    assert not AccessAttempt.objects.exists()


def test_the_admin_names_models_in_the_readers_language(client, omar):
    same = {"job", "jobs", "pool", "pools", "gpu", "gpus"}
    ours = [
        model
        for model in admin.site._registry
        if model.__module__.partition(".")[0] in APPS
    ]
    assert len(ours) > 20
    names = [
        name
        for model in ours
        for name in (model._meta.verbose_name, model._meta.verbose_name_plural)
    ]
    with translation.override("en"):
        english = [str(name) for name in names]
    with translation.override("de"):
        pairs = {(text, str(name)) for text, name in zip(english, names, strict=True)}
    kept = {text for text, german in pairs if text.lower() == german.lower()}
    assert {text.lower() for text in kept} <= same
    client.force_login(omar)
    page = client.get("/admin/", headers={"accept-language": "de"}).content.decode()
    for shown in ("Knoten", "Kontobuch", "Reservierungen", "Telemetrieregeln"):
        assert shown in page
    assert "Ledger" not in page


@pytest.mark.parametrize("lost", ["is_active", "is_staff", "is_superuser"])
def test_an_operator_ends_the_rights_of_others_and_not_their_own(
    client, omar, bob, lost
):
    """So the last operator stays one."""
    User.objects.filter(pk=bob.pk).update(is_staff=True, is_superuser=True)
    client.force_login(omar)
    for person, status, kept in ((omar, 200, True), (bob, 302, False)):
        url = reverse("admin:reservations_user_change", args=[person.pk])
        form = client.get(url).context["adminform"].form
        values = {
            name: form.get_initial_for_field(f, name) for name, f in form.fields.items()
        }
        sent = {
            name: value
            for name, value in values.items()
            if value not in (None, False, []) and name not in (lost, "password")
        }
        sent["date_joined_0"] = f"{person.date_joined:%Y-%m-%d}"
        sent["date_joined_1"] = f"{person.date_joined:%H:%M:%S}"
        answer = client.post(url, sent)
        assert answer.status_code == status
        person.refresh_from_db()
        assert getattr(person, lost) is kept
        if kept:
            assert b"You may not remove your own rights." in answer.content
