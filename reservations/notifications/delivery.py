"""Deliver Notices by mail and webhook: queued with the Notice, sent by a task.

``channels.queue`` writes a Delivery per channel in the transaction of the Notice, so
that none is lost. `due` claims due deliveries by compare-and-set, for `LEASE_SECONDS`.
The claim of a worker that dies expires. Deliveries to one person by one channel at the
same moment form one message (a *batch*). After quiet hours this is the digest. A batch
keeps its number over all attempts, and a mail its Message-ID. A worker that dies after
the server has accepted a batch, and before it has recorded that, sends it again under
the same number, which receivers can recognise. Nothing else is sent twice.
"""

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from reservations.models import (
    Delivery,
    GroupChat,
    Membership,
    Notice,
    NoticeSettings,
    User,
)
from reservations.notifications import message_rendering
from reservations.notifications.channels import (
    GROUP,
    WEBHOOK,
    after_quiet,
    chat_of,
    muted,
    open_channels,
    settings_of,
    wanted_channels,
)
from reservations.notifications.delivery_rules import MOST_TRIES, is_stale, next_try
from reservations.notifications.service import notify

log = logging.getLogger(__name__)
LEASE_SECONDS = 120
RUN_SECONDS = 20.0
"""A run takes no new batch after this, because it shares a worker with the ticks."""
MOST_ROWS = 500
MOST_IN_BATCH = 50
WEBHOOK_MOST_FAILURES = 10
"""Failed attempts in a row after which the webhook is off until its User acts."""
KEPT_FOR = timedelta(days=30)
"""For deliveries that have ended. The Notice itself stays."""
MOST_FORGOTTEN = 5000
"""In one run."""
State = Delivery.State
ENDED = (State.SENT, State.FAILED, State.DROPPED)


@dataclass(frozen=True, slots=True)
class Batch:
    """The deliveries to one User by one channel in one message."""

    user: User
    channel: str
    number: str
    rows: tuple[Delivery, ...]


def due(*, now: datetime, run_seconds: float = RUN_SECONDS) -> dict[str, int]:
    """Send due deliveries. Count the Notices sent, delayed, failed, dropped."""
    done = {"sent": 0, "retried": 0, "failed": 0, "dropped": 0}
    _give_back(now)
    begun = time.monotonic()
    for user_pk, channel, batch in list(_waiting(now)):
        if time.monotonic() - begun > run_seconds:
            break
        claimed = _claim(user_pk, channel, batch, now)
        if claimed is not None:
            word, number = _send(claimed, now)
            done[word] += number
    return done


def forget_old(now: datetime) -> int:
    """Delete Deliveries that ended long ago. Return how many.

    An ended row keeps the time of its last attempt in ``next_at``, which has the index.
    """
    old = Delivery.objects.filter(
        state__in=ENDED, next_at__lt=now - KEPT_FOR, done_at__lt=now - KEPT_FOR
    )
    pks = list(old.order_by("next_at").values_list("pk", flat=True)[:MOST_FORGOTTEN])
    return Delivery.objects.filter(pk__in=pks).delete()[0]


def _give_back(now: datetime) -> None:
    """Release the claims of workers that died. A claim counts as an attempt."""
    left = Delivery.objects.filter(state=State.SENDING, next_at__lte=now)
    why = "the worker that sent it ended"
    if not left.exists():
        return
    left.filter(tries__gte=MOST_TRIES).update(
        state=State.FAILED, error=why, done_at=now
    )
    left.update(state=State.PENDING, error=why)


def _waiting(now: datetime) -> Iterator[tuple[int, str, str]]:
    rows = (
        Delivery.objects.filter(state=State.PENDING, next_at__lte=now)
        .order_by("next_at", "pk")
        .values_list("notice__user_id", "channel", "batch")[:MOST_ROWS]
    )
    yield from dict.fromkeys(rows)


