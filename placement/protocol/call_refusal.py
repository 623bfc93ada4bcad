"""The reasons why a call to a served model is refused, by the portal or on its node."""

from __future__ import annotations

from collections.abc import Mapping

from telemetry.protocol.request_refusal import RequestRefused

NOT_READY_SECONDS = 5
"""Time after which to try a model again that is being loaded."""


class CallRefused(RequestRefused):
    """A call without an answer of the model.

    Its problem details also have ``error``, which the Open Inference Protocol requires.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        fields: Mapping[str, str] | None = None,
        **members: object,
    ) -> None:
        super().__init__(code, detail, fields=fields)
        self.more = {"error": detail, **members}
        if self.status in (429, 503):
            self.retry_seconds = NOT_READY_SECONDS if code == "not-ready" else 1
