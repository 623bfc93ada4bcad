"""A Slurm cluster on this machine: munged, slurmctld and two slurmd with fake GPUs.

The GPUs of node `gp1` are of type a100 and have device files, those of `gp2` have
neither: such a node needs `File=` all the same, or its slurmd reports no GPU.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
READY_SECONDS = 60.0
CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/builtin
SchedulerParameters=sched_min_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
MinJobAge=300
KillWait=15
NodeName=gp1 Port={ports[1]} Gres=gpu:a100:4 {place}
NodeName=gp2 Port={ports[2]} Gres=gpu:2 {place}
PartitionName=main Nodes=gp[1-2] Default=YES MaxTime=INFINITE State=UP
"""
GRES = """
NodeName=gp1 Name=gpu Type=a100 File=/dev/null,/dev/zero,/dev/full,/dev/random
NodeName=gp2 Name=gpu File=/dev/null,/dev/zero
"""


class SlurmProcesses:
    """The processes of a cluster, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything."""
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True)
        host = socket.gethostname().partition(".")[0]
        (self.folder / "state").mkdir()
        names = {
            "host": host,
            "ports": free_ports(3),
            "folder": self.folder,
            "user": user.stdout.strip(),
            "place": f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4",
        }
        self.conf.write_text(CONF.format(**names))
        (self.folder / "gres.conf").write_text(GRES)
        self.start_munged()
        self.start_slurmctld()
        for name in ("gp1", "gp2"):
            (self.folder / f"spool-{name}").mkdir()
            self.start_slurmd(name)

    def settle(self) -> None:
        """Cancel all jobs, delete all reservations, and wait until both nodes are idle.

        A node of which the controller has not heard since its start is ``idle*``.
        """
        self.run("scancel", f"--user={self.run('id', '-un').strip()}", check=False)
        self.wait_until(self._is_idle)

    def _is_idle(self) -> bool:
        for line in self.run("scontrol", "-o", "show", "reservations").splitlines():
            if (name := line.split()[0]).startswith("ReservationName="):
                # It is refused while a job of it completes.
                self.run("scontrol", "delete", name, check=False)
        return self.run("sinfo", "-hNo", "%T").split() == ["idle"] * 2

    def start_munged(self) -> None:
        """Start the authentication, with a key and a socket of its own."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        socket_path = self.folder / "munge.socket"
        names = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        files = (
            socket_path,
            key,
            *(self.folder / f"munge.{n[:-5]}" for n in names[2:]),
        )
        options = [f"--{n}={f}" for n, f in zip(names, files, strict=True)]
        self._spawn("munged", "munged", "--force", "--foreground", *options)
        self.wait_until(socket_path.exists)

    def start_slurmctld(self) -> None:
        """Start the controller, with the state that an earlier one has saved."""
        self._spawn("slurmctld", "slurmctld", "-D", "-i")
        self.wait_until(lambda: " is UP" in self.run("scontrol", "ping", check=False))

    def restart_slurmctld(self) -> None:
        """Restart the controller as an admin does: it stores what it knows."""
        process = self.processes.pop("slurmctld")
        process.terminate()
        process.wait()
        self.start_slurmctld()

    def start_slurmd(self, name: str) -> None:
        """Start the daemon of a node. It adopts the jobs of an earlier one."""
        self._spawn(name, "slurmd", "-D", "-N", name)

    def wait_for_saved_jobs(self) -> None:
        """Wait until the controller has stored its jobs and its reservations.

        It does so within 5 s of a change, and not without one. So a held job is
        submitted, which never starts. One thread stores first the jobs, then the
        reservations. When the jobs are stored again, both are stored once.
        """
        state = self.folder / "state" / "job_state"
        for _round in range(2):
            before = state.stat().st_mtime_ns if state.exists() else 0
            self.submit("--hold")
            self.wait_until(partial(_is_newer, state, before))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. If it does not come, show what the daemons said.

        The longer it waits, the more seldom it looks: each look is a command.
        """
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            if waited > READY_SECONDS:
                logs = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
                said = [f"{log.name}\n{log.read_text()[-1500:]}" for log in logs]
                raise AssertionError(
                    "the cluster did not get there\n" + "\n".join(said)
                )
            time.sleep(min(0.1 + waited / 5, 1.0))

    def kill(self, name: str) -> None:
        """Kill one process as a crash does."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def run(self, *command: str, check: bool = True) -> str:
        """Run one of Slurm's commands. Return what it prints."""
        done = subprocess.run(
            command,
            env={"SLURM_CONF": str(self.conf), "PATH": PATH},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=READY_SECONDS,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *options: str) -> int:
        """Submit a job that runs until it is cancelled. Return its number.

        It also ends when the folder is gone, even if nobody is left to cancel it.
        """
        script = self.folder / "job.sh"
        script.write_text(f"#!/bin/sh\nwhile [ -e {self.conf} ]; do sleep 1; done\n")
        told = ("--parsable", "--output=/dev/null", "-n1", *options, str(script))
        return int(self.run("sbatch", *told).split(";")[0])

    def stop(self) -> None:
        """Cancel the jobs and end every process."""
        try:
            if len(self.processes) == 4:
                self.settle()
        finally:
            for name in list(self.processes):
                self.kill(name)

    def _spawn(self, name: str, program: str, *options: str) -> None:
        path = shutil.which(program, path=PATH)
        assert path is not None, (
            f"{program} is missing: apt-get install slurmd slurmctld"
        )
        self.processes[name] = subprocess.Popen(
            [path, *options],
            env={"SLURM_CONF": str(self.conf), "PATH": PATH},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / f"{name}.out").open("wb"),
            stderr=subprocess.STDOUT,
        )


@contextmanager
def slurm_processes() -> Iterator[SlurmProcesses]:
    """Run a cluster in a folder whose path is short enough for a socket."""
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="gpt-slurm-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = SlurmProcesses(Path(folder))
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _is_newer(path: Path, mtime_ns: int) -> bool:
    return path.exists() and path.stat().st_mtime_ns > mtime_ns