def _claim(user_pk: int, channel: str, batch: str, now: datetime) -> Batch | None:
    """Claim a batch, or new deliveries as one. None: another worker has it."""
    number = batch or uuid.uuid4().hex
    free = Delivery.objects.filter(
        notice__user_id=user_pk,
        channel=channel,
        batch=batch,
        state=State.PENDING,
        next_at__lte=now,
    ).order_by("notice__told_at", "pk")
    pks = list(free.values_list("pk", flat=True)[:MOST_IN_BATCH])
    with transaction.atomic(durable=True):
        taken = Delivery.objects.filter(
            pk__in=pks, state=State.PENDING, batch=batch
        ).update(
            state=State.SENDING,
            batch=number,
            tries=F("tries") + 1,
            next_at=now + timedelta(seconds=LEASE_SECONDS),
        )
    if not taken:
        return None
    rows = Delivery.objects.filter(pk__in=pks, batch=number, state=State.SENDING)
    rows = rows.select_related("notice__reservation__membership")
    found = tuple(rows.select_related("notice__user").order_by("notice__told_at", "pk"))
    return Batch(found[0].notice.user, channel, number, found) if found else None


def _send(batch: Batch, now: datetime) -> tuple[str, int]:
    """Send a claimed batch, unless it became quiet, unwanted or stale meanwhile."""
    if batch.channel == GROUP:
        return _send_to_group(batch, now)
    how = settings_of(batch.user)
    at = after_quiet(how, now)
    if at > now:
        _put_off(batch, at)
        return "retried", len(batch.rows)
    rows = _still_wanted(batch, how, now)
    pks = [row.pk for row in batch.rows if row not in rows]
    _finish(pks, State.DROPPED, now, error="unwanted or stale by then")
    if not rows:
        return "dropped", len(pks)
    notices = [row.notice for row in rows]
    try:
        message_rendering.send(
            batch.channel, batch.user, how, notices, batch.number, now=now
        )
    except message_rendering.NotTaken as error:
        return _failed(batch, rows, how, error, now)
    _finish([row.pk for row in rows], State.SENT, now)
    if batch.channel == WEBHOOK and how.webhook_failures:
        NoticeSettings.objects.filter(user=batch.user).update(webhook_failures=0)
    return "sent", len(rows)


def _send_to_group(batch: Batch, now: datetime) -> tuple[str, int]:
    """Send the rows of the first row's group. The rest of the batch waits."""
    chat = chat_of(batch.rows[0].notice)
    here = [
        row for row in batch.rows if chat is not None and chat_of(row.notice) == chat
    ]
    # Rows of another group, or of none, form another batch.
    others = [row.pk for row in batch.rows if row not in here] if here else []
    Delivery.objects.filter(pk__in=others, state=State.SENDING).update(
        state=State.PENDING, batch="", tries=F("tries") - 1, next_at=now
    )
    if chat is None:
        pks = [row.pk for row in batch.rows]
        _finish(pks, State.DROPPED, now, error="the group has no chat any more")
        return "dropped", len(pks)
    kept = [
        row
        for row in here
        if not is_stale(row.notice.kind, told_at=row.notice.told_at, now=now)
    ]
    gone = [row.pk for row in here if row not in kept]
    _finish(gone, State.DROPPED, now, error="unwanted or stale by then")
    if not kept:
        return "dropped", len(gone)
    notices = [row.notice for row in kept]
    try:
        message_rendering.send_to_group(
            chat, batch.user, notices, batch.number, now=now
        )
    except message_rendering.NotTaken as error:
        again = None if error.final else next_try(now, tries=kept[0].tries)
        log.info("to the chat of group %s: %s", chat.account_id, error.why)
        _try_again([row.pk for row in kept], again, now, why=error.why)
        _count_chat_failure(chat, final=error.final, why=error.why, now=now)
        return ("failed" if again is None else "retried"), len(kept)
    _finish([row.pk for row in kept], State.SENT, now)
    if chat.webhook_failures:
        GroupChat.objects.filter(pk=chat.pk).update(webhook_failures=0)
    return "sent", len(kept)


