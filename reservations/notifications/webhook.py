"""Call a webhook once: resolve, check, connect to the checked address."""

import http.client
from collections.abc import Mapping
from concurrent.futures import Executor
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
from telemetry.web import bounded_call

TIMEOUT_SECONDS = 5.0
SECRET_SALT = "gpuportal.webhook"


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


def resolve(target: WebhookAddress, *, pool: Executor | None = None) -> str:
    """Return an address of the host that may be called.

    All addresses must be allowed. A name with one public and one private address is a
    known way around a filter.

    Raises:
        WebhookRefused: it has none, or leads into a network that is not allowed.
    """
    try:
        own = {} if pool is None else {"pool": pool}
        addresses = bounded_call.resolved(
            _endpoint(target), seconds=TIMEOUT_SECONDS, **own
        )
    except (OSError, UnicodeError) as error:
        raise _not_reachable(target) from error
    networks = [ip_network(text) for text in settings.WEBHOOK_ALLOWED_NETWORKS]
    if settings.WEBHOOK_LOOPBACK_HTTP and not target.secure:
        networks += [ip_network("127.0.0.0/8"), ip_network("::1/128")]
    if not addresses or not all(allowed(one, networks=networks) for one in addresses):
        raise _not_reachable(target)
    return addresses[0]


def _endpoint(target: WebhookAddress) -> bounded_call.HostPort:
    return bounded_call.HostPort(target.secure, target.host, target.port)


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


def post(url: str, data: bytes, headers: Mapping[str, str]) -> None:
    """Send a body once. Redirects are not followed, and no answer's body is read.

    Raises:
        WebhookFailed: not accepted within `TIMEOUT_SECONDS`, with the reason.
    """
    try:
        target = parse(url, loopback_http=settings.WEBHOOK_LOOPBACK_HTTP)
        connection = bounded_call.PinnedConnection(
            _endpoint(target), [resolve(target)], seconds=TIMEOUT_SECONDS
        )
    except WebhookRefused as error:
        raise WebhookFailed(error.text()) from error
    try:
        status, _body = bounded_call.call(
            connection,
            "POST",
            target.path,
            data=data,
            headers=headers,
            seconds=TIMEOUT_SECONDS,
            most_bytes=0,
        )
    except (OSError, http.client.HTTPException) as error:
        raise WebhookFailed(
            sentence("no answer: {error}", error=bounded_call.error_text(error))
        ) from error
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
