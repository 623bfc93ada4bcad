"""The origins and environments of workspaces. See docs/access.md#workspaces."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from placement.protocol.container_images import ContainerEngine, image_of
from placement.protocol.launchers import environment_problem
from telemetry.protocol.sentences import sentence

PREFIX = "w-"
LABEL = re.compile(r"[a-z2-7]{24}")
DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9-]{1,63}")
DEFAULT_PORTS = {"http": 80, "https": 443}


class OriginInvalid(ValueError):
    """WORKSPACE_ORIGIN cannot be used. The text says why."""


@dataclass(frozen=True, slots=True)
class WorkspaceOrigin:
    """The setting WORKSPACE_ORIGIN, such as ``https://*.ws.gpu.lab``."""

    scheme: str
    domain: str
    """Lower case, without a dot at the end: ``ws.gpu.lab``."""
    port: str
    """``:8010``; "": the scheme's own."""

    def host_of(self, label: str) -> str:
        """Return the host of a workspace, as a browser sends it."""
        return f"{PREFIX}{label}.{self.domain}{self.port}"

    def origin_of(self, label: str) -> str:
        """Return the origin of a workspace."""
        return f"{self.scheme}://{self.host_of(label)}"

    @property
    def pattern(self) -> str:
        """Return all these origins, as a source of a Content Security Policy."""
        return f"{self.scheme}://*.{self.domain}{self.port}"

    def owns(self, host: str) -> bool:
        """Return whether a host lies below the domain, whatever its port or label is.

        >>> read_origin("https://*.ws.gpu.lab").owns("X.WS.gpu.lab.:99")
        True
        >>> read_origin("https://*.ws.gpu.lab").owns("gpu.lab")
        False
        """
        name = host.lower()
        if not name.endswith("]"):  # an address of IPv6 has colons
            name = re.sub(r":[0-9]*\Z", "", name)
        return name.rstrip(".").endswith(f".{self.domain}")

    def label_of(self, host: str) -> str | None:
        """Return the label of a workspace's host. None: it is not exactly one.

        >>> read_origin("https://*.ws.gpu.lab").label_of(f"w-{'a' * 24}.ws.gpu.lab")
        'aaaaaaaaaaaaaaaaaaaaaaaa'
        """
        label = host.partition(".")[0].removeprefix(PREFIX)
        exact = LABEL.fullmatch(label) and host == self.host_of(label)
        return label if exact else None


@lru_cache(maxsize=8)
def read_origin(text: str) -> WorkspaceOrigin | None:
    """Read the setting; None for "".

    Raises:
        OriginInvalid: it is not ``https://*.`` and a domain.

    >>> read_origin("http://*.localhost:8010").pattern
    'http://*.localhost:8010'
    """
    if not text:
        return None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise OriginInvalid(f"cannot be read: {error}") from None
    domain = (parts.hostname or "").removeprefix("*.")
    whole = f"{parts.scheme}://{parts.netloc}"
    if text.rstrip("/") != whole or not parts.netloc.startswith("*."):
        raise OriginInvalid("must be https://*. and a domain, and nothing after it")
    if not DOMAIN.fullmatch(domain):
        raise OriginInvalid(f"{domain} is not a domain")
    local = domain == "localhost" or domain.endswith(".localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise OriginInvalid("must begin with https:// (http:// only for localhost)")
    shown = "" if port in (None, DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return WorkspaceOrigin(parts.scheme, domain, shown)


def workspace_environment_problem(name: str, images: Collection[str]) -> str:
    """Return why a workspace cannot have this environment; "" if it can.

    Args:
        name: as its owner entered it.
        images: that the site allows. Podman starts no others, because it would fetch
            them from any registry. An image file needs no permission.

    >>> workspace_environment_problem("podman:lab/torch", ["podman:lab/torch"])
    ''
    """
    if why := environment_problem(name, images=True):
        return why
    image = image_of(name)
    if image is None or image.engine is not ContainerEngine.PODMAN or name in images:
        return ""
    there = ", ".join(one for one in images if image_of(one) != image)
    if not there:
        return sentence("is an image, and the site allows none")
    return sentence("is not an image that the site allows: {there}", there=there)
