"""A real ssh server on the loopback address, for tests."""

import os
import pwd
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SshServer:
    """A server and the key that opens it."""

    port: int
    folder: Path
    user: str

    def words(self, proxy: str) -> list[str]:
        """Return the options with which ssh and scp reach it by a ProxyCommand."""
        known = {
            "ProxyCommand": proxy,
            "IdentityFile": str(self.folder / "key"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.folder / "known_hosts"),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": "node1",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "LogLevel": "ERROR",
            "User": self.user,
        }
        found = ["-F", "/dev/null"]
        for name, value in known.items():
            found += ["-o", f"{name}={value}"]
        return found


def sshd() -> str:
    """Return the program. Skip the test if it is missing, but not in CI."""
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None or shutil.which("ssh") is None:
        reason = "no sshd here: apt-get install openssh-server openssh-client"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return str(found)


@contextmanager
def ssh_server(folder: Path, *, more: str = "") -> Iterator[SshServer]:
    """Take connections, each with its own sshd, for the present user and one key.

    ``more`` has further lines of sshd_config. The listening socket is the test's, so
    no other program can take its port.
    """
    program = sshd()
    folder.mkdir(mode=0o700)
    for name in ("host", "key"):
        made = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
        subprocess.run(made, check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    host = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text(f"node1 {host}")
    configuration = folder / "sshd_config"
    configuration.write_text(
        f"HostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\n"
        "PidFile none\n"
        "PermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "StrictModes no\n"
        "UsePAM no\n"
        "Subsystem sftp internal-sftp\n"
        f"{more}"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    servers: list[subprocess.Popen[bytes]] = []

    def take_all(listener: socket.socket) -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            words = [program, "-i", "-e", "-f", str(configuration)]
            with line, (folder / "log").open("ab") as log:
                server = subprocess.Popen(words, stdin=line, stdout=line, stderr=log)
                servers.append(server)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        taking = threading.Thread(target=take_all, args=(listener,), daemon=True)
        taking.start()
        user = pwd.getpwuid(os.getuid()).pw_name
        yield SshServer(listener.getsockname()[1], folder, user)
        listener.shutdown(socket.SHUT_RDWR)
        taking.join()
    for server in servers:
        server.terminate()
        server.wait()
