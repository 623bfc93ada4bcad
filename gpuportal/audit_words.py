"""The audit log in sentences: "Alice booked reservation 17."

A row keeps a verb (`reservation.booked`) and a subject (`reservation:17`). The tables
below give the words for both. A verb that has no words here is shown with its own,
so that a newer row never breaks the page.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db.models import Model
from django.urls import NoReverseMatch, reverse

from reservations.models import (
    Account,
    AuditEntry,
    Closure,
    Membership,
    TreeChangeRow,
    User,
)
from telemetry.models import Gpu, Node, Pool

PORTAL = "The portal"
SUBJECT = re.compile(r"([a-z_]+):(\d{1,18})")

# {what} stands for the subject. A sentence begins with the name of the actor.
SENTENCES = {
    "reservation.booked": "booked {what}",
    "reservation.changed": "changed {what}",
    "reservation.cancelled": "cancelled {what}",
    "reservation.cancel-undone": "brought {what} back after it was cancelled",
    "reservation.released": "returned {what}",
    "reservation.given-back-in-part": "returned a part of {what}",
    "reservation.checked-in": "noted the check-in to {what}",
    "reservation.kept": "kept {what} although it was idle",
    "reservation.started": "started {what}",
    "reservation.ended": "ended {what}",
    "reservation.cut": "shortened {what}",
    "reservation.shared": "shared {what} with another person",
    "reservation.unshared": "stopped sharing {what} with a person",
    "reservation.given": "handed {what} to another person",
    "reservation.displaced": "gave the time of {what} to another person",
    "reservation.declined": "declined {what}, which came from the waitlist",
    "reservation.refunded": "refunded {what}",
    "reservation.moved": "moved {what} to other GPUs",
    "reservation.moved-on": "replaced {what} by one that starts now",
    "reservation.overran": "charged the overrun of {what}",
    "reservation.end-moved": "moved the end of {what}",
    "reservation.overstay-asked": "let {what} stay on past its end",
    "reservation.overstay-dropped": "ended the overstay of {what}",
    "reservation.gap-taken": "filled a gap in the calendar with {what}",
    "reservation.late-return-charged": "charged the late return of {what}",
    "reservation.idle-warned": "warned the holder of {what} that it is idle",
    "reservation.token-spent": "took a voucher for {what}",
    "reservation.token-back": "gave the voucher of {what} back",
    "waiting.asked": "added {what} to the waitlist",
    "waiting.again": "put {what} back on the waitlist",
    "waiting.withdrawn": "withdrew {what}",
    "waiting.offer-declined": "declined the time offered to {what}",
    "waiting.offered": "offered time to {what}",
    "waiting.planned": "planned a start for {what}",
    "waiting.expired": "ended {what}: its time is over",
    "waiting.ended": "ended {what}",
    "offer.made": "made {what}",
    "offer.accepted": "accepted {what}",
    "offer.declined": "declined {what}",
    "offer.withdrawn": "withdrew {what}",
    "offer.expired": "ended {what}: its time is over",
    "series.made": "made {what}",
    "series.cut": "shortened {what}",
    "series.ended": "ended {what}",
    "token.created": "made an API token of {what}",
    "token.revoked": "revoked an API token of {what}",
    "token.ended": "ended {what}",
    "feed.made": "made a calendar address for {what}",
    "feed.revoked": "revoked the calendar address of {what}",
    "notices.chosen": "changed how {what} is notified",
    "notices.muted": "muted or unmuted the notices of {what}",
    "notices.unsubscribed": "ended mails to {what}",
    "notices.webhook-set": "set the webhook of {what}",
    "notices.webhook-on": "switched the webhook of {what} on again",
    "notices.webhook-dropped": "removed the webhook of {what}",
    "people.invited": "made sign-in links for {what} and others of the same list",
    "people.password-link": "made a password link for {what}",
    "people.changed": "changed the account of {what}",
    "people.signed-out": "signed {what} out everywhere",
    "people.made": "made the account of {what}",
    "person.erased": "erased {what}",
    "invitation.accepted": "chose a password as {what}",
    "invitation.mail-failed": "could not mail the sign-in link of {what}",
    "group.link-made": "made a link to join {what}",
    "group.link-revoked": "revoked a link to join {what}",
    "group.joined": "joined {what} by a link",
    "tree.edit": "changed groups or members ({what})",
    "tree.import": "imported groups or members ({what})",
    "tree.course": "made a course ({what})",
    "tree.archive": "archived a group ({what})",
    "tree.expiry": "ended memberships by date ({what})",
    "tree.desk": "changed a group or member in the admin ({what})",
    "tree.undo": "undid a change of groups or members ({what})",
    "alert.acknowledged": "acknowledged {what}",
    "alert.snoozed": "snoozed {what}",
    "alert.woken": "reopened {what}",
    "gpu.pool": "moved {what} to another pool",
    "gpu.drain": "began to drain {what}",
    "gpu.drain-ended": "ended the drain of {what}",
    "gpu.out-of-service": "took {what} out of service",
    "gpu.back-in-service": "put {what} back into service",
    "gpu.replaced": "replaced {what}",
    "gpu.retired": "retired {what}",
    "gpu.xids-cleared": "cleared the XIDs of {what}",
    "node.drain": "began to drain {what}",
    "node.drain-ended": "ended the drain of {what}",
    "closure.made": "made {what}",
    "closure.changed": "changed {what}",
    "closure.ended": "ended {what}",
    "pool.made": "made {what}",
    "pool.changed": "changed {what}",
    "pool.quota": "changed a quota of {what}",
    "policy.changed": "changed the {what}",
    "policy.undone": "undid a change of the {what}",
    "replay.asked": "started {what}",
    "replay.cancelled": "cancelled {what}",
    "model.stored": "stored {what}",
    "model.dropped": "deleted {what}",
    "served.added": "added a served model to {what}",
    "served.removed": "removed a served model from {what}",
    "endpoint.admits": "changed how many requests {what} admits",
    "endpoint.moves": "moved {what}",
    "wall.link-made": "made a wall link ({what})",
    "wall.link-revoked": "revoked a wall link ({what})",
    "demo.loaded": "loaded the demo data",
}

SUBJECTS = {
    "reservation": "reservation {}",
    "waiting": "waiting request {}",
    "request": "waiting request {}",
    "offer": "offer {}",
    "series": "series {}",
    "token": "voucher {}",
    "user": "person {}",
    "person": "person {}",
    "account": "group {}",
    "alert": "alert {}",
    "gpu": "GPU {}",
    "node": "node {}",
    "closure": "closure {}",
    "pool": "pool {}",
    "policy": "{} policy",
    "replay": "replay {}",
    "model": "model {}",
    "job": "job {}",
    "change": "change {}",
    "wall": "link {}",
}

PAGES = {
    "reservation": "reservation",
    "series": "series-one",
    "user": "manage-person",
    "person": "manage-person",
    "gpu": "gpu",
    "closure": "manage-closure",
    "pool": "manage-pool",
    "replay": "manage-replay-one",
    "job": "job",
    "change": "manage-change",
}
"""Subjects that have a page: the name of its address, which takes the number."""

AREAS = {
    "reservation": ("reservation.", "waiting.", "offer.", "series.", "token."),
    "people": ("people.", "person.", "invitation.", "notices.", "feed.", "group."),
    "groups": ("tree.", "group."),
    "machines": ("gpu.", "node.", "closure.", "pool.", "alert.", "response."),
    "rules": ("policy.", "replay.", "admin."),
    "jobs": ("job.", "model.", "served.", "endpoint."),
}
"""Choices of the filter, with the prefixes of the verbs that each one shows."""


@dataclass(frozen=True)
class AuditRow:
    """One row of the log, as the page and the CSV file show it."""

    entry: AuditEntry
    actor: str
    sentence: str
    url: str
    """The subject's page; "" where it has none."""


