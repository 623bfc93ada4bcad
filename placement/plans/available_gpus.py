"""The Gpus as a Plan may use them: free memory, load, health, links, bookings.

Memory that others use or have booked is never counted: "now" reads the live frame;
"later" counts a Gpu as empty where nobody has booked it for the whole Window.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet
from redis import Redis

from placement.jobs.site_clock import clock_near
from placement.models import PlacementPolicy
from placement.planner.values.errors import BadInput, WorkloadInvalid
from placement.planner.values.gpu_availability import GpuOffer, peak_flops_of
from placement.plans.gpu_health import WELL, GpuUsability, health_of
from reservations.engines.queries import cluster_is_silent
from reservations.models import Allocation, Reservation, SitePolicy, User
from reservations.rules.engine_names import UNIX_USER
from reservations.rules.window import Window, grid_ceil, window_from
from reservations.store.announced_closures import shut_to
from reservations.store.co_users import usable_by
from reservations.store.engine_busy import engine_busy
from reservations.store.foreign_use import RULES
from reservations.store.gpu_rows import calendar_gpus
from telemetry.inventory.queries import LiveGpu, read_live
from telemetry.live import broadcast
from telemetry.models import Alert, Gpu, Node
from telemetry.protocol.gpu_cards import GpuCard, card_of
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.sentences import sentence
from telemetry.rules.slurm_cards import card_of_type

MOST_HOURS = 24 * 14
MIB = 2**20
BOOKED = "booked by"
"""How a reason begins where a booking is the reason."""
FRESH_SECONDS = 10.0
"""Frames come once a second; an older one says nothing of now."""
LATER_RATIO = 0.9
"""Part of a node's memory that is free when no job runs."""
FOREIGN_RULES = frozenset(RULES)
SILENT = {GpuState.STALE, GpuState.LOST, GpuState.UNKNOWN}


@dataclass(frozen=True)
class AvailableGpus:
    """The Gpus offered, and how many reservations made them so.

    ``own``: per Gpu UUID, the User's own Reservation that already holds it over
    the Window; such a Gpu needs no booking.
    """

    offers: tuple[GpuOffer, ...]
    own: Mapping[str, int]
    ids: Mapping[str, int]
    start: datetime
    end: datetime
    later: bool
    """Of a time to come: what runs on the Gpus now was not looked at."""


def offered(
    *,
    user: User | None,
    at: datetime | None,
    hours: float,
    now: datetime,
    reservation_id: int | None = None,
    until: datetime | None = None,
) -> AvailableGpus:
    """Return the Gpus as a Plan may use them over a Window that can be booked.

    Args:
        user: whose own reservations count as theirs to use; None: nobody's.
        at: aware; None or past: now, with what runs on the Gpus now. A later time is
            moved to the calendar's grid.
        hours: length of the Window, above 0, at most two weeks.
        reservation_id: only the Gpus of this Reservation of theirs, for the rest of
            its Window; ``at`` and ``hours`` count for nothing then.
        until: the Window is from now to exactly then (the rest of a running
            Reservation); ``at`` and ``hours`` count for nothing then.

    Raises:
        WorkloadInvalid: hours out of range.
        BadInput: no such Reservation, or it is over.
    """
    if not 0 < hours <= MOST_HOURS:
        raise WorkloadInvalid(
            {
                "hours": sentence(
                    "must be above 0 and at most {most_hours}", most_hours=MOST_HOURS
                )
            }
        )
    held = (
        None if reservation_id is None else _own_reservation(user, reservation_id, now)
    )
    window = _window(at, hours, now) if held is None else _rest_of(held, now)
    if until is not None:
        window = Window(now, max(until, now + timedelta(seconds=1)))
    later = window.start > now + timedelta(minutes=1)
    gpus = list(_gpus(held))
    booked = _booked(window)
    slurm = _slurm_reasons(gpus, window, user)
    looked = _GpuFacts(
        slurm=slurm,
        seen={} if later else _live(now),
        rules=Alert.objects.open().rules_by_gpu(),
        groups=link_groups({gpu.node for gpu in gpus}),
        links=_links({gpu.node for gpu in gpus}),
        network=placement_policy().network_bytes_per_second,
        later=later,
    )
    pk = None if user is None else user.pk
    names = bool(user and user.is_operator) or SitePolicy.current().names_visible
    shut = {} if held else shut_to(pk, gpus, window.start, window.end)
    offers, own = [], {}
    for gpu in gpus:
        mine = [a for a in booked[gpu.pk] if a.reservation.user_id == pk]
        if mine and mine[0].start <= window.start and mine[0].end >= window.end:
            own[gpu.uuid] = mine[0].reservation_id
        words = _booked_text(
            booked[gpu.pk], pk, window, names=names, held=gpu.uuid in own
        )
        closed = "" if gpu.uuid in own else shut.get(gpu.pk, "")
        offers.append(_offer(gpu, looked, closed or words))
    ids = {gpu.uuid: gpu.pk for gpu in gpus}
    return AvailableGpus(tuple(offers), own, ids, window.start, window.end, later)


