"""The node's side of the HTTPS channel: scripts down, logs up.

Outbound only, standard library only, one request at a time, no redirects
followed (the token must not travel), every answer bounded.
"""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from placement.protocol.node_http import FILE_PIECE_BYTES, KEY_HEADER
from placement.protocol.node_refusals import OrderRefused
from telemetry.token_files import TokenFiles

SCRIPT_MAX_BYTES = 2**20
TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


class ChannelDown(Exception):
    """The web cannot be reached or cannot answer now. Try again later."""


class TokenRefused(ChannelDown):
    """The web does not know the node or its token. The next token may be accepted.

    `ChannelWatch` renews the token. All others wait, so that nothing of a Job is lost.
    """


class ChannelRefused(Exception):
    """The web refused. The same request will not succeed."""

    def __init__(self, status: int, detail: str) -> None:
        self.status = status
        super().__init__(f"{status}: {detail}")


def failure(status: int, detail: str) -> ChannelDown | ChannelRefused:
    """Return what an answer means that is neither 2xx nor 409."""
    if status in (401, 403):
        return TokenRefused(f"the web does not know this node: {status}: {detail}")
    if status >= 500 or status == 429:
        return ChannelDown(f"the web answered {status}")
    return ChannelRefused(status, detail)


class _NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object) -> None:
        return None


_opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), _NoRedirectHandler()
)


def request(
    method: str,
    url: str,
    *,
    node: str,
    token: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
) -> tuple[int, bytes]:
    """Send one request. Return status and body of a 2xx or 409 answer.

    ``key``: of the Job of the request. None: it is about no Job.

    Raises:
        TokenRefused: 401 or 403. It is a ChannelDown.
        ChannelDown: no answer, 5xx or 429.
        ChannelRefused: any other answer.
    """
    wanted = urllib.request.Request(
        url,
        data=body,
        method=method,
        headers={
            "Authorization": f"Node {node}:{token}",
            "Content-Type": "application/octet-stream",
            **({} if key is None else {KEY_HEADER: key}),
            **(headers or {}),
        },
    )
    try:
        with _opener.open(wanted, timeout=TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read(SCRIPT_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            detail = error.read(4096)
        if error.code == 409:
            return 409, detail
        said = detail[:200].decode(errors="replace")
        raise failure(error.code, said) from error
    except (OSError, HTTPException) as error:
        raise ChannelDown(f"the web cannot be reached: {error}") from error


def download_file(
    url: str,
    path: Path,
    *,
    node: str,
    token: Callable[[], str],
    key: str = "",
    sha256: str,
    most_bytes: int,
) -> None:
    """Download a file in pieces. It appears at its path only when it is complete.

    An interrupted download continues where it ended.

    Args:
        token: reads the node's token for each piece. It may be renewed meanwhile.

    Raises:
        ChannelDown: try again later.
        ChannelRefused: the web has no such file for this node, or another version.
    """
    draft = path.with_name(f".{path.name}.part")
    start = f"{url}{'&' if '?' in url else '?'}offset="
    with draft.open("ab") as file:
        while True:
            offset = file.tell()
            address = f"{start}{offset}"
            _, piece = request("GET", address, node=node, token=token(), key=key)
            file.write(piece)
            if offset + len(piece) > most_bytes:
                draft.unlink()
                raise ChannelRefused(413, f"more than {most_bytes} bytes")
            if len(piece) < FILE_PIECE_BYTES:
                break
    with draft.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        draft.unlink()
        raise ChannelRefused(409, "the file is not the one that was named")
    draft.replace(path)


def download_part(
    part: str,
    *,
    web_url: str,
    node: str,
    token_file: Path,
    job: int,
    key: str = "",
    sha256: str,
    until: float,
    given_up: Callable[[], bool],
) -> bytes:
    """Download a Job's ``script`` or ``files``. Check the hash from the signed order.

    Tries again while the web is unreachable, until the Reservation's end.

    Raises:
        OrderRefused: with the part as its code, and the reason.
    """
    url = f"{web_url}/node/v1/jobs/{job}/{part}"
    tries = 0
    while True:
        try:
            token = TokenFiles(token_file).shown_token()
            _, body = request("GET", url, node=node, token=token, key=key)
            break
        except ChannelRefused as error:
            raise OrderRefused(part, f"the web refused the {part}: {error}") from error
        except (ChannelDown, OSError) as error:
            pause = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
            tries += 1
            if time.time() + pause >= until:
                raise OrderRefused(
                    part, f"the {part} could not be fetched in time: {error}"
                ) from error
            time.sleep(pause)
        if given_up():
            raise OrderRefused(part, f"stopped before the {part} was fetched")
    if hashlib.sha256(body).hexdigest() != sha256:
        raise OrderRefused(part, f"the {part} is not the one that was ordered")
    return body


def upload_log(
    *,
    web_url: str,
    node: str,
    token: str,
    job: int,
    attempt: int,
    key: str = "",
    offset_bytes: int,
    data: bytes,
) -> int:
    """Append a piece of log. Return the size that the web has now.

    Raises:
        ChannelDown: try again later.
        ChannelRefused: the web does not accept this log.
    """
    url = f"{web_url}/node/v1/jobs/{job}/log?attempt={attempt}&offset={offset_bytes}"
    status, body = request("PUT", url, node=node, token=token, body=data, key=key)
    try:
        answer: Any = json.loads(body)
        size = answer["size"]
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ValueError(size)
    except (ValueError, KeyError, TypeError) as error:
        raise ChannelDown(f"the web answered {status} without a size") from error
    return size
