"""Read the facts that a node's checks of itself need. No Django here."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import redis

from gpuportal.doctor.machine_diagnosis import MachineFacts
from gpuportal.node_settings import NodeSettings, NodeSettingsError
from placement.agent import channel_check, portal_channel
from placement.agent.gate.bpf_system_call import GateUnavailable
from placement.agent.gate.cgroup_gate import DeviceGate, root_cgroup
from placement.protocol.events import ChannelState
from telemetry.agent import isolation
from telemetry.agent.host_capacity import host_capacity
from telemetry.agent.probe import machine
from telemetry.protocol.codec import encode
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.token_files import TokenFiles

SECONDS = 5.0
UNIT = "gpuportal-node"


def machine_facts(node: NodeSettings, settings_file: Path) -> MachineFacts:
    """Check this machine once. Cost: a request to the portal and one to the broker.

    ``settings_file`` holds the broker's password: its mode is checked like a secret's.
    """
    by_driver = node.backend not in ("simulated", "none")
    gpus, driver, no_driver = _cards() if by_driver else (0, "", "")
    simulated = node.backend == "simulated" or (
        node.backend == "auto" and gpus is None and node.sim_dir is not None
    )
    channel = channel_check.check(node)
    gate, gate_unknown = _gate()
    files = TokenFiles(node.token_file)
    secret = (settings_file, *files.secret_files(), node.order_key_file)
    number, token_age_seconds = _short_token(files)
    return MachineFacts(
        gpus=gpus,
        driver=driver,
        no_driver=no_driver,
        simulated=simulated,
        without_gpus=node.backend == "none",
        clock_seconds=clock_ahead_seconds(node.web_url),
        disk_free_bytes=host_capacity(node.node_dir).disk_free_bytes,
        folder=str(node.node_dir),
        cgroup_v2=isolation.CONTROLLERS.exists(),
        isolation=isolation.isolation_of(node),
        not_isolated=isolation.why_not_watched(node) or isolation.why_not(node),
        gate=gate,
        gate_unknown=gate_unknown,
        sshd_port=node.sshd_port,
        sshd=_ssh_answers(node.sshd_port) if node.sshd_port else None,
        broker=_broker(node),
        channel="" if channel.state is ChannelState.OK else channel.detail,
        torch=_version("torch"),
        token_number=number,
        token_age_seconds=token_age_seconds,
        readable=tuple(str(file) for file in secret if _readable(file)),
        worker=_unit_state(),
    )


def report_facts(node: NodeSettings, facts: MachineFacts) -> str:
    """Send the facts to the portal. Return why it does not take them; "" if it does."""
    try:
        portal_channel.request(
            "POST",
            f"{node.web_url}/node/v1/doctor",
            node=node.name,
            token=node.token(),
            body=encode(facts),
            headers={"Content-Type": "application/json"},
        )
    except (
        portal_channel.ChannelDown,
        portal_channel.ChannelRefused,
        NodeSettingsError,
    ) as error:
        return str(error)
    return ""


def clock_ahead_seconds(web_url: str) -> float | None:
    """Return how far this machine's clock is ahead of the portal's; None: no answer.

    The portal dates its answers in whole seconds, so up to half a second is unknown.
    """
    before = time.time()
    try:
        with urllib.request.urlopen(f"{web_url}/healthz", timeout=SECONDS) as answer:
            date = answer.headers.get("Date", "")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date", "")
    except (OSError, ValueError):
        return None
    after = time.time()
    try:
        portal = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    # The portal cut its time down to a whole second between the two readings.
    if portal <= after and before < portal + 1:
        return 0.0
    return before - (portal + 1) if before >= portal + 1 else after - portal


def _short_token(files: TokenFiles) -> tuple[int, float | None]:
    """Return number and age of the token that the node shows; 0: of its enrolment."""
    try:
        found = files.current(files.enrolment.read_text().strip())
    except OSError:
        return 0, None  # The check of the channel says why.
    return (found.number, files.age_seconds(time.time())) if found else (0, None)


def _cards() -> tuple[int | None, str, str]:
    try:
        machine.start()
    except ProbeUnavailable as error:
        return None, "", error.why
    try:
        found, lost = machine.find_cards()
        return len(found) + len(lost), machine.driver_version(), ""
    except ProbeUnavailable as error:
        return None, "", error.why
    finally:
        machine.stop()


def _gate() -> tuple[bool, str]:
    """Return whether the gate's program is loaded, and why that cannot be read."""
    try:
        gate = DeviceGate(root_cgroup())
        try:
            return gate.find(), ""
        finally:
            gate.close()
    except (GateUnavailable, OSError) as error:
        return False, str(error)


def _ssh_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as link:
            return link.recv(4) == b"SSH-"
    except OSError:
        return False


def _broker(node: NodeSettings) -> str:
    """Return why the broker does not take this node's user; "" if it does."""
    try:
        with redis.Redis.from_url(
            node.redis_url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS
        ) as client:
            client.llen(node.queue)
    except redis.RedisError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return ""


def _readable(file: Path) -> bool:
    return file.is_file() and bool(file.stat().st_mode & 0o077)


def _unit_state() -> str:
    if not isolation.SYSTEMD.is_dir():
        return ""
    try:
        done = subprocess.run(
            ["systemctl", "is-active", UNIT],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
