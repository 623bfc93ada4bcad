"""Django's own admin with unsuitable input: a refusal, never a crash.

The operator requests every list, filter, address, action and form of every model, with
one wrong value at a time. The other fields of a form keep their valid values, so that
the wrong one reaches the database if a check is missing. The suite sends one wrong
value for every third field, parameter and address, always the same one: every second
of them on SQLite, the others on PostgreSQL. To send up to twelve for each:
``FUZZ_EXAMPLES=12 pytest tests/gpuportal/test_admin_fuzz.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.files.uploadedfile import UploadedFile
from django.db import connection, models
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from placement.models import Job
from reservations.accounts.api_tokens import create_token
from reservations.models import Account, Membership
from reservations.rules.lifecycle import State
from telemetry.alerts.service import open_alert
from telemetry.models import TelemetryPolicy, XidCount
from tests.factories import make_reservation
from tests.placement.lab import make_lab, send_frame

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
SECONDS = 3600 if EXAMPLES else 180
LONG = b"x" * 1_000_000
NUL = b"nul\0nul"
SURROGATE = b"\xed\xa0\x80"
"""A lone surrogate, as CESU-8 writes it."""
DIGITS = b"9" * 30
NUMBERS = (DIGITS, b"-" + DIGITS, b"-1", b"1e400", b"NaN", "²".encode(), NUL)
KEYS = (DIGITS, b"-1", b"999999", "²".encode(), NUL, SURROGATE, b"9" * 5000)
DATES = (
    *(b"9999-12-31", b"0001-01-01", b"10000-01-01", b"2026-13-45", NUL),
    *(b"9999-12-31T23:59:59-15:59", DIGITS),
)
TEXTS = (
    *(b"", NUL, SURROGATE, b"\xff\xfe", LONG, DIGITS, b"[" * 2000),
    b'{"a": "\\ud800\\u0000"}',
)
QUERIES = (
    *(DIGITS, b"-1", NUL, SURROGATE, "²".encode(), b"1e400", b"0001-01-01"),
    *(b"x" * 5000, b"9" * 5000, b"99999"),
)
IN_PATH = ("9" * 30, "-1", "0", "x", "nul_00", "%00", "%ED%A0%80", "_FF", "1_2F2", "²")
PARAMETERS = (
    *("id__in", "id__exact", "pk", "id__gte", "id__range", "id__isnull", "id__year"),
    *("q", "o", "p", "all", "e", "_facets", "_popup", "_to_field", "nonsense__x"),
)
LOOKUPS = ("", "__exact", "__id__exact", "__gte", "__isnull", "__in", "__isempty")
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Sent:
    """One request of the operator; ``values`` is None for a GET."""

    address: str
    values: dict[str, bytes] | None = None

    @property
    def body(self) -> bytes | None:
        """The form as a browser sends it. To quote a long value takes a millisecond, so
        that is done for what is sent.
        """
        if self.values is None:
            return None
        return "&".join(
            f"{quote(name)}={quote(value)}" for name, value in self.values.items()
        ).encode()


class Desk:
    """The operator's client, and what it found."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.groups = 0
        self.crashes: list[tuple[object, ...]] = []

    def get(self, address: str) -> Any:
        return self.send(Sent(address))

    def send(self, one: Sent) -> Any:
        body = one.body
        if body is None:
            answer = self.client.get(one.address)
        else:
            answer = self.client.post(one.address, body, content_type=FORM)
        if answer.status_code >= 500:
            error = getattr(answer, "exc_info", None)
            said = repr(error and error[1])[:120]
            found = (body or b"")[-80:]
            self.crashes.append((answer.status_code, one.address[:120], found, said))
        return answer

    def send_some(self, group: Sequence[Sent]) -> None:
        """Send a part of a group: the due part, or as many as the environment
        requests.
        """
        self.groups += 1
        if not EXAMPLES and self.groups % 6 != 3 * (connection.vendor == "postgresql"):
            return
        first = self.groups // 3 % len(group)
        for one in [*group[first:], *group[:first]][: EXAMPLES or 1]:
            self.send(one)


