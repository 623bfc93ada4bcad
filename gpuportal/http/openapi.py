"""Add a name, a summary and the refusals to each operation of the API's schema."""

import re
from http import HTTPStatus
from typing import Any

from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from reservations.web.request_keys import PARAMETER
from telemetry.protocol.coded_error import PROBLEM_TYPE
from telemetry.web.answer_schema import answer_schemas
from telemetry.web.deprecation import Deprecation

ALWAYS = {
    HTTPStatus.BAD_REQUEST: "The request cannot be read, or has a value that the "
    "database cannot hold.",
    HTTPStatus.UNAUTHORIZED: "Neither a session nor a valid token was sent.",
    HTTPStatus.FORBIDDEN: "The token lacks a scope, or the user may not do this.",
    HTTPStatus.NOT_FOUND: "It does not exist, or the user may not see it.",
    HTTPStatus.METHOD_NOT_ALLOWED: "The address has no such method; see `Allow`.",
    HTTPStatus.CONFLICT: "A rule of the calendar or of the Jobs refuses it.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Some values are wrong; `fields` says which.",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests. `Retry-After` says when.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The database or the broker cannot be reached.",
}
WITH_BODY = {
    HTTPStatus.REQUEST_TIMEOUT: "The request body did not arrive in time.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.INSUFFICIENT_STORAGE: "The portal's disk is full.",
}
PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "description": "Problem details (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "fields": {
            "description": "Each wrong field, with what is wrong, in a sentence.",
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
        "numbers": {
            "description": "The numbers that the sentence contains.",
            "type": "object",
        },
        "next_slot": {
            "description": "Another time that would work.",
            "type": "object",
        },
        "longest_end": {
            "description": "The latest end that a running reservation could have.",
            "type": "string",
            "format": "date-time",
        },
        "works_instead": {
            "description": "Some of the GPUs, at the same time, that would work.",
            "type": "object",
        },
    },
}


class ApiSchema(OpenAPISchema):
    """The schema of the API, with the fields of answers from return annotations."""

    def operation_details(self, operation: Operation) -> dict[str, Any]:
        """Return an operation as in the schema, marked if it is deprecated."""
        found: dict[str, Any] = super().operation_details(operation)
        told: Deprecation | None = getattr(operation.view_func, "deprecation", None)
        if told is not None:
            found["deprecated"] = True
            found["description"] = f"{found.get('description', '')} {told.text}"
        return found

    def operation_parameters(self, operation: Operation) -> list[dict[str, Any]]:
        """Return the parameters of an operation, with the headers that it reads."""
        found: list[dict[str, Any]] = super().operation_parameters(operation)
        if getattr(operation.view_func, "repeatable", False):
            found.append(PARAMETER)
        return found

    def responses(self, operation: Operation) -> dict[int, dict[str, Any]]:
        """Return the answers of success of an operation, with the schema of each.

        Raises:
            TypeError: an answer's annotation has no fields.
            ValueError: two answers have the same name and different fields.
        """
        found = super().responses(operation)
        content, named = answer_schemas(operation.view_func)
        for answer in found.values():
            answer.pop("content", None)
            if content:
                answer["content"] = content
        for name, schema in named.items():
            if self.schemas.setdefault(name, schema) != schema:
                raise ValueError(f"two schemas are called {name}")
        return found


def operation_id(method: str, path: str) -> str:
    """Return an operation's name, for clients that are generated from the schema.

    It follows from the address, so that it stays when a function gets another name.

    >>> operation_id("post", "/api/v1/reservations/{reservation_id}/cancel")
    'post_reservations_cancel'
    >>> operation_id("get", "/api/v1/jobs/{job_id}")
    'get_jobs_one'
    """
    words = path.removeprefix("/api/v1/").split("/")
    named = [word.replace("-", "_") for word in words if not word.startswith("{")]
    return "_".join([method, *named, *(["one"] if words[-1].startswith("{") else [])])


def with_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Name every operation of a schema, and sum it up; return the schema."""
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            operation["operationId"] = operation_id(method, path)
            # Docstrings are reStructuredText, descriptions Markdown.
            text = " ".join(operation.get("description", "").split())
            text = text.replace("``", "`")
            operation["summary"] = re.split(r"(?<=\.) ", text)[0].removesuffix(".")
            operation["description"] = text
            # Those of the routers that it is in, from the outermost on.
            operation["tags"] = operation["tags"][-1:]
    return schema


def with_problems(schema: dict[str, Any]) -> dict[str, Any]:
    """Add every refusal to every operation of a schema; return the schema."""
    components = schema.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM
    components["responses"] = {
        status.phrase.title().replace(" ", ""): _problem(words)
        for status, words in (ALWAYS | WITH_BODY).items()
    }
    limited = components["responses"]["TooManyRequests"]
    limited["headers"] = {
        **RATE_HEADERS,
        "Retry-After": _header("Seconds after which to send the request again."),
    }
    for path in schema["paths"].values():
        for operation in path.values():
            told = ALWAYS | (WITH_BODY if "requestBody" in operation else {})
            for status in sorted(told):
                name = status.phrase.title().replace(" ", "")
                answer = {"$ref": f"#/components/responses/{name}"}
                operation["responses"].setdefault(int(status), answer)
    return schema


def _problem(words: str) -> dict[str, Any]:
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": words, "content": content}


def _header(words: str) -> dict[str, Any]:
    return {"description": words, "schema": {"type": "string"}}


RATE_HEADERS = {
    "RateLimit-Policy": _header(
        'The limits for which the request counts: `"book";q=60;w=60` is 60 requests '
        "in 60 seconds."
    ),
    "RateLimit": _header(
        'What is left of these limits: `"book";r=58;t=21` means that 58 requests are '
        "left, and that the whole limit is available again in 21 seconds."
    ),
}
"""draft-ietf-httpapi-ratelimit-headers-10."""