def site_cards(reservation_id: int | None = None) -> list[GpuCard | None]:
    """Return the kinds of cards that can be used, without a look at the calendar.

    Args:
        reservation_id: only those of its Gpus. None: of the site.

    Returns:
        None in it: a card that is not in the table.
    """
    rows = planned_gpus()
    if reservation_id is not None:
        held = Allocation.objects.filter(reservation=reservation_id, live=True)
        rows = rows.filter(pk__in=held.values("gpu"))
    well = rows.filter(
        lost=False, maintenance=False, mig=False, node__maintenance=False
    )
    kinds = list(well.order_by().values_list("name", "node__engine").distinct())
    if not kinds:
        kinds = list(rows.order_by().values_list("name", "node__engine").distinct())
    return [card_of(product_name(name, engine)) for name, engine in kinds]


def planned_gpus() -> QuerySet[Gpu]:
    """Return the Gpus that are there and may have Plans.

    Those of Slurm only if the portal starts jobs there and their card is known.
    """
    engines = Q(node__engine=Node.Engine.PORTAL)
    if settings.SLURM_AGENT:
        engines |= Q(node__engine=Node.Engine.SLURM, memory_total_bytes__gt=0)
    return Gpu.objects.filter(engines, present=True, retired=False)


def product_name(name: str, engine: str) -> str:
    """Return the name of a Gpu's card. That of a Gpu of Slurm is a type."""
    if engine == Node.Engine.PORTAL:
        return name
    card = card_of_type(name, settings.SLURM_CARDS)
    return card.name if card else name


def placement_policy() -> PlacementPolicy:
    """Return the site's rules to read; a site without any has the defaults."""
    return PlacementPolicy.objects.filter(pk=1).first() or PlacementPolicy()


def _window(at: datetime | None, hours: float, now: datetime) -> Window:
    """Return the Window that the calendar would accept for the request."""
    policy = SitePolicy.current()
    start = now if at is None or at <= now else grid_ceil(at, policy.grid_seconds)
    return window_from(
        start,
        duration_seconds=int(hours * 3600),
        grid_seconds=policy.grid_seconds,
        longest_seconds=MOST_HOURS * 3600,
    )


def _own_reservation(
    user: User | None, reservation_id: int, now: datetime
) -> Reservation:
    found = None
    if user is not None:
        rows = Reservation.objects.live().filter(usable_by(user), end__gt=now)
        found = rows.filter(pk=reservation_id).first()
    if found is None:
        raise BadInput({"reservation": sentence("is over, or not one of yours")})
    return found


def _rest_of(held: Reservation, now: datetime) -> Window:
    return Window(max(held.start, now), held.end)


def _gpus(held: Reservation | None) -> Iterable[Gpu]:
    """Return the Gpus to offer: all, or those of a Reservation."""
    rows = planned_gpus()
    if held is not None:
        rows = rows.filter(pk__in=held.allocations.filter(live=True).values("gpu"))
    return rows.select_related("node", "pool__rule").order_by("node__name", "index")


@dataclass(frozen=True)
class _OccupiedGpu:
    """The present occupants of one Gpu."""

    state: GpuState
    used_bytes: int
    util_pct: float | None
    processes: int
    throttle: tuple[str, ...]
    sm_clock_mhz: float | None


