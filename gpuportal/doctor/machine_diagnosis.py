"""Checks of a GPU node. The node makes them, and the portal by the node's reports."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuportal.doctor.diagnosis import Diagnosis, note, problem, well
from telemetry.protocol.hardware import Isolation
from telemetry.protocol.sentences import counted, sentence
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
    gate: str
    """`gated`, `open`, or why it cannot be read."""
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


def gpu_check(gpus: int | None, driver: str, why: str = "") -> Diagnosis:
    """Check that the driver answers and shows a Gpu."""
    if gpus is None:
        return problem(
            "driver",
            why or sentence("no NVIDIA driver answers"),
            sentence("Install the NVIDIA driver and start the machine again."),
        )
    seen = counted("{n} GPU seen", "{n} GPUs seen", gpus)
    if not gpus:
        fix = sentence("See which cards `lspci` and `nvidia-smi` show.")
        return problem("driver", seen, fix)
    if not driver:
        return well("driver", seen)
    return well("driver", sentence("{seen}, driver {driver}", seen=seen, driver=driver))


def clock_check(seconds: float | None) -> Diagnosis:
    """Check a node's clock. `seconds`: how far it is ahead of the portal's."""
    if seconds is None:
        return note("clock", sentence("the clock was not compared yet"))
    fact = sentence("clock {seconds} s off", seconds=f"{abs(seconds):.1f}")
    if abs(seconds) <= CLOCK_OFF_SECONDS:
        return well("clock", fact)
    return problem(
        "clock", fact, sentence("Set it: timedatectl set-ntp true, on both machines.")
    )


def isolation_check(level: str, why: str = "") -> Diagnosis:
    """Check how far a node keeps jobs apart."""
    if level == Isolation.NONE:
        return problem(
            "isolation",
            sentence("jobs are not isolated"),
            why or sentence("Run the node's worker as root, from its systemd unit."),
        )
    if level == Isolation.WATCHED:
        return well("isolation", sentence("isolation watched"))
    return well("isolation", sentence("isolation enforced"))


def gate_check(gate: str, why: str = "") -> Diagnosis:
    """Check a node's device gate. `gate`: a word of `Node.gate`."""
    if gate == "gated":
        return well("gate", sentence("gate gated"))
    if gate in ("failed", "unavailable"):
        return problem(
            "gate",
            why or sentence("the gate does not work"),
            sentence("Set the gate to open, or see the node's page."),
        )
    words = {
        "open": sentence("gate open"),
        "watch": sentence("gate watches"),
        "pending": sentence("the gate is being set"),
    }
    return note("gate", words.get(gate, gate))


def torch_check(version: str) -> Diagnosis:
    """Check that ready recipes can run."""
    if version:
        return well("torch", sentence("torch {version}", version=version))
    return problem(
        "torch",
        sentence("torch is not installed"),
        sentence("Run make node in the folder of the code."),
    )


def machine_report(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Check everything that a node knows about itself."""
    if facts.simulated:
        yield note("driver", "the GPUs are simulated")
    else:
        yield gpu_check(facts.gpus, facts.driver, facts.no_driver)
    yield clock_check(facts.clock_seconds)
    yield _disk(facts)
    if facts.cgroup_v2:
        yield well("cgroups", "control groups version 2")
    else:
        yield problem(
            "cgroups",
            "the machine does not use control groups version 2 alone",
            "Start the kernel with systemd.unified_cgroup_hierarchy=1.",
        )
    yield isolation_check(facts.isolation, facts.not_isolated)
    yield gate_check(facts.gate)
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
    yield torch_check(facts.torch)
    if facts.readable:
        names = " ".join(facts.readable)
        yield problem("secrets", f"others can read {names}", f"chmod 600 {names}")
    else:
        yield well("secrets", "only their owner can read them")
    yield _worker(facts.worker)


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
