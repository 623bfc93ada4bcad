"""How many connections to the broker a node may hold.

Redis bounds the connections of everybody together (maxclients), and not those of
one user. So ingest counts them. A node beyond its number loses all of them. An honest
worker connects again. A connection that does not sign in belongs to nobody and is ended
too, where the broker has users (deploy/acl.sh).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from redis import Redis
from redis.exceptions import NoPermissionError

from telemetry.ingest.bounds import Misuse
from telemetry.ingest.complaints import Complaints
from telemetry.rules.broker_refusals import USER_PREFIX

MOST_CONNECTIONS = 64
"""Of one node. Its worker holds about ten."""
SIGN_IN_SECONDS = 10
"""A connection that has not signed in by then is ended."""
NOBODY = "default"
"""The user of a connection before it signs in."""
MOST_ENDED = 1000
"""Connections without a user that are ended at once; the others come next time."""


class Connections:
    """Counts connections, and ends those that are too many."""

    def __init__(self, redis: Redis, *, complaints: Complaints) -> None:
        self._redis = redis
        self._complaints = complaints

    def enforce(self, nodes: Iterable[str]) -> list[Misuse]:
        """End what is too much; what each of these nodes did. Raises RedisError."""
        try:
            if self._redis.acl_whoami() in (NOBODY, NOBODY.encode()):
                return []  # no users, so that nobody can be told from another
            clients: Any = self._redis.client_list()
        except NoPermissionError:
            self._complaints.add(
                "broker",
                "connections are not counted: the user of the portal is older than "
                "deploy/acl.sh. Print it again, or give it +client|list +client|kill",
            )
            return []
        held = Counter(str(one.get("user")) for one in clients)
        found = []
        for node in nodes:
            count = held[USER_PREFIX + node]
            if count > MOST_CONNECTIONS:
                self._redis.client_kill_filter(user=USER_PREFIX + node)
                what = f"{count} connections were ended; {MOST_CONNECTIONS} are allowed"
                found.append(Misuse(node, what))
        self._end_nobodys(clients)
        return found

    def _end_nobodys(self, clients: Iterable[dict[str, str]]) -> None:
        """End connections that have not signed in for long."""
        silent = [
            one
            for one in clients
            if one.get("user") == NOBODY and int(one.get("age", 0)) >= SIGN_IN_SECONDS
        ]
        if not silent:
            return
        with self._redis.pipeline(transaction=False) as pipe:
            for one in silent[:MOST_ENDED]:
                pipe.client_kill_filter(_id=one["id"])
            pipe.execute(raise_on_error=False)
        self._complaints.add(
            "broker",
            f"{len(silent)} connections did not sign in and were ended, the last from "
            f"{silent[-1].get('addr', 'an unknown address')}",
        )
