"""The loop: start every process, restart what dies, stop all in order."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuportal.supervisor import kernel
from gpuportal.supervisor.logs import LogFile
from telemetry.proc_stat import ProcStat, descendants
from telemetry.protocol.back_off import BackOff

TURN_SECONDS = 0.2
# After this time of life a process's earlier deaths no longer count.
STEADY_SECONDS = 60.0
QUICK_DEATHS_MAX = 5
RESTART_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# Jobs are requested to end, and have this long before they are killed. Longer than the
# grace period that a job shim gives when the portal ends.
STRAGGLER_SECONDS = 3.0
# How long to wait until a killed process is gone.
KILL_SECONDS = 2.0


@dataclass(frozen=True)
class ProcessSpec:
    """How one process is started and stopped."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    stop_rank: int = 0
    """Lower ranks are stopped first. Processes of one rank are stopped together."""
    stop_seconds: float = 3.0
    """Time between SIGTERM and SIGKILL."""
    orphan_signal: int = signal.SIGTERM
    """The signal that the kernel sends if the supervisor is killed."""
    essential: bool = True
    """Whether the site is useless without it. Several deaths in a row end all."""
    pass_fds: tuple[int, ...] = ()


@dataclass
class ChildProcess:
    """A ProcessSpec while it runs, or waits to be started again."""

    spec: ProcessSpec
    log: LogFile
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    deaths: BackOff = field(default_factory=lambda: BackOff(RESTART_SECONDS))
    """Number of deaths soon after a start."""
    start_again: float = field(default=0.0)
    """Monotonic instant of the next start while ``process`` is None."""


class Supervisor:
    """Runs a table of processes until a request to stop. Main thread only."""

    def __init__(
        self, *, root: Path, log_dir: Path, say: Callable[[str], None]
    ) -> None:
        self.children: dict[str, ChildProcess] = {}
        self.failed = False
        self._stopping = False
        self._impatient = False
        self._root = root
        self._log_dir = log_dir
        self._say = say
        kernel.adopt_orphans()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A supervisor started under nohup has to outlive the terminal.
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._asked_to_stop)

    @property
    def stopping(self) -> bool:
        """Whether the end was requested, or a process cannot be kept running."""
        return self._stopping

    def start(self, spec: ProcessSpec) -> None:
        """Add a process to the table and start it."""
        log = LogFile(spec.name, self._log_dir / f"{spec.name}.log", self._say)
        self.children[spec.name] = ChildProcess(spec, log)
        self._launch(self.children[spec.name])

    def run_round(self) -> None:
        """Do one round: reap, restart the due processes, follow the logs. Sleeps."""
        self._reap()
        now = time.monotonic()
        for child in self.children.values():
            if child.process is None and not self._stopping:
                if now >= child.start_again:
                    self._launch(child)
            elif now - child.started > STEADY_SECONDS:
                child.deaths.succeeded()
            child.log.repeat_warnings()
        time.sleep(TURN_SECONDS)

    def run(self) -> None:
        """Run until a request to stop, or until a process cannot be kept running."""
        while not self._stopping:
            self.run_round()

    def stop(self) -> None:
        """Stop everything, jobs included, and leave no process behind."""
        self._stopping = True
        # Job shims first: they take the signal for the portal's end and have until the
        # processes that start work are gone to end their jobs.
        for process in self._stragglers():
            kernel.send(process.pid, signal.SIGTERM)
        began = time.monotonic()
        for rank in sorted({c.spec.stop_rank for c in self.children.values()}):
            self._stop_rank(rank)
            if rank == 0:
                self._end_stragglers(began + STRAGGLER_SECONDS - time.monotonic())
        self._end_stragglers(0.0)
        self._reap()

    # --- one process ----------------------------------------------------------

    def _launch(self, child: ChildProcess) -> None:
        spec = child.spec
        with child.log.path.open("ab") as log:
            child.process = subprocess.Popen(
                list(spec.argv),
                cwd=self._root,
                env=dict(spec.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A separate session: Ctrl-C reaches only the supervisor.
                start_new_session=True,
                preexec_fn=kernel.die_with_parent(spec.orphan_signal),
                pass_fds=spec.pass_fds,
            )
        child.started = time.monotonic()

    def _reap(self) -> None:
        """Collect every ended child, adopted orphans included."""
        by_pid = {c.process.pid: c for c in self.children.values() if c.process}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                self._child_ended(by_pid[pid], os.waitstatus_to_exitcode(status))

    def _child_ended(self, child: ChildProcess, exit_code: int) -> None:
        assert child.process is not None
        child.process.returncode = exit_code
        # Pool processes that a killed worker left behind. Jobs have their own sessions
        # and continue.
        kernel.send_group(child.process.pid, signal.SIGKILL)
        child.process = None
        child.log.repeat_warnings()
        if self._stopping:
            return
        wait_seconds = child.deaths.failed()
        name, how = child.spec.name, _exit_text(exit_code)
        if child.spec.essential and child.deaths.failures >= QUICK_DEATHS_MAX:
            self._say(
                f"{name} {how} {child.deaths.failures} times in a row; giving up."
            )
            for line in child.log.last_lines():
                self._say(f"  {line}")
            self.failed = self._stopping = True
            return
        child.start_again = time.monotonic() + wait_seconds
        self._say(
            f"{name} {how}; starting it again in {wait_seconds:g} s "
            f"(log: {child.log.path})"
        )

    # --- the end ----------------------------------------------------------------

    def _asked_to_stop(self, signum: int, _frame: object) -> None:
        self._impatient = self._stopping
        self._stopping = True

    def _stop_rank(self, rank: int) -> None:
        due = [
            c for c in self.children.values() if c.spec.stop_rank == rank and c.process
        ]
        for child in due:
            if child.process is not None:
                kernel.send(child.process.pid, signal.SIGTERM)
        longest_seconds = max((c.spec.stop_seconds for c in due), default=0.0)
        self._wait(lambda: all(c.process is None for c in due), longest_seconds)
        for child in due:
            if child.process is not None:
                self._say(f"{child.spec.name} does not stop; killing it.")
                kernel.send_group(child.process.pid, signal.SIGKILL)
        self._wait(lambda: all(c.process is None for c in due), KILL_SECONDS)

    def _end_stragglers(self, seconds: float) -> None:
        """Wait for remaining processes (shims, jobs, orphans), then kill them."""
        self._wait(lambda: not self._stragglers(), seconds)
        deadline = time.monotonic() + KILL_SECONDS
        while (left := self._stragglers()) and time.monotonic() < deadline:
            # After a shim was killed the supervisor is its job's parent, so look again.
            for process in left:
                kernel.send(process.pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.05)

    def _stragglers(self) -> list[ProcStat]:
        ours = {c.process.pid for c in self.children.values() if c.process}
        return [p for p in descendants(os.getpid()) if p.session not in ours]

    def _wait(self, done: Callable[[], bool], longest_seconds: float) -> None:
        deadline = time.monotonic() + longest_seconds
        while time.monotonic() < deadline and not self._impatient:
            self._reap()
            if done():
                return
            time.sleep(0.05)
        self._reap()


def _exit_text(exit_code: int) -> str:
    """Return in words how a process ended."""
    if exit_code >= 0:
        return f"ended with exit status {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"
