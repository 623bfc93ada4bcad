"""Limit each node's connections to the broker.

Redis limits all connections together (maxclients), but not those of one user. So ingest
counts them. A node beyond the limit loses all its connections. An honest worker
connects again. If the broker has users (deploy/acl.sh), connections that do not sign in
are closed too.
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
"""Limit of one node. Its worker holds about ten."""
SIGN_IN_SECONDS = 10
"""A connection that has not signed in after this time is closed."""
NOBODY = "default"
"""The broker's name for a connection that has not signed in."""
MOST_ENDED = 1000
"""Most connections without a user that one call closes."""


class Connections:
    """Counts connections and closes excess ones."""

    def __init__(self, redis: Redis, *, complaints: Complaints) -> None:
        self._redis = redis
        self._complaints = complaints

    def enforce(self, nodes: Iterable[str]) -> list[Misuse]:
        """Close excess connections. Return each node's misuse. Raises RedisError."""
        try:
            if self._redis.acl_whoami() in (NOBODY, NOBODY.encode()):
                return []  # without users, nodes cannot be told apart
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
        """Close connections that have not signed in for long."""
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
