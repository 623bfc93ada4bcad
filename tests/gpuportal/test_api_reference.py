"""The reference of the API: complete, and its examples are right."""

import json
import re
import shlex

import pytest

from gpuportal.api import api
from gpuportal.api_reference import TAGS, answer_objects, reference
from reservations.web.schemas import BookIn


@pytest.fixture(scope="module")
def sections():
    return reference(api.get_openapi_schema())


def named(sections, anchor):
    (found,) = (o for rows in sections.values() for o in rows if o.anchor == anchor)
    return found


@pytest.mark.pure
def test_every_tag_has_a_heading(sections):
    assert sections.keys() == TAGS.keys()


@pytest.mark.pure
def test_an_operation_is_described(sections):
    book = named(sections, "post_reservations")
    assert (book.method, book.path) == ("POST", "/api/v1/reservations")
    assert (book.summary, book.scope, book.answers) == ("Book GPUs", "book", (201,))
    assert book.details.startswith("A refusal is 409")
    fields = {one.name: one for one in book.body}
    assert fields.keys() == BookIn.model_fields.keys()
    assert (fields["start"].required, fields["start"].kind) == (True, "date-time")
    assert fields["purpose"].kind == "string, at most 120 characters"
    assert (fields["overstay"].required, fields["overstay"].default) == (False, "false")
    slots = named(sections, "get_slots")
    limit = next(one for one in slots.parameters if one.name == "limit")
    assert (limit.kind, limit.default) == ("integer, 1 to 20", "3")
    assert (slots.body, slots.scope) == ((), "read")
    (key,) = book.parameters
    assert key.name == "Idempotency-Key" and key.description.startswith("A unique")
    cursor = next(
        o for o in named(sections, "get_jobs").parameters if o.name == "cursor"
    )
    assert cursor.description.startswith("next of the page before")
    assert named(sections, "post_jobs").scope == "job"


@pytest.mark.pure
def test_an_answer_is_described(sections):
    assert named(sections, "get_calendar").answer_objects == ("CalendarAnswer",)
    assert named(sections, "delete_serve_files_one").answer_objects == ()
    objects = {one.name: one for one in answer_objects(api.get_openapi_schema())}
    fields = {one.name: one for one in objects["CalendarAnswer"].fields}
    assert fields["reservations"].kind == "[CalendarPageEntry]"
    assert fields["reservations"].object_name in objects
    assert fields["timezone"].description == "The portal's, an IANA name."
    assert "BookIn" not in objects


@pytest.mark.pure
def test_examples_are_commands_whose_bodies_are_accepted(sections):
    for rows in sections.values():
        for one in rows:
            words = shlex.split(one.example)
            assert words[0] == "curl"
            assert words[-1] == f"$URL{one.path}"
    words = shlex.split(named(sections, "post_reservations").example)
    sent = json.loads(words[words.index("--json") + 1])
    assert BookIn.model_validate(sent).gpu_ids == [1]
    upload = named(sections, "post_models").example
    assert re.search(r"-F \w+=@FILE", upload)


@pytest.mark.once
@pytest.mark.django_db
def test_the_page_shows_every_operation_to_those_who_are_signed_in(client, alice):
    assert client.get("/api/v1/docs").status_code == 302
    client.force_login(alice)
    page = client.get("/api/v1/docs").content.decode()
    for path, operations in api.get_openapi_schema()["paths"].items():
        for operation in operations.values():
            assert f'id="{operation["operationId"]}"' in page
        assert f'<code class="api-path">{path}</code>' in page
    assert 'href="/api/v1/openapi.json"' in page
    assert client.get("/help/").content.decode().count('href="/api/v1/docs"') == 1