def _still_wanted(
    batch: Batch, how: NoticeSettings, now: datetime
) -> tuple[Delivery, ...]:
    if muted(how, now) or batch.channel not in open_channels(batch.user, how):
        return ()
    return tuple(
        row
        for row in batch.rows
        if batch.channel in wanted_channels(row.notice.kind, how)
        and not is_stale(row.notice.kind, told_at=row.notice.told_at, now=now)
    )


def _failed(
    batch: Batch,
    rows: tuple[Delivery, ...],
    how: NoticeSettings,
    error: message_rendering.NotTaken,
    now: datetime,
) -> tuple[str, int]:
    """Record that a message was not accepted: retry later, or end it and notify."""
    pks = [row.pk for row in rows]
    again = None if error.final else next_try(now, tries=rows[0].tries)
    log.info("%s to user %s: %s", batch.channel, batch.user.pk, error.why)
    at = None if again is None else after_quiet(how, again)
    _try_again(pks, at, now, why=error.why)
    if batch.channel == WEBHOOK:
        _count_failure(batch.user, final=error.final, why=error.why, now=now)
    return ("failed" if again is None else "retried"), len(rows)


def _try_again(pks: list[int], at: datetime | None, now: datetime, *, why: str) -> None:
    """Postpone a claimed batch. None: it has failed."""
    if at is None:
        _finish(pks, State.FAILED, now, error=why)
        return
    Delivery.objects.filter(pk__in=pks, state=State.SENDING).update(
        state=State.PENDING, next_at=at, error=why[:300]
    )


@transaction.atomic(durable=True)
def _count_chat_failure(
    chat: GroupChat, *, final: bool, why: str, now: datetime
) -> None:
    """Count a failure of a group's chat. After too many, notify the heads."""
    own = GroupChat.objects.filter(pk=chat.pk, webhook_disabled_at=None)
    own.update(webhook_failures=F("webhook_failures") + 1)
    hopeless = own if final else own.filter(webhook_failures__gte=WEBHOOK_MOST_FAILURES)
    if not hopeless.update(webhook_disabled_at=now):
        return
    heads = Membership.objects.filter(
        account_id=chat.account_id, is_head=True, active=True
    )
    for head in heads.select_related("user").order_by("pk"):
        notify(
            user=head.user,
            kind=Notice.Kind.WEBHOOK_OFF,
            detail={
                "failures": WEBHOOK_MOST_FAILURES,
                "why": why,
                "gone": final,
                "url": f"/group/?account={chat.account_id}",
            },
            now=now,
        )


@transaction.atomic(durable=True)
def _count_failure(user: User, *, final: bool, why: str, now: datetime) -> None:
    """Count a failure. After too many, switch the webhook off and notify its User."""
    own = NoticeSettings.objects.filter(user=user, webhook_disabled_at=None)
    own.update(webhook_failures=F("webhook_failures") + 1)
    hopeless = own if final else own.filter(webhook_failures__gte=WEBHOOK_MOST_FAILURES)
    if hopeless.update(webhook_disabled_at=now):
        notify(
            user=user,
            kind=Notice.Kind.WEBHOOK_OFF,
            detail={
                "failures": WEBHOOK_MOST_FAILURES,
                "why": why,
                "gone": final,
                "url": "/me/notices/",
            },
            now=now,
        )


def _put_off(batch: Batch, until: datetime) -> None:
    """Postpone a claimed batch. This does not count as an attempt."""
    pks = [row.pk for row in batch.rows]
    Delivery.objects.filter(pk__in=pks, state=State.SENDING).update(
        state=State.PENDING, next_at=until, tries=F("tries") - 1
    )


def _finish(pks: list[int], state: str, now: datetime, *, error: str = "") -> None:
    if pks:
        Delivery.objects.filter(pk__in=pks, state=State.SENDING).update(
            state=state, done_at=now, error=error[:300]
        )
