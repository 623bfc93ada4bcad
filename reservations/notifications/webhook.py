"""Call a webhook once: resolve, check, connect to the checked address."""

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from ipaddress import ip_network

from django.conf import settings
from django.utils.crypto import salted_hmac

from reservations.notifications.webhook_rules import (
    WebhookAddress,
    WebhookRefused,
    allowed,
    parse,
)
from telemetry.protocol.sentences import sentence

TIMEOUT_SECONDS = 5.0
SECRET_SALT = "gpuportal.webhook"
_resolvers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="resolve")


class WebhookFailed(Exception):
    """It was not accepted. ``gone``: the receiver says it never will be."""

    def __init__(self, why: str, *, gone: bool = False) -> None:
        self.why = why
        self.gone = gone
        super().__init__(why)


def secret_of(user_pk: int, nonce: str) -> str:
    """Return a webhook's signing secret, derived so that no table holds it."""
    made = salted_hmac(SECRET_SALT, f"{user_pk}:{nonce}", algorithm="sha256")
    return f"whsec_{made.hexdigest()}"


def group_secret_of(account_pk: int, nonce: str) -> str:
    """Return the signing secret of a group's webhook, derived in the same way."""
    made = salted_hmac(SECRET_SALT, f"group:{account_pk}:{nonce}", algorithm="sha256")
    return f"whsec_{made.hexdigest()}"


def check(url: str) -> None:
    """Refuse an address that could never be called.

    Raises:
        WebhookRefused: with the reason, for the person who typed it.
    """
    target = parse(url, loopback_http=settings.WEBHOOK_LOOPBACK_HTTP)
    resolve(target)


def resolve(target: WebhookAddress) -> str:
    """Return an address of the host that may be called.

    All addresses must be allowed. A name with one public and one private address is a
    known way around a filter.

    Raises:
        WebhookRefused: it has none, or leads into a network that is not allowed.
    """
    asked = _resolvers.submit(
        socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM
    )
    try:
        found = asked.result(timeout=TIMEOUT_SECONDS)
    except (OSError, UnicodeError, Late) as error:
        raise _not_reachable(target) from error
    addresses = [str(row[4][0]) for row in found]
    networks = [ip_network(text) for text in settings.WEBHOOK_ALLOWED_NETWORKS]
    if settings.WEBHOOK_LOOPBACK_HTTP and not target.secure:
        networks += [ip_network("127.0.0.0/8"), ip_network("::1/128")]
    if not addresses or not all(allowed(one, networks=networks) for one in addresses):
        raise _not_reachable(target)
    return addresses[0]


def _not_reachable(target: WebhookAddress) -> WebhookRefused:
    """Return the refusal of a host. It is the same for every reason.

    Two different sentences would let anybody find out which names the institute's DNS
    knows.
    """
    return WebhookRefused(
        sentence(
            "The portal cannot call {host}. The host must have a public "
            "address, or one in a network that the site allows.",
            host=target.host,
        )
    )


class _Pinned(http.client.HTTPConnection):
    """A connection to one checked address, even if the name changes meanwhile."""

    def __init__(self, target: WebhookAddress, address: str) -> None:
        super().__init__(target.host, target.port, timeout=TIMEOUT_SECONDS)
        self.address = address
        self.secure = target.secure

    def connect(self) -> None:
        """Connect to the address; the certificate must be the name's."""
        plain = socket.create_connection((self.address, self.port), self.timeout)
        if self.secure:
            context = ssl.create_default_context()
            # Stored before the handshake, which `_hang_up` must be able to end.
            self.sock = context.wrap_socket(
                plain, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()
        else:
            self.sock = plain


def post(url: str, data: bytes, headers: Mapping[str, str]) -> None:
    """Send a body once. Redirects are not followed, and no answer's body is read.

    Raises:
        WebhookFailed: not accepted within `TIMEOUT_SECONDS`, with the reason.
    """
    try:
        target = parse(url, loopback_http=settings.WEBHOOK_LOOPBACK_HTTP)
        connection = _Pinned(target, resolve(target))
    except WebhookRefused as error:
        raise WebhookFailed(error.text()) from error
    # Neither one socket operation nor all together may last longer. A server that
    # answers byte by byte is disconnected.
    hang_up = threading.Timer(TIMEOUT_SECONDS, _hang_up, [connection])
    hang_up.start()
    try:
        connection.request("POST", target.path, data, dict(headers))
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise WebhookFailed(
            sentence("no answer: {error}", error=_error_text(error))
        ) from error
    finally:
        hang_up.cancel()
        connection.close()
    if 200 <= status < 300:
        return
    template = (
        sentence("answered {status}: redirects are not followed")
        if 300 <= status < 400
        else sentence("answered {status}")
    )
    raise WebhookFailed(
        sentence(template, status=status),
        gone=status == 410,
    )


def _hang_up(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            sock.close()


def _error_text(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:120]
