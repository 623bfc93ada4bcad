"""The form of each kind of notice: its symbol, its sentence and its channels.

A new kind needs a function ``NoticeValues -> str`` in a module of this package, and one
line in ``FORMS``, which also has its channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from reservations.notifications.text import booking_text, channel_text, waitlist_text
from reservations.notifications.text.closure_text import maintenance_text
from reservations.notifications.text.displacement_text import displaced_notice
from reservations.notifications.text.membership_text import ending_text
from reservations.notifications.text.sharing_text import (
    co_user_text,
    offer_answered_text,
    offer_made_text,
    question_text,
    series_conflict_text,
)
from reservations.rules.notice_values import NoticeValues, Words
from reservations.rules.overstay_terms import claimed_text
from telemetry.protocol.sentences import known, sentence

CHANNELS = ("mail", "webhook")


@dataclass(frozen=True, slots=True)
class NoticeForm:
    """The symbol, sentence and channels of one kind of Notice."""

    symbol: str = "bell"
    """Name of a symbol of the site's sprite."""
    words: Words | None = None
    """Returns the sentence. None: ``detail["text"]``, or the name of the kind."""
    channels: tuple[str, ...] = CHANNELS
    """Channels besides the page, unless the reader chooses others. Frequent and quickly
    outdated kinds are mailed only to those who chose that.
    """
    to_group: bool = False
    """Whether it is also sent to the chat of the group that pays for the booking. Only
    for events on which its members can act, not for messages between people.
    """
    stale_seconds: int | None = None
    """The age after which it is outdated and dropped instead of sent."""


FORMS: dict[str, NoticeForm] = {
    "displaced": NoticeForm(symbol="displaced", words=displaced_notice, to_group=True),
    "placed": NoticeForm(
        symbol="reserved", words=waitlist_text.placed_text, to_group=True
    ),
    "planned": NoticeForm(symbol="clock", words=waitlist_text.planned_text),
    "declined": NoticeForm(symbol="cancelled", words=waitlist_text.lost_text),
    "slot_offered": NoticeForm(words=waitlist_text.short_notice_offer_text),
    "booking_started": NoticeForm(
        symbol="running", words=booking_text.started, channels=(), stale_seconds=3600
    ),
    "moved": NoticeForm(
        symbol="arrow-right", words=booking_text.gpus_moved_text, to_group=True
    ),
    "released": NoticeForm(
        symbol="released", words=booking_text.released, to_group=True
    ),
    "idle_warning": NoticeForm(
        symbol="idle",
        words=booking_text.idle_warning,
        to_group=True,
        stale_seconds=3600,
    ),
    "unbooked_use": NoticeForm(
        symbol="alert", words=booking_text.unbooked_use, stale_seconds=3600
    ),
    "ending_soon": NoticeForm(
        symbol="clock",
        words=booking_text.ending_soon,
        channels=("webhook",),
        stale_seconds=600,
    ),
    "overstay_claimed": NoticeForm(symbol="clock", words=claimed_text),
    "refunded": NoticeForm(
        symbol="refunded", words=booking_text.refunded, to_group=True
    ),
    "token_given": NoticeForm(
        symbol="key", words=booking_text.voucher_given, to_group=True
    ),
    "maintenance": NoticeForm(
        symbol="maintenance", words=maintenance_text, to_group=True
    ),
    "offer_made": NoticeForm(symbol="users", words=offer_made_text),
    "offer_answered": NoticeForm(symbol="users", words=offer_answered_text),
    "asked": NoticeForm(symbol="users", words=question_text),
    "couser_added": NoticeForm(symbol="users", words=co_user_text),
    "series_conflict": NoticeForm(
        symbol="calendar", words=series_conflict_text, to_group=True
    ),
    "course_ending": NoticeForm(symbol="users", words=ending_text),
    "low_use": NoticeForm(symbol="chart", channels=("webhook",), to_group=True),
    "job_started": NoticeForm(symbol="running", channels=("webhook",)),
    "job_done": NoticeForm(symbol="done", channels=("webhook",)),
    "job_failed": NoticeForm(symbol="failed", to_group=True),
    "job_warning": NoticeForm(symbol="alert"),
    "plan_again": NoticeForm(symbol="plan"),
    "job_held": NoticeForm(symbol="alert"),
    "serve_down": NoticeForm(symbol="lost"),
    "webhook_off": NoticeForm(symbol="link", words=channel_text.webhook_off),
    "trial": NoticeForm(words=channel_text.trial),
}
"""Every kind of ``Notice.Kind``."""


def form_of(kind: str) -> NoticeForm:
    """Return the form of a kind. A kind that no longer exists has the defaults."""
    return FORMS.get(kind, NoticeForm())


def notice_sentence(kind: str, title: str, told: NoticeValues) -> str:
    """Return the sentence of one Notice.

    Args:
        title: the name of the kind, for kinds without a sentence.
    """
    made = form_of(kind).words
    if made is not None:
        return made(told)
    stored = told.detail.get("text")
    return known(str(stored)) if stored else sentence("{title}.", title=title)
