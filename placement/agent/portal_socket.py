"""A node's websocket to the portal. Nodes only connect outwards."""

from __future__ import annotations

from urllib.parse import urlsplit

from websockets.asyncio.client import connect

from placement.agent.job_folder import NodeView

OPEN_SECONDS = 10


class _NoRedirectConnect(connect):
    """The node's token must not travel: a redirect is an error."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follow none."""
        return exc


def portal_socket(node: NodeView, address: str, *, most_bytes: int) -> connect:
    """Return a websocket to be opened, with the node's token.

    Args:
        node: whose token and portal.
        address: path at the portal, with a slash at its beginning and end.
        most_bytes: size of the largest message that is accepted.

    Raises:
        ValueError: the node's token cannot be read.
    """
    web = urlsplit(node.web_url)
    scheme = {"http": "ws", "https": "wss"}[web.scheme]
    return _NoRedirectConnect(
        f"{scheme}://{web.netloc}{web.path}{address}",
        additional_headers={"Authorization": f"Node {node.name}:{node.token()}"},
        origin=f"{web.scheme}://{web.netloc}",  # type: ignore[arg-type]
        max_size=most_bytes,
        compression=None,
        proxy=None,
        open_timeout=OPEN_SECONDS,
    )
