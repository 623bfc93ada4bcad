"""Checks of a GPU node, of the facts that `node_facts` read."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuportal.doctor.diagnosis import Diagnosis, note, problem, well
from telemetry.protocol.hardware import Isolation
from telemetry.protocol.units import GIB_BYTES

CLOCK_OFF_SECONDS = 2.0
"""How far a node's clock may be off. Commands that expire need a good clock."""
DISK_SHORT_BYTES = 10 * GIB_BYTES
"""Fewer free bytes hold no checkpoint of a small model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """State of a node, as it measured it. None: it could not."""

    gpus: int | None
    driver: str
    no_driver: str = ""
    """Why no GPU could be read."""
    simulated: bool = False
    clock_seconds: float | None
    """How far the node's clock is ahead of the portal's."""
    disk_free_bytes: int | None
    folder: str
    cgroup_v2: bool
    isolation: Isolation
    not_isolated: str = ""
    gate: bool
    """Whether the program of the device gate is loaded. The portal knows its mode."""
    gate_unknown: str = ""
    """Why that cannot be read."""
    sshd_port: int
    sshd: bool | None
    """Whether an ssh server answers on that port."""
    broker: str
    """Why the broker does not take this node; "" if it does."""
    channel: str
    """Why the channel to the portal does not work; "" if it does."""
    torch: str
    readable: tuple[str, ...] = ()
    """Files with secrets that other users can read."""
    worker: str
    """State of its unit: `active`, `failed`, "" if systemd does not run here."""


def machine_report(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Check everything that a node knows about itself."""
    yield _driver(facts)
    yield _clock(facts.clock_seconds)
    yield _disk(facts)
    if facts.cgroup_v2:
        yield well("cgroups", "control groups version 2")
    else:
        yield problem(
            "cgroups",
            "the machine does not use control groups version 2 alone",
            "Start the kernel with systemd.unified_cgroup_hierarchy=1.",
        )
    yield _isolation(facts)
    if facts.gate_unknown:
        yield note("gate", facts.gate_unknown)
    else:
        yield note("gate", "loaded" if facts.gate else "not loaded")
    yield _sshd(facts)
    if facts.broker:
        fix = "Check GPUPORTAL_NODE_REDIS_URL, and port 6379 from here to the portal."
        yield problem("broker", facts.broker, fix)
    else:
        yield well("broker", "takes this node's user")
    if facts.channel:
        fix = "On the portal: sh deploy/enroll --renew NAME, then deploy/join here."
        yield problem("channel", facts.channel, fix)
    else:
        yield well(
            "channel", "the portal accepts the token, and the order key is the portal's"
        )
    if facts.torch:
        yield well("torch", f"torch {facts.torch}")
    else:
        fix = "Run make node in the folder of the code."
        yield problem("torch", "torch is not installed", fix)
    if facts.readable:
        names = " ".join(facts.readable)
        yield problem("secrets", f"others can read {names}", f"chmod 600 {names}")
    else:
        yield well("secrets", "only their owner can read them")
    yield _worker(facts.worker)


def _driver(facts: MachineFacts) -> Diagnosis:
    if facts.simulated:
        return note("driver", "the GPUs are simulated")
    if facts.gpus is None:
        return problem(
            "driver",
            facts.no_driver or "no NVIDIA driver answers",
            "Install the NVIDIA driver and start the machine again.",
        )
    seen = f"{facts.gpus} GPU{'' if facts.gpus == 1 else 's'} seen"
    if not facts.gpus:
        fix = "See which cards `lspci` and `nvidia-smi` show."
        return problem("driver", seen, fix)
    return well("driver", f"{seen}, driver {facts.driver or 'unknown'}")


def _clock(ahead_seconds: float | None) -> Diagnosis:
    if ahead_seconds is None:
        return note("clock", "not compared, because the portal does not answer")
    fact = f"clock {abs(ahead_seconds):.1f} s off"
    if abs(ahead_seconds) <= CLOCK_OFF_SECONDS:
        return well("clock", fact)
    fix = "Set it: timedatectl set-ntp true, on both machines."
    return problem("clock", fact, fix)


def _isolation(facts: MachineFacts) -> Diagnosis:
    if facts.isolation != Isolation.NONE:
        return well("isolation", f"isolation {facts.isolation}")
    why = f": {facts.not_isolated}" if facts.not_isolated else ""
    return problem(
        "isolation",
        f"jobs are not isolated{why}",
        "Run the worker as root from its systemd unit, without GPUPORTAL_ALLOW_SCRIPTS "
        "and with a GPUPORTAL_ISOLATION that this machine can give.",
    )


def _disk(facts: MachineFacts) -> Diagnosis:
    if facts.disk_free_bytes is None:
        return problem("disk", f"there is no {facts.folder}", f"mkdir {facts.folder}")
    free = f"{facts.disk_free_bytes / GIB_BYTES:.1f} GiB free in {facts.folder}"
    if facts.disk_free_bytes < DISK_SHORT_BYTES:
        return problem("disk", free, "Make room, or set GPUPORTAL_NODE_DIR.")
    return well("disk", free)


def _sshd(facts: MachineFacts) -> Diagnosis:
    if not facts.sshd_port:
        return note("ssh", "not offered through the portal (GPUPORTAL_SSHD_PORT)")
    if facts.sshd:
        return well("ssh", f"a server answers on port {facts.sshd_port}")
    return problem(
        "ssh",
        f"no ssh server answers on 127.0.0.1:{facts.sshd_port}",
        "systemctl start ssh, or correct GPUPORTAL_SSHD_PORT.",
    )


def _worker(state: str) -> Diagnosis:
    if not state:
        return note("worker", "systemd does not run here")
    if state == "active":
        return well("worker", "gpuportal-node is active")
    return problem(
        "worker",
        f"gpuportal-node is {state}",
        "systemctl start gpuportal-node, and see journalctl -u gpuportal-node -n 20.",
    )
