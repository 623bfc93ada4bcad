"""Recent refusals by the broker, from its log of refusals (ACL LOG).

A node signs in as ``node-<name>``. A wrong password, a name without a user, and a node
that uses the streams or the queue of another name are all in that log. They are nowhere
else on the portal, because a node that is not let in cannot report it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from telemetry.protocol.hardware import NODE_NAME
from telemetry.protocol.sentences import sentence

USER_PREFIX = "node-"
OWN_KEYS = ("raw.", "facts.", "log.", "node.")
"""Prefixes of a node's keys. Its name follows."""
RECENT_SECONDS = 180.0
"""An older refusal is outdated, because workers try again within a minute."""


class RefusalCause(StrEnum):
    """A refusal of the broker."""

    PASSWORD = "password"
    """The password, or there is no such user."""
    NAME = "name"
    """The keys of another node."""


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """The last refusal of one node."""

    name: str
    """The name with which it signs in."""
    why: RefusalCause
    age_seconds: float
    address: str = ""
    """IP address and port of the client, from the broker."""
    used: str = ""
    """The name whose keys it wanted, for NAME."""


def cause(why: str, used: str = "") -> str:
    """Return in a few words why the broker refused a node; "" for no known cause."""
    if why == RefusalCause.PASSWORD:
        return sentence("wrong password")
    return (
        sentence("it uses the name {used}", used=used)
        if why == RefusalCause.NAME
        else ""
    )


def remedy(why: str, name: str) -> str:
    """Return the operator's remedy; "" for no known cause."""
    if why == RefusalCause.PASSWORD:
        return sentence(
            "Give it a new password: sh deploy/enroll --renew {name} on the portal, "
            "then sh deploy/join on the node.",
            name=name,
        )
    if why == RefusalCause.NAME:
        return sentence(
            "GPUPORTAL_NODE in its node.env must be the name that it was enrolled "
            "with. To rename a machine, enrol the new name and retire the old one."
        )
    return ""


def recent(entries: Iterable[Mapping[str, object]]) -> dict[str, BrokerRefusal]:
    """Return, by name, the newest refusal of each node that was refused recently.

    Args:
        entries: of ACL LOG, with the fields that Redis 7.0 gives. Entries of others are
            left out, also names that no node can have, because any client of the broker
            chooses its name.
    """
    found: dict[str, BrokerRefusal] = {}
    for entry in entries:
        one = _refusal(entry)
        if one is None or one.age_seconds > RECENT_SECONDS:
            continue
        known = found.get(one.name)
        if known is None or one.age_seconds < known.age_seconds:
            found[one.name] = one
    return found


def _refusal(entry: Mapping[str, object]) -> BrokerRefusal | None:
    """Read one entry; None: it is not about a node."""
    user, wanted = str(entry.get("username", "")), str(entry.get("object", ""))
    name = user.removeprefix(USER_PREFIX)
    if name == user or not NODE_NAME.fullmatch(name):
        return None
    try:
        age_seconds = float(str(entry.get("age-seconds")))
    except ValueError:
        return None
    about = entry.get("client-info")
    address = str(about.get("addr", "")) if isinstance(about, Mapping) else ""
    match entry.get("reason"):
        case "auth":
            return BrokerRefusal(name, RefusalCause.PASSWORD, age_seconds, address[:64])
        case "key":
            used = next(
                (wanted.removeprefix(x) for x in OWN_KEYS if wanted.startswith(x)), ""
            )
            if NODE_NAME.fullmatch(used) and used != name:
                return BrokerRefusal(
                    name, RefusalCause.NAME, age_seconds, address[:64], used
                )
    return None
