"""Pools and the service of Gpus: prices, access, quotas, bulk acts, draining.

A new weight or peak rate applies to later bookings. An Allocation keeps the rate at
which it was booked. Every act writes old and new values into the audit log.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q

from reservations.models import (
    Account,
    AuditEntry,
    Membership,
    PoolQuota,
    PoolRule,
    User,
)
from reservations.operations import evacuation
from reservations.operations.bulk_acts import ACTS, BulkAct
from reservations.operations.evacuation_plan import (
    BookingFate,
    EvacuationOutcome,
    vacate,
)
from reservations.operations.peak_hours import (
    PeakTextInvalid,
    peak_text,
    read_hours,
    read_peak_text,
)
from reservations.rules.errors import NotFound
from reservations.rules.prices import MOST_FACTOR, PeakHours, read_peak
from reservations.rules.review import FieldsInvalid, PreviewStale, mark_of
from reservations.rules.window import whole_second
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import site_policy
from telemetry.inventory.operator_actions import (
    make_pool,
    set_gpus,
    set_node_draining,
    set_node_gate,
    set_weight,
)
from telemetry.models import Gpu, Node, Pool
from telemetry.protocol.sentences import sentence

MOST_WEIGHT = 10_000
MOST_HOURS = 10**9
CHANGED, UNDONE = "pool.changed", "pool.undone"
CHANGED_SINCE = sentence(
    "Another person has changed the pool in the meantime. Preview your change again."
)


@dataclass(frozen=True, slots=True)
class PoolEdit:
    """The values of a Pool that an operator wants."""

    weight: int
    account_ids: tuple[int, ...] = ()
    """The Accounts that may book. None: everybody may."""
    peak_factor: int = 1
    """How many times each second of the peak hours counts. 1: there are none."""
    peak_hours: str = ""
    """On the site's clock, in the form that ``operations.peak_hours`` reads."""


def add_pool(
    *, name: str, weight: int, actor: User, now: datetime, reason: str
) -> Pool:
    """Create a Pool for Gpus that are to be booked separately.

    Raises:
        FieldsInvalid: by field.
    """
    name = " ".join(name.split())
    _check_weight(weight)
    if not name or len(name) > 80 or not name.isprintable():
        raise FieldsInvalid(
            {"name": sentence("A name of 1 to 80 printable characters.")}
        )
    if Pool.objects.filter(gpu_class__iexact=name).exists():
        raise FieldsInvalid({"name": sentence("A pool of this name exists.")})
    try:
        with transaction.atomic(durable=True):
            made = make_pool(gpu_class=name, weight=weight)
            audit_act(
                verb="pool.made",
                subject=f"pool:{made.pk}",
                actor=actor,
                now=now,
                reason=reason,
                after={"name": name, "weight": weight},
            )
    except IntegrityError as error:
        raise FieldsInvalid(
            {"name": sentence("A pool of this name exists.")}
        ) from error
    return made


@dataclass(frozen=True, slots=True)
class PoolPreview:
    """The present and the future values of a Pool."""

    before: Mapping[str, object]
    after: Mapping[str, object]

    @property
    def mark(self) -> str:
        """Return a mark of exactly this change."""
        return mark_of([self.before, self.after])


def preview_pool(*, pool_id: int, edit: PoolEdit) -> PoolPreview:
    """Return the effects of an edit now.

    Raises:
        FieldsInvalid: by field.
        NotFound.
    """
    _check_weight(edit.weight)
    peak = _peak(edit)
    pool = _pool(pool_id)
    known = Account.objects.filter(pk__in=edit.account_ids).values_list("pk", flat=True)
    if set(edit.account_ids) - set(known):
        raise FieldsInvalid({"accounts": sentence("There is no such group.")})
    return PoolPreview(
        before=state_of(pool),
        after={
            "weight": edit.weight,
            "accounts": sorted(known),
            "peak": peak_text(peak),
        },
    )


def state_of(pool: Pool) -> dict[str, object]:
    """Return the editable values of a Pool, as the audit log stores them."""
    rule = PoolRule.objects.filter(pool=pool).first()
    return {
        "weight": pool.weight,
        "accounts": sorted(rule.accounts.values_list("pk", flat=True)) if rule else [],
        "peak": peak_text(read_peak(rule.peak) if rule else None),
    }