def sentence_of(verb: str, what: str) -> str:
    """Return what was done, without the actor and without a full stop.

    >>> sentence_of("node.drain", "node-b")
    'began to drain node-b'
    >>> sentence_of("job.changed-again", "job 7")
    'job: changed again (job 7)'
    """
    known = SENTENCES.get(verb)
    if known is not None:
        return known.format(what=what)
    if verb.startswith("response."):
        _, step, *outcome = verb.split(".")
        told = outcome[0].replace("-", " ") if outcome else ""
        return f"took the step “{step}” against a process on {what}: {told}"
    if verb.startswith("admin."):
        _, name, *acts = verb.split(".")
        did = acts[0] if acts else "changed"
        return f"{did} a row of “{name}” in the admin ({what})"
    area, _, act = verb.partition(".")
    return f"{area}: {act.replace('-', ' ') or 'changed'} ({what})"


def subject_words(subject: str, names: dict[str, str]) -> str:
    """Return a subject as people call it.

    Args:
        names: by subject, of those that have a name of their own (`names_of`).
    """
    if subject in names:
        return names[subject]
    kind, _, number = subject.partition(":")
    return SUBJECTS.get(kind, kind + " {}").format(number)


def subject_url(subject: str) -> str:
    """Return the address of a subject's page; "" where it has none."""
    found = SUBJECT.fullmatch(subject)
    if found is None or found[1] not in PAGES:
        return ""
    try:
        return reverse(PAGES[found[1]], args=[int(found[2])])
    except NoReverseMatch:
        return ""


