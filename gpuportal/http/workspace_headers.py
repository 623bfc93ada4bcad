"""Headers between a browser and a workspace: what is refused, and what is passed on.

The program of a workspace is a student's. It gets no cookie and no credential of the
portal, and it cannot set a cookie for another host. Hop-by-hop headers: RFC 9110,
section 7.6.1. Framing of bodies: RFC 9112, section 6.3.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.conf import settings

from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

Header = tuple[bytes, bytes]
COOKIE = "__Host-gpuportal-workspace"
"""The browser sends it to exactly one host, and no other host can set it."""
MOST_HEADER_BYTES = 32 * 1024
MOST_TARGET_BYTES = 8 * 1024
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"proxy-authenticate", b"proxy-authorization", b"transfer-encoding"),
        *(b"upgrade", b"expect"),
    )
)
NOT_TO_PROGRAM = frozenset(
    (b"authorization", b"cookie", b"host", b"forwarded", b"x-real-ip", b"x-csrftoken")
)
NOT_TO_BROWSER = frozenset(
    # The first clears cookies of the whole site. The others speak for other hosts.
    (
        *(b"clear-site-data", b"strict-transport-security", b"alt-svc"),
        *(b"set-cookie", b"date", b"server"),
    )
)
FRAMES = (b"content-security-policy", b"frame-ancestors 'self'")
"""No other origin may show a workspace in a frame. A second policy only restricts."""
REFUSED_STARTS = (b"access-control-", b"x-accel-", b"x-sendfile", b"x-lighttpd-")
"""Beginnings of further names. A proxy in front obeys the last three. With
X-Accel-Redirect nginx sends a file that only its operator may read.
"""
_TARGET = re.compile(rb"/[!-~]*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_COOKIE_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VISIBLE = re.compile(rb"[\t -~]*")


@dataclass(frozen=True, slots=True)
class WorkspaceRequest:
    """A request to a workspace, checked."""

    method: str
    target: bytes
    """Path and query, as the browser wrote them."""
    headers: tuple[Header, ...]
    """Names in lower case, as ASGI gives them."""
    chunked: bool

    def first(self, name: bytes) -> bytes:
        """Return the first value of a header, or b"" if it is missing."""
        return next((value for key, value in self.headers if key == name), b"")

    @property
    def cookie(self) -> str:
        """Return the value of the portal's cookie; "": none, or more than one."""
        found = [value for name, value in _cookies(self.headers) if name == COOKIE]
        return found[0] if len(found) == 1 else ""


def checked_request(
    method: str, raw_path: bytes, query: bytes, headers: Iterable[Header]
) -> WorkspaceRequest:
    """Return a request whose meaning is the same for every server.

    Raises:
        RequestRefused: its framing is ambiguous, or it is too large.
    """
    known = tuple((name.lower(), value) for name, value in headers)
    if method not in METHODS:
        raise RequestRefused("method", sentence("This method is not accepted here."))
    target = raw_path + (b"?" + query if query else b"")
    if len(target) > MOST_TARGET_BYTES or not _TARGET.fullmatch(target):
        raise RequestRefused("bad-address", sentence("The address cannot be read."))
    if sum(len(name) + len(value) for name, value in known) > MOST_HEADER_BYTES:
        raise RequestRefused(
            "headers-too-large", sentence("The headers of the request are too large.")
        )
    lengths = [value for name, value in known if name == b"content-length"]
    encodings = [value for name, value in known if name == b"transfer-encoding"]
    hosts = [value for name, value in known if name == b"host"]
    clear = (
        len(hosts) == 1
        and len(lengths) + len(encodings) <= 1
        and all(_LENGTH.fullmatch(value) for value in lengths)
        and all(value.strip().lower() == b"chunked" for value in encodings)
    )
    if not clear:
        raise RequestRefused("bad-request", sentence("The request is ambiguous."))
    return WorkspaceRequest(method, target, known, chunked=bool(encodings))


