"""The reference of the API: every operation, from the schema that programs read."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_safe

from gpuportal.api import api
from gpuportal.http.token_auth import scopes_needed

Json = Mapping[str, Any]
TAGS = {
    "calendar": lazy("Calendar"),
    "series": lazy("Series"),
    "waiting": lazy("Waitlist"),
    "people": lazy("Sharing and offers"),
    "board": lazy("Board"),
    "placement": lazy("Plans and jobs"),
    "serving": lazy("Served models"),
    "notices": lazy("Notices"),
    "telemetry": lazy("Nodes and GPUs"),
    "history": lazy("Use of groups and reservations"),
}
"""Tag of a router: heading, in the order of the page."""
EXAMPLES = {
    "date-time": "2027-01-18T09:00:00+01:00",
    "date": "2027-01-18",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "string": "…",
    "object": {},
    "null": None,
}
"""A value for each format or type, for the example of a request."""


@dataclass(frozen=True)
class ApiValue:
    """A parameter, or a field of a body."""

    name: str
    kind: str
    """Type and bounds, in a few words."""
    required: bool
    default: str
    description: str
    object_name: str = ""
    """Name of the object that it has, or a list of. Empty: none."""


@dataclass(frozen=True)
class ApiOperation:
    """One operation as the reference shows it."""

    anchor: str
    method: str
    path: str
    summary: str
    details: str
    scope: str
    """Scope that a token always needs."""
    parameters: tuple[ApiValue, ...]
    body: tuple[ApiValue, ...]
    example: str
    """A command that calls it. $URL and $TOKEN are the reader's."""
    answers: tuple[int, ...]
    """Statuses of success."""
    deprecated: bool
    answer_objects: tuple[str, ...]
    """Names of the objects that it answers: one of them. (): no JSON."""


@dataclass(frozen=True)
class ApiObject:
    """An object in answers."""

    name: str
    description: str
    fields: tuple[ApiValue, ...]


def reference(schema: Json) -> dict[str, tuple[ApiOperation, ...]]:
    """Return the operations of a schema by tag, in the order of the schema."""
    found: dict[str, list[ApiOperation]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            shown = _operation(schema, method.upper(), path, operation)
            found.setdefault(operation["tags"][0], []).append(shown)
    return {tag: tuple(rows) for tag, rows in found.items()}


def answer_objects(schema: Json) -> tuple[ApiObject, ...]:
    """Return the objects that answers contain, by name."""
    found: set[str] = set()
    for operations in schema["paths"].values():
        for operation in operations.values():
            found |= _object_names(_answers(operation))
    queue = list(found)
    schemas = schema["components"]["schemas"]
    while queue:
        inner = _object_names(schemas[queue.pop()].get("properties", {}))
        queue += inner - found
        found |= inner
    return tuple(
        ApiObject(
            name=name,
            description=schemas[name].get("description", ""),
            fields=tuple(_fields(schema, schemas[name])),
        )
        for name in sorted(found)
    )


def _answers(operation: Json) -> list[Json]:
    """Return the schemas of the JSON answers of success."""
    return [
        answer["content"]["application/json"]["schema"]
        for status, answer in operation["responses"].items()
        if int(status) < HTTPStatus.BAD_REQUEST
        and "application/json" in answer.get("content", {})
    ]


def _object_names(part: Any) -> set[str]:
    """Return the names of the objects to which a schema refers."""
    if isinstance(part, list):
        return set().union(*map(_object_names, part))
    if not isinstance(part, Mapping):
        return set()
    if isinstance(part.get("$ref"), str):
        return {part["$ref"].rsplit("/", 1)[1]}
    return _object_names(list(part.values()))


def _operation(schema: Json, method: str, path: str, operation: Json) -> ApiOperation:
    kind, body = _body(schema, operation)
    fields = _fields(schema, body) if body else ()
    return ApiOperation(
        anchor=operation["operationId"],
        method=method,
        path=path,
        summary=operation["summary"].replace("`", ""),
        details=operation["description"]
        .removeprefix(operation["summary"])
        .lstrip(". ")
        .replace("`", ""),
        scope=scopes_needed(method, path.removeprefix("/"), dict)[0],
        parameters=tuple(
            _value(schema, one["name"], one["schema"], one.get("required", False))
            for one in operation.get("parameters", ())
        ),
        body=tuple(fields),
        example=_example(schema, method, path, kind, body),
        answers=tuple(
            status
            for status in map(int, operation["responses"])
            if status < HTTPStatus.BAD_REQUEST
        ),
        deprecated=operation.get("deprecated", False),
        answer_objects=tuple(sorted(_object_names(_answers(operation)))),
    )


def _body(schema: Json, operation: Json) -> tuple[str, Json]:
    """Return the media type and the schema of a body; empty without a body."""
    contents = operation.get("requestBody", {}).get("content", {})
    for kind, content in contents.items():
        return kind, _resolved(schema, content["schema"])
    return "", {}


def _resolved(schema: Json, part: Json) -> Json:
    """Follow references, and leave out that a value may be null."""
    while "$ref" in part or "anyOf" in part:
        if "$ref" in part:
            part = schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]]
        else:
            options = [one for one in part["anyOf"] if one.get("type") != "null"]
            if len(options) != 1:
                return part
            part = {**{k: v for k, v in part.items() if k != "anyOf"}, **options[0]}
    return part


