"""docs/openapi.json: what programs rely on, and what would break them."""

import copy
import json
from io import StringIO
from pathlib import Path
from typing import TypedDict

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.http import JsonResponse
from ninja import Status

from gpuportal.http.api_contract import breaking_changes
from gpuportal.management.commands.openapi import schema_text
from telemetry.web.answer_schema import answer_schemas
from telemetry.web.answer_types import CsvAnswer, UtcInstant
from tests.answers import check_answer

pytestmark = pytest.mark.pure
KEPT = Path(settings.BASE_DIR) / "docs" / "openapi.json"
BOOK = ("/api/v1/reservations", "post")
SLOTS = ("/api/v1/slots", "get")


@pytest.fixture
def kept():
    return json.loads(KEPT.read_text())


@pytest.fixture
def new(kept):
    return copy.deepcopy(kept)


def operation(schema, where):
    return schema["paths"][where[0]][where[1]]


def parameter(schema, name):
    (found,) = (p for p in operation(schema, SLOTS)["parameters"] if p["name"] == name)
    return found


def fields(schema, name="BookIn"):
    return schema["components"]["schemas"][name]


def test_the_kept_schema_is_the_one_that_the_portal_serves():
    assert schema_text() == KEPT.read_text(), (
        "run: manage.py openapi --write docs/openapi.json"
    )


def test_every_operation_has_a_name_a_summary_and_one_tag(kept):
    operations = [o for path in kept["paths"].values() for o in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations) >= 75
    for one in operations:
        assert one["summary"][0].isupper()
        assert not one["summary"].endswith(".")
        assert len(one["tags"]) == 1


def test_additions_break_nothing(kept, new):
    new["paths"]["/api/v1/new"] = {"get": {}}
    fields(new)["properties"]["note"] = {"type": "string"}
    fields(new)["properties"]["purpose"]["maxLength"] = 500
    parameter(new, "limit")["schema"]["maximum"] = 100
    operation(new, SLOTS)["parameters"].append(
        {"in": "query", "name": "extra", "schema": {"type": "string"}}
    )
    fields(new, "Problem")["properties"]["hint"] = {"type": "string"}
    operation(new, BOOK)["responses"]["418"] = {"description": "a teapot"}
    assert breaking_changes(kept, kept) == breaking_changes(kept, new) == []


def gone(new):
    del new["paths"]["/api/v1/slots"]


def renamed(new):
    operation(new, SLOTS)["operationId"] = "other"


def parameter_gone(new):
    operation(new, SLOTS)["parameters"].remove(parameter(new, "hours"))


def parameter_required(new):
    parameter(new, "hours")["required"] = True


def new_parameter_required(new):
    operation(new, SLOTS)["parameters"].append(
        {"in": "query", "name": "extra", "schema": {}, "required": True}
    )


def narrower(new):
    parameter(new, "limit")["schema"]["maximum"] = 10


def bounded(new):
    parameter(new, "limit")["schema"]["minimum"] = 2


def field_gone(new):
    del fields(new)["properties"]["purpose"]


def field_required(new):
    fields(new)["required"].append("purpose")


def other_type(new):
    fields(new)["properties"]["overstay"]["type"] = "integer"


def null_refused(new):
    fields(new)["properties"]["membership"]["anyOf"].pop()


def word_refused(new):
    fields(new, "JobState")["enum"].remove("running")


def status_gone(new):
    del operation(new, BOOK)["responses"]["201"]


def answer_field_gone(new):
    del fields(new, "Problem")["properties"]["detail"]


def answer_field_optional(new):
    fields(new, "Problem")["required"].remove("code")


