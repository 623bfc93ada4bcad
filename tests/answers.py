"""Compare every answer of the API that a test gets with docs/openapi.json."""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
from django.http import HttpResponseBase
from django.test import Client

DOCUMENT = Path(__file__).parents[1] / "docs" / "openapi.json"
CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")


def closed(part: Any) -> Any:
    """Return a schema that refuses fields that it does not name."""
    if isinstance(part, list):
        return [closed(one) for one in part]
    if not isinstance(part, dict):
        return part
    made = {name: closed(one) for name, one in part.items()}
    if isinstance(part.get("properties"), dict) and part.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@cache
def document() -> dict[str, Any]:
    """Return the schema that programs rely on."""
    known: dict[str, Any] = json.loads(DOCUMENT.read_text())
    return known


@cache
def closed_components() -> dict[str, Any]:
    """Return the named schemas, which refuse fields that they do not name."""
    parts = document()["components"]
    return {**parts, "schemas": closed(parts["schemas"])}


@cache
def _checker(path: str, method: str, status: str) -> Any:
    """Return what compares an answer; None if no operation of the schema has it."""
    operation = document()["paths"].get(path, {}).get(method)
    if operation is None:
        return None
    answer = operation["responses"].get(status)
    assert answer is not None, f"{method} {path} has no answer {status} in the schema"
    content = answer.get("content", {}).get("application/json")
    if content is None:
        return None
    schema = {**content["schema"], "components": closed_components()}
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True)


def check_answer(answer: HttpResponseBase, method: str, route: str) -> None:
    """Fail if an answer is not as the schema says."""
    path = "/" + CONVERTER.sub(r"{\1}", route)
    checker = _checker(path, method.lower(), str(answer.status_code))
    if checker is None or answer.get("Content-Type", "").split(";")[0] != (
        "application/json"
    ):
        return
    told = json.loads(_text(answer))
    wrong = [f"{list(e.instance_path)}: {e.message}" for e in checker.iter_errors(told)]
    assert not wrong, f"{method} {path}: {wrong[:5]}"


def _text(answer: Any) -> bytes:
    if answer.get("Content-Encoding") == "gzip":
        return gzip.decompress(answer.content)
    return bytes(answer.content)


@contextmanager
def answers_checked() -> Iterator[None]:
    """Check the answers that Django's test client gets."""
    plain = Client.request

    def request(self: Client, **sent: Any) -> Any:
        answer = plain(self, **sent)
        match = getattr(answer, "wsgi_request", None) and (
            answer.wsgi_request.resolver_match
        )
        if match is not None and match.route.startswith("api/v1/"):
            check_answer(answer, sent["REQUEST_METHOD"], match.route)
        return answer

    Client.request = request  # type: ignore[method-assign]
    try:
        yield
    finally:
        Client.request = plain  # type: ignore[method-assign]
