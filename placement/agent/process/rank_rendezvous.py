"""The rendezvous of the ranks on several nodes, for one of the nodes.

The first node chooses its address and port. Every node names the interface to it,
because gloo and NCCL would otherwise use the first one that they find
("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", docs of torch.distributed).
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import replace
from urllib.parse import urlsplit

from placement.protocol.commands import Order
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.rendezvous import Meeting

PORTS_VARIABLE = "GPUPORTAL_MEETING_PORTS"
"""``first-last`` on a node whose firewall allows only these. Unset: any free one."""
SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"


def settled(order: Order, web_url: str) -> Order:
    """Return the order with address and port, which the first node chooses.

    Raises:
        OrderRefused: no port is free.
    """
    meeting = order.meeting
    if meeting is None or meeting.node_rank:
        return order
    address, port = meeting.address or own_address(web_url), meeting.port or free_port()
    return replace(order, meeting=replace(meeting, address=address, port=port))


def rendezvous_address(order: Order) -> dict[str, object]:
    """Return the address for the ranks of other nodes. Only on the first node."""
    meeting = order.meeting
    if meeting is None or meeting.node_rank:
        return {}
    return {"meeting_address": meeting.address, "meeting_port": meeting.port}


def environment(meeting: Meeting, web_url: str) -> dict[str, str]:
    """Return the Job's environment variables about the other nodes."""
    facts = {
        "GPUPORTAL_NODE_RANK": str(meeting.node_rank),
        "GPUPORTAL_NODE_COUNT": str(len(meeting.counts)),
        "GPUPORTAL_PROCESSES": ",".join(map(str, meeting.counts)),
        "GPUPORTAL_FIRST_RANK": str(meeting.first_rank),
        "GPUPORTAL_MEETING_ADDRESS": meeting.address,
        "GPUPORTAL_MEETING_PORT": str(meeting.port),
        # torchrun reads it here, because everybody on the node can read an argument.
        "PET_RDZV_ID": meeting.token,
    }
    if name := interface_of(address_towards(meeting.address, web_url)):
        facts |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    return facts


def only_rank(meeting: Meeting) -> dict[str, str]:
    """Return the variables that a launcher would set for the only rank of this node.

    Names: torch.distributed, "Environment variable initialization", and torchrun's.
    """
    return {
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "WORLD_SIZE": str(meeting.world),
        "RANK": str(meeting.first_rank),
        "LOCAL_WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }


def own_address(web_url: str) -> str:
    """Return the address with which this node reaches the portal, for the other nodes.

    Not that of the host name, which on many systems is the loopback's.
    """
    return _source_address(urlsplit(web_url).hostname or LOOPBACK) or LOOPBACK


def address_towards(address: str, web_url: str) -> str:
    """Return this node's address on the route to the first node's."""
    found = _source_address(address)
    if found and ipaddress.ip_address(found).is_loopback and not _is_local(address):
        # Its own host name, which /etc/hosts maps to the loopback.
        return own_address(web_url)
    return found


def interface_of(address: str) -> str:
    """Return the interface of an IPv4 address. "": none, or it is IPv6."""
    if not address or ":" in address:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            try:
                fcntl.ioctl(asking, SIOCGIFADDR, request, True)
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(request.tobytes()[20:24]) == address:
                return name
    # Any of 127.0.0.0/8 is the loopback's.
    return "lo" if address.startswith("127.") else ""


def free_port() -> int:
    """Return a free port of this node from the allowed range.

    Raises:
        OrderRefused: no port is free, or the variable is not a range of ports.
    """
    for port in _ports(os.environ.get(PORTS_VARIABLE, "")):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OrderRefused("meeting", f"no port of {PORTS_VARIABLE} is free on this node")


def _ports(text: str) -> range:
    if not text:
        return range(1)  # 0: any
    first, dash, last = text.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last):
        return range(int(first), min(int(last), 2**16 - 1) + 1)
    raise OrderRefused("meeting", f"{PORTS_VARIABLE} must be first-last: {text[:40]}")


def _source_address(host: str) -> str:
    """Return the local source address of packets to a host. "": none."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, _, _, where in sorted(found, key=lambda one: one[0]):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(where)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return ""


def _is_local(address: str) -> bool:
    return address == "localhost" or address.startswith("127.") or address == "::1"
