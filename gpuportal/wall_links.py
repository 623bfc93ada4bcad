"""Links that show the wall without signing in: made, revoked, and who sees what."""

import secrets
from datetime import datetime

from django.db import transaction

from gpuportal.board import Viewer
from reservations.models import ApiToken, User, WallLink
from reservations.services.auditing import audit_act


@transaction.atomic(durable=True)
def make(
    *, label: str, names: bool, actor: User, now: datetime
) -> tuple[WallLink, str]:
    """Make a link; it and its text, which is shown only once."""
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
    """End a link, also for screens that show it now; False: it had ended."""
    rows = WallLink.objects.filter(pk=link_id, revoked_at=None)
    if not rows.update(revoked_at=now):
        return False
    audit_act(verb="wall.link-revoked", subject=f"wall:{link_id}", actor=actor, now=now)
    return True


def link_of(text: str) -> WallLink | None:
    """Return the link that a text stands for; None: unknown or revoked."""
    return WallLink.objects.filter(
        link_hash=ApiToken.hash_token(text), revoked_at=None
    ).first()


def viewer_of_link(text: str) -> Viewer | None:
    """Return what a screen behind a link may see; None: the link does not work.

    It is nobody's: the number is below zero, where no User's is.
    """
    link = link_of(text)
    if link is None:
        return None
    return Viewer(
        user_pk=-link.pk, username="", unix_user="", operator=False, named=link.names
    )
