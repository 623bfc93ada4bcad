"""Django's own admin, sent what it was not made for: a refusal, never a crash.

Every add, change, delete and password form of every model is sent as the operator,
with one wrong value at a time. The other fields keep their good values, so that the
wrong one reaches the database where a check is missing.
"""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from django import forms
from django.contrib import admin
from django.core.files.uploadedfile import UploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.placement.lab import make_lab, send_frame

LONG = "x" * 1_000_000
NUL = b"nul\0nul"
SURROGATE = b"\xed\xa0\x80"
"""A lone surrogate, as CESU-8 writes it."""
DIGITS = b"9" * 30
NUMBERS = (DIGITS, b"-" + DIGITS, b"-1", b"1e400", b"NaN", "²".encode(), NUL)
KEYS = (DIGITS, b"-1", b"999999", "²".encode(), NUL, SURROGATE)
DATES = (
    *(b"9999-12-31", b"0001-01-01", b"10000-01-01", b"2026-13-45", NUL),
    *(b"9999-12-31T23:59:59-15:59", DIGITS),
)
TEXTS = (
    *(b"", NUL, SURROGATE, b"\xff\xfe", LONG.encode(), DIGITS, b"[" * 2000),
    b'{"a": "\\ud800\\u0000"}',
)


@pytest.fixture
def people(alice, bob, omar, transactional_db, redis_client, settings):
    """Return a client of the operator, on a site with something in most tables."""
    gpus = make_lab()
    send_frame(redis_client)
    row = make_reservation(alice, gpus[:1], state=State.ACTIVE)
    Job.objects.create(
        reservation=row, owner=alice, node=gpus[0].node, name="try", kind="recipe",
        recipe="burn-in", attempt=1, state="running", ordered_at=timezone.now(),
    )  # fmt: skip
    client = Client(raise_request_exception=False)
    client.force_login(omar, backend="django.contrib.auth.backends.ModelBackend")
    return client


def registered() -> list[tuple[type, admin.ModelAdmin]]:
    return sorted(admin.site._registry.items(), key=lambda item: item[0].__name__)


def address_of(model: type, page: str, *args: object) -> str:
    meta = model._meta  # type: ignore[attr-defined]
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_{page}", args=args)


def broken(answer: object, *about: object) -> Iterator[tuple[object, ...]]:
    """Yield what was sent where the answer is a crash, or says that one is near."""
    status = answer.status_code  # type: ignore[attr-defined]
    if status >= 500:
        error = getattr(answer, "exc_info", None)
        yield (status, *(str(one)[:60] for one in about), repr(error and error[1])[:90])


def body_of(values: dict[str, bytes]) -> bytes:
    return "&".join(
        f"{quote(name)}={quote(value)}" for name, value in values.items()
    ).encode()


def post(client: Client, address: str, values: dict[str, bytes]) -> object:
    kind = "application/x-www-form-urlencoded"
    return client.post(address, body_of(values), content_type=kind)


def good_values(form: forms.BaseForm) -> dict[str, bytes]:
    """Return what a browser would send of an untouched form."""
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


def wrong_values(form: forms.BaseForm) -> Iterator[tuple[str, bytes]]:
    """Yield each field's name, as it is sent, with values of no use to it."""
    for bound in form:
        field = bound.field
        endings = getattr(field.widget, "widgets_names", [""])
        values = TEXTS
        if isinstance(field, (forms.ModelChoiceField, forms.ChoiceField)):
            values = KEYS
        elif isinstance(field, (forms.IntegerField, forms.DurationField)):
            values = NUMBERS
        elif isinstance(field, (forms.DateTimeField, forms.SplitDateTimeField)):
            values = DATES
        for ending in endings:
            for value in values:
                yield bound.html_name + ending, value


def fuzz_form(client: Client, address: str) -> Iterator[tuple[object, ...]]:
    """Yield what a form crashes of; one wrong value at a time."""
    answer = client.get(address)
    yield from broken(answer, address, "GET")
    if answer.status_code != 200 or answer.context is None:
        return
    found = answer.context.get("adminform") or answer.context.get("form")
    if found is None:
        return
    form = getattr(found, "form", found)
    good, wrong = good_values(form), [*wrong_values(form)]
    for formset in answer.context.get("inline_admin_formsets") or ():
        management = formset.formset.management_form
        good |= good_values(management)
        wrong += wrong_values(management)
    for name, value in wrong:
        sent = good | {name: value, "_continue": b"1"}
        yield from broken(post(client, address, sent), address, name, value)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_form_of_the_admin_crashes(people):
    found = []
    for model, _page in registered():
        found += fuzz_form(people, address_of(model, "add"))
        row = model._default_manager.order_by("-pk").first()  # type: ignore[attr-defined]
        if row is not None:
            found += fuzz_form(people, address_of(model, "change", row.pk))
            found += fuzz_form(people, address_of(model, "delete", row.pk))
    user = people.session["_auth_user_id"]
    found += fuzz_form(people, f"/admin/reservations/user/{user}/password/")
    found += fuzz_form(people, "/admin/password_change/")
    assert not found
