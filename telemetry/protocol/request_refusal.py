"""A request that is refused before a rule of the portal handles it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import ClassVar

from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence


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
    titles: ClassVar[Mapping[str, str]] = {
        "bad-address": sentence("There is no such entry"),
        "bad-instant": sentence("A date is out of range"),
        "bad-number": sentence("A number is too large"),
        "bad-request": sentence("The request is not valid"),
        "bad-text": sentence("A text has an invalid character"),
        "failed": sentence("The request failed"),
        "header": sentence("A header is not valid"),
        "tensors": sentence("The tensors are not valid"),
        "signed-out": sentence("Signed out"),
        "other-origin": sentence("Sent by another site"),
        "page-expired": sentence("This page has expired"),
        "scope-missing": sentence("The token lacks a permission"),
        "second-factor-needed": sentence("A second factor is needed"),
        "no-model": sentence("There is no such model"),
        "not-found": sentence("There is nothing here"),
        "ssh-key-unknown": sentence("This key is not stored"),
        "method": sentence("Not possible at this address"),
        "slow": sentence("The request came too slowly"),
        "access-early": sentence("Too early"),
        "model-refused": sentence("The model cannot be served"),
        "request-interrupted": sentence("The first request was interrupted"),
        "request-running": sentence("The first request still runs"),
        "ssh-no-account": sentence("No account on the node"),
        "access-over": sentence("The access is over"),
        "endpoint-over": sentence("The endpoint has ended"),
        "stream-ended": sentence("The connection has ended"),
        "length-needed": sentence("The length is missing"),
        "too-large": sentence("Too large"),
        "content-type": sentence("Another kind of content is needed"),
        "invalid": sentence("Some fields are wrong"),
        "key-reused": sentence("The key was used before"),
        "planner-busy": sentence("The planner is busy"),
        "too-many": sentence("Too many at once"),
        "too-many-tokens": sentence("Too many tokens"),
        "too-many-uploads": sentence("Too many uploads"),
        "headers-too-large": sentence("The headers are too large"),
        "client-left": sentence("The client has left"),
        "crash": sentence("The portal failed"),
        "bad-answer": sentence("The answer is not valid"),
        "stream-broken": sentence("The connection is broken"),
        "stream-lost": sentence("The connection is lost"),
        "deadline": sentence("The time is over"),
        "full": sentence("No place is free"),
        "gone": sentence("The model is gone"),
        "late": sentence("Too late"),
        "no-service": sentence("The node does not offer this"),
        "no-streams": sentence("The node is not connected"),
        "no-tunnel": sentence("The node is not connected"),
        "not-ready": sentence("Not ready yet"),
        "not-serving": sentence("The model is not served now"),
        "planner-lost": sentence("The planner restarted"),
        "planner-too-long": sentence("This took too long"),
        "service-failed": sentence("The program on the node failed"),
        "streams-full": sentence("Too many connections"),
        "unavailable": sentence("Not available now"),
        "no-answer": sentence("The node does not answer"),
        "storage-full": sentence("The storage is full"),
    }
    """Code to the title of a refusal that is given none."""

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
            title: a few words; empty: that of ``titles``.
            fields: each invalid field, with its fault.
            retry_seconds: for the header Retry-After; 0: without it.
            members: additional members of the problem details.

        Raises:
            KeyError: there is no such code.
        """
        self.code, self.detail = code, detail
        self.title = title or self.titles[code]
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
