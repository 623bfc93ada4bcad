"""The keeper: manages every Job folder of a node, five times a second.

Threads in the node worker's main process. The first, each 0.2 s:

1. starts the shim of a Job that was accepted;
2. ends a Job whose shim is gone: it kills the remaining processes and reports the Job
   as ``lost``;
3. sends new log lines to ``log.<node>``;
4. sends facts to ``facts.<node>`` until the stream has accepted them, and each 5 s the
   list of running Jobs and of those that ended in the last ten minutes, so that a
   broker that loses its data loses no fact.

Others upload logs and results to the web, carry out orders against intruders'
processes (enforcement.py), carry calls to Jobs that serve models
(placement/agent/serving/tunnel.py), carry streams to services of the node
(placement/agent/access/), keep the files of the ssh server, ask notebooks whether their
kernels work, check the channel to the portal, carry checkpoints, keep the device gate
(placement/agent/gate/) and measure the folders (disk_quota.py).
All state is in the folders, so a restarted worker finds its Jobs again.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import redis

from placement.agent.access import ssh_principals
from placement.agent.access.kernel_activity import KernelActivity
from placement.agent.channel_check import ChannelWatch
from placement.agent.gate.gate_keeper import GateKeeper
from placement.agent.job_folder import ENDS, JobFolder, NodeView, job_folders
from placement.agent.local_runner import LocalRunner
from placement.agent.process.enforcement import Enforcer
from placement.agent.slurm import slurm_job
from placement.agent.storage import disk_quota, folder_tree, person_home
from placement.agent.storage.checkpoint_transfer import CheckpointTransfer
from placement.agent.storage.live_log import LogPump
from placement.agent.storage.log_upload import Uploader
from placement.agent.storage.results_upload import ResultCarrier
from placement.protocol.job_lifecycle import KEPT_DAYS
from telemetry.protocol.units import format_bytes

STEP_SECONDS = 0.2
BELIEF_SECONDS = 5.0
TIDY_SECONDS = 60.0
RECALL_SECONDS = 600.0
"""How long the end of a Job is repeated with each belief."""
MOST_RECALLED = 50
KEEP_SECONDS = KEPT_DAYS * 86_400
REMOVED = ".removed-"
"""Prefix of the name of a folder that is being removed."""
START_WAIT_SECONDS = 5.0
MOST_STARTS = 3
BROKER_TIMEOUT_SECONDS = 2.0
BROKER_PAUSE_SECONDS = 1.0
FACTS_MAXLEN = 10_000
LOG_MAXLEN = 300
LAST_MESSAGES = 6
SHIM_GONE = (
    "the process that kept the job is gone: it was killed, or the node restarted"
)

logger = logging.getLogger(__name__)


class KeptFolder:
    """The keeper's memory of one folder between two runs."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.reported = folder.read("reported")
        self.pump = LogPump(folder)
        self.starts = 0
        self.started_at = 0.0
        self.status: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing of the Job runs any more."""
        return self.status.get("event") in ENDS

    @cached_property
    def by_slurm(self) -> bool:
        """Whether Slurm runs the Job."""
        return slurm_job.is_of_slurm(self.folder)

    def told_status(self) -> dict[str, Any]:
        """Return the status as the portal is told it: a Job that waits in Slurm has not
        started.
        """
        submitted_at = self.status.get("started_at")
        if submitted_at is None or not self.by_slurm:
            return self.status
        began_at = slurm_job.began_at(self.folder, submitted_at)
        return {**self.status, "started_at": began_at}

    def deadline_at(self) -> float | None:
        """Return the Reservation's end as it is known here."""
        for name in ("deadline", "order"):
            known = self.folder.read(name).get("deadline_at")
            if known is not None:
                return float(known)
        return None

    def report(self, **what: bool) -> None:
        """Store which facts the web has received, for a restart."""
        self.reported |= what
        try:
            self.folder.write("reported", self.reported)
        except OSError as error:
            # It stays in memory. After a restart it is reported again.
            logger.error("job %s: not kept what was told: %s", self.folder.name, error)


