"""The audit log in sentences: "Alice booked reservation 17."

A row has a verb (`reservation.booked`) and a subject (`reservation:17`). The tables
below have the words for both. An unknown verb is shown as it is, so that a newer row
never breaks the page.
"""

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.conf import settings
from django.db.models import Model, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as noop

from reservations.models import (
    Account,
    AuditEntry,
    Closure,
    Membership,
    OpenidClient,
    TreeChangeRow,
    User,
)
from telemetry.models import Gpu, Node, NodeJoin, Pool

PORTAL = noop("The portal")
SUBJECT = re.compile(r"([a-z_]+):(\d{1,18})")

# {what} stands for the subject. A sentence begins with the name of the actor.
SENTENCES = {
    "reservation.booked": noop("booked {what}"),
    "reservation.changed": noop("changed {what}"),
    "reservation.cancelled": noop("cancelled {what}"),
    "reservation.cancel-undone": noop("brought {what} back after it was cancelled"),
    "reservation.booking-undone": noop("undid the booking of {what}"),
    "reservation.released": noop("returned {what}"),
    "reservation.given-back-in-part": noop("returned a part of {what}"),
    "reservation.checked-in": noop("noted the check-in to {what}"),
    "reservation.kept": noop("kept {what} although it was idle"),
    "reservation.started": noop("started {what}"),
    "reservation.ended": noop("ended {what}"),
    "reservation.cut": noop("shortened {what}"),
    "reservation.shared": noop("shared {what} with another person"),
    "reservation.unshared": noop("stopped sharing {what} with a person"),
    "reservation.given": noop("handed {what} to another person"),
    "reservation.displaced": noop("gave the time of {what} to another person"),
    "reservation.declined": noop("declined {what}, which came from the waitlist"),
    "reservation.adopted": noop("booked {what} for processes that were running"),
    "reservation.refunded": noop("refunded {what}"),
    "reservation.moved": noop("moved {what} to other GPUs"),
    "reservation.moved-on": noop("replaced {what} by one that starts now"),
    "reservation.overran": noop("charged the overrun of {what}"),
    "reservation.end-moved": noop("moved the end of {what}"),
    "reservation.overstay-asked": noop("let {what} stay on past its end"),
    "reservation.overstay-dropped": noop("ended the overstay of {what}"),
    "reservation.gap-taken": noop("filled a gap in the calendar with {what}"),
    "reservation.late-return-charged": noop("charged the late return of {what}"),
    "reservation.idle-warned": noop("warned the holder of {what} that it is idle"),
    "reservation.token-spent": noop("took a voucher for {what}"),
    "reservation.token-back": noop("gave the voucher of {what} back"),
    "waiting.asked": noop("added {what} to the waitlist"),
    "waiting.placed": noop("booked time for {what}"),
    "waiting.again": noop("put {what} back on the waitlist"),
    "waiting.withdrawn": noop("withdrew {what}"),
    "waiting.offer-declined": noop("declined the time offered to {what}"),
    "waiting.offered": noop("offered time to {what}"),
    "waiting.planned": noop("planned a start for {what}"),
    "waiting.expired": noop("ended {what}: its time is over"),
    "waiting.ended": noop("ended {what}"),
    "offer.made": noop("made {what}"),
    "offer.accepted": noop("accepted {what}"),
    "offer.declined": noop("declined {what}"),
    "offer.withdrawn": noop("withdrew {what}"),
    "offer.expired": noop("ended {what}: its time is over"),
    "series.made": noop("made {what}"),
    "series.cut": noop("shortened {what}"),
    "series.ended": noop("ended {what}"),
    "token.created": noop("made an API token of {what}"),
    "token.revoked": noop("revoked an API token of {what}"),
    "token.ended": noop("ended {what}"),
    "workspace.shared": noop("changed who may open {what}"),
    "ssh-key.added": noop("added an ssh key of {what}"),
    "ssh-key.removed": noop("removed an ssh key of {what}"),
    "ssh-certificate.issued": noop("got an ssh certificate for {what}"),
    "ssh-authority.rotated": noop("replaced the ssh certificate authority of {what}"),
    "feed.made": noop("made a calendar address for {what}"),
    "feed.revoked": noop("revoked the calendar address of {what}"),
    "notices.chosen": noop("changed how {what} is notified"),
    "notices.muted": noop("muted or unmuted the notices of {what}"),
    "notices.unsubscribed": noop("ended mails to {what}"),
    "notices.webhook-set": noop("set the webhook of {what}"),
    "notices.webhook-on": noop("switched the webhook of {what} on again"),
    "notices.webhook-dropped": noop("removed the webhook of {what}"),
    "people.invited": noop("made sign-in links for {what} and others of the same list"),
    "people.password-link": noop("made a password link for {what}"),
    "people.changed": noop("changed the account of {what}"),
    "people.signed-out": noop("signed {what} out everywhere"),
    "people.made": noop("made the account of {what}"),
    "identity.person-made": noop(
        "made the account of {what}, who signed in with an identity provider"
    ),
    "identity.linked": noop("connected {what} with an identity provider"),
    "identity.removed": noop("disconnected {what} from an identity provider"),
    "identity.mapping-changed": noop("changed what the groups of {what} give"),
    "identity.operator-made": noop("made {what} an admin by a group of the provider"),
    "identity.operator-ended": noop(
        "ended the admin rights that {what} had by a group"
    ),
    "identity.operator-kept": noop(
        "kept {what} as an admin although the group ended, because there is no other"
    ),
    "identity.member-kept": noop(
        "kept {what} in a group that the provider no longer names"
    ),
    "identity.unix-user": noop("set the Unix user of {what} by the login"),
    "identity.unix-user-refused": noop(
        "did not take the Unix user that the login of {what} says"
    ),
    "identity.groups-failed": noop("could not apply the groups of {what}"),
    "openid.client-made": noop("registered {what}"),
    "openid.client-changed": noop("changed {what}"),
    "openid.client-on": noop("switched {what} on"),
    "openid.client-off": noop("switched {what} off"),
    "openid.client-deleted": noop("deleted {what}"),
    "openid.secret-replaced": noop("replaced the secret of {what}"),
    "openid.key-replaced": noop("replaced the key that signs for services of {what}"),
    "openid.consent-given": noop("allowed {what} to know who they are"),
    "openid.consent-ended": noop("ended the sign-in to {what}"),
    "openid.code-replayed": noop(
        "refused a sign-in code of {what} that was used twice, and ended its tokens"
    ),
    "openid.refresh-replayed": noop(
        "refused a refresh token of {what} that was used twice, and ended its tokens"
    ),
    "person.erased": noop("erased {what}"),
    "invitation.accepted": noop("chose a password as {what}"),
    "invitation.mail-failed": noop("could not mail the sign-in link of {what}"),
    "sign-up.made": noop("made an account as {what}, by a mail address"),
    "sign-up.group-failed": noop("could not add {what}, who signed up, to a group"),
    "sign-up.domains-changed": noop("changed which mail domains sign up"),
    "password.reset-mailed": noop("mailed a link to a new password to {what}"),
    "password.mail-failed": noop("could not mail {what} about the sign-in"),
    "password.reset": noop("chose a new password by a mailed link as {what}"),
    "password.changed": noop("changed the password of {what}"),
    "second-factor.added": noop("added a second factor of {what}"),
    "second-factor.removed": noop("removed a second factor of {what}"),
    "second-factor.reset": noop("removed all second factors of {what}"),
    "second-factor.codes-made": noop("made new recovery codes of {what}"),
    "second-factor.code-used": noop("used a recovery code of {what}"),
    "second-factor.locked": noop("locked the codes of {what} after wrong ones"),
    "group.link-made": noop("made a link to join {what}"),
    "group.link-revoked": noop("revoked a link to join {what}"),
    "group.chat-set": noop("set the chat of {what}"),
    "group.chat-on": noop("switched the chat of {what} on again"),
    "group.chat-dropped": noop("removed the chat of {what}"),
    "group.joined": noop("joined {what} by a link"),
    "tree.edit": noop("changed groups or members ({what})"),
    "tree.import": noop("imported groups or members ({what})"),
    "tree.course": noop("made a course ({what})"),
    "tree.archive": noop("archived a group ({what})"),
    "tree.expiry": noop("ended memberships by date ({what})"),
    "tree.desk": noop("changed a group or member in the admin ({what})"),
    "tree.undo": noop("undid a change of groups or members ({what})"),
    "alert.acknowledged": noop("acknowledged {what}"),
    "alert.snoozed": noop("snoozed {what}"),
    "alert.woken": noop("reopened {what}"),
    "gpu.pool": noop("moved {what} to another pool"),
    "gpu.drain": noop("began to drain {what}"),
    "gpu.drain-ended": noop("ended the drain of {what}"),
    "gpu.out-of-service": noop("took {what} out of service"),
    "gpu.back-in-service": noop("put {what} back into service"),
    "gpu.replaced": noop("replaced {what}"),
    "gpu.retired": noop("retired {what}"),
    "gpu.xids-cleared": noop("cleared the XIDs of {what}"),
    "portal.upgraded": noop("let another release run"),
    "node.joined": noop("let {what} join as a node"),
    "node.joined-again": noop("let {what} join again, with new secrets"),
    "node.join-token-made": noop("made {what}"),
    "node.join-token-withdrawn": noop("withdrew {what}"),
    "node.retired": noop("retired {what}"),
    "node.drain": noop("began to drain {what}"),
    "node.drain-ended": noop("ended the drain of {what}"),
    "node.gate-open": noop("removed the device gate of {what}"),
    "node.gate-watch": noop("set the device gate of {what} to watch"),
    "node.gate-gated": noop("set the device gate of {what} to gated"),
    "closure.made": noop("made {what}"),
    "closure.changed": noop("changed {what}"),
    "closure.ended": noop("ended {what}"),
    "pool.made": noop("made {what}"),
    "pool.changed": noop("changed {what}"),
    "pool.undone": noop("undid a change of {what}"),
    "pool.quota": noop("changed a quota of {what}"),
    "policy.changed": noop("changed the {what}"),
    "policy.undone": noop("undid a change of the {what}"),
    "replay.asked": noop("started {what}"),
    "replay.cancelled": noop("cancelled {what}"),
    "model.stored": noop("stored {what}"),
    "model.dropped": noop("deleted {what}"),
    "served.added": noop("added a served model to {what}"),
    "served.removed": noop("removed a served model from {what}"),
    "text.served": noop("served a language model: {what}"),
    "text.callers": noop("changed who may call the language model of {what}"),
    "endpoint.admits": noop("changed how many requests {what} admits"),
    "endpoint.moves": noop("moved {what}"),
    "wall.link-made": noop("made a wall link ({what})"),
    "wall.link-revoked": noop("revoked a wall link ({what})"),
    "demo.loaded": noop("loaded the demo data"),
}

