"""The scopes of an API token that each operation needs: one for each of its effects.

``read`` reads, ``book`` changes the calendar, ``job`` runs code. An operation that does
two of these needs both scopes. Consequences of an earlier request need no further
scope: a cancelled reservation ends its Jobs, and a waiting request with a Job launches
it, because a token with both scopes made it.
"""

from collections.abc import Callable, Mapping
from typing import Any

Body = Mapping[str, Any]
PREFIX = "api/v1/"
JOB_ROUTES = ("jobs", "plans", "models", "serve")
"""Prefixes of the routes whose unsafe operations run code or prepare it."""


def _always(_body: Body) -> bool:
    return True


def _may_move(body: Body) -> bool:
    # The schema turns "true" and 1 into true, so every value except false counts.
    return body.get("may_move", False) not in (None, False)


def _gaps_or_moves(body: Body) -> bool:
    return body.get("backfill") is not None or _may_move(body)


def _serves_elsewhere(body: Body) -> bool:
    """Return whether POST /serve books: hours from now, or permission to move (the
    default)."""
    own = body.get("reservation") is not None and body.get("hours") is None
    return not own or body.get("may_move", True) is not False


def _with_job(body: Body) -> bool:
    return body.get("job") is not None


ALSO: Mapping[tuple[str, str], tuple[str, Callable[[Body], bool]]] = {
    ("POST", "jobs"): ("book", _gaps_or_moves),
    ("POST", "jobs/arrays"): ("book", _gaps_or_moves),
    ("POST", "jobs/<int:job_id>/moves"): ("book", _may_move),
    ("POST", "jobs/<int:job_id>/moves/<int:move_id>/accept"): ("book", _always),
    ("POST", "serve"): ("book", _serves_elsewhere),
    ("POST", "serve/<int:job_id>/move"): ("book", _always),
    ("POST", "waiting"): ("job", _with_job),
}
"""Operation -> its second scope, and the bodies for which it is needed."""


def scopes_needed(method: str, route: str, body: Body) -> tuple[str, ...]:
    """Return the scopes that a token needs for a request.

    Args:
        method: of HTTP.
        route: as Django resolved it ("api/v1/jobs/<int:job_id>").
        body: the JSON object of the request; empty if there is none.

    >>> scopes_needed("GET", "api/v1/jobs", {})
    ('read',)
    >>> scopes_needed("POST", "api/v1/serve", {"file": 1, "hours": 2})
    ('job', 'book')
    >>> scopes_needed("POST", "api/v1/serve", {"reservation": 7, "may_move": False})
    ('job',)
    """
    if method in ("GET", "HEAD"):
        return ("read",)
    path = route.removeprefix(PREFIX).rstrip("/")
    first = "job" if path.split("/", 1)[0] in JOB_ROUTES else "book"
    second, needed = ALSO.get((method, path), ("", _always))
    return (first, second) if second and needed(body) else (first,)
