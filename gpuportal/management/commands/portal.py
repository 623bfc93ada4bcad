"""``manage.py portal``: the whole site on one machine, under one command."""

import argparse
import getpass
import http.client
import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core.checks import Tags
from django.core.management import BaseCommand, CommandError, call_command
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

from gpuportal.monitoring import migrations_due
from gpuportal.supervisor import (
    AlreadyRunning,
    Supervisor,
    own_scripts,
    process_table,
    take_lock,
)
from gpuportal.supervisor.kernel import write_lock
from gpuportal.supervisor.starter import Starter
from gpuportal.supervisor.tcp_options import set_tcp_options
from telemetry import paths

# Ports after an occupied one that are tried for the advice, and TCP's last port.
PORTS_TRIED, MOST_PORT = 50, 65_535
DISK_NEEDED_BYTES = 200 * 2**20
BROKER_SECONDS = 10.0
SLOW_START_SECONDS = 60.0


class Command(BaseCommand):
    """Start everything, keep it running, and stop it without leftovers."""

    help = "Run web, worker, beat, ingest, the node workers and the broker."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--bind", default="127.0.0.1", help="address to serve on")
        parser.add_argument("--port", type=int, default=8010)
        parser.add_argument(
            "--nodes",
            default="auto",
            help="auto, none, or names of the nodes to run on this machine",
        )
        parser.add_argument(
            "--no-demo",
            action="store_true",
            help="do not load the demo lab into an empty portal (always so in "
            "production)",
        )
        parser.add_argument(
            "--own-scripts",
            choices=own_scripts.ANSWERS,
            default="ask",
            help="whether own scripts run where jobs cannot have Unix users of their "
            "own; ask asks once at the terminal",
        )
        parser.add_argument(
            "--with-starter",
            action="store_true",
            help="end when the shell that started this ends (make run sets this)",
        )

    def handle(self, *args: object, **options: object) -> None:
        """Lock, take the port, prepare, run, stop."""
        bind, port = str(options["bind"]), int(str(options["port"]))
        # First, because the present shell counts, not the one of a minute later.
        starter = Starter() if options["with_starter"] else None
        lock = self._lock()
        listener = self._listen(bind, port)
        port = listener.getsockname()[1]
        address = f"http://{_shown(bind)}:{port}/"
        write_lock(lock, f"process {os.getpid()}, {address}")
        self._need_disk()
        # WhiteNoise warns about a missing folder, even an unused one.
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        supervisor = Supervisor(
            root=settings.BASE_DIR, log_dir=paths.var_dir() / "log", say=self.say
        )
        try:
            self._start(supervisor, listener, address, options)
            while not supervisor.stopping:
                supervisor.run_round()
                if starter is not None and starter.gone():
                    self.say("the process that started this has ended;")
                    break
        finally:
            if supervisor.children:
                self.say("stopping ...")
            supervisor.stop()
            listener.close()
        self.say("stopped; nothing is left running.")
        if supervisor.failed:
            sys.exit(1)

    def say(self, text: str) -> None:
        """Print one line, and go on if the terminal was closed."""
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except OSError:
            return

    # --- before the first process ---------------------------------------------

    def _lock(self) -> IO[str]:
        try:
            return take_lock(paths.var_dir() / "run" / "portal.lock")
        except AlreadyRunning as error:
            raise CommandError(
                f"the portal already runs in this checkout ({error.holder})"
            ) from None

    def _listen(self, bind: str, port: int) -> socket.socket:
        """Open the site's port. The web process inherits it, so no other process can
        take it."""
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, number)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except (OSError, OverflowError) as error:
            free = _free_port(bind, port)
            hint = f"; port {free} is free: make run PORT={free}" if free else ""
            raise CommandError(
                f"cannot serve on {bind} port {port}: "
                f"{getattr(error, 'strerror', None) or error}{hint}",
                returncode=2,
            ) from None
        set_tcp_options(listener)
        listener.listen(512)
        return listener

    def _need_disk(self) -> None:
        free_bytes = shutil.disk_usage(paths.var_dir()).free
        if free_bytes < DISK_NEEDED_BYTES:
            raise CommandError(
                f"the disk of {paths.var_dir()} is full: {free_bytes // 2**20} MiB "
                f"free, {DISK_NEEDED_BYTES // 2**20} MiB needed"
            )

    # --- the start -----------------------------------------------------------

    def _start(
        self,
        supervisor: Supervisor,
        listener: socket.socket,
        address: str,
        options: dict[str, object],
    ) -> None:
        embedded_url = paths.embedded_redis_url()
        if embedded_url == settings.REDIS_URL:
            self._start_valkey(supervisor)
        else:
            self._need_broker()
        self._migrate()
        self._keep_private()
        self._own_scripts(str(options["own_scripts"]))
        self._workspaces(address)
        # All checks in production, where a mistake harms others. Elsewhere only the
        # check for the front-end packages, because each second counts.
        self.check(
            tags=None if settings.PRODUCTION else [Tags.staticfiles],
            databases=[DEFAULT_DB_ALIAS],
        )
        made = self._demo(bool(options["no_demo"]))
        nodes = process_table.local_nodes(str(options["nodes"]))
        web, *others = process_table.control(listener_fd=listener.fileno())
        # Start the web first and alone, because people wait for the first page.
        supervisor.start(web)
        self._wait_for_web(supervisor, address)
        if supervisor.stopping:
            return
        for spec in others:
            supervisor.start(spec)
        for node in nodes:
            supervisor.start(
                process_table.node(node, web_url=address.rstrip("/")),
            )
        connections.close_all()
        self._announce(address, nodes, made)

    def _start_valkey(self, supervisor: Supervisor) -> None:
        path = paths.embedded_socket()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.parent.stat().st_uid != os.getuid():
            # It may be under /tmp, where another user could have made it.
            raise CommandError(f"{path.parent} belongs to another user")
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)
        supervisor.start(process_table.valkey(path))
        client = redis.Redis(unix_socket_path=str(path))
        deadline = time.monotonic() + BROKER_SECONDS
        while not supervisor.stopping:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise CommandError(
                        "the embedded Valkey does not start: see "
                        f"{paths.var_dir() / 'log' / 'valkey.log'}"
                    ) from None
                supervisor.run_round()
        client.close()

    def _need_broker(self) -> None:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=5)
        try:
            client.ping()
        except redis.RedisError as error:
            raise CommandError(f"REDIS_URL does not answer: {error}") from None
        finally:
            client.close()

    def _migrate(self) -> None:
        if migrations_due.made_before_first_release():
            raise CommandError(
                f"{migrations_due.TOO_OLD} {migrations_due.way_to_new_database()}",
                returncode=2,
            )
        executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            self.say("preparing the database ...")
            call_command("migrate", interactive=False, verbosity=0)

    def _keep_private(self) -> None:
        """Keep sessions, logs and uploads from jobs, which run as other Unix users.

        The jobs' folders are beside them, so the parent folder stays passable.
        """
        for folder in (settings.MEDIA_ROOT, paths.var_dir() / "log"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
        database = connections[DEFAULT_DB_ALIAS]
        if database.vendor == "sqlite":
            for tail in ("", "-wal", "-shm"):
                path = Path(f"{database.settings_dict['NAME']}{tail}")
                if path.exists():
                    path.chmod(0o600)

    def _own_scripts(self, said: str) -> None:
        """Decide whether own scripts run, for this process and those it starts."""
        if settings.PRODUCTION or settings.ALLOW_UNISOLATED_SCRIPTS:
            return
        node_dir = paths.var_dir() / "node"
        node_dir.mkdir(exist_ok=True)
        found, line = own_scripts.choice(
            said,
            needed=(
                *(node_dir.parent, settings.BASE_DIR),
                *(Path(sys.prefix), Path(sys.base_prefix)),
            ),
            kept=paths.var_dir() / "own-scripts",
            ask=own_scripts.at_terminal(),
            user=getpass.getuser(),
        )
        os.environ.update(own_scripts.VARIABLES[found])
        settings.OWN_IDS = found is own_scripts.OwnScripts.OWN_IDS
        settings.ALLOW_UNISOLATED_SCRIPTS = found is own_scripts.OwnScripts.SHARED
        self.say(line)

    def _workspaces(self, address: str) -> None:
        """Offer workspaces where a browser on this machine finds their hosts.

        Browsers take every name below localhost for this machine.
        """
        parts = urlsplit(address)
        local = parts.hostname in ("127.0.0.1", "::1", "localhost")
        if local and not (settings.PRODUCTION or settings.WORKSPACE_ORIGIN):
            settings.WORKSPACE_ORIGIN = f"http://*.localhost:{parts.port}"
            os.environ["WORKSPACE_ORIGIN"] = settings.WORKSPACE_ORIGIN

    def _demo(self, unwanted: bool) -> bool:
        """Load the demo lab into an empty portal. Return True if logins were
        printed."""
        from reservations.models import User

        if unwanted or settings.PRODUCTION or User.objects.exists():
            return False
        self.say("loading the demo lab (the first start only) ...")
        call_command("demo_lab", stdout=self.stdout)
        return True

    def _wait_for_web(self, supervisor: Supervisor, address: str) -> None:
        began = time.monotonic()
        said = False
        while not supervisor.stopping and not _answers(address):
            supervisor.run_round()
            if not said and time.monotonic() - began > SLOW_START_SECONDS:
                said = True
                self.say(
                    "the web process is slow to answer: see "
                    f"{paths.var_dir() / 'log' / 'web.log'}"
                )

    def _announce(
        self,
        address: str,
        nodes: Sequence[process_table.NodeProcess],
        made: bool,
    ) -> None:
        names = [
            f"{node.name}{' (simulated)' if node.simulated else ''}" for node in nodes
        ]
        self.say(f"nodes: {', '.join(names) or 'none on this machine'}")
        logins = paths.secret_file("logins.txt")
        if made:
            self.say(f"The logins above are kept in {logins} (mode 600).")
        elif logins.exists():
            self.say(f"logins: {logins}")
        self.say(f"GPU Portal is ready: {address}   (stop with Ctrl-C)")


def _free_port(bind: str, taken: int) -> int | None:
    """Return the next port that can be bound, or None."""
    for port in range(taken + 1, min(taken + PORTS_TRIED, MOST_PORT) + 1):
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, number) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError:
            continue
        return port
    return None


def _shown(bind: str) -> str:
    """Return the address to type in a browser on this machine."""
    if bind in ("", "0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{bind}]" if ":" in bind else bind


def _answers(address: str) -> bool:
    """Return whether the web process and its services are up."""
    host = next((h for h in settings.ALLOWED_HOSTS if not h.startswith(("*", "."))), "")
    netloc = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(netloc, timeout=1.0)
    try:
        connection.request("GET", "/healthz", headers={"Host": host or netloc})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