def change_pool(
    *,
    pool_id: int,
    edit: PoolEdit,
    actor: User,
    now: datetime,
    reason: str,
    mark: str | None = None,
    verb: str = CHANGED,
    **detail: object,
) -> bool:
    """Set the price and the access. False: nothing changed.

    Args:
        mark: of the preview that was shown. None: none was shown.

    Raises:
        FieldsInvalid: by field.
        PreviewStale: the Pool was changed since it was shown. Nothing is written.
        NotFound.
    """
    with transaction.atomic(durable=True):
        pool = _pool(pool_id)
        rule, _ = PoolRule.objects.select_for_update().get_or_create(pool=pool)
        found = preview_pool(pool_id=pool_id, edit=edit)
        if mark is not None and found.mark != mark:
            raise PreviewStale(CHANGED_SINCE)
        if found.before == found.after:
            return False
        peak = _peak(edit)
        set_weight(pool_id=pool_id, weight=edit.weight)
        rule.accounts.set(edit.account_ids)
        rule.restricted = bool(edit.account_ids)
        rule.peak = peak.to_text() if peak else ""
        rule.save(update_fields=["restricted", "peak"])
        audit_act(
            verb=verb,
            subject=f"pool:{pool_id}",
            actor=actor,
            now=now,
            reason=reason,
            before=found.before,
            after=found.after,
            **detail,
        )
    return True


def undo_pool(
    *, pool_id: int, entry_id: int, actor: User, now: datetime, reason: str
) -> None:
    """Restore the price and the accounts that a Pool had before a change.

    Raises:
        PreviewStale: the Pool was changed again since.
        FieldsInvalid: an account from then no longer exists.
        NotFound: there is no such change of this Pool.
    """
    entry = AuditEntry.objects.filter(
        pk=entry_id, subject=f"pool:{pool_id}", verb__in=[CHANGED, UNDONE]
    ).first()
    if entry is None:
        raise NotFound(what=sentence("change of this pool under that number"))
    before = entry.detail["before"]
    factor, hours = read_peak_text(before["peak"])
    edit = PoolEdit(before["weight"], tuple(before["accounts"]), factor, hours)
    if not can_be_undone(entry, state_of(_pool(pool_id))):
        raise PreviewStale(CHANGED_SINCE)
    change_pool(
        pool_id=pool_id,
        edit=edit,
        actor=actor,
        now=now,
        reason=reason,
        mark=mark_of([entry.detail["after"], before]),
        verb=UNDONE,
        undoes=entry.pk,
    )


def can_be_undone(entry: AuditEntry, state: Mapping[str, object]) -> bool:
    """Return whether a Pool still has the values of an entry of the audit log."""
    return entry.verb in (CHANGED, UNDONE) and entry.detail.get("after") == state