def _called(model: type[Model], pks: set[int], *related: str) -> dict[int, str]:
    rows: Any = model._default_manager.filter(pk__in=pks)
    if related:
        rows = rows.select_related(*related)
    return {row.pk: str(row) for row in rows}


GROUPS_NAMED = 3


def _changes(pks: set[int]) -> dict[int, str]:
    """Return the groups that each change of the tree touched: "Vision (change 2)"."""
    rows = TreeChangeRow.objects.filter(change_id__in=pks).order_by("pk")
    touched = list(rows.values_list("change_id", "table", "row_pk"))
    members = {pk for _change, table, pk in touched if table == "member"}
    of_member = dict(
        Membership.objects.filter(pk__in=members).values_list("pk", "account_id")
    )
    accounts = [
        (change, pk if table == "account" else of_member.get(pk))
        for change, table, pk in touched
    ]
    names = _called(Account, {pk for _change, pk in accounts if pk is not None})
    found: dict[int, list[str]] = {}
    for change, pk in accounts:
        name = names.get(pk) if pk is not None else None
        if name and name not in found.setdefault(change, []):
            found[change].append(name)
    return {
        change: ", ".join(groups[:GROUPS_NAMED])
        + (f" +{len(groups) - GROUPS_NAMED}" if len(groups) > GROUPS_NAMED else "")
        + f", change {change}"
        for change, groups in found.items()
        if groups
    }


NAMED: dict[str, Callable[[set[int]], dict[int, str]]] = {
    "user": partial(_called, User),
    "person": partial(_called, User),
    "account": partial(_called, Account),
    "node": partial(_called, Node),
    "gpu": lambda pks: _called(Gpu, pks, "node"),
    "pool": partial(_called, Pool),
    "change": _changes,
    "closure": lambda pks: {
        row.pk: f"closure {row.pk}, “{row.reason}”"
        for row in Closure.objects.filter(pk__in=pks)
    },
}


def names_of(subjects: Iterable[str]) -> dict[str, str]:
    """Return names of the subjects that have one: one query for each kind of them."""
    by_kind: dict[str, set[int]] = {}
    for subject in subjects:
        found = SUBJECT.fullmatch(subject)
        if found is not None and found[1] in NAMED:
            by_kind.setdefault(found[1], set()).add(int(found[2]))
    return {
        f"{kind}:{pk}": name
        for kind, pks in by_kind.items()
        for pk, name in NAMED[kind](pks).items()
    }


def rows_of(entries: Iterable[AuditEntry]) -> list[AuditRow]:
    """Return rows with their sentences; the actors are loaded already."""
    entries = list(entries)
    names = names_of(entry.subject for entry in entries)
    return [
        AuditRow(
            entry=entry,
            actor=str(entry.actor) if entry.actor is not None else PORTAL,
            sentence=sentence_of(entry.verb, subject_words(entry.subject, names)),
            url=subject_url(entry.subject),
        )
        for entry in entries
    ]