SUBJECTS = {
    "reservation": noop("reservation {}"),
    "waiting": noop("waiting request {}"),
    "request": noop("waiting request {}"),
    "offer": noop("offer {}"),
    "series": noop("series {}"),
    "token": noop("voucher {}"),
    "user": noop("person {}"),
    "person": noop("person {}"),
    "account": noop("group {}"),
    "alert": noop("alert {}"),
    "gpu": noop("GPU {}"),
    "node": noop("node {}"),
    "node_join": noop("join token {}"),
    "closure": noop("closure {}"),
    "pool": noop("pool {}"),
    "policy": noop("{} policy"),
    "replay": noop("replay {}"),
    "model": noop("model {}"),
    "job": noop("job {}"),
    "change": noop("change {}"),
    "wall": noop("link {}"),
    "provider": noop("provider {}"),
    "openid_client": noop("service {}"),
}

PAGES = {
    "reservation": "reservation",
    "user": "manage-person",
    "person": "manage-person",
    "gpu": "gpu",
    "node_join": "manage-machine-join",
    "closure": "manage-closure",
    "pool": "manage-pool",
    "replay": "manage-replay-one",
    "job": "job",
    "change": "manage-change",
    "openid_client": "manage-service",
}
"""Subjects that have a page for operators: the name of its address, which takes the
number. The page of a series is its owner's only."""

