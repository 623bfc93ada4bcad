"""Texts about the channels of notices: a webhook that is off, and the test message."""

from __future__ import annotations

from reservations.rules.notice_values import NoticeValues
from telemetry.protocol.sentences import known, sentence


def webhook_off(told: NoticeValues) -> str:
    """Say why the webhook was switched off. detail: failures, why, gone."""
    if told.detail.get("gone"):
        return sentence(
            "Your webhook was switched off: its server answered that it no longer "
            "exists. Switch it on again in the settings."
        )
    return sentence(
        "Your webhook was switched off: it accepted none of the last {failures} "
        "messages ({why}). Switch it on again in the settings.",
        failures=told.detail["failures"],
        why=known(str(told.detail["why"])),
    )


def trial(told: NoticeValues) -> str:
    """Say that this is only a test message."""
    return sentence("This is the test message that you sent. Notices reach you here.")