@dataclass(frozen=True)
class _GpuFacts:
    """Facts on all Gpus by UUID (rules of open findings: by primary key)."""

    seen: Mapping[str, _OccupiedGpu]
    rules: Mapping[int, set[str]]
    groups: Mapping[str, str]
    links: Mapping[str, tuple[tuple[str, str], ...]]
    network: float
    later: bool
    slurm: Mapping[int, str]
    """Why Slurm does not give out each of its Gpus; "": it does."""

    def health(self, gpu: Gpu) -> GpuUsability:
        """Return the problems of a Gpu that matter in the Window."""
        seen = self.seen.get(gpu.uuid)
        rules = self.rules.get(gpu.pk, ())
        if seen is None:
            return health_of(rules, later=self.later) if rules else WELL
        return health_of(
            rules,
            throttle=seen.throttle,
            sm_clock_mhz=seen.sm_clock_mhz,
            sm_clock_max_mhz=gpu.sm_clock_max_mhz,
        )

    def foreign_use(self, gpu: Gpu) -> str:
        """Return why a Job on a Gpu would wait for another person's process, or ""."""
        if self.later or not FOREIGN_RULES.intersection(self.rules.get(gpu.pk, ())):
            return ""
        return sentence(
            "a process without a booking runs on it, so a job would wait for its end"
        )


def _offer(gpu: Gpu, looked: _GpuFacts, booked: str) -> GpuOffer:
    """Return one Gpu; ``booked``: its holder, or ""."""
    of_slurm = gpu.pk in looked.slurm
    # Slurm reports no load.
    seen = None if of_slurm else looked.seen.get(gpu.uuid)
    health = looked.health(gpu)
    name = product_name(gpu.name, gpu.node.engine)
    reason = (
        _closed_reason(gpu, seen, later=looked.later or of_slurm)
        or looked.slurm.get(gpu.pk)
        or health.unusable
        or booked
        or looked.foreign_use(gpu)
    )
    total = gpu.memory_total_bytes
    used = 0 if seen is None else seen.used_bytes
    return GpuOffer(
        uuid=gpu.uuid,
        node=gpu.node.name,
        index=gpu.index,
        name=name,
        gpu_class=gpu.pool.gpu_class,
        memory_total_bytes=total,
        used_bytes=min(used, total),
        free_bytes=0 if reason else max(0, total - used),
        util_pct=None if seen is None else seen.util_pct,
        compute_processes=0 if seen is None else seen.processes,
        bookable=not reason,
        reason=reason,
        peak_flops=gpu.pool.peak_flops or peak_flops_of(name),
        link_group=looked.groups.get(gpu.uuid, ""),
        links=looked.links.get(gpu.uuid, ()),
        health=health.troubles,
        speed_ratio=health.speed_ratio,
        weight=gpu.pool.weight,
        # Slurm's nodes run no job over several of them.
        network_bytes_per_second=0.0 if of_slurm else looked.network,
        host_free_bytes=_host_bytes(gpu.node, later=looked.later),
        disk_free_bytes=gpu.node.disk_free_bytes,
    )


def _slurm_reasons(
    gpus: Iterable[Gpu], window: Window, user: User | None
) -> dict[int, str]:
    """Return why Slurm does not give out its Gpus in a Window; "": it does.

    Its Reservations of the portal are no reason, because the calendar has them.
    """
    pks = [gpu.pk for gpu in gpus if gpu.node.engine == Node.Engine.SLURM]
    if not pks:
        return {}
    if user is not None and not UNIX_USER.fullmatch(user.unix_user):
        no_user = sentence("it belongs to Slurm, and you have no Unix user there")
        return dict.fromkeys(pks, no_user)
    if cluster_is_silent():
        return dict.fromkeys(pks, sentence("Slurm does not answer"))
    found = calendar_gpus(Gpu.objects.filter(pk__in=pks).order_by("pk"))
    busy = {span.gpu_pk for span in engine_busy(found, {}, window.start, window.end)}
    taken = sentence("Slurm does not give it out in this time")
    return {pk: taken if pk in busy else "" for pk in pks}


def _host_bytes(node: Node, *, later: bool) -> int | None:
    """Return the memory of a node that offloading may use; None: unknown.

    For now this is the free memory. For later it is all memory except that of the
    system, because other jobs are over then.
    """
    if not later:
        return node.ram_free_bytes
    total = node.ram_total_bytes
    return None if total is None else int(total * LATER_RATIO)


