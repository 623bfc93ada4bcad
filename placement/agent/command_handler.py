"""How a node handles orders: each is checked, remembered and executed at most once.

    signature -> form -> this node, in time -> never seen before -> may it run here

The node reports a failed check to the web as a fact ``refused`` with the reason and
the order's nonce. The web accepts a refusal only for the order that it sent last.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placement.agent.gate import grant_file
from placement.agent.job_folder import JobFolder, NodeView
from placement.agent.local_runner import LocalRunner
from placement.agent.process import previous_attempt, unix_user
from placement.agent.process.enforcement import Enforcer
from placement.agent.process.terminals import tell_account
from placement.agent.storage import disk_quota, disk_space
from placement.planner.launch.recipes import (
    KNOWN_RECIPES,
    checked_settings,
    runs_without_gpus,
)
from placement.planner.values.errors import LaunchInvalid
from placement.protocol import signing
from placement.protocol.commands import Order, OrderKind, check_order, parse_order
from placement.protocol.device_grants import is_gate_order, parse_gate_order
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.process_commands import (
    ProcessFact,
    ResponseOutcome,
    kind_of,
    parse_process_order,
)
from placement.protocol.user_messages import is_user_message, parse_user_message
from telemetry.agent.isolation import why_not

logger = logging.getLogger(__name__)
Publish = Callable[[dict[str, Any]], None]
MOST_NONCES = 100_000
TOLD_REFUSALS = frozenset({"expired", "clock", "protected", "malformed"})
"""The refusals of orders against processes that are reported: of signed orders."""


class Nonces:
    """The orders of the last minutes, in a file, so that they survive a restart."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def use(self, nonce: str, *, expires_at: float, now: float) -> bool:
        """Record an order until it expires. False: it was used before.

        Raises:
            OrderRefused: ``malformed``, a nonce that is not a single word.
        """
        if not nonce.isalnum() or len(nonce) > 64:
            raise OrderRefused("malformed", "nonce is no word of letters and digits")
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            fresh = {word: at for at, word in map(_entry, file) if at > now}
            if nonce in fresh:
                return False
            fresh[nonce] = expires_at
            kept = list(fresh.items())[-MOST_NONCES:]
            file.seek(0)
            file.writelines(f"{until} {word}\n" for word, until in kept)
            # Truncated after the write, so that a full disk does not empty the file.
            file.flush()
            file.truncate()
        return True


def _entry(line: str) -> tuple[float, str]:
    """Read one line. A partial line, after a full disk or a power cut, counts as
    expired.
    """
    until, _, word = line.strip().partition(" ")
    try:
        return float(until), word
    except ValueError:
        return 0.0, ""


