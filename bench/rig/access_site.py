"""A portal, a node's streams and a real sshd, each in a separate process.

For `bench/access.py` and `bench/tunnel/ssh_restart.py`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.rig.cluster import process
from gpuportal.pages import client_files

if TYPE_CHECKING:
    from tests.placement.access.ssh_servers import SshServer

READY_SECONDS = 60.0
OF_USER = 16
"""Sessions of one user at once."""
CLIENT = client_files.folder() / client_files.ONE_FILE


@dataclass(frozen=True)
class AccessSite:
    """Addresses and processes of the site."""

    url: str
    web: subprocess.Popen[str]
    node: subprocess.Popen[str]
    sshd: SshServer
    logins: list[tuple[str, str]]
    """Host of each user's reservation, and a token."""
    web_words: tuple[str, ...]
    """Arguments of Python that start the portal again."""

    def env(self, shown: str) -> dict[str, str]:
        """Return the environment of ``gp`` with a token."""
        return os.environ | {"GPUPORTAL_URL": self.url, "GPUPORTAL_TOKEN": shown}


def proxy(alone: bool = True) -> str:
    """Return the ProxyCommand. Alone, ``gp`` finds the standard library only."""
    return f"{sys.executable} {'-S ' if alone else ''}{CLIENT} tunnel %h"


@contextmanager
def access_site(folder: Path, users: int, workers: int = 1) -> Iterator[AccessSite]:
    """Start everything on the loopback address. Each user has a reservation."""
    # Django is set up now.
    import redis
    from django.conf import settings
    from django.core.management import call_command
    from django.utils import timezone

    from placement.access.frame_lists import NODE
    from reservations.accounts.api_tokens import create_token
    from reservations.models import User
    from reservations.rules.lifecycle import State
    from tests.factories import make_gpus, make_membership, make_node, make_reservation
    from tests.placement.access.ssh_servers import ssh_server

    call_command("migrate", verbosity=0, interactive=False)
    row, now = make_node("node1"), timezone.now()
    logins: list[tuple[str, str]] = []
    for number in range(users):
        user = User.objects.create_user(f"bench{number}")
        make_membership(user, "bench")
        made = make_reservation(user, make_gpus(1, row), state=State.ACTIVE)
        shown = create_token(user=user, label="b", scopes=["job"], days=1, now=now)[1]
        logins.append((f"r{made.pk}.gpuportal", shown))
    token = row.new_token()
    row.save()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ["-m", "uvicorn", "--lifespan", "off", "--log-level", "error"]
    words += ["--ws-per-message-deflate", "false"]
    if workers > 1:
        words += ["--workers", str(workers)]
    words += ["--port", str(port), "gpuportal.asgi:application"]
    with ExitStack() as stack:
        web = stack.enter_context(process(*words))
        sshd = stack.enter_context(ssh_server(folder / "sshd"))
        rig = ("-m", "bench.rig.tunnel_node", str(folder), url, token, str(sshd.port))
        node = stack.enter_context(process(*rig))
        client = redis.Redis.from_url(settings.REDIS_URL)
        until = time.monotonic() + READY_SECONDS
        while not client.exists(NODE + "node1"):
            if time.monotonic() > until:
                raise SystemExit("the node did not connect")
            time.sleep(0.1)
        yield AccessSite(url, web, node, sshd, logins, tuple(words))