def _fields(schema: Json, body: Json) -> Iterator[ApiValue]:
    required = body.get("required", ())
    for name, part in body.get("properties", {}).items():
        yield _value(schema, name, part, name in required)


def _value(schema: Json, name: str, part: Json, required: bool) -> ApiValue:
    default, whole = part.get("default"), _resolved(schema, part)
    return ApiValue(
        name=name,
        kind=_kind(schema, part),
        required=required,
        default="" if default in (None, "") else json.dumps(default),
        description=_words(part.get("description") or whole.get("description", "")),
        object_name=next(iter(sorted(_object_names(part))), ""),
    )


def _words(markdown: str) -> str:
    return " ".join(markdown.split()).replace("`", "")


def _kind(schema: Json, part: Json) -> str:
    """Return a type in a few words: "integer, 1 to 64"."""
    names = _object_names(part)
    part = _resolved(schema, part)
    if "properties" in part and names:
        return names.pop()
    if "anyOf" in part:
        return " | ".join(_kind(schema, one) for one in part["anyOf"])
    if "enum" in part:
        return " | ".join(json.dumps(word) for word in part["enum"])
    word = part.get("format") or part.get("type", "any")
    if word == "array":
        # Of a tuple, ``items`` is False.
        items = part.get("items") or {"anyOf": part.get("prefixItems", [{}])}
        word = f"[{_kind(schema, items)}]"
    low, high = part.get("minimum"), part.get("maximum")
    if high is not None and high < 2**31 and low is not None:
        return f"{word}, {low} to {high}"
    if "maxLength" in part:
        return f"{word}, at most {part['maxLength']} characters"
    return str(word)


def _example(schema: Json, method: str, path: str, kind: str, body: Json) -> str:
    """Return a curl command that sends the required values."""
    words = ["curl", *(["-X", method] if method != "GET" else [])]
    words += ['-H "Authorization: Bearer $TOKEN"']
    if kind == "application/json":
        needed = set(body.get("required", ()))
        sent = {
            name: _sample(schema, part)
            for name, part in body.get("properties", {}).items()
            if name in needed
        }
        text = json.dumps(sent, ensure_ascii=False).replace("'", "'\\''")
        words += ["--json", f"'{text}'"]
    elif kind:
        words += [f"-F {name}=@FILE" for name in body.get("required", ())]
    return " ".join([*words, f'"$URL{path}"'])


def _sample(schema: Json, part: Json) -> Any:
    part = _resolved(schema, part)
    if "anyOf" in part:
        return _sample(schema, part["anyOf"][0])
    for key in ("default", "enum"):
        if key in part:
            return part[key] if key == "default" else part[key][0]
    if part.get("type") == "array":
        return [_sample(schema, part.get("items", {}))]
    return EXAMPLES.get(part.get("format", ""), EXAMPLES[part.get("type", "string")])


@cache
def _reference() -> tuple[dict[str, tuple[ApiOperation, ...]], tuple[ApiObject, ...]]:
    schema = api.get_openapi_schema()
    return reference(schema), answer_objects(schema)


@require_safe
def api_reference(request: HttpRequest) -> HttpResponse:
    """Show every operation, with its values and an example."""
    found, objects = _reference()
    sections = [
        {"tag": tag, "title": title, "operations": found[tag]}
        for tag, title in TAGS.items()
    ]
    return render(
        request,
        "gpuportal/pages/api_reference.html",
        {
            "sections": sections,
            "objects": objects,
            "schema_url": reverse("api:openapi-json"),
            "site": request.build_absolute_uri("/").rstrip("/"),
        },
    )
