"""No sentence of a library reaches a person, from the API or from a form."""

import importlib
import json
import pkgutil
import re
from datetime import timedelta
from functools import cache
from urllib.parse import urlencode, urljoin

import pytest
from django import forms
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

import gpuportal
import placement
import reservations
import telemetry
from gpuportal.api import api
from placement.models import Job
from placement.protocol.job_lifecycle import JobState
from reservations.rules.lifecycle import State
from telemetry.models import Node
from telemetry.web.plain_forms import PlainErrors
from tests.factories import (
    make_gpus,
    make_membership,
    make_node,
    make_reservation,
    make_user,
)

LIBRARY = re.compile(
    "Extra inputs|Input should|Field required|Value error|Cannot parse|Expecting value"
    "|String should|List should|Dictionary should|Unable to|unable to"
    "|should have at (?:least|most)|should match|should be a valid"
    "|Ensure this|Ensure that|Select a valid|Enter a valid|Enter a list of"
    "|This field (?:is required|cannot)|is not a valid|not one of the available"
    "|No file was submitted|The submitted file|Null characters are not allowed"
    "|value must be (?:an integer|a float|either)|Invalid isoformat"
)
WRONG = (10**40, "x" * 5000)
TYPED = ("nul\0", "9" * 30, "x" * 5000)
"""What a database itself may refuse: all that is sent on PostgreSQL, because the
sentences of forms and schemas do not depend on the database."""
MALFORMED: tuple[str, ...] = ()
ON_SQLITE = connection.vendor == "sqlite"
if ON_SQLITE:
    MALFORMED = ("", "{", "[]", '"text"', "null", "{}", '{"no_such_field": 1}')
    WRONG += (None, "text", "", -5, 1.5, True, [1, "a"], {"a": 1})
    TYPED += ("", "text", "-5", "1.5", "nan")
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def boss(db):
    """An operator who also books, with one of most things."""
    made = make_user("boss", is_staff=True, is_superuser=True)
    make_membership(made, "vision", is_head=True)
    node = make_node("red", isolation=Node.Isolation.WATCHED)
    booked = make_reservation(
        made,
        make_gpus(1, node),
        start=timezone.now() - timedelta(hours=1),
        end=timezone.now() + timedelta(hours=3),
        state=State.ACTIVE,
    )
    made.booked = booked
    made.job = Job.objects.create(
        owner=made,
        reservation=booked,
        node=node,
        name="one",
        state=JobState.DONE,
        kind=Job.Kind.RECIPE,
        recipe="burn-in",
    )
    return made


@pytest.fixture
def client(boss):
    made = Client(raise_request_exception=True)
    made.force_login(boss, backend="django.contrib.auth.backends.ModelBackend")
    return made


def read(answer):
    if answer.streaming:
        return ""
    text = answer.content.decode(errors="replace")
    return re.sub(r"(?s)<textarea.*?</textarea>|value=\"[^\"]*\"", "", text)


def check(answer, asked):
    assert answer.status_code < 500, asked
    found = LIBRARY.search(read(answer))
    assert found is None, (asked, found and read(answer)[found.start() - 200 :][:400])


def operations():
    """Yield method, path, names in the address, schema of the body."""
    schema = api.get_openapi_schema()
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            names = [
                p["name"] for p in about.get("parameters", ()) if p["in"] == "query"
            ]
            content = about.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {}).get("schema")
            while body and "$ref" in body:
                name = body["$ref"].rpartition("/")[2]
                body = schema["components"]["schemas"][name]
            yield method, path, names, body


OPERATIONS = sorted(operations(), key=lambda one: one[1::-1])


@pytest.mark.parametrize("method,path,names,body", OPERATIONS)
def test_an_operation_refuses_in_plain_words(client, boss, method, path, names, body):
    pk = boss.job.pk if "job" in path else boss.booked.pk
    address = re.sub(r"\{[^}]*name[^}]*\}", "red", path)
    address = re.sub(r"\{[^}]*\}", str(pk), address)

    def send(content, query=""):
        answer = getattr(client, method)(
            address + query, content, content_type="application/json"
        )
        check(answer, (method, path, query, content[:200]))

    for name in names:
        for value in TYPED:
            check(client.get(address, {name: value}), (path, name, value))
    if body is None:
        return
    for content in MALFORMED:
        send(content)
    # An answer names all fields that are wrong. What names each field that is needed
    # gets past the schema.
    known, needed = body.get("properties", {}), set(body.get("required", ()))
    sent = [[*known], *([name] for name in known if needed <= {name})]
    for names_sent in sent:
        for value in WRONG:
            send(json.dumps(dict.fromkeys(names_sent, value)))


