"""The use of a Voucher, and why one is refused (docs/design/fair-booking.md#rule-7).

A Voucher is one firm booking of its Membership, beyond the horizon and beyond the
shorter one after no-shows. It lifts only horizon limits. Quota, person-wide caps, the
grid and the longest booking apply, because every promise to others
(docs/design/fair-booking.md#i3, #i4) rests on them. It is not spent if the booking is
possible without it, and never on flex. It is valid until it expires, and its booking
must begin before. A cancellation by its owner does not return it, a refund by the site
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from reservations.rules.errors import Refusal
from reservations.rules.figures import time_text
from telemetry.protocol.sentences import sentence

USED, EXPIRED, REVOKED = "used", "expired", "revoked"
ELSEWHERE, TOO_FAR = "elsewhere", "too-far"
GOOD_FOR_SECONDS = 366 * 86_400
"""Of a Voucher without an expiry date, from before Vouchers expired."""


@dataclass(eq=False)
class VoucherRefused(Refusal):
    """The voucher cannot be used for this booking."""

    code = "token-refused"
    title = sentence("The voucher cannot be used")
    token: int
    """Number of the Voucher, under the name that it has in the API's answer."""
    why: str
    account: str = ""
    """The account that owns it."""
    expires_at: datetime | None = None

    def text(self, zone: tzinfo = UTC) -> str:
        until = (
            time_text(self.expires_at, zone)
            if self.expires_at
            else sentence("some time ago")
        )
        return {
            USED: sentence("This voucher was used for another booking."),
            EXPIRED: sentence("This voucher expired {until}.", until=until),
            REVOKED: sentence(
                "This voucher was withdrawn when your group membership ended."
            ),
            ELSEWHERE: sentence(
                "This voucher is only for bookings charged to {account}.",
                account=self.account,
            ),
            TOO_FAR: sentence(
                "A booking with this voucher must begin before {until}.", until=until
            ),
        }[self.why]
