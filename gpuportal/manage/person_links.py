"""A password link by mail. It is made and sent in one step, so that no link is ever
stored."""

from datetime import datetime

from django.conf import settings
from django.utils.translation import gettext

from reservations.accounts import invitation_mail, invitations, people
from reservations.models import Invitation, User
from reservations.notifications import mail as mailing
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence


def mail(*, user_id: int, actor: User, now: datetime) -> None:
    """Make a password link and mail it. A link that cannot be sent is revoked at once.

    Raises:
        NotFound: no such person, no mail address, or the server took no mail.
    """
    user = User.objects.filter(pk=user_id).first()
    if user is None or not user.email or not invitation_mail.possible():
        raise NotFound(what=sentence("way to mail a link to this person"))
    text = people.password_link(user_id=user_id, actor=actor, now=now)
    row = Invitation.objects.get(user=user, used_at=None)
    try:
        mailing.send(
            to=user.email,
            subject=gettext("A new password for the GPU Portal"),
            text=(
                gettext(
                    "The lab admin sends you a link for the user name "
                    "%(user)s.\n\nChoose your password here. The link works "
                    "once:\n%(link)s\n\nAnyone who has this link can choose the "
                    "password. Keep it private.\n"
                )
                % {
                    "user": user.username,
                    "link": invitation_mail.link_of(text, settings.PORTAL_URL),
                }
            ),
            message_id=f"password-{row.pk}",
        )
    except mailing.MailFailed as error:
        invitations.revoke(invitation_ids=[row.pk])
        raise NotFound(
            what=sentence("mail server that took it ({why})", why=error.why)
        ) from error
