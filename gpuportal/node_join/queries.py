"""Rows of the page of a joining machine: each check with its remedy."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext

from gpuportal.doctor.diagnosis import CheckState, Diagnosis, note, problem, well
from gpuportal.doctor.machine_diagnosis import MachineFacts, machine_report
from gpuportal.node_join.broker_user import user_command
from placement.protocol.join_messages import JoinRequest, key_fingerprint
from telemetry.inventory.node_identity import identity_warnings
from telemetry.models import Node, NodeJoin
from telemetry.protocol.codec import Malformed, read
from telemetry.protocol.sentences import Sentence, counted, joined, sentence

CHECKS = {
    "key": sentence("Key"),
    "gpus": sentence("GPUs"),
    "user": sentence("Broker user"),
    "machine": sentence("Machine"),
    "samples": sentence("Live data"),
    "driver": sentence("Driver"),
    "clock": sentence("System clock"),
    "disk": sentence("Disk"),
    "cgroups": sentence("Control groups"),
    "isolation": sentence("Job isolation"),
    "gate": sentence("Device gate"),
    "ssh": sentence("ssh"),
    "broker": sentence("Broker"),
    "channel": sentence("Channel"),
    "token": sentence("Token"),
    "torch": sentence("torch"),
    "secrets": sentence("Secret files"),
    "worker": sentence("Worker"),
}
"""Names of the checks for people."""
_LIVE = ("broker", "channel", "worker")
"""Checks that a live node has passed since its doctor ran."""
_WITHOUT_USER = ("broker", "worker")
"""Checks that fail as long as the broker lacks the node's user, which has a line."""


class JoinRow(NamedTuple):
    """One line of the page."""

    title: Sentence
    diagnosis: Diagnosis

    @property
    def icon(self) -> str:
        """The icon of its state."""
        icons = {CheckState.OK: "check", CheckState.PROBLEM: "alert"}
        return icons.get(self.diagnosis.state, "info")


def join_rows(join: NodeJoin, now: datetime) -> list[JoinRow]:
    """Return every check of a join, in the order in which they become known."""
    if join.node is None:
        return []
    found = [*_of_join(join, join.node, now), *_of_doctor(join, join.node)]
    return [JoinRow(CHECKS[one.check], one) for one in found]


def is_complete(join: NodeJoin) -> bool:
    """Return whether the page needs no further look: it is live and was checked."""
    return (
        join.node is not None
        and join.facts_at is not None
        and _is_live(join, join.node)
    )


def _of_join(join: NodeJoin, node: Node, now: datetime) -> Iterator[Diagnosis]:
    try:
        request = read(JoinRequest, join.request)
    except Malformed:
        return
    yield well(
        "key",
        sentence(
            "{key} received from {address} ({host})",
            key=key_fingerprint(request.public_key),
            address=join.address or "?",
            host=request.hostname or "?",
        ),
    )
    if not join.facts:
        yield _gpus(request)
    if join.broker_set or _is_live(join, node):
        yield well("user", sentence("the broker accepts node-{name}", name=join.name))
    else:
        yield problem(
            "user",
            sentence("the portal could not add it: {why}", why=join.broker_problem),
            joined(
                (
                    sentence("Type this on the portal:"),
                    user_command(join.name, join.broker_hash),
                )
            ),
        )
    for warning in identity_warnings(node, now):
        yield problem("machine", warning, "")
    if _is_live(join, node):
        yield well("samples", sentence("samples arrive"))
    else:
        yield note("samples", sentence("no sample has arrived yet"))


def _gpus(request: JoinRequest) -> Diagnosis:
    if request.gpus:
        seen = counted("{n} GPU seen", "{n} GPUs seen", len(request.gpus))
        kinds = ", ".join(sorted({one.name for one in request.gpus}))
        return well("gpus", joined((seen, kinds), ": "))
    return problem(
        "gpus",
        request.no_gpus or sentence("no GPU was found"),
        sentence("Install the NVIDIA driver and start the machine again."),
    )


def _of_doctor(join: NodeJoin, node: Node) -> Iterator[Diagnosis]:
    if not join.facts:
        return
    try:
        facts = read(MachineFacts, join.facts)
    except Malformed:
        return
    if _is_live(join, node):
        outdated: tuple[str, ...] = _LIVE
    else:
        outdated = () if join.broker_set else _WITHOUT_USER
    for one in machine_report(facts):
        if one.state is CheckState.PROBLEM and one.check in outdated:
            continue
        if one.check == "gate":
            mode = sentence("set to {mode}", mode=gettext(node.get_gate_mode_display()))
            yield note("gate", joined((mode, one.fact), ", "))
            continue
        yield one


def _is_live(join: NodeJoin, node: Node) -> bool:
    """Whether samples arrived after the machine joined."""
    return (
        node.last_seen_at is not None
        and join.used_at is not None
        and node.last_seen_at > join.used_at
    )