class JobKeeper:
    """Start it once per node worker. `step` is one run."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.runner = LocalRunner(node)
        self.enforcer = Enforcer(node)
        self.gate = GateKeeper(node, self.enforcer)
        self.redis = connect(node.redis_url)
        self.uploader = Uploader(node)
        self.carrier = CheckpointTransfer(node)
        self.results = ResultCarrier(node)
        self.channel = ChannelWatch(node)
        self.kernels = KernelActivity()
        self.kept: dict[str, KeptFolder] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._broker_again_at = self._believed_at = self._tidied_at = 0.0

    def start(self) -> None:
        """Start the threads."""
        self.runner.prepare()
        sizes = disk_quota.FolderSizes(self.runner.jobs)
        loops: list[tuple[str, Callable[[], None]]] = [
            ("jobs", self._run_loop),
            ("uploads", lambda: self.uploader.run(self._stop, self._to_upload)),
            ("results", lambda: self.results.run(self._stop, self._with_results)),
            ("responses", lambda: self.enforcer.run(self._stop, self._publish_fact)),
            ("serving", self._serve),
            ("streams", self._carry_streams),
            ("ssh", lambda: ssh_principals.run(self.node, self._stop)),
            ("kernels", lambda: self.kernels.run(self._stop, self._running)),
            ("channel", lambda: self.channel.run(self._stop, self._publish_fact)),
            ("checkpoints", lambda: self.carrier.run(self._stop)),
            ("sizes", lambda: sizes.run(self._stop)),
            ("slurm", lambda: slurm_job.run(self.runner.jobs, self._stop)),
            ("gate", lambda: self.gate.run(self._stop, self._publish_fact)),
        ]
        for name, loop in loops:
            thread = threading.Thread(target=loop, name=f"keeper-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self) -> None:
        """Pass calls to Jobs that serve models."""
        # Not at the top: a node without serving Jobs may lack these libraries.
        from placement.agent.serving.tunnel import ServeTunnels

        ServeTunnels(self.node).run(self._stop)

    def _carry_streams(self) -> None:
        """Connect streams of the portal to services of this node."""
        from placement.agent.access.node_streams import NodeStreams

        NodeStreams(self.node).run(self._stop)

    def stop(self) -> None:
        """Stop the threads. The Jobs continue."""
        self._stop.set()
        for thread in self._threads:
            thread.join(15)
        self.redis.close()

    def _run_loop(self) -> None:
        while not self._stop.wait(STEP_SECONDS):
            try:
                self.step()
            except Exception:
                logger.exception("the keeper's look failed; it looks again")

    def step(self) -> None:
        """Process every folder once. One bad folder never blocks the rest."""
        for folder in job_folders(self.runner.jobs):
            try:
                kept = self.kept.get(folder.name) or KeptFolder(folder)
                self.kept[folder.name] = kept
                self._process_folder(kept)
            except (OSError, ValueError, KeyError) as error:
                logger.error("job folder %s: %s", folder.name, error)
        now = time.monotonic()
        if now - self._believed_at >= BELIEF_SECONDS and self._send_belief():
            self._believed_at = now
        if now - self._tidied_at >= TIDY_SECONDS:
            self._tidied_at = now
            self.tidy(time.time())

    def _process_folder(self, kept: KeptFolder) -> None:
        if kept.ended and kept.reported.get("ended"):
            return
        kept.status = kept.folder.read("status")
        if not kept.ended and not self.runner.alive(kept.folder):
            # It may have written its end between the two reads.
            kept.status = kept.folder.read("status")
            if not kept.ended:
                self._revive(kept)
        self._send_log_lines(kept)
        self._report(kept)

    # --- shims -----------------------------------------------------------------

    def _revive(self, kept: KeptFolder) -> None:
        """Start a shim that never ran. End a Job whose shim is gone."""
        folder = kept.folder
        if folder.read("shim"):
            ended = self.runner.end_strays(folder)
            if ended:
                logger.warning("job %s: ended %s left processes", folder.name, ended)
                return  # looked at again until none is left
            self._record_end(kept, "lost", SHIM_GONE)
            return
        stop = folder.read("stop")
        if stop:
            self._record_end(kept, "exited", str(stop.get("reason", "")), stopped=True)
            return
        if time.monotonic() - kept.started_at < START_WAIT_SECONDS:
            return
        if not self.gate.follows():
            return  # a moment: the order with the job's grant came before the job's
        if kept.starts >= MOST_STARTS:
            self._record_end(
                kept, "lost", "the process that keeps the job does not start"
            )
            return
        kept.starts += 1
        self.runner.start(folder)
        kept.started_at = time.monotonic()

    def _record_end(
        self, kept: KeptFolder, event: str, reason: str, **facts: object
    ) -> None:
        kept.status = {
            **kept.status,
            "event": event,
            "reason": reason,
            "ended_at": time.time(),
            "log_bytes": kept.folder.log_bytes(),
            "last_lines": kept.folder.last_lines(),
            **facts,
        }
        try:
            kept.folder.write("status", kept.status)
        except OSError as error:
            # It is reported in any case, and ended again after a restart.
            logger.error("job %s: its end is not kept: %s", kept.folder.name, error)

    # --- reports ------------------------------------------------------------------

    def _send_log_lines(self, kept: KeptFolder) -> None:
        """Send new log lines. Those of an ended Job go before the fact of its end."""
        for _ in range(LAST_MESSAGES if kept.ended else 1):
            message = kept.pump.next_message(time.monotonic(), ended=kept.ended)
            if message is None:
                return
            self._append_to_stream(f"log.{self.node.name}", message, maxlen=LOG_MAXLEN)

    def _report(self, kept: KeptFolder) -> None:
        facts = f"facts.{self.node.name}"
        status = kept.told_status()
        if status.get("started_at") and not kept.reported.get("started"):
            fact = fact_of(kept.folder, {**status, "event": "started"})
            if not self._append_to_stream(facts, fact, maxlen=FACTS_MAXLEN):
                return
            kept.report(started=True)
        if kept.ended and not kept.reported.get("ended"):
            fact = fact_of(kept.folder, status)
            if self._append_to_stream(facts, fact, maxlen=FACTS_MAXLEN):
                kept.report(ended=True)

    def _send_belief(self) -> bool:
        now = time.time()
        running, ended = [], []
        for kept in self.kept.values():
            if not kept.ended:
                running.append(
                    {
                        "job": kept.folder.job,
                        "attempt": kept.folder.attempt,
                        "key": kept.folder.key,
                        "started_at": kept.told_status().get("started_at"),
                        "deadline_at": kept.deadline_at(),
                        "worked_at": self.kernels.worked_at(kept.folder),
                        **meets_at(kept.status),
                    }
                )
            elif now - float(kept.status.get("ended_at") or 0) < RECALL_SECONDS:
                # Without its last lines, because the log itself has been uploaded.
                status = {**kept.told_status(), "last_lines": []}
                ended.append(fact_of(kept.folder, status))
        belief = {
            "v": 1,
            "kind": "jobs",
            "at": now,
            "running": running,
            "ended": ended[-MOST_RECALLED:],
        }
        return self._append_to_stream(
            f"facts.{self.node.name}", belief, maxlen=FACTS_MAXLEN
        )

    def _publish_fact(self, fact: dict[str, Any]) -> bool:
        return self._append_to_stream(
            f"facts.{self.node.name}", fact, maxlen=FACTS_MAXLEN
        )

    def _append_to_stream(
        self, stream: str, message: dict[str, Any], *, maxlen: int
    ) -> bool:
        """Append to a stream. False: the broker did not accept it.

        A broker that hangs costs two seconds and then a pause, not two seconds in each
        run.
        """
        if time.monotonic() < self._broker_again_at:
            return False
        try:
            self.redis.xadd(
                stream,
                {"m": json.dumps(message, separators=(",", ":"))},
                maxlen=maxlen,
                approximate=True,
            )
        except redis.RedisError as error:
            self._broker_again_at = time.monotonic() + BROKER_PAUSE_SECONDS
            logger.warning("stream %s: %s", stream, error)
            return False
        return True

    def _running(self) -> list[JobFolder]:
        return [kept.folder for kept in list(self.kept.values()) if not kept.ended]

    # --- uploads and removal ------------------------------------------------------

    def _to_upload(self) -> list[KeptFolder]:
        return [
            kept
            for kept in list(self.kept.values())
            if not kept.reported.get("uploaded")
        ]

    def _with_results(self) -> list[KeptFolder]:
        return [
            kept
            for kept in list(self.kept.values())
            if kept.ended and not kept.reported.get("results")
        ]

    def tidy(self, now: float) -> int:
        """Remove folders of Jobs that ended a week ago and are uploaded.

        Sooner, oldest first, if a person's folders exceed the limit.
        """
        old = [
            name
            for name, kept in self.kept.items()
            if kept.ended
            and kept.reported.get("ended")
            # After a week without the web, the log is not uploaded completely.
            and kept.reported.get("uploaded")
            and now - float(kept.status.get("ended_at") or now) > KEEP_SECONDS
        ]
        old += [name for name in self._over_quota() if name not in old]
        for name in old:
            # Under a name that is no Job's, so that a partial folder is not started.
            folder = self.kept.pop(name).folder.path
            folder.rename(folder.with_name(f"{REMOVED}{secrets.token_hex(6)}-{name}"))
        person_home.remove_unused(self.node.node_dir, now - KEEP_SECONDS)
        for path in self.runner.jobs.glob(f"{REMOVED}*"):
            try:
                folder_tree.remove(path)
            except OSError as error:
                # One folder that cannot be removed must not block the others.
                logger.error("job folder %s is not removed: %s", path.name, error)
        return len(old)

    def _over_quota(self) -> list[str]:
        """Return the names of the folders to remove because of their person's limit."""
        names = []
        kept = [one.folder for one in self.kept.values()]
        for user, own in disk_quota.holdings(kept).items():
            for one in disk_quota.to_remove(own):
                size = format_bytes(one.size_bytes)
                name = one.folder.name
                logger.warning("job folder %s: %s of %s removed", name, size, user)
                names.append(name)
        return names