@pytest.fixture
def desk(alice, bob, omar, transactional_db, redis_client) -> Desk:
    """The operator, on a site with something in most tables."""
    gpus, now = make_lab(), timezone.now()
    send_frame(redis_client)
    row = make_reservation(alice, gpus[:1], state=State.ACTIVE)
    Job.objects.create(
        reservation=row,
        owner=alice,
        node=gpus[0].node,
        name="try",
        kind="recipe",
        recipe="burn-in",
        attempt=1,
        state="running",
        ordered_at=now,
    )
    create_token(user=alice, label="t", scopes=["read"], days=1, now=now)
    open_alert(rule="lost", gpu_id=gpus[0].pk, now=now)
    open_alert(rule="no sample", node_id=gpus[0].node_id, now=now)
    XidCount.objects.create(gpu=gpus[0], code=79, first_at=now, last_at=now)
    TelemetryPolicy.current()
    client = Client(raise_request_exception=False)
    client.force_login(omar, backend="django.contrib.auth.backends.ModelBackend")
    return Desk(client)


# --- what is there --------------------------------------------------------------------


def registered() -> list[tuple[type[models.Model], admin.ModelAdmin[Any]]]:
    return sorted(admin.site._registry.items(), key=lambda item: item[0].__name__)


def address_of(model: type[models.Model], page: str, *args: object) -> str:
    meta = model._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_{page}", args=args)


def newest(model: type[models.Model]) -> models.Model | None:
    return model._default_manager.order_by("-pk").first()


# --- forms ----------------------------------------------------------------------------


def good_values(form: forms.BaseForm) -> dict[str, bytes]:
    """Return the data that a browser would send of an unchanged form."""
    found: dict[str, bytes] = {}
    for bound in form:
        widget = bound.field.widget
        value = bound.value()
        if isinstance(value, UploadedFile) or value is None:
            continue
        name = bound.html_name
        if isinstance(widget, forms.MultiWidget):
            parts = value if isinstance(value, list) else widget.decompress(value)
            for number, part in enumerate(parts):
                ending = widget.widgets_names[number]
                found[name + ending] = str("" if part is None else part).encode()
        elif isinstance(value, (list, tuple)):
            found[name] = str(value[0]).encode() if value else b""
        elif isinstance(bound.field, forms.BooleanField):
            if value:
                found[name] = b"on"
        else:
            found[name] = str(bound.field.prepare_value(value)).encode()
    return found


def wrong_values(form: forms.BaseForm) -> Iterator[tuple[str, Sequence[bytes]]]:
    """Yield each field's name in the request, with invalid values."""
    for bound in form:
        field = bound.field
        values: Sequence[bytes] = TEXTS
        if isinstance(field, (forms.ModelChoiceField, forms.ChoiceField)):
            values = KEYS
        elif isinstance(
            field, (forms.IntegerField, forms.FloatField, forms.DurationField)
        ):
            values = NUMBERS
        elif isinstance(field, (forms.DateTimeField, forms.SplitDateTimeField)):
            values = DATES
        for ending in getattr(field.widget, "widgets_names", [""]):
            yield bound.html_name + ending, values


def fuzz_form(desk: Desk, address: str) -> None:
    """Send what a form takes, with one wrong value at a time."""
    answer = desk.get(address)
    if answer.status_code != 200 or answer.context is None:
        return
    found = answer.context.get("adminform") or answer.context.get("form")
    if found is None:
        return
    form = getattr(found, "form", found)
    good, wrong = good_values(form), [*wrong_values(form)]
    if "reason" in form.fields:
        good["reason"] = b"because"
    for formset in answer.context.get("inline_admin_formsets") or ():
        management = formset.formset.management_form
        good |= good_values(management)
        wrong += wrong_values(management)
    for name, values in wrong:
        sent = [good | {name: value, "_continue": b"1"} for value in values]
        desk.send_some([Sent(address, one) for one in sent])


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_no_form_of_the_admin_crashes(desk: Desk) -> None:
    for model, _page in registered():
        fuzz_form(desk, address_of(model, "add"))
        row = newest(model)
        if row is not None:
            fuzz_form(desk, address_of(model, "change", row.pk))
    user = desk.client.session["_auth_user_id"]
    fuzz_form(desk, f"/admin/reservations/user/{user}/password/")
    fuzz_form(desk, "/me/password/")
    # Rows with a history are restored.
    for model in (Account, Membership):
        first = model.history.earliest()
        fuzz_form(desk, address_of(model, "simple_history", first.pk, first.history_id))
    assert desk.crashes == []


# --- lists and their actions ----------------------------------------------------------


