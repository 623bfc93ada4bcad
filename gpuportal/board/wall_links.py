"""Links that show the wall without a login: make them, revoke them, and what they
show."""

import secrets
from datetime import datetime

from django.db import transaction

from gpuportal.board.board_snapshot import Viewer
from reservations.models import ApiToken, SitePolicy, User, WallLink
from reservations.store.audit_log import audit_act


@transaction.atomic(durable=True)
def make(
    *, label: str, names: bool, actor: User, now: datetime
) -> tuple[WallLink, str]:
    """Make a link. Return it and its text, which is shown only once."""
    text = secrets.token_urlsafe(32)
    link = WallLink.objects.create(
        label=label,
        names=names,
        link_hash=ApiToken.hash_token(text),
        made_by=actor,
        created_at=now,
    )
    audit_act(
        verb="wall.link-made",
        subject=f"wall:{link.pk}",
        actor=actor,
        now=now,
        reason=label,
        names=names,
    )
    return link, text


@transaction.atomic(durable=True)
def revoke(*, link_id: int, actor: User, now: datetime) -> bool:
    """Revoke a link, also for screens that show it now. Return False if it was revoked
    before."""
    rows = WallLink.objects.filter(pk=link_id, revoked_at=None)
    if not rows.update(revoked_at=now):
        return False
    audit_act(verb="wall.link-revoked", subject=f"wall:{link_id}", actor=actor, now=now)
    return True


def working() -> list[WallLink]:
    """Return the links that work: not revoked, and made by a person who is still an
    admin.

    A former admin has seen the addresses, so they end with the role.
    """
    rows = WallLink.objects.filter(revoked_at=None).select_related("made_by")
    return [link for link in rows if _made_by_operator(link)]


def _made_by_operator(link: WallLink) -> bool:
    return link.made_by is not None and link.made_by.is_operator


def link_of(text: str) -> WallLink | None:
    """Return the link of a text; None if it is unknown or does not work."""
    rows = WallLink.objects.select_related("made_by")
    link = rows.filter(link_hash=ApiToken.hash_token(text), revoked_at=None).first()
    return link if link is not None and _made_by_operator(link) else None


def viewer_of_link(text: str) -> Viewer | None:
    """Return what a screen behind a link may see; None if the link does not work.

    The viewer is no User: its number is negative. If the site hides names from its
    members, no link shows them to passers-by.
    """
    link = link_of(text)
    if link is None:
        return None
    named = link.names and SitePolicy.current().names_visible
    return Viewer(
        user_pk=-link.pk, username="", unix_user="", operator=False, named=named
    )
