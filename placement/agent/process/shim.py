"""One process per Job that outlives the node worker: ``shim <job-folder>``.

It registers itself, starts the Job in a new session as the student's Unix user, passes
it a pipe to the log and nothing else, and stays until no process of the Job is left:

1. The Job's first process ends: the shim kills the remaining processes.
2. SIGTERM arrives (reason in ``stop.json``), or the Reservation ends, which the shim
   enforces even when the node is cut off: TERM to the group, the grace period, then
   KILL to all descendants of the shim, in other sessions too.
3. The supervisor of ``make run`` is gone: as in 2, with a short grace period.

It writes ``status.json`` once at the start and once at the end. A shim that is
itself killed takes the Job's first process with it (PR_SET_PDEATHSIG); the
keeper finds the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

from placement.agent.job_folder import RESULTS, JobFolder
from placement.agent.process import (
    job_files,
    job_process,
    process_tree,
    rank_rendezvous,
    serving_socket,
    shared_memory,
    systemd_unit,
    unix_user,
)
from placement.agent.process.exit_reason import (
    Deadline,
    JobEnding,
    broken_off,
    memory_kills,
    out_of_memory,
    supervisor,
)
from placement.agent.process.log_copy import LogCopy
from placement.agent.process.previous_attempt import checkpoint_of, previous_folder
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.slurm import slurm_job
from placement.agent.slurm.job_script import early_seconds
from placement.agent.storage import disk_space, folder_tree
from placement.agent.storage.folder_size import FolderWatch
from placement.agent.storage.person_home import held_home
from placement.planner.launch.recipes import SERVE, SERVE_TEXT, WORKSPACE
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.commands import Order, parse_order
from placement.protocol.end_notice import WARN_SECONDS, due_warning, remaining_time_text
from placement.protocol.node_refusals import OrderRefused
from telemetry.protocol.coded_error import CodedError

LOG_LOOK_SECONDS = 1.0
ORPHAN_GRACE_SECONDS = 2.0
WINDOW_OVER = "the reservation's end"
SUPERVISOR_GONE = "the portal on this machine was stopped"
SUPERVISOR_TERM_SECONDS = 0.2


class Shim:
    """The life of one Job on this node."""

    def __init__(self, folder: JobFolder, order: Order) -> None:
        self.folder = folder
        self.order = order
        early = early_seconds(order)
        self.deadline = Deadline(order.deadline_at, order.issued_at, early)
        self.tmp = folder.path / job_process.PRIVATE_TMP
        self.size = FolderWatch((folder.work, self.tmp), order.limits.disk_bytes)
        self.unit: list[str] = []
        self.home: Path | None = None
        self.held = contextlib.ExitStack()
        self.ending: JobEnding | None = None
        self.warned_seconds: int | None = None
        # An order to stop may have come before this process.
        self.asked = bool(folder.read("stop"))
        self.files: list[str] = []
        self.leader_pid = 0
        self.leader_status: int | None = None
        self.memory_kills = memory_kills()
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.supervisor = supervisor()

    def run(self) -> None:
        """Start the Job, supervise it, and write how it ended."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self._register()
        try:
            disk_space.reserve_space(self.folder.path)
            identity = unix_user.identity_of(
                self.order,
                allow_scripts=os.environ.get("GPUPORTAL_ALLOW_SCRIPTS") == "1",
            )
            argv = self._prepare(identity)
            log = self._open_log()
            self.home = self.held.enter_context(
                held_home(self.folder.path.parents[1], self.order, identity)
            )
        except (OrderRefused, LaunchInvalid) as refusal:
            self._write_end("refused", reason=str(refusal))
            return
        except OSError as error:
            self._write_end("refused", reason=disk_space.folder_problem(error))
            return
        if self.order.checkpoints:
            words = f"resumes from the checkpoint of job {self.order.resume_job}"
            disk_space.write_log_line(log, f"gpuportal: {words}\n")
        try:
            self._run_job(argv, identity, log)
        except CodedError as refusal:
            self._out_of_memory(log, refusal)
        except OSError as error:
            process_tree.end_descendants()
            self._write_end("lost", reason=disk_space.folder_problem(error))
        finally:
            process_tree.end_descendants()
            if self.unit:
                systemd_unit.kill(self.order.job, self.order.attempt, self.order.key)
            slurm_job.cancel(self.order, self.folder)
            self.held.close()

    def _prepare(self, identity: UnixIdentity | None) -> list[str]:
        """Create the Job's own folder with its files. Return argv."""
        unit = systemd_unit.unit_wanted() and self.order.slurm is None
        self.unit = systemd_unit.command(self.order) if unit else []
        folder_tree.close_all(
            folder_tree.make_owned(self.folder.work, identity, (RESULTS,))
        )
        if not self.unit:  # in a unit it is mounted as /tmp and made there
            folder_tree.make_owned(self.tmp, identity)
        self.files = job_files.lay_out(
            self.order,
            self.folder.work,
            identity,
            web_url=os.environ["GPUPORTAL_WEB_URL"],
            token_file=Path(os.environ["GPUPORTAL_NODE_TOKEN_FILE"]),
            given_up=self._given_up,
        )
        self.order = rank_rendezvous.settled(
            self.order, os.environ["GPUPORTAL_WEB_URL"]
        )
        return job_process.command(self.order, self.folder.work, self.files)

    def _given_up(self) -> bool:
        """Return whether a Job that has not started must no longer start."""
        watched = [] if self.supervisor is None else [self.supervisor]
        ended, _, _ = select.select(watched, [], [], 0)
        return self.asked or bool(ended)

    def _open_log(self) -> int:
        # In a folder that the Job cannot write. Only the shim writes here: the Job has
        # a pipe.
        return os.open(
            self.folder.log,
            os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )

    def _run_job(
        self, argv: list[str], identity: UnixIdentity | None, log: int
    ) -> None:
        from placement.agent.process.simulated_load import claimed

        copy = LogCopy(log)
        gate = self._fork(argv, identity, copy)
        sim_dir = os.environ.get("GPUPORTAL_SIM_DIR")
        if self.home is not None:
            self.size.folders = (*self.size.folders, self.home)
        claim = claimed(
            self.order,
            sim_dir=Path(sim_dir) if sim_dir else None,
            pid=self.leader_pid,
            command=self.order.recipe or "script " + " ".join(argv[1:]),
        )
        with claim, self.size:
            started_at = time.time()
            begun = {"event": "started", "started_at": started_at}
            met = rank_rendezvous.rendezvous_address(self.order)
            self.folder.write("status", self._with_pid(begun | met))
            gate.send(b"g")
            gate.close()
            self._watch(log)
            process_tree.end_descendants()
        copy.finish()
        shared_memory.clear(identity)
        self._write_exit(started_at)

    def _listener(self) -> socket.socket | None:
        """Open the socket through which the node reaches the Job. None: it has none."""
        if self.order.recipe == SERVE.name:
            return serving_socket.listen(self.folder)
        if self.order.recipe == SERVE_TEXT.name:
            return serving_socket.listen(self.folder, serving_socket.TEXT)
        if self.order.recipe == WORKSPACE.name:
            return serving_socket.listen(self.folder, serving_socket.WORKSPACE)
        return None

    def _before(self) -> Path | None:
        """Return the checkpoint from which this Job resumes, on this node or
        transferred.
        """
        order = self.order
        if not order.resume_job or order.checkpoints:
            return None
        return checkpoint_of(previous_folder(order, self.folder.path.parent))

    def _fork(
        self, argv: list[str], identity: UnixIdentity | None, copy: LogCopy
    ) -> socket.socket:
        """Fork the Job's first process, which waits at a gate. Return the gate."""
        gate, inner = socket.socketpair()
        listener = self._listener()
        work, me = self.folder.work, os.getpid()
        env = job_process.environment(
            self.order,
            work=work,
            identity=identity,
            files=self.files,
            web_url=os.environ["GPUPORTAL_WEB_URL"],
            tmp=None if self.unit else self.tmp,
            home=self.home,
        )
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            gate.close()
            job_process.become_job(
                self.order,
                argv=argv,
                env=env,
                work=work,
                identity=identity,
                log_handle=copy.sink,
                gate=inner,
                shim_pid=me,
                listener=listener,
                resume=self._before(),
                unit=self.unit,
            )
        copy.start()
        inner.close()
        if listener is not None:
            # Only the Job holds it, so its end closes all connections.
            listener.close()
        # Its session and signal handling are in place when it writes this.
        gate.recv(1)
        self.leader_pid = pid
        self._register()
        return gate

    def _watch(self, log: int) -> None:
        """Wait until the Job's first process has ended."""
        poller = select.poll()
        poller.register(self.wake_read, select.POLLIN)
        if self.supervisor is not None:
            poller.register(self.supervisor, select.POLLIN)
        while not self._leader_ended():
            now = time.monotonic()
            self._decide(now, log)
            if self.ending and now >= self.ending.kill_at:
                process_tree.end_descendants()
                self.leader_status = self.leader_status or signal.SIGKILL
                return
            until = self.ending.kill_at if self.ending else self.deadline.at
            self._wait(poller, min(max(until - now, 0), LOG_LOOK_SECONDS))
        if self.supervisor is not None and self.ending is None:
            # A supervisor that stops sends TERM to the Job and to the shim.
            self._wait(poller, SUPERVISOR_TERM_SECONDS)
        if self.asked:
            self._decide(time.monotonic(), log)

    def _wait(self, poller: select.poll, seconds: float) -> None:
        """Wait until a signal, the supervisor's end, or the time limit."""
        for handle, _ in poller.poll(seconds * 1000 + 1):
            if handle == self.wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
            else:
                poller.unregister(handle)
                self._end(
                    SUPERVISOR_GONE, grace_seconds=ORPHAN_GRACE_SECONDS, lost=True
                )

    def _decide(self, now: float, log: int) -> None:
        """Begin the end if it is due."""
        if self.deadline.reread(self.folder):
            left = self.deadline.at + self.deadline.early_seconds - now
            slurm_job.move_end(self.order, left)
        if self.asked:
            self.asked = False
            # Without a reason it is no order: the machine or the portal shuts down.
            why = self.folder.read("stop") or {
                "reason": SUPERVISOR_GONE,
                "grace_seconds": ORPHAN_GRACE_SECONDS,
                "lost": True,
            }
            self._end(
                str(why["reason"]),
                grace_seconds=float(why.get("grace_seconds", self.order.grace_seconds)),
                lost=bool(why.get("lost")),
            )
        elif now >= self.deadline.at:
            self._end(WINDOW_OVER, grace_seconds=self.order.grace_seconds)
        self._warn(self.deadline.at - now, log)
        most = self.order.limits.log_bytes
        words = self.size.why
        if most and os.fstat(log).st_size > most:
            words = f"the log grew over {most} bytes"
        if words and self.ending is None:
            grace_seconds = self.order.grace_seconds
            disk_space.write_log_line(
                log,
                f"\ngpuportal: {words}: SIGTERM now, SIGKILL {grace_seconds:.0f} s "
                "later\n",
            )
            self._end(words, grace_seconds=grace_seconds, stopped=False)

    def _warn(self, left_seconds: float, log: int) -> None:
        """Write into the log that the Reservation's end is near."""
        if left_seconds > max(WARN_SECONDS):
            self.warned_seconds = None  # also where the end has moved away
        due = due_warning(left_seconds, self.warned_seconds)
        if due is None or self.ending is not None:
            return
        self.warned_seconds = due
        line = (
            f"gpuportal: the reservation ends in {remaining_time_text(left_seconds)}: "
            f"SIGTERM then, SIGKILL {self.order.grace_seconds:.0f} s later\n"
        )
        disk_space.write_log_line(log, line)

    def _end(
        self,
        reason: str,
        *,
        grace_seconds: float,
        stopped: bool = True,
        lost: bool = False,
    ) -> None:
        """Send TERM once. A later reason may only shorten the grace."""
        kill_at = time.monotonic() + max(0.0, grace_seconds)
        if self.ending is not None:
            self.ending.kill_at = min(self.ending.kill_at, kill_at)
            self.ending.lost = self.ending.lost or lost
            return
        self.ending = JobEnding(reason, kill_at, stopped=stopped, lost=lost)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.leader_pid, signal.SIGTERM)

    def _leader_ended(self) -> bool:
        ended = process_tree.reap()
        if self.leader_pid in ended:
            self.leader_status = ended[self.leader_pid]
        return self.leader_status is not None

    def _on_term(self, _signal: int, _frame: FrameType | None) -> None:
        self.asked = True

    def _register(self) -> None:
        me = os.getpid()
        known = {"pid": me, "start_ticks": process_tree.start_ticks(me)}
        if self.leader_pid:
            known |= {
                "pgid": self.leader_pid,
                "leader_start_ticks": process_tree.start_ticks(self.leader_pid),
            }
        self.folder.write("shim", known)

    def _out_of_memory(self, log: int, refusal: CodedError) -> None:
        line = f"gpuportal: {refusal}\n"
        disk_space.write_log_line(log, line)
        now = time.time()
        self._write_end("exited", reason=str(refusal), exit_code=1, started_at=now)

    def _write_exit(self, started_at: float) -> None:
        status = self.leader_status or 0
        ending = self.ending
        full = disk_space.disk_full_text(self.folder.path) if status else ""
        if status and not ending:
            full = full or out_of_memory(status, self.memory_kills)
            full = full or broken_off(self.folder, self.order)
        lost = ending.lost if ending else slurm_job.is_lost(self.order, self.folder)
        self._write_end(
            "lost" if lost else "exited",
            reason="; ".join(filter(None, [ending.reason if ending else "", full])),
            stopped=bool(ending and ending.stopped),
            exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            started_at=started_at,
        )

    def _write_end(self, event: str, **facts: object) -> None:
        ended = {
            "event": event,
            "ended_at": time.time(),
            "log_bytes": self.folder.log_bytes(),
            "last_lines": self.folder.last_lines(),
            **facts,
        }
        disk_space.write_end_with_reserve(
            self.folder.path, "status", self._with_pid(ended)
        )

    def _with_pid(self, facts: dict[str, object]) -> dict[str, object]:
        return {"pid": self.leader_pid or None, "reason": "", **facts}


def main(argv: list[str]) -> int:
    """Leave the caller, take the folder's lock, run the Job."""
    if len(argv) != 2:
        sys.stderr.write("usage: python -m placement.agent.process.shim <job-folder>\n")
        return 2
    folder = JobFolder.at(Path(argv[1]).resolve())
    payload = str(folder.read("order").get("payload", ""))
    order = parse_order(payload)
    if os.fork():
        return 0
    os.chdir("/")
    os.umask(0o077)
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    if folder.read("status"):
        return 0
    process_tree.become_subreaper()
    Shim(folder, order).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
