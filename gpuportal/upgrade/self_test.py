"""The test after an upgrade: the portal answers, reads samples and commands its nodes.

The command does nothing: it warns a process that cannot exist. A node checks signature,
form, name, expiry and nonce as for every command, and reports that the process is gone.
Nodes of every release know it.
"""

import http.client
import json
import os
import time
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

import redis
from django.utils import timezone

import gpuportal.celery  # noqa: F401  (commands are sent as tasks)
from gpuportal import ticks
from gpuportal.doctor.diagnosis import Diagnosis, note, problem, well
from gpuportal.monitoring import health
from gpuportal.upgrade.readiness import OWN_FAULTS, parts_not_in_order
from placement.jobs.nodes.command_queue import new_nonce, send_process_order
from placement.protocol.process_commands import (
    LOWEST_UID,
    MOST_PID,
    ProcessOrder,
    ProcessOrderKind,
)
from telemetry.inventory.queries import read_live
from telemetry.models import Node

LIVE_SECONDS = 120.0
"""A node that reported within this time before the test takes part in it."""
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.5
FACTS_READ = 1000
"""Events of a node that are read at once."""


def self_test(
    web: str,
    *,
    before: Collection[str] = (),
    patience_seconds: float = PATIENCE_SECONDS,
) -> list[Diagnosis]:
    """Test a portal that was just upgraded.

    Args:
        web: address of the web processes, such as ``http://127.0.0.1:8010``.
        before: the parts that were not in order before the upgrade.
        patience_seconds: how long each part may take.
    """
    began = timezone.now()
    found = [_ready(web, {*before} - OWN_FAULTS, patience_seconds)]
    try:
        names = _live_nodes(began)
        if not names:
            words = "none is live: no sample and no command was tested"
            return [*found, note("nodes", words)]
        seen = _sampled(names, began.timestamp(), patience_seconds)
        took = _obeyed(names, patience_seconds)
    except redis.RedisError as error:
        return [*found, problem("broker", f"it does not answer: {error}", _LOOK)]
    found += _of_nodes("samples", names, seen, "no sample was read")
    return found + _of_nodes("commands", names, took, "it accepted no command")


_LOOK = "See journalctl -u 'gpuportal-*'."


def _of_nodes(
    check: str, names: list[str], good: Iterable[str], why: str
) -> list[Diagnosis]:
    """One node is enough for a test of the portal. The others may have their own
    faults."""
    done = sorted(good)
    bad = sorted({*names} - {*done})
    if not done:
        return [problem(check, f"{why}: {', '.join(bad)}", _LOOK)]
    found = [well(check, f"{', '.join(done)}: in order")]
    if bad:
        found.append(note(check, f"{', '.join(bad)}: {why}"))
    return found


def _ready(web: str, before: set[str], patience_seconds: float) -> Diagnosis:
    """Wait until ``/readyz`` of the web processes says that all is in order, except
    what was not in order before."""
    deadline = time.monotonic() + patience_seconds
    why = ""
    while True:
        try:
            bad = parts_not_in_order(web)
            if not bad:
                return well("web", "it answers, and every part is in order")
            why = f"not in order: {', '.join(bad)}"
            if before.issuperset(bad):
                return note("web", f"it answers, and as before the upgrade {why}")
            if bad == ["ticks"]:
                late = ", ".join(sorted(health.check_health().late)) or "none now"
                why += f" (late: {late})"
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = f"{web} does not answer: {error}"
        if time.monotonic() > deadline:
            return problem("web", why, _LOOK)
        time.sleep(LOOK_SECONDS)


def _live_nodes(now: datetime) -> list[str]:
    """Return the nodes that reported just before the test.

    Raises:
        redis.RedisError: the broker does not answer.
    """
    last = now - timedelta(seconds=LIVE_SECONDS)
    rows = Node.objects.run_by_portal()
    names = set(rows.filter(last_seen_at__gte=last).values_list("name", flat=True))
    # That time is stored some seconds later than the live view shows a new node.
    shown = _read_since(now.timestamp() - LIVE_SECONDS)
    return sorted(names | {*rows.filter(name__in=shown).values_list("name", flat=True)})


def _read_since(instant: float) -> set[str]:
    """Return the nodes of which ingest has read a sample since an instant.

    Raises:
        redis.RedisError: the broker does not answer.
    """
    at, gpus = read_live(ticks.broker())
    return {
        gpu.tag["node"]
        for gpu in gpus
        if at is not None
        and gpu.row.age_seconds is not None
        and at - gpu.row.age_seconds > instant
    }


def _sampled(names: list[str], since: float, patience_seconds: float) -> set[str]:
    """Wait until ingest has read a sample of each node; return those it has."""
    deadline = time.monotonic() + patience_seconds
    while True:
        seen = _read_since(since) & {*names}
        if len(seen) == len(names) or time.monotonic() > deadline:
            return seen
        time.sleep(LOOK_SECONDS)


def _obeyed(names: list[str], patience_seconds: float) -> set[str]:
    """Return the nodes that accepted a signed command that does nothing.

    Raises:
        redis.RedisError: the broker does not answer.
    """
    client = ticks.broker()
    at = {f"facts.{name}": _last_id(client, f"facts.{name}") for name in names}
    nonces = {name: _send_no_op(name) for name in names}
    deadline = time.monotonic() + patience_seconds
    took: set[str] = set()
    while len(took) < len(names) and time.monotonic() < deadline:
        answers = client.xread(at, count=FACTS_READ)  # type: ignore[arg-type]
        for stream, entries in answers:  # type: ignore[union-attr]
            key = stream.decode()
            for entry_id, values in entries:
                at[key] = entry_id
                if nonces[key.removeprefix("facts.")] in _nonce_of(values):
                    took.add(key.removeprefix("facts."))
        time.sleep(LOOK_SECONDS)
    return took


def _last_id(client: redis.Redis, stream: str) -> bytes:
    newest = client.xrevrange(stream, count=1)
    return newest[0][0] if newest else b"0"  # type: ignore[index]


def _nonce_of(values: dict[bytes, bytes]) -> str:
    """Return the nonce of a report that a command was taken; "" for anything else."""
    try:
        fact = json.loads(values.get(b"m", b""))
    except ValueError:
        return ""
    if not isinstance(fact, dict) or fact.get("outcome") != "gone":
        return ""
    return str(fact.get("nonce", ""))


def _send_no_op(node: str) -> str:
    """Send a warning to a process that cannot exist. Return the nonce."""
    now = timezone.now()
    order = ProcessOrder(
        kind=ProcessOrderKind.WARN,
        node=node,
        nonce=new_nonce(),
        issued_at=now.timestamp(),
        expires_at=(now + timedelta(seconds=PATIENCE_SECONDS)).timestamp(),
        pid=MOST_PID - 1,
        uid=LOWEST_UID,
        # A process with this number would have another start, and is left alone.
        started_at=0.0,
        gpu_uuid="",
        text=f"GPU Portal: test of process {os.getpid()}",
    )
    send_process_order(order, now=now)
    return order.nonce
