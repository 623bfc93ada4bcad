"""Render messages for mail and webhooks, and send them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.conf import settings
from django.core import signing
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext

from reservations.models import GroupChat, Notice, NoticeSettings, User
from reservations.notifications import chat_payloads, mail, webhook
from reservations.notifications.channels import MAIL
from reservations.notifications.queries import (
    NoticeInfo,
    notices_to_send,
    notices_with_text,
)
from reservations.notifications.reader_locale import with_language_of
from reservations.notifications.webhook_rules import signature
from reservations.store.calendar_queries import iso
from telemetry.web.translation import translated

UNSUBSCRIBE_SALT = "gpuportal.notices.off"
ALL_KINDS = "*"


class NotTaken(Exception):
    """The message was not accepted. ``final``: another attempt is useless."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        self.why = why
        self.final = final
        super().__init__(why)


def send(
    channel: str,
    user: User,
    how: NoticeSettings,
    notices: Sequence[Notice],
    number: str,
    *,
    now: datetime,
) -> None:
    """Send one message with all these Notices.

    Raises:
        NotTaken: it was not accepted.
    """
    told = notices_to_send(notices, user)
    with with_language_of(user):
        if channel == MAIL:
            _mail(user, told, number)
        else:
            secret = webhook.secret_of(user.pk, how.webhook_nonce)
            _post(how, secret, told, number, now)


def send_to_group(
    where: GroupChat,
    holder: User,
    notices: Sequence[Notice],
    number: str,
    *,
    now: datetime,
) -> None:
    """Send Notices of one holder to the chat of their group.

    They address the holder ("Your GPUs …"), so each names its holder. The group knows
    its members. They are in the language of the site, not in the holder's.

    Raises:
        NotTaken: it was not accepted.
    """
    with translation.override(settings.LANGUAGE_CODE):
        told = [
            replace(one, text=f"{holder}: {translated(one.text)}")
            for one in notices_with_text(notices, holder)
        ]
        secret = webhook.group_secret_of(where.account_id, where.webhook_nonce)
        _post(where, secret, told, number, now)


def absolute(path: str) -> str:
    """Return an absolute address. Only the path if the site's address is not set."""
    return f"{settings.PORTAL_URL}{path}"


def unsubscribe_path(user: User, kind: str) -> str:
    """Return the path that ends mails of a kind (`ALL_KINDS`: all) for a User."""
    token = signing.dumps([user.pk, kind], salt=UNSUBSCRIBE_SALT, compress=True)
    return reverse("notices-off", args=[token])


def _mail(user: User, told: Sequence[NoticeInfo], number: str) -> None:
    kinds = {one.kind for one in told}
    only = kinds.pop() if len(kinds) == 1 else ALL_KINDS
    off = absolute(unsubscribe_path(user, only))
    first = told[0].title
    subject = (
        first
        if len(told) == 1
        else gettext("%(count)s notices: %(first)s and more")
        % {"count": len(told), "first": first}
    )
    lines = [f"{one.text}\n{iso(one.told_at)}  {absolute(one.url)}" for one in told]
    settings_line = gettext("GPU Portal. Settings: %(address)s") % {
        "address": absolute(reverse("notice-settings"))
    }
    end_line = (
        gettext("End mails of this kind: %(address)s")
        if only != ALL_KINDS
        else gettext("End all mails: %(address)s")
    ) % {"address": off}
    foot = f"-- \n{settings_line}\n{end_line}"
    try:
        mail.send(
            to=user.email,
            subject=f"[GPU Portal] {subject}",
            text="\n\n".join([*lines, foot]) + "\n",
            message_id=f"notices.{number}",
            unsubscribe=off if settings.PORTAL_URL else "",
        )
    except mail.MailFailed as error:
        raise NotTaken(error.why, final=error.final) from error


def _post(
    how: NoticeSettings | GroupChat,
    secret: str,
    told: Sequence[NoticeInfo],
    number: str,
    now: datetime,
) -> None:
    if how.webhook_format in chat_payloads.formats():
        _chat(how, told, number)
        return
    body = {
        "version": 1,
        "delivery": number,
        "sent_at": iso(now),
        "notices": [
            {
                "id": one.pk,
                "kind": one.kind,
                "text": one.text,
                "told_at": iso(one.told_at),
                "reservation": one.reservation_pk,
                "url": absolute(one.url),
            }
            for one in told
        ],
    }
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = int(now.timestamp())
    _call(
        how.webhook_url,
        data,
        {
            "Content-Type": "application/json",
            "X-Portal-Delivery": number,
            "X-Portal-Timestamp": str(timestamp),
            "X-Portal-Signature": signature(secret, timestamp=timestamp, body=data),
        },
    )


def _chat(
    how: NoticeSettings | GroupChat, told: Sequence[NoticeInfo], number: str
) -> None:
    """Post the Notices to a chat service, in the payload that it accepts."""
    links = [absolute(one.url) if settings.PORTAL_URL else "" for one in told]
    lines = [
        chat_payloads.ChatLine(one.text, url)
        for one, url in zip(told, links, strict=True)
    ]
    made = chat_payloads.message(how.webhook_format, lines, translate=translated)
    _call(how.webhook_url, made.body, {**made.headers, "X-Portal-Delivery": number})


def _call(url: str, data: bytes, headers: dict[str, str]) -> None:
    try:
        webhook.post(url, data, {"User-Agent": "GPU-Portal", **headers})
    except webhook.WebhookFailed as error:
        raise NotTaken(error.why, final=error.gone) from error