def set_pool_quota(
    *,
    pool_id: int,
    membership_id: int | None = None,
    account_id: int | None = None,
    quota_gpu_seconds: int | None,
    actor: User,
    now: datetime,
    reason: str,
) -> bool:
    """Set the quota of a Membership or an Account on a Pool. None: no limit.

    A quota below the held time ends no booking, but nothing more can be booked
    (docs/design/fair-booking.md#i3).

    Raises:
        FieldsInvalid: by field.
        NotFound.
    """
    if (membership_id is None) == (account_id is None):
        raise FieldsInvalid({"whose": sentence("Choose a group or one member.")})
    if (
        quota_gpu_seconds is not None
        and not 0 <= quota_gpu_seconds <= MOST_HOURS * 3600
    ):
        raise FieldsInvalid(
            {"quota": sentence("Between 0 and {most} credits.", most=MOST_HOURS)}
        )
    with transaction.atomic(durable=True):
        pool = _pool(pool_id)
        if membership_id is not None:
            known = Membership.objects.filter(pk=membership_id).exists()
        else:
            known = Account.objects.filter(pk=account_id or 0).exists()
        if not known:
            raise FieldsInvalid(
                {"whose": sentence("There is no such group or member.")}
            )
        rule, _ = PoolRule.objects.select_for_update().get_or_create(pool=pool)
        whose = (
            Q(account_id=account_id or 0)
            if membership_id is None
            else Q(membership_id=membership_id)
        )
        own = PoolQuota.objects.filter(whose, pool=pool)
        before = own.values_list("quota_gpu_seconds", flat=True).first()
        if before == quota_gpu_seconds:
            return False
        own.delete()
        if quota_gpu_seconds is not None:
            PoolQuota.objects.create(
                pool=pool,
                membership_id=membership_id,
                account_id=account_id,
                quota_gpu_seconds=quota_gpu_seconds,
            )
        rule.limited = PoolQuota.objects.filter(pool=pool).exists()
        rule.save(update_fields=["limited"])
        audit_act(
            verb="pool.quota",
            subject=f"pool:{pool_id}",
            actor=actor,
            now=now,
            reason=reason,
            membership=membership_id,
            account=account_id,
            before=before,
            after=quota_gpu_seconds,
        )
    return True


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a bulk act."""

    changed: int
    """Gpus that it changed."""
    moved: int = 0
    stay: int = 0


def act_on_gpus(
    *,
    act: str,
    gpu_ids: Collection[int],
    actor: User,
    now: datetime,
    reason: str,
    pool_id: int | None = None,
    move_booked: bool = False,
    mark: str | None = None,
) -> Done:
    """Carry out one act on many Gpus, all or none. See ``operations.bulk_acts.ACTS``.

    Args:
        move_booked: (drain) move bookings to equal Gpus where possible.
        mark: of the preview that was looked at; None: nobody looked.

    Raises:
        FieldsInvalid: by field.
        PreviewStale: the Gpus or their bookings changed since. Nothing is written.
    """
    at = whole_second(now)
    fields = _fields(act, gpu_ids, pool_id)
    policy = site_policy()
    moving = act == BulkAct.DRAIN and move_booked
    with transaction.atomic(durable=True):
        # First, because it locks every Gpu of the Pools, in pk order.
        seen = preview_act(
            act=act, gpu_ids=gpu_ids, pool_id=pool_id, now=at, lock=moving
        )
        if mark is not None and seen.mark != mark:
            raise PreviewStale
        changed = set_gpus(gpu_ids=gpu_ids, fields=fields)
        for pk, values in changed.items():
            audit_act(
                verb=f"gpu.{act}",
                subject=f"gpu:{pk}",
                actor=actor,
                now=at,
                reason=reason,
                changed={k: list(v) for k, v in values.items()},
                # Everybody can read why a GPU drains. The form says so.
                **({"shown": True} if act == BulkAct.DRAIN else {}),
            )
        if not moving:
            return Done(len(changed))
        why = evacuation.EvacuationReason(
            reason=reason, detail={}, actor=actor, now=at, policy=policy
        )
        for relief in seen.reliefs:
            evacuation.carry_out(relief, seen.found, why)
    moved = sum(one.fate is BookingFate.MOVED for one in seen.reliefs)
    return Done(len(changed), moved, len(seen.reliefs) - moved)


@dataclass(frozen=True, slots=True)
class ActPreview:
    """The effect of a bulk act, and the bookings on its Gpus."""

    mark: str
    found: evacuation.EvacuatedGpus
    reliefs: list[EvacuationOutcome]
    """The effect of a drain on each booking that it moves. Other acts move none."""


def preview_act(
    *,
    act: str,
    gpu_ids: Collection[int],
    pool_id: int | None,
    now: datetime,
    lock: bool = False,
) -> ActPreview:
    """Return what an act on many Gpus would do now.

    Args:
        lock: whether it is about to be done.

    Raises:
        FieldsInvalid: by field.
    """
    fields = _fields(act, gpu_ids, pool_id)
    shut = set(gpu_ids)
    found = evacuation.read(shut, whole_second(now), None, lock=lock)
    reliefs = list(vacate(found.booked, shut, found.room))
    states = Gpu.objects.filter(pk__in=shut).order_by("pk").values_list("pk", *fields)
    moves = [[one.pk, one.fate, one.moves] for one in reliefs]
    weight = _pool(pool_id).weight if pool_id is not None else None
    facts = [act, list(states), pool_id, weight, moves if act == BulkAct.DRAIN else []]
    return ActPreview(mark_of(facts), found, reliefs)


def drain_node(
    *, node_id: int, draining: bool, actor: User, now: datetime, reason: str
) -> bool:
    """Drain a Node's Gpus, or end the drain. False: nothing changed.

    Raises:
        NotFound.
    """
    with transaction.atomic(durable=True):
        if not Node.objects.filter(pk=node_id).exists():
            raise NotFound(what=sentence("node under this number"))
        changed = set_node_draining(node_id=node_id, draining=draining)
        if changed:
            audit_act(
                verb="node.drain" if draining else "node.drain-ended",
                subject=f"node:{node_id}",
                actor=actor,
                now=now,
                reason=reason,
            )
    return changed


def set_gate(*, node_id: int, mode: str, actor: User, now: datetime) -> bool:
    """Set the mode of a Node's device gate. Return False if it was so.

    Raises:
        NotFound: no node in service has this number.
    """
    with transaction.atomic(durable=True):
        if not Node.objects.in_service().filter(pk=node_id).exists():
            raise NotFound(what=sentence("node under this number"))
        before = set_node_gate(node_id=node_id, mode=mode)
        if before == mode:
            return False
        audit_act(
            verb=f"node.gate-{mode}",
            subject=f"node:{node_id}",
            actor=actor,
            now=now,
            before=before,
        )
    return True


def _fields(
    act: str, gpu_ids: Collection[int], pool_id: int | None
) -> Mapping[str, object]:
    """Return the values that an act sets.

    Raises:
        FieldsInvalid: by field.
    """
    if act not in ACTS:
        raise FieldsInvalid({"act": sentence("Choose an action from the list.")})
    if not gpu_ids:
        raise FieldsInvalid({"gpus": sentence("Choose at least one GPU.")})
    known = Gpu.objects.filter(pk__in=gpu_ids, retired=False)
    if known.count() != len(set(gpu_ids)):
        raise FieldsInvalid({"gpus": sentence("One of these GPUs is not in service.")})
    if act != BulkAct.POOL:
        return ACTS[BulkAct(act)].fields
    if pool_id is None or not Pool.objects.filter(pk=pool_id).exists():
        raise FieldsInvalid({"pool": sentence("Choose a pool.")})
    return {"pool_id": pool_id}


def _check_weight(weight: int) -> None:
    if not 1 <= weight <= MOST_WEIGHT:
        raise FieldsInvalid(
            {
                "weight": sentence(
                    "A whole number between 1 and {most}.",
                    most=MOST_WEIGHT,
                )
            }
        )


def _peak(edit: PoolEdit) -> PeakHours | None:
    """Return the requested peak hours.

    Raises:
        FieldsInvalid: by field.
    """
    if not 1 <= edit.peak_factor <= MOST_FACTOR:
        raise FieldsInvalid(
            {
                "peak_factor": sentence(
                    "A whole number between 1 and {most}.",
                    most=MOST_FACTOR,
                )
            }
        )
    try:
        mask = read_hours(edit.peak_hours)
    except PeakTextInvalid as invalid:
        raise FieldsInvalid({"peak_hours": str(invalid)}) from invalid
    if edit.peak_factor == 1 and mask:
        raise FieldsInvalid(
            {
                "peak_factor": sentence(
                    "With 1, these hours cost the same as others. Choose 2 or more."
                )
            }
        )
    if edit.peak_factor == 1:
        return None
    if not mask:
        raise FieldsInvalid(
            {"peak_hours": sentence("Enter the hours, as in “Mon-Fri 9-18”.")}
        )
    return PeakHours(edit.peak_factor, mask, settings.TIME_ZONE)


def _pool(pk: int) -> Pool:
    pool = Pool.objects.filter(pk=pk).first()
    if pool is None:
        raise NotFound(what=sentence("pool under this number"))
    return pool
