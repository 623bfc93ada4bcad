"""The warning before the end of a reservation, in the page of a workspace's program.

The portal adds one script to pages that a browser opens in a separate tab. The script
comes from the workspace's own origin, asks that origin how long the reservation still
runs, and shows a bar ten minutes and one minute before the end.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gpuportal.http.workspace_headers import Header, WorkspaceRequest
from placement.protocol.end_notice import due_warning, remaining_time_text
from telemetry.protocol.sentences import joined, sentence
from telemetry.web.translation import translated

SCRIPT_PATH = b"/.gpuportal/end.js"
STATE_PATH = b"/.gpuportal/end.json"
SCRIPT = Path(__file__).with_suffix(".js").read_bytes()
TAG = b'<script src="/.gpuportal/end.js"></script>'
MOST_START_BYTES = 16 * 1024
"""How far the beginning of a page's head is searched."""
_HEAD = re.compile(rb"<head(?=[\s>])", re.IGNORECASE)
_TAG_NAME_BYTES = len(b"<head ")


def opens_page(request: WorkspaceRequest) -> bool:
    """Return whether a browser opens a page in a tab with this request.

    Frames inside a page are not meant. They would show the bar again.
    """
    return request.method == "GET" and request.first(b"sec-fetch-dest") == b"document"


def without_compression(headers: Sequence[Header]) -> list[Header]:
    """Return a request's headers that ask for an answer as it is."""
    return [(name, value) for name, value in headers if name != b"accept-encoding"]


def is_page(status: int, headers: Sequence[Header]) -> bool:
    """Return whether an answer is an HTML page that the script can be added to."""
    known = dict(headers)
    kind = known.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return status == 200 and kind == b"text/html" and b"content-encoding" not in known


@dataclass(slots=True)
class PageStart:
    """The beginning of a page, kept until the place of the script is found."""

    headers: list[Header]
    start: bytearray = field(default_factory=bytearray)
    _seen: int = 0
    """Bytes in which no head begins."""
    _inside: int | None = None
    """Where the attributes of the head begin."""

    def add(
        self, data: bytes, *, whole: bool = False
    ) -> tuple[list[Header], bytes] | None:
        """Return headers and the beginning with the script. None: more is needed.

        A page without a head is not changed. Each byte is searched about once, however
        the page is divided into parts.
        """
        self.start += data
        at = self._end_of_head()
        if at is not None:
            body = bytes(self.start[:at]) + TAG + bytes(self.start[at:])
            return [_lengthened(header) for header in self.headers], body
        if whole or len(self.start) > MOST_START_BYTES:
            return self.headers, bytes(self.start)
        return None

    def _end_of_head(self) -> int | None:
        """Return where the head's tag ends. None: not in what was read."""
        if self._inside is None:
            found = _HEAD.search(self.start, self._seen, MOST_START_BYTES)
            if found is None:
                read = min(len(self.start), MOST_START_BYTES)
                self._seen = max(0, read - _TAG_NAME_BYTES)
                return None
            self._inside = self._seen = found.end()
        closed = self.start.find(b">", self._seen, MOST_START_BYTES)
        self._seen = min(len(self.start), MOST_START_BYTES)
        return None if closed < 0 else closed + 1


def _lengthened(header: Header) -> Header:
    name, value = header
    if name != b"content-length":
        return header
    return name, str(int(value) + len(TAG)).encode()


def end_state(until: datetime, now: datetime) -> bytes:
    """Return what the script shows, as JSON, in the active language.

    Args:
        until: the end of the reservation.
        now: the present.
    """
    left_seconds = (until - now).total_seconds()
    step = due_warning(left_seconds, None)
    words = ""
    if step is not None:
        left = remaining_time_text(left_seconds)
        words = translated(
            joined(
                [
                    sentence("This reservation ends in {left}.", left=left),
                    sentence("Save your work, or extend it in GPU Portal."),
                ]
            )
        )
    told = {"step": step, "text": words, "close": translated(sentence("Close"))}
    return json.dumps(told).encode()
