"""The calendar's view of Gpus, and why one cannot be booked."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet

from reservations.models import Favourite, PoolRule
from reservations.rules.calendar import CalendarGpu
from reservations.rules.closed_time import Barred
from reservations.rules.prices import read_peak
from reservations.store.foreign_use import foreign_alerts
from telemetry.models import Gpu, GpuQuerySet, Node
from telemetry.protocol.sentences import sentence

OUT_FIELDS = (
    "retired",
    "lost",
    "foreign",
    "mig",
    "new",
    "maintenance",
    "node__maintenance",
    "draining",
    "node__draining",
)
_OUT_WORDS: tuple[str, ...] = (
    sentence("it is retired"),
    sentence("its driver does not answer"),
    sentence("another system manages it"),
    sentence("it is split into instances"),
    sentence("it is new and the lab admin has not approved it yet"),
    sentence("it is under maintenance"),
    sentence("its node is under maintenance"),
    sentence("it is draining: no new bookings"),
    sentence("its node is draining: no new bookings"),
)
OUT_SENTENCES: dict[str, str] = {
    "it is retired": sentence("It is retired."),
    "its driver does not answer": sentence("Its driver does not answer."),
    "another system manages it": sentence("Another system manages it."),
    "it is split into instances": sentence("It is split into instances."),
    "it is new and the lab admin has not approved it yet": sentence(
        "It is new and the lab admin has not approved it yet."
    ),
    "it is under maintenance": sentence("It is under maintenance."),
    "its node is under maintenance": sentence("Its node is under maintenance."),
    "it is draining: no new bookings": sentence("It is draining: no new bookings."),
    "its node is draining: no new bookings": sentence(
        "Its node is draining: no new bookings."
    ),
    "it is missing": sentence("It is missing."),
    "kept for other groups": sentence("Kept for other groups."),
}
"""Why a Gpu is out of service, as a whole sentence."""
_SHORT_WORDS: tuple[str, ...] = (
    sentence("retired"),
    sentence("lost"),
    sentence("other system"),
    sentence("split"),
    sentence("new"),
    sentence("maintenance"),
    sentence("maintenance"),
    sentence("draining"),
    sentence("draining"),
)
_MISSING = sentence("it is missing")
DRAINS = _OUT_WORDS[OUT_FIELDS.index("draining")]
"""``CalendarGpu.out`` of a Gpu that drains alone, or with others of its node."""


def short_reason(out: str) -> str:
    """Shorten ``unavailable_reason`` to one or two words. Empty without a reason."""
    if out == _MISSING:
        return sentence("missing")
    return dict(zip(_OUT_WORDS, _SHORT_WORDS, strict=True)).get(out, "")


def unavailable_reason(*, present: bool, out: Iterable[bool]) -> str:
    """Return why a Gpu cannot be booked, from ``OUT_FIELDS``. Empty: it can."""
    if not present:
        return _MISSING
    return next((words for words, on in zip(_OUT_WORDS, out, strict=True) if on), "")


def calendar_gpus(gpus: GpuQuerySet | None = None) -> list[CalendarGpu]:
    """Return Gpus (default: all that are shown) as values of the calendar.

    The rule is the same as in ``Gpu.objects.bookable()``, apart from the Gpus of Slurm:
    with SLURM_BOOK they can be booked here. Only a search in all that are shown finds
    them.
    """
    if gpus is not None:
        return _read(gpus.values_list(*_COLUMNS))
    found = _read(Gpu.objects.shown().values_list(*_COLUMNS))
    if not settings.SLURM_BOOK:
        return found
    there = Counter(gpu.node for gpu in found if gpu.engine and gpu.out != _MISSING)
    return [
        replace(gpu, of_node=there[gpu.node]) if gpu.engine else gpu for gpu in found
    ]


def gpus_seen_by(user_pk: int) -> tuple[list[CalendarGpu], frozenset[int]]:
    """Return all Gpus of the calendar, and those that a foreign process uses now.

    Those of Slurm are left out unless they can be booked (SLURM_BOOK). One query,
    including the User's stars. See ``store.foreign_use``.
    """
    used = Exists(foreign_alerts().filter(gpu_id=OuterRef("pk")))
    own = Favourite.objects.filter(user_id=user_pk)
    alone, by_class = (
        Exists(own.filter(gpu_id=OuterRef("pk"))),
        Exists(own.filter(pool_id=OuterRef("pool_id"))),
    )
    shown = Gpu.objects.shown()
    if not settings.SLURM_BOOK:
        shown = shown.filter(node__engine=Node.Engine.PORTAL)
    rows = list(shown.values_list(*_COLUMNS, used, alone, by_class))
    gpus = [
        replace(gpu, favourite=row[-2] or row[-1])
        for gpu, row in zip(_read(row[:-3] for row in rows), rows, strict=True)
    ]
    return gpus, frozenset(row[0] for row in rows if row[-3])


def gpus_named(pks: Collection[int]) -> list[CalendarGpu]:
    """Return the existing ones of these Gpus, in pk order."""
    return _read(_named(pks=list(pks)))


def _named(*, pks: Collection[int]) -> QuerySet[Gpu, Any]:
    return Gpu.objects.filter(pk__in=pks).order_by("pk").values_list(*_COLUMNS)


_COLUMNS = (
    "pk",
    "node__name",
    "index",
    "pool__gpu_class",
    "memory_total_bytes",
    "pool__weight",
    "name",
    "pool_id",
    "pool__rule__restricted",
    "pool__rule__limited",
    "pool__rule__peak",
    "node__engine",
    "slurm__cpus",
    "slurm__whole_because",
    "present",
    *OUT_FIELDS,
)


def _read(rows: Iterable[Sequence[Any]]) -> list[CalendarGpu]:
    return [
        CalendarGpu(
            pk=pk,
            node=node,
            index=index,
            gpu_class=gpu_class,
            memory_total_bytes=memory_bytes,
            weight=weight,
            bookable=present and not any(out),
            name=name,
            pool_pk=pool,
            out=unavailable_reason(present=present, out=out),
            restricted=bool(restricted),
            limited=bool(limited),
            peak=read_peak(peak or ""),
            engine="" if engine == Node.Engine.PORTAL else engine,
            whole_node=engine != Node.Engine.PORTAL and cpus is None,
            whole_because=because or "",
        )
        for (
            pk,
            node,
            index,
            gpu_class,
            memory_bytes,
            weight,
            name,
            pool,
            restricted,
            limited,
            peak,
            engine,
            cpus,
            because,
            present,
            *out,
        ) in map(_as_bookable_here, rows)
    ]


_ENGINE, _FOREIGN = (
    _COLUMNS.index("node__engine"),
    _COLUMNS.index("foreign"),
)


def _as_bookable_here(row: Sequence[Any]) -> Sequence[Any]:
    """Return the columns of a Gpu. One of Slurm counts as ours if it can be booked."""
    if row[_ENGINE] != Node.Engine.SLURM or not settings.SLURM_BOOK:
        return row
    return [False if at == _FOREIGN else value for at, value in enumerate(row)]


def barred_pools(gpus: Iterable[CalendarGpu], account_pks: Collection[int]) -> Barred:
    """Return the Pools that the Membership may not book, and the groups that may."""
    kept = {gpu.pool_pk for gpu in gpus if gpu.restricted}
    if not kept:
        return {}
    names: dict[int, list[str]] = {pool: [] for pool in kept}
    open_to_them = set()
    rows = PoolRule.accounts.through.objects.filter(poolrule__pool_id__in=kept)
    for pool, account, title, name in rows.order_by("account__name").values_list(
        "poolrule__pool_id", "account_id", "account__title", "account__name"
    ):
        names[pool].append(title or name)
        if account in account_pks:
            open_to_them.add(pool)
    return {pool: tuple(names[pool]) for pool in sorted(kept - open_to_them)}
