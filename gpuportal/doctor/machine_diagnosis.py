"""Checks of a GPU node, of the facts that `node_facts` read."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuportal.doctor.diagnosis import Diagnosis, note, problem, well
from telemetry.protocol.hardware import Isolation
from telemetry.protocol.node_token import LIFE_SECONDS
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.protocol.units import GIB_BYTES, format_duration

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
    without_gpus: bool = False
    """Whether its settings say that it has none."""
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
    token_number: int = 0
    """Of the short token; 0: it has none."""
    token_age_seconds: float | None = None
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
        yield well("cgroups", sentence("control groups version 2"))
    else:
        yield problem(
            "cgroups",
            sentence("the machine does not use control groups version 2 alone"),
            sentence("Start the kernel with systemd.unified_cgroup_hierarchy=1."),
        )
    yield _isolation(facts)
    if facts.gate_unknown:
        yield note("gate", facts.gate_unknown)
    else:
        loaded = sentence("loaded") if facts.gate else sentence("not loaded")
        yield note("gate", loaded)
    yield _sshd(facts)
    if facts.broker:
        fix = sentence(
            "Check GPUPORTAL_NODE_REDIS_URL, and port 6379 from here to the portal."
        )
        yield problem("broker", facts.broker, fix)
    else:
        yield well("broker", sentence("takes this node's user"))
    if facts.channel:
        fix = sentence(
            "Let it join again: Manage, Pools, Add a machine. Or on the portal: "
            "sh deploy/enroll --renew NAME, then deploy/join here."
        )
        yield problem("channel", facts.channel, fix)
    else:
        yield well(
            "channel",
            sentence("the portal accepts the token, and the order key is the portal's"),
        )
    yield _token(facts)
    if facts.torch:
        yield well("torch", sentence("torch {version}", version=facts.torch))
    else:
        fix = sentence("Run make node in the folder of the code.")
        yield problem("torch", sentence("torch is not installed"), fix)
    if facts.readable:
        names = " ".join(facts.readable)
        yield problem(
            "secrets",
            sentence("others can read {files}", files=names),
            f"chmod 600 {names}",
        )
    else:
        yield well("secrets", sentence("only their owner can read them"))
    yield _worker(facts.worker)


def _token(facts: MachineFacts) -> Diagnosis:
    age_seconds = facts.token_age_seconds
    if not facts.token_number or age_seconds is None:
        return note("token", sentence("that of the enrolment, which does not end"))
    values = {"number": facts.token_number, "age": format_duration(age_seconds)}
    if age_seconds > LIFE_SECONDS:
        return problem(
            "token",
            sentence("number {number} is {age} old and has ended", **values),
            sentence("The worker renews it: systemctl restart gpuportal-node"),
        )
    return well("token", sentence("number {number}, {age} old", **values))


def _driver(facts: MachineFacts) -> Diagnosis:
    if facts.simulated:
        return note("driver", sentence("the GPUs are simulated"))
    if facts.without_gpus:
        fact = sentence("GPUPORTAL_BACKEND=none uses no driver")
        return note("driver", fact)
    if facts.gpus is None:
        return problem(
            "driver",
            facts.no_driver or sentence("no NVIDIA driver answers"),
            sentence("Install the NVIDIA driver and start the machine again."),
        )
    seen = counted("{n} GPU seen", "{n} GPUs seen", facts.gpus)
    if not facts.gpus:
        fix = sentence("See which cards `lspci` and `nvidia-smi` show.")
        return problem("driver", seen, fix)
    version = facts.driver or sentence("unknown")
    return well(
        "driver", sentence("{seen}, driver {version}", seen=seen, version=version)
    )


def _clock(ahead_seconds: float | None) -> Diagnosis:
    if ahead_seconds is None:
        return note(
            "clock", sentence("not compared, because the portal does not answer")
        )
    fact = sentence("clock {seconds} s off", seconds=f"{abs(ahead_seconds):.1f}")
    if abs(ahead_seconds) <= CLOCK_OFF_SECONDS:
        return well("clock", fact)
    fix = sentence("Set it: timedatectl set-ntp true, on both machines.")
    return problem("clock", fact, fix)


def _isolation(facts: MachineFacts) -> Diagnosis:
    if facts.isolation != Isolation.NONE:
        return well("isolation", sentence("isolation {level}", level=facts.isolation))
    bare = sentence("jobs are not isolated")
    return problem(
        "isolation",
        joined((bare, facts.not_isolated), ": "),
        sentence(
            "Run the worker as root from its systemd unit, without "
            "GPUPORTAL_ALLOW_SCRIPTS and with a GPUPORTAL_ISOLATION that this machine "
            "can give."
        ),
    )


def _disk(facts: MachineFacts) -> Diagnosis:
    if facts.disk_free_bytes is None:
        return problem(
            "disk",
            sentence("there is no {folder}", folder=facts.folder),
            f"mkdir {facts.folder}",
        )
    free = sentence(
        "{gib} GiB free in {folder}",
        gib=f"{facts.disk_free_bytes / GIB_BYTES:.1f}",
        folder=facts.folder,
    )
    if facts.disk_free_bytes < DISK_SHORT_BYTES:
        return problem("disk", free, sentence("Make room, or set GPUPORTAL_NODE_DIR."))
    return well("disk", free)


def _sshd(facts: MachineFacts) -> Diagnosis:
    if not facts.sshd_port:
        return note(
            "ssh", sentence("not offered through the portal (GPUPORTAL_SSHD_PORT)")
        )
    if facts.sshd:
        return well(
            "ssh", sentence("a server answers on port {port}", port=facts.sshd_port)
        )
    return problem(
        "ssh",
        sentence("no ssh server answers on 127.0.0.1:{port}", port=facts.sshd_port),
        sentence("systemctl start ssh, or correct GPUPORTAL_SSHD_PORT."),
    )


def _worker(state: str) -> Diagnosis:
    if not state:
        return note("worker", sentence("systemd does not run here"))
    if state == "active":
        return well("worker", sentence("gpuportal-node is active"))
    return problem(
        "worker",
        sentence("gpuportal-node is {state}", state=state),
        sentence(
            "systemctl start gpuportal-node, and see "
            "journalctl -u gpuportal-node -n 20."
        ),
    )