class OrderDesk:
    """Handles one order at a time (the node worker has one pool process)."""

    def __init__(self, node: NodeView, *, publish: Publish) -> None:
        self.node = node
        self.runner = LocalRunner(node)
        self.enforcer = Enforcer(node)
        self.publish = publish
        self.nonces = Nonces(node.node_dir / "nonces")

    def take(self, payload: str, signature: str, *, now: float | None = None) -> bool:
        """Execute an order. False: it was refused, and the refusal was reported."""
        now = time.time() if now is None else now
        try:
            try:
                self._verify_and_execute(payload, signature, now)
            except OSError as error:
                raise OrderRefused(
                    "storage", disk_space.folder_problem(error)
                ) from error
        except OrderRefused as refusal:
            if kind_of(payload) is not None:
                self._refuse_process(payload, refusal, now)
                return False
            if is_user_message(payload):
                logger.warning("message refused (%s): %s", refusal.code, refusal)
                return False
            if is_gate_order(payload):
                # The gate's own report says which order it follows.
                logger.warning("gate order refused (%s): %s", refusal.code, refusal)
                return False
            named = _named(payload)
            logger.warning(
                "order for job %s refused (%s): %s", named["job"], refusal.code, refusal
            )
            self.publish(
                {
                    "v": 1,
                    "kind": "job",
                    **named,
                    "event": "refused",
                    "at": now,
                    "pid": None,
                    "exit_code": None,
                    "signal": None,
                    "code": refusal.code,
                    "reason": refusal.detail,
                    "log_bytes": 0,
                    "last_lines": [],
                }
            )
            return False
        return True

    def _verify_and_execute(self, payload: str, signature: str, now: float) -> None:
        try:
            public_pem = self.node.order_key_pem().decode()
        except ValueError as error:
            raise OrderRefused("no-key", str(error)) from error
        signing.verify(payload, signature, public_pem)
        if is_gate_order(payload):
            self._store_gate_order(payload, now)
            return
        if is_user_message(payload):
            self._tell_user(payload, now)
            return
        if kind_of(payload) is not None:
            self._store_process_order(payload, now)
            return
        order = parse_order(payload)
        if order.kind is OrderKind.STOP:
            self._execute_stop(order, now)
            return
        check_order(order, node=self.node.name, now=now)
        self.runner.prepare()
        if not self.nonces.use(order.nonce, expires_at=order.expires_at, now=now):
            raise OrderRefused("replayed", "this order was received before")
        folder = self.runner.folder(order.job, order.attempt, order.key)
        if order.kind is OrderKind.CARRY:
            self._request_upload(folder, order, now)
            return
        if folder.path.is_dir():
            self._store_deadline(folder, order)
            return
        self._check(order)
        previous_attempt.check(order, self.runner.jobs)
        disk_quota.check(order, self.runner.jobs)
        self.runner.accept(order, payload)

    def _request_upload(self, folder: JobFolder, order: Order, now: float) -> None:
        """Have an ended attempt's checkpoint uploaded, once for each request."""
        gone = {"event": "lost", "reason": "its folder is gone", "ended_at": now}
        self.runner.refuse(folder, gone)
        known = folder.read("carry")
        if not known or known.get("done"):
            folder.write("carry", {"at": now, "most_bytes": order.carry_most_bytes})

    def _execute_stop(self, order: Order, now: float) -> None:
        """End an attempt, even if the order is late or repeated.

        A stop never expires. A late or repeated stop does no harm, and a node whose
        clock has jumped must still be stoppable.
        """
        check_order(order, node=self.node.name, now=order.issued_at)
        self.runner.prepare()
        self._stop(order, now)

    def _store_process_order(self, payload: str, now: float) -> None:
        """Hand an order against an intruder's process to the enforcer."""
        order = parse_process_order(payload)
        check_order(order, node=self.node.name, now=now)
        self.runner.prepare()
        if not self.nonces.use(order.nonce, expires_at=order.expires_at, now=now):
            raise OrderRefused("replayed", "this order was received before")
        self.enforcer.accept(order, payload)

    def _tell_user(self, payload: str, now: float) -> None:
        """Write a message to the terminals of its user."""
        message = parse_user_message(payload)
        check_order(message, node=self.node.name, now=now)
        self.runner.prepare()
        if not self.nonces.use(message.nonce, expires_at=message.expires_at, now=now):
            raise OrderRefused("replayed", "this message was received before")
        told = tell_account(message.unix_user, message.text)
        logger.info("%s: a message on %s terminals", message.unix_user, told)

    def _store_gate_order(self, payload: str, now: float) -> None:
        """Keep the wanted state of the device gate, for the gate's thread."""
        order = parse_gate_order(payload)
        check_order(order, node=self.node.name, now=now)
        grant_file.keep_order(self.node.node_dir, order, payload)

    def _refuse_process(self, payload: str, refusal: OrderRefused, now: float) -> None:
        logger.warning("order refused (%s): %s", refusal.code, refusal)
        nonce = str(_named(payload)["nonce"])
        # An attacker with write access to the queue can send or replay anything. So
        # the node answers each of the web's own orders once, and nothing else.
        if refusal.code in TOLD_REFUSALS and nonce.isalnum():
            fact = ProcessFact(nonce, ResponseOutcome.REFUSED, now, refusal.detail)
            self.publish(fact.message())

    def _check(self, order: Order) -> None:
        """Refuse now what would fail later."""
        if why := why_not(self.node):
            raise OrderRefused("isolation", why)
        unix_user.identity_of(order, allow_scripts=self.node.allow_scripts)
        if not order.gpu_uuids and not runs_without_gpus(order.recipe, order.settings):
            raise OrderRefused("malformed", "an order to start names its Gpus")
        if order.simulated and self.node.sim_dir is None:
            raise OrderRefused("simulated", "this node has no simulated Gpus")
        if order.recipe is None:
            return
        try:
            checked_settings(order.recipe, order.settings)
        except LaunchInvalid as error:
            raise OrderRefused("recipe", str(error)) from error
        packages = KNOWN_RECIPES[order.recipe].packages
        lacking = [name for name in packages if not importlib.util.find_spec(name)]
        if lacking:
            needed = " and ".join(lacking)
            raise OrderRefused(
                "recipe",
                f"recipe {order.recipe} needs {needed}, which this node lacks. Install "
                f"it there: {sys.executable} -m pip install {' '.join(lacking)}",
            )

    def _store_deadline(self, folder: JobFolder, order: Order) -> None:
        """Store the Reservation's end, which may have moved."""
        known = folder.read("deadline").get("issued_at", 0.0)
        if order.issued_at > float(known):
            folder.write(
                "deadline",
                {"deadline_at": order.deadline_at, "issued_at": order.issued_at},
            )

    def _stop(self, order: Order, now: float) -> None:
        folder = self.runner.folder(order.job, order.attempt, order.key)
        reason = order.reason or "stopped"
        never = {"event": "exited", "stopped": True, "reason": reason, "ended_at": now}
        if self.runner.refuse(folder, never):
            return
        if not self.runner.stop(folder, reason):
            # Accepted and not started: the keeper or the shim reads it.
            folder.write("stop", {"at": now, "reason": reason, "lost": False})


def _named(payload: str) -> dict[str, Any]:
    """Return the Job that a refused order names. Its content is not trusted."""
    try:
        body = json.loads(payload[:65_536])
    except (ValueError, RecursionError):
        body = None
    body = body if isinstance(body, dict) else {}
    named: dict[str, Any] = {}
    for key in ("job", "attempt"):
        value = body.get(key)
        named[key] = value if type(value) is int and 0 <= value < 2**53 else 0
    for key in ("nonce", "key"):
        named[key] = str(body.get(key, ""))[:64]
    return named
