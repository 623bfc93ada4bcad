"""Queries that Django writes once and the database answers many times.

Building the SQL of a queryset takes Django five to ten times as long as SQLite takes to
answer it, and a booking asks fifteen. ``compiled`` marks a function that returns such
a queryset. It is called once for each shape of its arguments (which are None, how many
are in a list), with stand-ins for the values; later calls send the SQL it led to, with
the values in the stand-ins' places, and rows come back as ``values_list`` gives them.

    @compiled
    def _rows(*, gpus: Collection[int], end: datetime) -> QuerySet:
        rows = Allocation.objects.filter(gpu_id__in=gpus, start__lt=end)
        return rows.values_list("pk")

    _rows(gpus=[1, 2], end=now)     # [(17,), (20,)]

An argument goes to the query as it is: what is computed from one (``end - WEEK``) is
computed by the caller. The function is asked twice, with different stand-ins, and what
does not lead to the same SQL with each stand-in in its place is an error at once, so
that no value can become part of the kept SQL. Numbers, texts and instants may vary;
None, True and False are part of the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import Model, QuerySet

Row = tuple[Any, ...]
MOST_IN_A_LIST = 40
"""Longer lists are written anew each time: each length has an SQL of its own."""
MOST_KEPT = 500
"""Shapes of one query that are kept."""
_STAND_INS = ((20_011, 2031), (25_013, 2047))
"""First number (small enough for every column) and year, for two tries."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The SQL for one shape of arguments."""

    sql: str
    params: tuple[object, ...]
    """Constants of the query; where a value goes, its stand-in."""
    slots: tuple[tuple[int, int, Callable[[Any], object] | None], ...]
    """Place among the params, place among the values, and the type it is sent as."""
    converters: dict[int, Any]
    convert: Callable[[Any, dict[int, Any]], Any]


def compiled(build: Callable[..., QuerySet[Any, Any]]) -> Callable[..., list[Row]]:
    """Return a function that answers with the rows of what ``build`` returns."""
    kept: dict[object, _Kept | None] = {}

    @wraps(build)
    def ask(**values: object) -> list[Row]:
        shape = tuple([(name, _shape(value)) for name, value in values.items()])
        key = (connection.vendor, shape)
        try:
            found = kept[key]
        except KeyError:
            if any(kind == "long" for _name, kind in shape) or len(kept) > MOST_KEPT:
                return list(build(**values))
            found = kept[key] = _compile(build, values)
        return _run(found, values) if found is not None else []

    return ask


def whole(model: type[Model], prefix: str = "") -> list[str]:
    """Return the names of all columns of a model, for ``values_list``."""
    lead = f"{prefix}__" if prefix else ""
    return [f"{lead}{field.attname}" for field in model._meta.concrete_fields]


def instances(row: Row, *models: type[Model]) -> list[Any]:
    """Return a row of ``whole`` of these models, one after another, as instances.

    None for one without a primary key: a left join that found nothing.
    """
    found: list[Any] = []
    at = 0
    for model in models:
        names = [field.attname for field in model._meta.concrete_fields]
        values = row[at : at + len(names)]
        at += len(names)
        there = values[names.index(str(model._meta.pk.attname))] is not None
        made = model.from_db(DEFAULT_DB_ALIAS, names, values) if there else None
        found.append(made)
    return found


def _shape(value: object) -> object:
    """Return what of a value the SQL depends on."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        return "at"
    if isinstance(value, int):
        return "int"
    if isinstance(value, str):
        return "str"
    if isinstance(value, Sequence | AbstractSet):
        size = len(value)
        if size > MOST_IN_A_LIST or not all(type(one) is int for one in value):
            return "long"
        return size
    return "long"


def _flat(values: dict[str, Any]) -> list[Any]:
    """Return the values that go into params, lists opened."""
    flat: list[Any] = []
    for value in values.values():
        if value is None or isinstance(value, bool):
            continue
        if isinstance(value, int | str | datetime):
            flat.append(value)
        else:
            flat.extend(value)
    return flat


def _compile(
    build: Callable[..., QuerySet[Any, Any]], values: dict[str, Any]
) -> _Kept | None:
    """Return the SQL for values of this shape; None: it can have no rows.

    Raises:
        TypeError: the SQL depends on the values.
    """
    tries: list[tuple[str, Any, list[object], Any] | None] = []
    for number, year in _STAND_INS:
        stands = _stand_ins(values, number, year)
        queryset = build(**stands)
        compiler = queryset.query.get_compiler(connection=connections[DEFAULT_DB_ALIAS])
        try:
            sql, params = compiler.as_sql()
        except EmptyResultSet:
            tries.append(None)
            continue
        tries.append((sql, params, [_adapted(one) for one in _flat(stands)], compiler))
    first, second = tries
    if first is None or second is None:
        if first is second:
            return None
        raise TypeError(f"whether {build.__name__} has rows depends on its values")
    if first[0] != second[0] or len(first[1]) != len(second[1]):
        raise TypeError(f"the SQL of {build.__name__} depends on its values")
    pairs = list(zip(first[2], second[2], strict=True))
    slots = []
    for place, (one, two) in enumerate(zip(first[1], second[1], strict=True)):
        if (one, two) in pairs:
            as_type = type(one) if type(one) not in (int, str, datetime) else None
            slots.append((place, pairs.index((one, two)), as_type))
        elif one != two:
            raise TypeError(f"{build.__name__} computes {one!r} from an argument")
    compiler = first[3]
    columns = [column[0] for column in compiler.select[: compiler.col_count]]
    return _Kept(
        sql=first[0],
        params=tuple(first[1]),
        slots=tuple(slots),
        converters=compiler.get_converters(columns),
        convert=compiler.apply_converters,
    )


def _stand_ins(values: dict[str, Any], number: int, year: int) -> dict[str, Any]:
    """Return values of the same shape, each different from all others."""
    at = datetime(year, 1, 1, tzinfo=UTC)
    count = 0

    def stand_in(value: object) -> object:
        nonlocal count
        count += 1
        if isinstance(value, datetime):
            return at + timedelta(days=count)
        return number + count if isinstance(value, int) else f"~{number + count}~"

    found: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or isinstance(value, bool):
            found[name] = value
        elif isinstance(value, int | str | datetime):
            found[name] = stand_in(value)
        else:
            found[name] = [stand_in(one) for one in value]
    return found


def _adapted(value: Any) -> object:
    """Return a value as this database's driver takes it."""
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value


def _run(kept: _Kept, values: dict[str, Any]) -> list[Row]:
    flat = [_adapted(value) for value in _flat(values)]
    params: list[Any] = list(kept.params)
    for place, number, as_type in kept.slots:
        value = flat[number]
        params[place] = value if as_type is None else as_type(value)
    with connection.cursor() as cursor:
        cursor.execute(kept.sql, params)
        rows = cursor.fetchall()
    if kept.converters:
        return [tuple(row) for row in kept.convert(rows, kept.converters)]
    return [tuple(row) for row in rows]
