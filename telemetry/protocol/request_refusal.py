"""A request that is refused before a rule of the portal handles it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import ClassVar

from telemetry.protocol.coded_error import CodedError


class RequestRefused(CodedError):
    """The site, a node or a served model refuses a request. Its code gives the status.

    "not-found" has the same meaning as ``reservations.rules.errors.NotFound``. It is
    here for code that knows nothing of reservations.
    """

    statuses: ClassVar[Mapping[str, int]] = {
        "bad-address": 400,
        "bad-instant": 400,
        "bad-number": 400,
        "bad-request": 400,
        "bad-text": 400,
        "failed": 400,
        "header": 400,
        "tensors": 400,
        "signed-out": 401,
        "other-origin": 403,
        "page-expired": 403,
        "scope-missing": 403,
        "second-factor-needed": 403,
        "no-model": 404,
        "not-found": 404,
        "ssh-key-unknown": 404,
        "method": 405,
        "slow": 408,
        "access-early": 409,
        "model-refused": 409,
        "request-interrupted": 409,
        "request-running": 409,
        "ssh-no-account": 409,
        "access-over": 410,
        "endpoint-over": 410,
        "stream-ended": 410,
        "length-needed": 411,
        "too-large": 413,
        "content-type": 415,
        "invalid": 422,
        "key-reused": 422,
        "planner-busy": 429,
        "too-many": 429,
        "too-many-tokens": 429,
        "too-many-uploads": 429,
        "headers-too-large": 431,
        "client-left": 499,
        "crash": 500,
        "bad-answer": 502,
        "stream-broken": 502,
        "stream-lost": 502,
        "deadline": 503,
        "full": 503,
        "gone": 503,
        "late": 503,
        "no-service": 503,
        "no-streams": 503,
        "no-tunnel": 503,
        "not-ready": 503,
        "not-serving": 503,
        "planner-lost": 503,
        "planner-too-long": 503,
        "service-failed": 503,
        "streams-full": 503,
        "unavailable": 503,
        "no-answer": 504,
        "storage-full": 507,
    }
    """Code to HTTP status. docs/errors.md explains each."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        title: str = "",
        fields: Mapping[str, str] | None = None,
        retry_seconds: int = 0,
        **members: object,
    ) -> None:
        """Make the refusal.

        Args:
            code: one of ``statuses``.
            detail: one or two sentences.
            title: a few words; empty: the phrase of the status.
            fields: each invalid field, with its fault.
            retry_seconds: for the header Retry-After; 0: without it.
            members: additional members of the problem details.

        Raises:
            KeyError: there is no such code.
        """
        self.code, self.detail, self.title = code, detail, title
        self.status = self.statuses[code]
        self.fields = dict(fields or {})
        self.retry_seconds = retry_seconds
        self.more = members
        super().__init__(detail)

    def text(self, zone: tzinfo = UTC) -> str:
        return self.detail

    @property
    def members(self) -> dict[str, object]:
        """Return the invalid fields and the additional members."""
        return super().members | self.more