def body_required(new):
    operation(new, ("/api/v1/reservations/{reservation_id}/cancel", "post"))[
        "requestBody"
    ]["required"] = True


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (gone, "GET /api/v1/slots is gone."),
        (renamed, "GET /api/v1/slots: operationId is other, not get_slots."),
        (parameter_gone, "GET /api/v1/slots: parameter hours (query) is gone."),
        (parameter_required, "GET /api/v1/slots: parameter hours is required now."),
        (new_parameter_required, "GET /api/v1/slots: new parameter extra is required."),
        (narrower, "GET /api/v1/slots: limit: maximum is 10, not 20."),
        (bounded, "GET /api/v1/slots: limit: minimum is 2, not 1."),
        (field_gone, "POST /api/v1/reservations: body.purpose is gone."),
        (field_required, "POST /api/v1/reservations: body.purpose is required now."),
        (
            other_type,
            "POST /api/v1/reservations: body.overstay: type is integer, not boolean.",
        ),
        (
            null_refused,
            "POST /api/v1/reservations: body.membership: 1 forms are possible, not 2.",
        ),
        (word_refused, "GET /api/v1/jobs: state: running is not accepted any more."),
        (status_gone, "POST /api/v1/reservations: it has no answer 201 any more."),
        (answer_field_gone, "GET /api/v1/slots: answer 400.detail is gone."),
        (
            answer_field_optional,
            "GET /api/v1/slots: answer 400.code may be missing now.",
        ),
        (
            body_required,
            "POST /api/v1/reservations/{reservation_id}/cancel: "
            "a body is required now.",
        ),
    ],
)
def test_what_breaks_a_program_is_named(kept, new, change, sentence):
    change(new)
    assert sentence in breaking_changes(kept, new)


def test_the_command_prints_writes_and_refuses(tmp_path, kept):
    out = StringIO()
    call_command("openapi", stdout=out)
    assert json.loads(out.getvalue()) == kept
    file = tmp_path / "openapi.json"
    call_command("openapi", write=file, stdout=out)
    assert json.loads(file.read_text()) == kept
    fields(kept)["properties"]["colour"] = {"type": "string"}
    file.write_text(json.dumps(kept))
    with pytest.raises(CommandError, match=r"body\.colour is gone"):
        call_command("openapi", write=file, stdout=out)
    assert json.loads(file.read_text()) == kept
    file.write_text("{")
    with pytest.raises(CommandError, match="is not a schema of the API"):
        call_command("openapi", write=file, stdout=out)
    assert file.read_text() == "{"


def test_every_answer_has_a_schema_of_its_fields(kept):
    for path, operations in kept["paths"].items():
        for method, one in operations.items():
            (good,) = (one["responses"][s] for s in one["responses"] if s < "400")
            if "204" in one["responses"]:
                continue
            schema = good["content"]["application/json"]["schema"]
            for form in schema.get("anyOf", [schema]):
                name = form["$ref"].rsplit("/", 1)[1]
                named = kept["components"]["schemas"][name]
                assert named["properties"] or name == "NothingKnown", (method, path)
                assert named["description"], name


def test_an_answer_with_another_field_or_type_is_found():
    told = {"id": 1, "removed": True}
    where = ("DELETE", "api/v1/ssh-keys/<int:key_id>")
    check_answer(JsonResponse(told), *where)
    for wrong in ({"id": 1}, told | {"id": "1"}, told | {"more": 1}):
        with pytest.raises(AssertionError):
            check_answer(JsonResponse(wrong), *where)
    with pytest.raises(AssertionError, match="no answer 202"):
        check_answer(JsonResponse(told, status=202), *where)


def test_an_answer_of_any_object_may_become_one_with_fields(kept, new):
    answer = operation(kept, SLOTS)["responses"]["200"]["content"]["application/json"]
    answer["schema"] = {"type": "object", "additionalProperties": True}
    assert breaking_changes(kept, new) == []
    operation(new, SLOTS)["responses"]["200"]["content"]["application/json"] = {
        "schema": {"type": "array"}
    }
    assert breaking_changes(kept, new) != []


class BaseAnswer(TypedDict):
    at: UtcInstant
    """When it
    began."""


class DerivedAnswer(BaseAnswer):
    """A thing."""

    size: int | None


def answered() -> Status[DerivedAnswer] | CsvAnswer: ...


def answered_without_fields() -> dict[str, int]: ...


def test_the_fields_of_an_annotation_are_documented():
    content, named = answer_schemas(answered)
    assert content.keys() == {"application/json", "text/csv"}
    made = named["DerivedAnswer"]
    assert made["description"] == "A thing."
    assert made["required"] == ["at", "size"]
    assert made["properties"]["at"] == {
        "type": "string",
        "format": "date-time",
        "description": "When it began.",
    }
    with pytest.raises(TypeError, match="has no fields"):
        answer_schemas(answered_without_fields)
