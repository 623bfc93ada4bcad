"""The broker's address, and the protection of the messages to it.

A password is sent over each new connection, and then commands to nodes. So TLS
(``rediss://``) checks the broker's certificate and its name in every client. redis-py
does so by default, kombu (Celery) only if the address requests it.

No Django here, because the node settings read it too.
"""

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

CERT_REQS = "ssl_cert_reqs"
_REQUIRED = ("required", "CERT_REQUIRED")
_TRUE = ("true", "1", "yes", "True")


class BrokerUrlInvalid(ValueError):
    """An address that would expose the password, or whose file is missing."""


def verified_url(url: str, *, ca_file: str = "") -> str:
    """Return the address with the checks of TLS written into it, for every client.

    Args:
        url: ``rediss://...``; any other kind is returned unchanged.
        ca_file: certificates (PEM) of the broker's certificate authority; "": those
            that the machine trusts.

    Raises:
        BrokerUrlInvalid: the address turns a check off, or the file is missing.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return url
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if options.get(CERT_REQS, "required") not in _REQUIRED:
        raise BrokerUrlInvalid(
            f"must not say {CERT_REQS}={options[CERT_REQS]}: anybody could pretend "
            "to be the broker. GPUPORTAL_BROKER_CA_FILE names the issuers to trust"
        )
    if options.get("ssl_check_hostname", "true") not in _TRUE:
        raise BrokerUrlInvalid(
            "must not turn ssl_check_hostname off: any certificate would do"
        )
    options |= {CERT_REQS: "required", "ssl_check_hostname": "true"}
    if ca_file:
        options["ssl_ca_certs"] = ca_file
    found = options.get("ssl_ca_certs")
    if found and not Path(found).is_file():
        raise BrokerUrlInvalid(f"needs the certificates in {found}: there is no file")
    return urlunsplit(parts._replace(query=urlencode(options)))


def is_unencrypted(url: str) -> bool:
    """Return whether password and messages go to another machine without TLS.

    >>> is_unencrypted("redis://:x@gpu.example.org/0")
    True
    >>> is_unencrypted("redis://localhost/0")
    False
    """
    parts = urlsplit(url)
    if parts.scheme != "redis":
        return False
    host = parts.hostname or "localhost"
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