AREAS = {
    "reservation": ("reservation.", "waiting.", "offer.", "series.", "token."),
    "people": (
        *("people.", "person.", "invitation.", "identity.", "openid."),
        *("password.", "second-factor.", "sign-up."),
        *("notices.", "feed.", "group."),
    ),
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
    """The subject's page; "" if it has none."""


def sentence_of(verb: str, what: str) -> str:
    """Return the action, without the actor and without a full stop.

    >>> sentence_of("node.drain", "node-b")
    'began to drain node-b'
    >>> sentence_of("job.changed-again", "job 7")
    'job: changed again (job 7)'
    """
    known = SENTENCES.get(verb)
    if known is not None:
        return gettext(known).format(what=what)
    if verb.startswith("response."):
        _, step, *outcome = verb.split(".")
        told = outcome[0].replace("-", " ") if outcome else ""
        words = gettext("took the step “{step}” against a process on {what}: {told}")
        return words.format(step=step, what=what, told=told)
    if verb.startswith("admin."):
        _, name, *acts = verb.split(".")
        did = acts[0] if acts else "changed"
        words = gettext("{did} a row of “{name}” in the admin ({what})")
        return words.format(did=did, name=name, what=what)
    area, _, act = verb.partition(".")
    return f"{area}: {act.replace('-', ' ') or 'changed'} ({what})"


def subject_text(subject: str, names: dict[str, str]) -> str:
    """Return a subject in the words of people.

    Args:
        names: names by subject, for those that have one (`names_of`).
    """
    if subject in names:
        return names[subject]
    kind, _, number = subject.partition(":")
    if kind not in SUBJECTS:
        return f"{kind} {number}"
    return gettext(SUBJECTS[kind]).format(number)


WITH_PAGE: dict[str, Callable[[], QuerySet[Any]]] = {
    "closure": lambda: Closure.objects.filter(
        cancelled_at=None, end__gt=timezone.now()
    ),
    "openid_client": lambda: OpenidClient.objects.filter(
        **({} if settings.OPENID_PROVIDER else {"pk": 0})
    ),
}
"""The rows that have a page now, where not all have one."""


def urls_of(subjects: Iterable[str]) -> dict[str, str]:
    """Return the addresses of the subjects that have a page, with one query for each
    kind of which not all have one.
    """
    found = {}
    for kind, pks in _by_kind(subjects, PAGES).items():
        if kind in WITH_PAGE:
            pks = set(WITH_PAGE[kind]().filter(pk__in=pks).values_list("pk", flat=True))
        for pk in pks:
            found[f"{kind}:{pk}"] = reverse(PAGES[kind], args=[pk])
    return found


def _by_kind(subjects: Iterable[str], kinds: Container[str]) -> dict[str, set[int]]:
    by_kind: dict[str, set[int]] = {}
    for subject in subjects:
        found = SUBJECT.fullmatch(subject)
        if found is not None and found[1] in kinds:
            by_kind.setdefault(found[1], set()).add(int(found[2]))
    return by_kind


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
    "openid_client": partial(_called, OpenidClient),
    "node_join": lambda pks: {
        row.pk: gettext("the join token of {name}").format(name=row.name)
        for row in NodeJoin.objects.filter(pk__in=pks)
    },
    "gpu": lambda pks: _called(Gpu, pks, "node"),
    "pool": partial(_called, Pool),
    "change": _changes,
    "closure": lambda pks: {
        row.pk: gettext("closure {number}, “{reason}”").format(
            number=row.pk, reason=row.reason
        )
        for row in Closure.objects.filter(pk__in=pks)
    },
}


def names_of(subjects: Iterable[str]) -> dict[str, str]:
    """Return the names of the subjects that have one, with one query for each kind."""
    return {
        f"{kind}:{pk}": name
        for kind, pks in _by_kind(subjects, NAMED).items()
        for pk, name in NAMED[kind](pks).items()
    }


def rows_of(entries: Iterable[AuditEntry]) -> list[AuditRow]:
    """Return rows with their sentences. The actors are loaded already."""
    entries = list(entries)
    names = names_of(entry.subject for entry in entries)
    urls = urls_of(entry.subject for entry in entries)
    return [
        AuditRow(
            entry=entry,
            actor=str(entry.actor) if entry.actor is not None else gettext(PORTAL),
            sentence=sentence_of(entry.verb, subject_text(entry.subject, names)),
            url=urls.get(entry.subject, ""),
        )
        for entry in entries
    ]
