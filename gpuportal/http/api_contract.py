"""Find the changes of the API's schema that break programs.

docs/openapi.json is the schema that programs rely on. From release 0.1.0 on, version 1
of the API only grows: new operations, new optional values, new fields in answers, wider
bounds. A change that a program could notice needs a new version of the API.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]
METHODS = ("get", "put", "post", "delete", "patch")
LOWEST = ("minimum", "exclusiveMinimum", "minLength", "minItems")
"""Bounds that may sink in a request."""
HIGHEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")
"""Bounds that may rise in a request."""
FIXED = ("type", "format", "pattern", "const", "additionalProperties")
"""Values of a schema that stay as they are. A default may change its value."""


def breaking_changes(old: Json, new: Json) -> list[str]:
    """Return what `new` breaks for a program written for `old`, one sentence each.

    Args:
        old: schema of OpenAPI 3.1 that programs rely on.
        new: schema as it is now.
    """
    found = []
    for path, operations in old["paths"].items():
        for method in METHODS:
            if method not in operations:
                continue
            name = f"{method.upper()} {path}"
            now = new["paths"].get(path, {}).get(method)
            if now is None:
                found.append(f"{name} is gone.")
            else:
                both = _Both(old, new)
                found += [f"{name}: {w}" for w in both.changes(operations[method], now)]
    return found


class _Both:
    """Two documents, and the schemas in them that have been compared."""

    def __init__(self, old: Json, new: Json) -> None:
        self.old, self.new = old, new
        self._seen: set[tuple[str, str, bool]] = set()

    def changes(self, old: Json, new: Json) -> Iterator[str]:
        """Yield what differs between two versions of one operation."""
        if old["operationId"] != new["operationId"]:
            yield f"operationId is {new['operationId']}, not {old['operationId']}."
        yield from self._parameters(old, new)
        yield from self._body(old.get("requestBody"), new.get("requestBody"))
        for status, answer in old["responses"].items():
            if status not in new["responses"]:
                yield f"it has no answer {status} any more."
                continue
            answer = _resolved(answer, self.old)
            now = _resolved(new["responses"][status], self.new)
            for kind, content in answer.get("content", {}).items():
                if kind not in now.get("content", {}):
                    yield f"answer {status} is not {kind} any more."
                else:
                    yield from self._schemas(
                        content.get("schema", {}),
                        now["content"][kind].get("schema", {}),
                        f"answer {status}",
                        sent=False,
                    )

    def _parameters(self, old: Json, new: Json) -> Iterator[str]:
        before = {(p["in"], p["name"]): p for p in old.get("parameters", ())}
        after = {(p["in"], p["name"]): p for p in new.get("parameters", ())}
        for key, parameter in before.items():
            where, name = key
            if key not in after:
                yield f"parameter {name} ({where}) is gone."
                continue
            if after[key].get("required") and not parameter.get("required"):
                yield f"parameter {name} is required now."
            yield from self._schemas(
                parameter["schema"], after[key]["schema"], name, sent=True
            )
        for key in after.keys() - before.keys():
            if after[key].get("required"):
                yield f"new parameter {key[1]} is required."

    def _body(self, old: Json | None, new: Json | None) -> Iterator[str]:
        if old is None:
            if new is not None and new.get("required"):
                yield "a body is required now."
            return
        if new is None:
            yield "it takes no body any more."
            return
        if new.get("required") and not old.get("required"):
            yield "a body is required now."
        for kind, content in old["content"].items():
            if kind not in new["content"]:
                yield f"a body may not be {kind} any more."
            else:
                schemas = content["schema"], new["content"][kind]["schema"]
                yield from self._schemas(*schemas, "body", sent=True)

    def _schemas(self, old: Json, new: Json, at: str, *, sent: bool) -> Iterator[str]:
        """Yield what differs between two schemas.

        Args:
            old: the schema that programs rely on.
            new: the schema now.
            at: its place, for the sentences.
            sent: whether programs send such values. Otherwise they receive them.
        """
        if "$ref" in old and "$ref" in new:
            if (old["$ref"], new["$ref"], sent) in self._seen:
                return
            self._seen.add((old["$ref"], new["$ref"], sent))
        old, new = _resolved(old, self.old), _resolved(new, self.new)
        if not sent and _is_any_object(old) and new.get("type") == "object":
            return
        for key in FIXED:
            if old.get(key) != new.get(key):
                yield f"{at}: {key} is {new.get(key)}, not {old.get(key)}."
        if sent:
            yield from _bounds(old, new, at)
            yield from _choices(old, new, at)
        yield from self._options(old, new, at, sent=sent)
        # Of a tuple, ``items`` is False.
        if old.get("items") and new.get("items"):
            yield from self._schemas(old["items"], new["items"], f"{at}[]", sent=sent)
        yield from self._properties(old, new, at, sent=sent)

    def _options(self, old: Json, new: Json, at: str, *, sent: bool) -> Iterator[str]:
        """Compare ``anyOf`` in order: an option of None is last."""
        before, after = old.get("anyOf", ()), new.get("anyOf", ())
        if not before and not after:
            return
        fewer, more = (after, before) if sent else (before, after)
        if len(fewer) < len(more):
            yield f"{at}: {len(after)} forms are possible, not {len(before)}."
            return
        for one, other in zip(before, after, strict=False):
            yield from self._schemas(one, other, at, sent=sent)

    def _properties(
        self, old: Json, new: Json, at: str, *, sent: bool
    ) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        for name, schema in before.items():
            if name not in after:
                yield f"{at}.{name} is gone."
            else:
                yield from self._schemas(schema, after[name], f"{at}.{name}", sent=sent)
        needed, needs = set(old.get("required", ())), set(new.get("required", ()))
        if sent:
            for name in sorted(needs - needed):
                yield f"{at}.{name} is required now."
        else:
            for name in sorted((needed - needs) & after.keys()):
                yield f"{at}.{name} may be missing now."


def _is_any_object(schema: Json) -> bool:
    """Return whether a schema says only that an answer is an object."""
    return schema.get("type") == "object" and not schema.get("properties")


def _resolved(schema: Json, document: Json) -> Json:
    while "$ref" in schema:
        found: Json = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _bounds(old: Json, new: Json, at: str) -> Iterator[str]:
    """Yield the bounds of a sent value that are narrower now."""
    for keys, narrower in ((LOWEST, float.__gt__), (HIGHEST, float.__lt__)):
        for key in keys:
            if key in new and (
                key not in old or narrower(float(new[key]), float(old[key]))
            ):
                yield f"{at}: {key} is {new[key]}, not {old.get(key, 'unlimited')}."


def _choices(old: Json, new: Json, at: str) -> Iterator[str]:
    """Yield the words of an enumeration that may not be sent any more."""
    for word in old.get("enum", ()) if "enum" in new else ():
        if word not in new["enum"]:
            yield f"{at}: {word} is not accepted any more."
    if "enum" in new and "enum" not in old:
        yield f"{at}: only {', '.join(map(str, new['enum']))} are accepted now."
