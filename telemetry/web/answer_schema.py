"""The schema of an answer, from the return annotation of its operation.

The annotation is a TypedDict that the encoder returns. So mypy compares the schema with
the code, and nothing is checked while a request is answered. The tests compare every
answer that they get with it.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from textwrap import dedent
from types import UnionType
from typing import (
    Any,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from ninja import Status

from telemetry.web.answer_types import EncodedAnswer, MediaType

_REFERENCE = "#/components/schemas/{name}"


@cache
def answer_schemas(operation: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema by media type of an operation's answer, and the named schemas.

    The first is empty if the answer has no content.

    Raises:
        TypeError: an alternative of the answer has no fields.
    """
    found: dict[str, Any] = {}
    forms: list[dict[str, Any]] = []
    named: dict[str, Any] = {}
    for form in _alternatives(get_type_hints(operation, include_extras=True)["return"]):
        media = getattr(form, "__metadata__", ())
        if media and isinstance(media[0], MediaType):
            found[media[0].name] = {"schema": {"type": "string", "format": "binary"}}
        elif is_typeddict(form):
            schema, parts = _schema_of(form)
            forms.append(schema)
            named |= parts
        elif form is not type(None):
            raise TypeError(f"{operation.__qualname__}: {form} has no fields")
    if forms:
        either = {"type": "object", "anyOf": forms}
        schema = forms[0] if len(forms) == 1 else either
        found["application/json"] = {"schema": schema}
    return found, named


def _alternatives(answer: Any) -> Iterator[Any]:
    origin = get_origin(answer)
    if origin in (Status, EncodedAnswer):
        yield from _alternatives(get_args(answer)[0])
    elif origin in (Union, UnionType):
        for form in get_args(answer):
            yield from _alternatives(form)
    else:
        yield answer


def _schema_of(form: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    (schema,), named = msgspec.json.schema_components([form], ref_template=_REFERENCE)
    for kind in _kinds(msgspec.inspect.type_info(form)):
        fields = named[kind.__name__]["properties"]
        for name, text in _field_texts(kind).items():
            if name in fields:
                fields[name] = {**fields[name], "description": text}
    return schema, named


def _kinds(info: Any) -> set[Any]:
    """Return the classes with fields in a type, and in the types of their fields."""
    found: set[Any] = set()
    queue = [info]
    while queue:
        one = queue.pop()
        if hasattr(one, "fields"):
            if one.cls in found:
                continue
            found.add(one.cls)
            queue += [field.type for field in one.fields]
        for name in ("type", "item_type", "value_type"):
            if isinstance(inner := getattr(one, name, None), msgspec.inspect.Type):
                queue.append(inner)
        queue += [*getattr(one, "types", ()), *getattr(one, "item_types", ())]
    return found


@cache
def _field_texts(kind: Any) -> dict[str, str]:
    """Return the docstrings below the fields of a class and of its bases."""
    try:
        node = ast.parse(dedent(inspect.getsource(kind))).body[0]
    except OSError:  # made by a call
        return {}
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    # At run time a TypedDict has no bases.
    names = vars(sys.modules[kind.__module__])
    for base in node.bases:
        one = names.get(base.id) if isinstance(base, ast.Name) else None
        if is_typeddict(one) or is_dataclass(one):
            found |= _field_texts(one)
    field = ""
    for line in node.body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=field)):
                pass
            case ast.Expr(value=ast.Constant(value=str(text))) if field:
                found[field] = " ".join(inspect.cleandoc(text).split())
                field = ""
            case _:
                field = ""
    return found