def _live(now: datetime) -> dict[str, _OccupiedGpu]:
    """Return ingest's last readings by UUID; {} without recent readings."""
    with Redis.from_url(settings.REDIS_URL) as client:
        at, rows = read_live(client)
        if at is None or now.timestamp() - at > FRESH_SECONDS:
            return {}
        nodes = sorted({row.tag["node"] for row in rows})
        details = (
            client.mget([broadcast.DETAIL + node for node in nodes]) if nodes else []
        )
    told: dict[str, Mapping[str, Any]] = {}
    for text in details:  # type: ignore[union-attr]
        told |= json.loads(text)["gpus"] if text else {}
    return {
        row.tag["uuid"]: _occupied_gpu(row, told.get(row.tag["uuid"], {}))
        for row in rows
    }


def _occupied_gpu(row: LiveGpu, told: Mapping[str, Any]) -> _OccupiedGpu:
    mib = row.row.memory_used_mib
    reserved = told.get("memory_reserved_bytes") or 0
    return _OccupiedGpu(
        state=GpuState(row.row.state),
        used_bytes=(
            # Without a figure all of it counts as used; without a total none is.
            (row.tag["memory_total_bytes"] or 0)
            if mib is None
            else mib * MIB + reserved
        ),
        util_pct=row.row.util_pct,
        processes=len(told.get("processes") or ()),
        throttle=tuple(told.get("throttle") or ()),
        sm_clock_mhz=row.row.sm_clock_mhz,
    )


def _booked(window: Window) -> dict[int, list[Allocation]]:
    """Return the live Allocations that meet a Window, by Gpu."""
    found: dict[int, list[Allocation]] = defaultdict(list)
    rows = Allocation.objects.filter(
        live=True, start__lt=window.end, end__gt=window.start
    ).select_related("reservation__user", "reservation__membership__account")
    for row in rows.order_by("start"):
        found[row.gpu_id].append(row)
    return found


def _closed_reason(gpu: Gpu, seen: _OccupiedGpu | None, *, later: bool) -> str:
    """Return why nobody may use a Gpu, or ""."""
    if gpu.lost:
        return sentence("the driver lost it")
    if gpu.maintenance or gpu.node.maintenance:
        return sentence("under maintenance")
    if gpu.mig:
        return sentence("split into instances: those are booked, not the whole")
    if not later and (seen is None or seen.state in SILENT):
        return sentence("no fresh reading: what is used on it is not known")
    return ""


def _booked_text(
    rows: Sequence[Allocation],
    user_pk: int | None,
    window: Window,
    *,
    names: bool,
    held: bool,
) -> str:
    """Return the holder of a Gpu and the end of the Reservation, or ""."""
    others = [row for row in rows if row.reservation.user_id != user_pk]
    first = others[0] if others else (None if held or not rows else rows[0])
    if first is None:
        return ""
    until = clock_near(first.end, window.start)
    start = None
    if first.start > window.start:
        start = clock_near(first.start, window.start)
    told: dict[str, object] = {
        "until": until,
        "start": start,
        "number": first.reservation_id,
    }
    if not others and start is None:
        return sentence(
            "only partly in your reservation {number}, until {until}", **told
        )
    if not others:
        return sentence(
            "only partly in your reservation {number}, from {start} to {until}", **told
        )
    booked = first.reservation
    told["who"] = booked.user if names else booked.membership.account
    if start is None:
        return sentence("booked by {who} until {until}", **told)
    return sentence("booked by {who} from {start} to {until}", **told)


def link_groups(nodes: set[Node]) -> dict[str, str]:
    """Name the sets of Gpus that fast links join: {uuid: group}."""
    leader: dict[str, str] = {}

    def find(uuid: str) -> str:
        while leader.setdefault(uuid, uuid) != uuid:
            uuid = leader[uuid]
        return uuid

    for node in nodes:
        for a, b in node.fast_links:
            leader[find(b)] = find(a)
    return {uuid: find(uuid) for uuid in leader}


def _links(nodes: set[Node]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return how far every Gpu is from others of its node: {uuid: (uuid, word)}."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for node in nodes:
        for a, b, word in node.links:
            found[a].append((b, word))
            found[b].append((a, word))
    return {uuid: tuple(sorted(pairs)) for uuid, pairs in found.items()}
