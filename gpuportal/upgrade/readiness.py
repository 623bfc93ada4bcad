"""Ask the web processes what is not in order, before and after an upgrade."""

import http.client
import json
from urllib.parse import urlsplit

from django.conf import settings

OWN_FAULTS = frozenset({"migrations"})
"""Parts that an upgrade puts in order. They are never taken as they were."""


def parts_not_in_order(web: str) -> list[str]:
    """Return the parts that ``/readyz`` calls not in order; empty: all is well.

    Args:
        web: address of the web processes, such as ``http://127.0.0.1:8010``.

    Raises:
        OSError: they do not answer.
        http.client.HTTPException: what answers does not speak HTTP.
        ValueError: the answer is not that of a portal.
    """
    # As the proxy asks, by a name that the portal answers to.
    names = [name for name in settings.ALLOWED_HOSTS if not name.startswith(("*", "."))]
    connection = http.client.HTTPConnection(urlsplit(web).netloc, timeout=30.0)
    try:
        host = names[0] if names else "localhost"
        connection.request("GET", "/readyz", headers={"Host": host})
        answer = connection.getresponse()
        found = json.loads(answer.read())
    finally:
        connection.close()
    if not isinstance(found, dict):
        raise ValueError(f"/readyz answers {answer.status}")
    bad = [name for name, value in found.items() if value is False]
    if answer.status != http.client.OK and not bad:
        raise ValueError(f"/readyz answers {answer.status}")
    return bad