def check_origin(request: WorkspaceRequest, origin: str) -> None:
    """Refuse what another origin's page sends, except that it may link here.

    The workspaces of a site are "same-site" to each other, so SameSite cookies do not
    keep them apart. Every browser sends Origin with requests that change something.

    Raises:
        RequestRefused: "other-origin".
    """
    origins = [value for name, value in request.headers if name == b"origin"]
    site = request.first(b"sec-fetch-site")
    reads = request.method in ("GET", "HEAD")
    linked = (
        reads
        and request.first(b"sec-fetch-mode") == b"navigate"
        and request.first(b"sec-fetch-dest") == b"document"
    )
    allowed = (
        all(value == origin.encode() for value in origins)
        and len(origins) <= 1
        and (site in (b"", b"none", b"same-origin") or linked)
        and (reads or bool(origins))
    )
    if not allowed:
        raise other_origin()


def other_origin() -> RequestRefused:
    """Return the refusal of a request that a page of another origin sent."""
    return RequestRefused(
        "other-origin", sentence("The page of another origin sent this request.")
    )


def to_program(
    request: WorkspaceRequest, *, host: str, scheme: str, websocket: bool = False
) -> list[Header]:
    """Return the headers that the program of a workspace gets."""
    dropped = _listed(request.headers) | HOP_BY_HOP | NOT_TO_PROGRAM
    kept = [
        (name, value)
        for name, value in request.headers
        if name not in dropped
        and not name.startswith(b"x-forwarded-")
        and not (websocket and name.startswith(b"sec-websocket-"))
    ]
    own = (
        *(COOKIE, settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME),
        settings.LANGUAGE_COOKIE_NAME,
    )
    cookies = [
        f"{name}={value}"
        for name, value in _cookies(request.headers)
        if name not in own
    ]
    found = [(b"host", host.encode()), *kept]
    if cookies:
        found.append((b"cookie", "; ".join(cookies).encode("latin1")))
    found += [
        (b"x-forwarded-proto", scheme.encode()),
        (b"x-forwarded-host", found[0][1]),
    ]
    if websocket:
        return found
    if request.chunked:
        found.append((b"transfer-encoding", b"chunked"))
    return [*found, (b"connection", b"close")]


def to_browser(headers: Sequence[Header]) -> list[Header]:
    """Return the headers of a program's answer that the browser gets."""
    known = [(name.lower(), value) for name, value in headers]
    dropped = _listed(known) | HOP_BY_HOP | NOT_TO_BROWSER
    kept = [
        (name, value)
        for name, value in known
        if name not in dropped and not name.startswith(REFUSED_STARTS)
    ]
    cookies = [
        (b"set-cookie", cookie)
        for name, value in known
        if name == b"set-cookie" and (cookie := host_only(value))
    ]
    return [*kept, *cookies, FRAMES]


def host_only(cookie: bytes) -> bytes:
    """Return the value of Set-Cookie without Domain. b"": it is not passed on.

    >>> host_only(b"a=b; Domain=gpu.lab; Path=/")
    b'a=b; Path=/'
    >>> host_only(b"__Host-gpuportal-workspace=b; Secure; Path=/")
    b''
    """
    pair, *attributes = cookie.split(b";")
    name = pair.partition(b"=")[0].strip()
    own = (COOKIE, settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME)
    if (
        not _COOKIE_NAME.fullmatch(name)
        or not _VISIBLE.fullmatch(cookie)
        or name.decode().lower() in {word.lower() for word in own}
    ):
        return b""
    kept = [
        one for one in attributes if one.partition(b"=")[0].strip().lower() != b"domain"
    ]
    return b";".join([pair, *kept])


def _cookies(headers: Iterable[Header]) -> list[tuple[str, str]]:
    text = "; ".join(
        value.decode("latin1") for name, value in headers if name == b"cookie"
    )
    pairs = (pair.strip(" \t").partition("=") for pair in text.split(";"))
    return [(name, value) for name, mark, value in pairs if mark]


def _listed(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the headers that "Connection" names: they are hop-by-hop, too."""
    words = [
        word.strip().lower()
        for name, value in headers
        if name == b"connection"
        for word in value.split(b",")
    ]
    return frozenset(words)