def connect(url: str) -> redis.Redis:
    """Return a client with short time limits, because nothing here may wait for a
    broker.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=BROKER_TIMEOUT_SECONDS,
        socket_connect_timeout=BROKER_TIMEOUT_SECONDS,
    )


def meets_at(status: dict[str, Any]) -> dict[str, Any]:
    """Return the rendezvous for the ranks of other nodes, if there is one."""
    if not status.get("meeting_port"):
        return {}
    return {name: status[name] for name in ("meeting_address", "meeting_port")}


def fact_of(folder: JobFolder, status: dict[str, Any]) -> dict[str, Any]:
    """Return the fact about a status."""
    event = status["event"]
    at = status.get("started_at" if event == "started" else "ended_at")
    return {
        "v": 1,
        "kind": "job",
        "job": folder.job,
        "attempt": folder.attempt,
        "key": folder.key,
        "nonce": str(folder.read("order").get("nonce", "")),
        "event": event,
        "at": at or time.time(),
        "started_at": status.get("started_at"),
        "pid": status.get("pid"),
        "exit_code": status.get("exit_code"),
        "signal": status.get("signal"),
        "stopped": bool(status.get("stopped")),
        **meets_at(status),
        "reason": str(status.get("reason", "")),
        "log_bytes": int(status.get("log_bytes", 0)),
        "last_lines": list(status.get("last_lines", [])),
    }