def patterns(resolver=None, before=""):
    """Yield the address and the view of everything with pages."""
    for one in (resolver or get_resolver()).url_patterns:
        place = before + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from patterns(one, place)
        elif isinstance(one, URLPattern):
            yield place


PAGES = sorted(
    {
        place
        for place in patterns()
        if not place.startswith(("admin/", "api/", "^", "node/", "logout/", "readyz"))
    }
)


def form_classes(kind=forms.BaseForm):
    for below in kind.__subclasses__():
        yield below
        yield from form_classes(below)


def load_everything():
    for package in (gpuportal, placement, reservations, telemetry):
        for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if "forms" in one.name or ".views" in one.name or "_views" in one.name:
                importlib.import_module(one.name)


OURS = ("gpuportal.", "placement.", "reservations.")


def test_every_form_of_ours_has_plain_errors():
    load_everything()
    ours = [kind for kind in form_classes() if kind.__module__.startswith(OURS)]
    assert len(ours) > 30
    assert [
        kind.__qualname__
        for kind in ours
        if not issubclass(kind, PlainErrors) and kind.__name__ != "ReasonAction"
    ] == []


@cache
def field_names():
    load_everything()
    return sorted(
        {
            name
            for kind in form_classes()
            if kind.__module__.startswith(OURS)
            for name in getattr(kind, "base_fields", {})
        }
    )


@pytest.mark.parametrize("place", PAGES)
def test_a_page_refuses_in_plain_words(client, boss, place):
    pk = boss.job.pk if place.startswith("jobs/") else boss.booked.pk
    address = re.sub(r"<slug:which>", "booking", place)
    address = re.sub(r"<slug:name>", "red", address)
    address = re.sub(r"<int:\w+>", str(pk), address)
    address = "/" + re.sub(r"<\w+:\w+>", "text", address)
    shown = client.get(address)
    check(shown, place)
    names = set(field_names()) | set(re.findall(r"name=\"([\w.-]+)\"", read(shown)))
    names -= {"csrfmiddlewaretoken"}
    empty = client.post(address, {})
    check(empty, (place, "nothing"))
    if ON_SQLITE:
        check(client.post(address, {"no_such_field": "1"}), (place, "unknown"))
    if {shown.status_code, empty.status_code} <= {404, 405}:
        # There is nothing that could read what is sent.
        return
    # Django reads the query and the body when a view first asks for them.
    reads_query = "GET" in vars(shown.wsgi_request)
    reads_body = bool({"_post", "_body"} & vars(empty.wsgi_request).keys())
    led_to: dict[str, list[str]] = {}
    for value in TYPED:
        sent = urlencode(dict.fromkeys(names, value))
        if reads_query:
            check(client.get(f"{address}?{sent}"), (place, "GET", value))
        if reads_body:
            answer = client.post(address, sent, content_type=FORM)
            check(answer, (place, "POST", value))
            if 300 <= answer.status_code < 400:
                there = urljoin(address, answer["Location"])
                led_to.setdefault(there, []).append(value)
    if ON_SQLITE:
        # The first page shows the messages of every answer that led elsewhere.
        for there, values in led_to.items():
            check(client.get(there, follow=True), (place, "POST", values, there))


@pytest.mark.parametrize(
    "model", sorted(admin.site._registry, key=lambda m: m.__name__)
)
def test_an_admin_page_refuses_in_plain_words(client, boss, model):
    meta = model._meta
    if meta.app_label in ("auth", "sites"):
        return
    row = model._default_manager.first()
    base = f"admin:{meta.app_label}_{meta.model_name}"
    addresses = [reverse(f"{base}_add")]
    if row is not None:
        addresses.append(reverse(f"{base}_change", args=(row.pk,)))
    for address in addresses:
        shown = client.get(address, follow=True)
        # What is typed there; Django's own lists of rows are chosen from.
        typed = re.findall(r"<(?:input|textarea)[^>]*name=\"([\w.-]+)\"", read(shown))
        names = set(typed) - {"csrfmiddlewaretoken"}
        for value in TYPED:
            sent = urlencode(dict.fromkeys(names, value))
            answer = client.post(address, sent, content_type=FORM)
            check(answer, (address, value))