def parameters(page: admin.ModelAdmin[Any]) -> Iterator[str]:
    """Yield the names that a list's address may have."""
    yield from PARAMETERS
    for one in page.list_filter:
        name = one[0] if isinstance(one, tuple) else one
        if isinstance(name, str):
            yield from (name + lookup for lookup in LOOKUPS)
        else:
            yield str(name.parameter_name)
    if page.date_hierarchy:
        yield from (
            f"{page.date_hierarchy}__{part}" for part in ("year", "month", "day")
        )


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_no_list_of_the_admin_crashes(desk: Desk) -> None:
    for model, page in registered():
        address = address_of(model, "changelist")
        assert desk.get(address).status_code == 200
        for name in parameters(page):
            queries = (f"{address}?{name}={quote(value)}" for value in QUERIES)
            desk.send_some([Sent(query) for query in queries])
        if day := page.date_hierarchy:
            for month, date in (
                ("13", "1"),
                ("2", "30"),
                ("0", "0"),
                ("9" * 5000, "1"),
            ):
                given = {
                    f"{day}__year": 2026,
                    f"{day}__month": month,
                    f"{day}__day": date,
                }
                desk.get(f"{address}?{urlencode(given)}")
    assert desk.crashes == []


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_no_action_of_the_admin_crashes(desk: Desk) -> None:
    for model, page in registered():
        address = address_of(model, "changelist")
        row = newest(model)
        rows = [str(row.pk).encode()] if row else []
        names = [one if isinstance(one, str) else one.__name__ for one in page.actions]
        for name in (*names, "delete_selected", "nonsense", "\0"):
            action = {"action": name.encode(), "reason": b"because"}
            chosen = [action | {ACTION_CHECKBOX_NAME: key} for key in QUERIES]
            desk.send_some([Sent(address, one) for one in chosen])
            for wrong in ("reason", "select_across", "index"):
                odd = [action | {ACTION_CHECKBOX_NAME: one} for one in rows or [b"1"]]
                sent = [one | {wrong: value} for one in odd for value in TEXTS]
                desk.send_some([Sent(address, one) for one in sent])
        # A valid action at the end: a deletion is first shown, then carried out.
        for name in (*names, "delete_selected"):
            for key in rows:
                meant = {"action": name.encode(), ACTION_CHECKBOX_NAME: key}
                desk.send(Sent(address, meant | {"reason": b"because"}))
                desk.send(Sent(address, meant | {"post": b"yes"}))
        for key in (row.pk,) if row else ():
            address, sure = address_of(model, "delete", key), {"post": b"yes"}
            desk.send(Sent(address, sure))
            desk.send(Sent(address, sure | {"_to_field": b"\0"}))
    assert desk.crashes == []


# --- addresses ------------------------------------------------------------------------


def addresses() -> Iterator[Sequence[str]]:
    """Yield groups of addresses below /admin/ with something wrong in each."""
    yield ["/admin/", "/admin/jsi18n/"]
    for model, _page in registered():
        root, row = address_of(model, "changelist"), newest(model)
        for page in ("change", "delete", "history", "password"):
            yield [f"{root}{wrong}/{page}/" for wrong in IN_PATH]
        yield [f"{root}{wrong}/" for wrong in IN_PATH]
        yield [f"{root}add/?_changelist_filters={wrong}" for wrong in IN_PATH]
        yield [f"{root}add/?_popup=1&_to_field={wrong}" for wrong in IN_PATH]
        if row is not None:
            yield [f"{root}{row.pk}/history/{wrong}/" for wrong in IN_PATH]
            yield [f"{root}{row.pk}/change/?_to_field={wrong}" for wrong in IN_PATH]
        for field in model._meta.get_fields():
            yield [
                f"{root}add/?{field.name}={'9' * 30}",
                f"{root}add/?{field.name}=%00²",
            ]
    for wrong in IN_PATH:
        yield [f"/admin/r/{wrong}/{wrong}/", f"/admin/r/1/{wrong}/", f"/admin/{wrong}/"]
        yield [f"/admin/login/?next={wrong}"]
    for model, _page in registered():
        meta = model._meta
        for name in ("user", "account", "parent", "node", "nonsense"):
            asked = [
                {
                    "app_label": meta.app_label,
                    "model_name": str(meta.model_name),
                    "field_name": name,
                    "term": term,
                    "page": page,
                }
                for term in ("x", "\0", "9" * 30)
                for page in ("1", "9" * 30, "last")
            ]
            yield [f"/admin/autocomplete/?{urlencode(one)}" for one in asked]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_no_address_of_the_admin_crashes(desk: Desk) -> None:
    for group in addresses():
        desk.send_some([Sent(one) for one in group])
        desk.send_some([Sent(one, {}) for one in group])
    assert desk.crashes == []
