"""The certificates that a node's ssh server accepts.

The node fetches the complete list. It is signed like an order, so an answer that
another machine gave or recorded earlier changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct

from placement.protocol.commands import (
    MAX_ORDER_BYTES,
    PlainOrder,
    Text,
    parse_plain_order,
)
from placement.protocol.process_commands import Instant
from telemetry.protocol.codec import Line

ADDRESS = "/node/v1/ssh"
MOST_ACCOUNTS = 1024
MOST_PRINCIPALS = 4096
MOST_KEY_CHARACTERS = 4096
ACCOUNT_NAME = re.compile(r"\A[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,149}\Z")
"""A Unix name or a login. It is a file's name on the node, so it has no slash."""
AccountName = Annotated[str, Meta(pattern=ACCOUNT_NAME.pattern)]
Principal = Annotated[str, Meta(pattern=r"\Ar[0-9]+-u[0-9]+-k[0-9]+\Z", max_length=80)]


@dataclass(frozen=True, slots=True)
class SshAccount:
    """The principals that open one Unix account."""

    name: AccountName
    principals: Annotated[tuple[Principal, ...], Meta(max_length=MOST_PRINCIPALS)]


@dataclass(frozen=True, slots=True)
class SshAccess(PlainOrder):
    """Every account of a node that certificates open now."""

    kind: Literal["ssh"]
    node: Text
    issued_at: Instant
    """Unix time, as ``expires_at``."""
    expires_at: Instant
    authority: Annotated[str, Meta(pattern=r"\Assh-ed25519 [A-Za-z0-9+/=]{1,200}\Z")]
    """Public key that signs certificates."""
    accounts: Annotated[tuple[SshAccount, ...], Meta(max_length=MOST_ACCOUNTS)] = ()


parse_ssh_access = partial(parse_plain_order, SshAccess)


class SshAnswer(Struct, frozen=True):
    """The portal's answer to a node."""

    payload: Annotated[str, Meta(max_length=MAX_ORDER_BYTES)]
    """Of a `SshAccess`."""
    signature: Annotated[Line, Meta(max_length=200)]
    host_certificate: Annotated[Line, Meta(max_length=MOST_KEY_CHARACTERS * 2)] = ""
    """For the host key that the node sent; "": it sent none."""
